"""A graph over users' rows, whose components have pooled models. It stores its edges; there is no n × n matrix."""

from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from coterie.arrays import Array, Ints
from coterie.errors import FileError
from coterie.models._kernels.rows import user_graph as kernels
from coterie.models._kernels.rows.user_graph_edges import HALVES, ROWS
from coterie.models.files import Tensors, take
from coterie.models.rows.ridge_rows import RidgeRows


@final
class UserGraph:
    """Edges, components and their pools, over `user_rows`; rows must be added and removed in both.

    `p` is the probability of an edge between a newcomer and each earlier row. None is 3·log(n)/n, where n
    counts the newcomer; 1 is the complete graph.
    """

    def __init__(self, user_rows: RidgeRows, p: float | None) -> None:
        self.user_rows = user_rows
        self.pools = user_rows.sibling()
        self.everybody = user_rows.sibling()  # one row: all users' statistics, used for unknown users
        self.everybody.take()
        self.p = -1.0 if p is None else p
        self.rows = kernels.make()

    def fit(self) -> None:
        """Make room for one new row and one round, as the kernels' `graph_has_room` requires."""
        n = len(self) + 1
        pairs = self.user_rows.entries
        self.user_rows.fit(n, pairs + 1)
        self.pools.fit(n + 2, 2 * pairs + 4)
        self.everybody.fit(1, self.everybody.entries + 1)
        graph = self.rows
        if n > len(graph.head) or graph.size[HALVES] + 2 * n > len(graph.to):
            self.rows = kernels.grown(graph, n if n <= len(graph.head) else 2 * n, n)

    def arrive(self, seed: int) -> None:
        """Add a row that has learned nothing; its edges follow from `seed` and its number."""
        self.fit()
        kernels.arrive(self.rows, self.pools.rows, self.p, seed)

    def cut_edges(self, row: int, alpha2: float) -> None:
        """Cut the row's edges to rows that differ too much, and split components."""
        self.fit()
        kernels.cut_edges(self.rows, self.user_rows.rows, self.pools.rows, row, alpha2)

    def leave(self, row: int) -> None:
        """Remove a row; the last one takes its place. `user_rows` must do the same."""
        self.fit()
        kernels.leave(self.rows, self.user_rows.rows, self.pools.rows, row)
        everyone_else = np.arange(len(self) + 1)
        self._sum_everybody(everyone_else[everyone_else != row])

    def _sum_everybody(self, rows: Ints) -> None:
        """Compute the sum of these rows' statistics."""
        self.everybody.clear(0)
        self.everybody.pool_all(0, self.user_rows, rows)

    def learn(self, row: int, items: Array, payoff: float) -> None:
        """Update the row's component and the pool of all users with a payoff."""
        self.pools.update(self.component(row), items, payoff)
        self.everybody.update(0, items, payoff)

    def component(self, row: int) -> int:
        """Return the pool of a row's component."""
        return int(self.rows.home[row])

    def members(self, pool: int) -> int:
        """Return how many rows a component has."""
        return int(self.rows.members[pool])

    def component_rows(self, row: int) -> Ints:
        """Return the rows of a row's component."""
        return np.flatnonzero(self.rows.home[: len(self)] == self.rows.home[row])

    def __len__(self) -> int:
        return int(self.rows.size[ROWS])

    def edges(self) -> Ints:
        """Return all edges as pairs of rows, in the order they were drawn: (edges, 2)."""
        halves: Ints = self.rows.to[: self.rows.size[HALVES]].astype(np.int64).reshape(-1, 2)
        return halves[halves[:, 0] >= 0][:, ::-1].copy()

    def _tree(self) -> NDArray[np.uint8]:
        """Return for each stored edge whether it is in the spanning tree of its component."""
        end = int(self.rows.size[HALVES])
        return np.asarray(self.rows.tree[:end:2][self.rows.to[:end:2] >= 0], dtype=np.uint8)

    def tensors(self) -> Tensors:
        """Return everything as arrays, components numbered by first appearance."""
        homes = self.rows.home[: len(self)]
        pools, first, home = np.unique(homes, return_index=True, return_inverse=True)
        order = np.argsort(first)
        number = np.empty(len(order), dtype=np.int64)
        number[order] = np.arange(len(order))
        return {
            "component": number[home] if len(home) else np.zeros(0, dtype=np.int64),
            "edges": self.edges(),
            "tree": self._tree(),
            **self.pools.tensors("component", pools[order]),
            **self.everybody.tensors("everybody", np.zeros(1, dtype=np.int64)),
        }

    def restore(self, tensors: Tensors, n_rows: int) -> None:
        """Restore what `tensors` returned, if components and edges are consistent."""
        home = take(tensors, "component", "i", (n_rows,))
        pairs = take(tensors, "edges", "i", (None, 2))
        tree = take(tensors, "tree", "u", (len(pairs),))
        n_pools = int(home.max(initial=-1)) + 1
        low, high = pairs.min(axis=1), pairs.max(axis=1)
        sound = n_pools <= n_rows and (low >= 0).all() and (high < n_rows).all() and (low < high).all()
        sound = sound and len(np.unique(low * n_rows + high)) == len(pairs)
        sound = sound and np.array_equal(np.unique(home), np.arange(n_pools))
        if not (sound and self._connects(pairs, tree, home, n_pools)):
            raise FileError("the graph in the model file contradicts its components")
        pools = self.pools.restore("component", tensors, n_pools)
        everybody = self.everybody.restore("everybody", tensors, 1)
        if everybody.times[0] != self.user_rows.rows.times[:n_rows].sum():
            raise FileError("the pool of everybody in the model file is not the sum of its users")
        self.everybody.rows = everybody
        self.pools.rows = pools
        rows = kernels.grown(kernels.make(), n_rows + 1, len(pairs) + n_rows)
        kernels.rebuild(rows, home, np.array(pairs), np.array(tree))
        self.rows = rows

    def _connects(self, pairs: Ints, tree: NDArray[np.uint8], home: Ints, n_pools: int) -> bool:
        """Return whether the edges connect exactly the components, and trees span them."""
        from scipy.sparse import coo_array  # imported late: it is slow to import
        from scipy.sparse.csgraph import connected_components

        branches = pairs[tree > 0]
        ones: Any = np.ones(len(branches), dtype=np.int8)
        shape = (len(home), len(home))
        n, found = connected_components(coo_array((ones, tuple(branches.T)), shape=shape), directed=False)
        same = len(set(zip(found.tolist(), home.tolist(), strict=True))) == n == n_pools
        inside = bool((home[pairs[:, 0]] == home[pairs[:, 1]]).all())
        return same and inside and len(branches) == len(home) - n_pools
