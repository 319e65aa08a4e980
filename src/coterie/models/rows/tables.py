"""COFIBA's users in rows, with sums over a group and views of all rows at once.

Not rows of `ridge_rows`: views of all users are one matrix product here, and a compiled update would change the last
bits of results. A row's facts are Σ x xᵀ and Σ y x. For vectors the inverse and the weights follow by rank-one
updates, and `update` writes all four. For items a row is a count and a total per item with data.
"""

from collections.abc import Hashable, Sequence
from typing import Any, TypeAlias, final

import numpy as np

from coterie.arrays import Floats, Ints
from coterie.errors import FileError
from coterie.models._kernels.rows.sums import total
from coterie.models.checks import read_items, read_vectors
from coterie.models.context_kind import check_one_kind
from coterie.models.files import Tensors, pack_ids, take, unpack_ids
from coterie.models.protocol import View
from coterie.models.rows.ridge_rows import SOUND

Column: TypeAlias = tuple[Ints, Ints, Floats]  # an item's rows with data, their counts and totals
NOTHING: Column = (np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64), np.empty(0))


def make_table(n_features: int | None, one_hot: bool) -> "Table":
    """Return an empty table for vectors of `n_features`, or for item ids."""
    kind = check_one_kind(n_features, one_hot)
    return ItemTable() if kind.n_features is None else VectorTable(kind.n_features)


def solve_view(gram: Floats, moment: Floats, contexts: Floats) -> View:
    """Return estimates and spreads of M = I + gram and b = moment."""
    solved = np.linalg.solve(np.eye(len(gram)) + gram, np.column_stack([moment, contexts.T]))
    squares = np.einsum("kf,fk->k", contexts, solved[:, 1:])
    return View(contexts @ solved[:, 0], np.sqrt(np.maximum(squares, 0)))


def untouched(contexts: Floats) -> View:
    """Return the view of M = I and b = 0."""
    return View(np.zeros(len(contexts)), np.sqrt(np.einsum("kf,kf->k", contexts, contexts)))


@final
class VectorTable:
    """Rows over feature vectors: M = I + Σ x xᵀ, b = Σ y x, w = M⁻¹b for every row."""

    def __init__(self, n_features: int) -> None:
        self.n_features = n_features
        self.n_rows = 0
        d = n_features
        self._arrays = [np.empty((0, *shape)) for shape in ((d, d), (d,), (d, d), (d,))]  # with room to grow

    @property
    def gram(self) -> Floats:
        return self._arrays[0][: self.n_rows]  # Σ x xᵀ: (rows, d, d)

    @property
    def moment(self) -> Floats:
        return self._arrays[1][: self.n_rows]  # Σ y x: (rows, d)

    @property
    def inverse(self) -> Floats:
        return self._arrays[2][: self.n_rows]  # (I + gram)⁻¹

    @property
    def weight(self) -> Floats:
        return self._arrays[3][: self.n_rows]  # inverse · moment

    def read(self, contexts: Any) -> Floats:
        """Check candidates and return them as (candidates, n_features)."""
        return read_vectors(contexts, self.n_features)

    def grow(self) -> int:
        """Add an empty row, and return its number."""
        if self.n_rows == len(self._arrays[0]):
            more = max(16, self.n_rows)
            self._arrays = [np.concatenate([a, np.zeros((more, *a.shape[1:]))]) for a in self._arrays]
        self.n_rows += 1
        self.inverse[-1] = np.eye(self.n_features)
        return self.n_rows - 1

    def delete(self, row: int) -> None:
        """Forget a row; those after it move up by one."""
        for array in self._arrays:
            array[row : self.n_rows - 1] = array[row + 1 : self.n_rows]
            array[self.n_rows - 1] = 0.0
        self.n_rows -= 1

    def update(self, row: int, context: Floats, payoff: float) -> None:
        """Update a row with a payoff."""
        self.gram[row] += np.outer(context, context)
        self.moment[row] += payoff * context
        v = self.inverse[row] @ context
        s = 1 + float(v @ context)
        self.weight[row] += v * ((payoff - float(self.weight[row] @ context)) / s)
        self.inverse[row] -= np.outer(v, v) / s

    def view(self, row: int, contexts: Floats) -> View:
        """Return a row's estimates and spreads; row -1 has learned nothing."""
        if row < 0:
            return untouched(contexts)
        squares = np.einsum("kf,fg,kg->k", contexts, self.inverse[row], contexts)
        return View(contexts @ self.weight[row], np.sqrt(np.maximum(squares, 0)))

    def views(self, contexts: Floats, rows: Ints | None = None) -> View:
        """Return the estimates and spreads of some rows, or of all: (rows, candidates) each."""
        inverse, weight = (a if rows is None else a[rows] for a in (self.inverse, self.weight))
        # One matrix product for all rows and contexts: xᵀM⁻¹x is M⁻¹ times x xᵀ, both flattened.
        pairs = np.einsum("kf,kg->fgk", contexts, contexts).reshape(self.n_features**2, -1)
        squares = inverse.reshape(len(weight), len(pairs)) @ pairs
        return View(weight @ contexts.T, np.sqrt(np.maximum(squares, 0)))

    def pooled(self, rows: Ints, contexts: Floats) -> View:
        """Return the estimates and spreads of M = I + Σ (M_j − I), b = Σ b_j over some rows."""
        d = self.n_features
        gram = total(self.gram.reshape(self.n_rows, d * d), rows).reshape(d, d)
        return solve_view(gram, total(self.moment, rows), contexts)

    def tensors(self) -> Tensors:
        """Return all rows as arrays, including the caches, so that a loaded table continues bit for bit."""
        return {"gram": self.gram, "moment": self.moment, "inverse": self.inverse, "weight": self.weight}

    def restore(self, tensors: Tensors, n_rows: int) -> None:
        """Restore saved arrays, if the caches agree with the facts."""
        d = self.n_features
        shapes = {
            "gram": (n_rows, d, d),
            "moment": (n_rows, d),
            "inverse": (n_rows, d, d),
            "weight": (n_rows, d),
        }
        arrays = [take(tensors, name, "f", shape).astype(np.float64) for name, shape in shapes.items()]
        M = np.eye(d) + arrays[0]
        size = 1 + np.einsum("nii->n", arrays[0])[:, None]
        off = np.abs(np.einsum("nij,nj->ni", M, arrays[3]) - arrays[1])
        turned = np.abs((M @ arrays[2] - np.eye(d)).reshape(n_rows, d * d))
        if not ((off <= SOUND * size).all() and (turned <= SOUND * size).all()):
            raise FileError("the users' models in the model file contradict each other")
        self._arrays, self.n_rows = arrays, n_rows


@final
class ItemTable:
    """Rows over item ids: memory grows with the (row, item) pairs that have data."""

    def __init__(self) -> None:
        self.n_rows = 0
        self._items: dict[Hashable, dict[int, tuple[int, float]]] = {}  # item → row → times, total
        self._columns_of: dict[Hashable, Column] = {}  # the same as arrays, until the item is updated

    def read(self, contexts: Any) -> list[Hashable]:
        """Check candidates and return them as a list of ids."""
        return read_items(contexts)

    def grow(self) -> int:
        """Add a row."""
        self.n_rows += 1
        return self.n_rows - 1

    def delete(self, row: int) -> None:
        """Forget a row."""
        moved = {
            item: {r - (r > row): pair for r, pair in pairs.items() if r != row}
            for item, pairs in self._items.items()
        }
        self._items = {item: pairs for item, pairs in moved.items() if pairs}
        self._columns_of.clear()
        self.n_rows -= 1

    def update(self, row: int, context: Hashable, payoff: float) -> None:
        """Update a row with a payoff."""
        pairs = self._items.setdefault(context, {})
        times, total = pairs.get(row, (0, 0.0))
        pairs[row] = (times + 1, total + payoff)
        self._columns_of.pop(context, None)

    def view(self, row: int, contexts: Sequence[Hashable]) -> View:
        """Return a row's estimates and spreads."""
        pairs = [self._items.get(item, {}).get(row, (0, 0.0)) for item in contexts]
        times, total = np.array([n for n, _ in pairs]), np.array([y for _, y in pairs])
        return View(total / (1 + times), 1 / np.sqrt(1 + times))

    def views(self, contexts: Sequence[Hashable], rows: Ints | None = None) -> View:
        """Return the estimates and spreads of some rows, or of all."""
        estimate, spread = np.zeros((self.n_rows, len(contexts))), np.ones((self.n_rows, len(contexts)))
        for k, item in enumerate(contexts):
            touched, times, total = self._columns(item)
            estimate[touched, k], spread[touched, k] = total / (1 + times), 1 / np.sqrt(1 + times)
        return View(estimate, spread) if rows is None else View(estimate[rows], spread[rows])

    def pooled(self, rows: Ints, contexts: Sequence[Hashable]) -> View:
        """Return the estimates and spreads of the rows' sum."""
        inside = np.zeros(self.n_rows, dtype=np.bool_)
        inside[rows] = True
        estimate, spread = np.zeros(len(contexts)), np.ones(len(contexts))
        for k, item in enumerate(contexts):
            touched, times, total = self._columns(item)
            count = times[inside[touched]].sum()
            estimate[k] = total[inside[touched]].sum() / (1 + count)
            spread[k] = 1 / np.sqrt(1 + count)
        return View(estimate, spread)

    def tensors(self) -> Tensors:
        """Return all rows as arrays: one entry per row and item with data."""
        columns = [self._columns(item) for item in self._items]
        item = [np.full(len(rows), i) for i, (rows, _, _) in enumerate(columns)]
        nothing = np.empty(0, dtype=np.int64)
        return {
            "touched_items": pack_ids(self._items),
            "pair_row": np.concatenate([nothing, *(rows for rows, _, _ in columns)]),
            "pair_item": np.concatenate([nothing, *item]),
            "pair_count": np.concatenate([nothing, *(times for _, times, _ in columns)]),
            "pair_total": np.concatenate([np.empty(0), *(total for _, _, total in columns)]),
        }

    def restore(self, tensors: Tensors, n_rows: int) -> None:
        """Restore saved arrays."""
        items = unpack_ids(tensors, "touched_items")
        row = take(tensors, "pair_row", "i", (None,))
        item, count = (take(tensors, name, "i", row.shape) for name in ("pair_item", "pair_count"))
        total = take(tensors, "pair_total", "f", row.shape)
        sound = (row >= 0) & (row < n_rows) & (item >= 0) & (item < len(items))
        if not (sound & (count >= 1) & (np.abs(total) <= count)).all():
            raise FileError("the histories in the model file contradict each other")
        found: dict[Hashable, dict[int, tuple[int, float]]] = {name: {} for name in items}
        for r, i, n, y in zip(row.tolist(), item.tolist(), count.tolist(), total.tolist(), strict=True):
            found[items[i]][r] = (n, y)
        self._items, self._columns_of, self.n_rows = found, {}, n_rows

    def _columns(self, item: Hashable) -> Column:
        """Return an item's rows with data, their counts and totals."""
        if item not in self._items:
            return NOTHING
        if item not in self._columns_of:
            pairs = self._items[item]
            rows = np.fromiter(pairs, dtype=np.int64, count=len(pairs))
            times = np.fromiter((n for n, _ in pairs.values()), dtype=np.int64, count=len(pairs))
            total = np.fromiter((y for _, y in pairs.values()), dtype=np.float64, count=len(pairs))
            self._columns_of[item] = rows, times, total
        return self._columns_of[item]


Table: TypeAlias = VectorTable | ItemTable
