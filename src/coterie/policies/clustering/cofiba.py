"""COFIBA: collaborative filtering bandits (Li, Karatzoglou, Gentile, 2016, Figure 1).

paper                    here
M_i, b_i, w_i            a row of `user_rows`
G^I_t, Î_{h,t}           `_item_graph` and `_cluster`, the cluster h of each item
G^U_{t,h}                `_user_graph` on layer h of `_layers`
N_k, M̄_{N_k}, b̄_{N_k}    the user's connected component on the layer of candidate k's cluster, its pooled rows
CB_{N_k}(x)              alpha's scale * spread of the pool
CB_i(x) in both tests    alpha2's scale * spread of the user alone
N^U_{ℓ,t+1}(i)           the users that agree with i on item ℓ: |w_i·x − w_j·x| ≤ CB_i(x) + CB_j(x)

Both scales are α·√log(1+t). After each payoff, the user's edges to those who disagree on the item are deleted on the
layer of the item's cluster; then the item's edges to items on which the user agrees with different users are
deleted. If the item's cluster splits, its largest part (the item's own, if as large) keeps the layer, and
every other part gets a new one with all edges. All layers start from one random graph, so memory is one list
of edges plus one byte per edge and layer; there is no n × n matrix unless `complete` requests all edges.

The paper knows all users and items in advance. Here they are added when first seen: a user gets edges by the
same random rule on every layer; an item gets edges by the same rule into the largest cluster (the oldest of
equals). Until the first payoff, or `add`, a user belongs to the component of all users on every layer, as at
the start of the paper's algorithm, and an item is treated as one of the largest cluster. An item is its id
or, for vectors, exactly its feature vector: this is for a finite set of items, because each new vector that
is learned is stored as an item.

The paper does not say whose neighbourhoods of the two items are compared. Here both are those of the served
user, with statistics that include the new payoff, over all known users. Using the user's neighbours in the
graph for the played item instead would delete nearly every edge at once: a sparse graph contains few of those
who agree.

Dropping a user removes the user's payoffs from every pool and the user's edges from every layer. Items, and the
clusters they are in by then, stay.
"""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from coterie.arrays import Bools, Ints
from coterie.errors import FileError
from coterie.models import View
from coterie.models.actions import Actions
from coterie.models.bounds import is_near
from coterie.models.checks import check_flag, check_number
from coterie.models.files import Tensors, pack_ids, take, unpack_ids
from coterie.models.rows.layered_graph import ALL_ALIVE, NO_LABELS, Alive, LayeredGraph
from coterie.policies.base.decision import Decision, decide_with
from coterie.policies.base.parameters import Seed, make_random, scale_at
from coterie.policies.clustering.numbered_users import RowUsers


@final
@dataclass(kw_only=True, eq=False, repr=False)
class COFIBA(RowUsers):
    """Clusters items by how they divide the users, and users separately for every cluster of items.

    alpha2
        How wide the bounds are in the two tests that delete edges: smaller values separate users and items sooner.
    complete
        Start from all edges, not from 3·log(n)/n of them: for small numbers of users.
    seed
        Seed of the random edges: an integer, or a numpy.random.Generator.

    n_features, one_hot and alpha are as in every `Policy`. Raises ParameterError if a setting is not valid.

    >>> policy = COFIBA(one_hot=True).fit({"user": ["ann"], "item": ["jazz"], "payoff": [1]})
    >>> policy.choose("bob", ["news", "jazz"]), policy.item_clusters
    (1, [['jazz']])
    """

    name = "cofiba"
    keeps_order = True
    reference = "Li, Karatzoglou, Gentile 2016: Collaborative filtering bandits"

    alpha2: float = 0.1
    complete: bool = False
    seed: Seed = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.alpha2 = check_number("alpha2", self.alpha2)
        check_flag("complete", self.complete)
        _, self.seed_number = make_random(self.seed)
        self._user_graph = LayeredGraph()
        self._layers: dict[int, Alive] = {0: ALL_ALIVE}  # the live edges between users, by item cluster
        self._labels: dict[int, Ints] = {}  # the users' components on a layer, until it loses edges
        self._item: dict[Hashable, int] = {}  # items: ids, or the bytes of vectors
        self._item_keys: list[Hashable] = []
        self._item_graph = LayeredGraph()
        self._items_alive = ALL_ALIVE
        self._cluster: Ints = np.empty(0, dtype=np.int64)  # of each item

    def _decide(self, user: Hashable, row: int, contexts: Actions, scale: float) -> Decision:
        """Score each candidate by the pooled users of the user's component, on the candidate's layer."""
        items = self.user_rows.numbers(contexts)
        own = self.user_rows.view(row, items)
        estimate, spread = own.estimate.copy(), own.spread.copy()
        members = np.ones(len(estimate), dtype=np.int64)
        if row < 0 and len(self._roster):
            estimate, spread = self.user_rows.pooled(np.arange(len(self._roster)), items)
            members += len(self._roster)
        elif row >= 0:
            layers = [self._layer_of(cluster) for cluster in self._clusters_of(contexts)]
            for layer in dict.fromkeys(layers):
                shown = [k for k, other in enumerate(layers) if other == layer]
                rows = self._component(row, layer)
                estimate[shown], spread[shown] = self.user_rows.pooled(rows, items[shown])
                members[shown] = len(rows)
        return decide_with(user, contexts, own, View(estimate, spread), scale, members)

    def _learn(self, row: int, contexts: Actions, payoff: float) -> None:
        """Update the user, then the users' graph of the item's cluster, then the items' graph."""
        scale = scale_at(self.alpha2, self.learned)
        item = self._add_item(contexts[0])
        self.user_rows.update(row, self.user_rows.learnable(contexts), payoff)
        self._part_users(row, item, contexts, scale)
        self._part_items(row, item, scale)

    def _part_users(self, row: int, item: int, contexts: Actions, scale: float) -> None:
        """Delete the user's edges to those who disagree on the item, on the layer of the item's cluster."""
        cluster = int(self._cluster[item])
        edges, others = self._user_graph.touching(row, self._layers[cluster])
        apart = ~self._agreeing(row, contexts, scale, others)[:, 0]
        if apart.any():
            self._layers[cluster] = self._user_graph.without(self._layers[cluster], edges[apart])
            self._labels.pop(cluster, None)

    def _part_items(self, row: int, item: int, scale: float) -> None:
        """Delete the item's edges to items on which the user agrees with different users; split its cluster."""
        edges, others = self._item_graph.touching(item, self._items_alive)
        if not len(edges):
            return
        agree = self._agreeing(row, self._contexts_of([item, *others.tolist()]), scale)
        differ = (agree[:, 1:] != agree[:, :1]).any(axis=0)
        if not differ.any():
            return
        self._items_alive = self._item_graph.without(self._items_alive, edges[differ])
        cluster = int(self._cluster[item])
        inside = np.flatnonzero(self._cluster == cluster)
        labels = self._item_graph.labels(self._items_alive)
        parts = [inside[labels[inside] == label] for label in dict.fromkeys(labels[inside].tolist())]
        stays = max(parts, key=lambda part: (len(part), item in part))  # the first of equals
        for part in parts:
            if part is not stays:
                new = max(self._layers) + 1
                self._cluster[part] = new
                self._layers[new] = ALL_ALIVE

    def _agreeing(self, row: int, contexts: Actions, scale: float, others: Ints | None = None) -> Bools:
        """Return which of the others, or of all, agree with a user on each context: (users, contexts)."""
        items, rows = self.user_rows.numbers(contexts), slice(len(self._roster)) if others is None else others
        found: Bools = is_near(*self.user_rows.views(rows, items), *self.user_rows.view(row, items), scale)
        return found

    def _layer_of(self, cluster: int) -> int:
        """Return the layer of a cluster: its own, or -1, the one of all clusters that have deleted no edge."""
        return cluster if len(self._layers[cluster]) else -1

    def _component(self, row: int, layer: int) -> Ints:
        """Return the users connected with this one on a layer."""
        labels = self._labels.get(layer, NO_LABELS)
        if len(labels) < self._user_graph.n_nodes:
            labels = self._user_graph.labels(self._layers.get(layer, ALL_ALIVE), labels)
            self._labels[layer] = labels
        return np.flatnonzero(labels == labels[row])

    def _keys(self, contexts: Actions) -> list[Hashable]:
        # Adding 0.0 turns -0.0 into 0.0: the same number with different bytes.
        return contexts if self.one_hot else [(x + 0.0).tobytes() for x in contexts]

    def _contexts_of(self, items: Sequence[int]) -> Actions:
        """Return known items: ids, or vectors."""
        found: list[Any] = [self._item_keys[item] for item in items]
        return found if self.one_hot else np.array([np.frombuffer(key) for key in found])

    def _largest_cluster(self) -> int:
        if not len(self._cluster):
            return 0
        return int(np.argmax(np.bincount(self._cluster)))

    def _clusters_of(self, contexts: Actions) -> list[int]:
        """Return the cluster of each candidate; unknown items are treated as of the largest."""
        largest = self._largest_cluster()
        rows = [self._item.get(key) for key in self._keys(contexts)]
        return [largest if row is None else int(self._cluster[row]) for row in rows]

    def _add_item(self, context: Actions) -> int:
        """Return an item's number; a new one gets edges into the largest cluster."""
        (key,) = self._keys([context])
        if key not in self._item:
            largest = self._largest_cluster()
            among = np.flatnonzero(self._cluster == largest)
            self._item[key] = self._item_graph.arrive(self._edge_seed(1), among)
            self._item_keys.append(key)
            self._cluster = np.append(self._cluster, largest)
        return self._item[key]

    def _arrive(self, row: int) -> None:
        """Connect a user with some of the others on every layer."""
        self._user_graph.arrive(self._edge_seed(0))
        self.user_rows.take()

    def _edge_seed(self, graph: int) -> int | None:
        """Return what decides the edges of users (0) or items (1); None if there are edges to all."""
        return None if self.complete else 2 * self.seed_number + graph

    def _leave(self, row: int) -> None:
        """Forget a user: payoffs and edges."""
        self.user_rows.keep(np.delete(np.arange(len(self._roster) + 1), row))
        full = {cluster: self._user_graph.alive(layer) for cluster, layer in self._layers.items()}
        stays = self._user_graph.leave(row)
        self._layers = {
            cluster: ALL_ALIVE if alive.all() else alive
            for cluster, alive in ((cluster, alive[stays]) for cluster, alive in full.items())
        }
        self._labels.clear()

    def _deciding_together(self, row: int, contexts: Actions) -> Iterable[int]:
        """Return the rows of the user's component, on the layer of the context's cluster."""
        if row < 0:
            return range(len(self._roster))
        return map(int, self._component(row, self._layer_of(self._clusters_of(contexts)[0])))

    @property
    def item_clusters(self) -> list[list[Any]]:
        """The known items, ids or vectors, by cluster."""
        order = dict.fromkeys(self._cluster.tolist())
        return [list(self._contexts_of(np.flatnonzero(self._cluster == c).tolist())) for c in order]

    def _tensors(self, n: int) -> Tensors:
        used = list(self._layers)
        deleted = [np.flatnonzero(~layer) for layer in self._layers.values()]
        items = (
            pack_ids(self._item)
            if self.n_features is None
            else self._contexts_of(range(len(self._item))).reshape(-1, self.n_features)
        )
        return {
            **self.user_rows.tensors("user", np.arange(n)),
            "items": items,
            "item_cluster": self._cluster,
            "items_deleted": np.flatnonzero(~self._items_alive),
            "layers": np.array(used, dtype=np.int64),
            "deleted_counts": np.array([len(edges) for edges in deleted], dtype=np.int64),
            "deleted": np.concatenate([np.empty(0, dtype=np.int64), *deleted]),
            **self._user_graph.tensors("users"),
            **self._item_graph.tensors("items"),
        }

    def _restore(self, tensors: Tensors, n: int) -> None:
        if self.one_hot:
            keys = unpack_ids(tensors, "items")
        else:
            vectors = take(tensors, "items", "f", (None, self.n_features))
            keys = self._keys(vectors)
        cluster = take(tensors, "item_cluster", "i", (len(keys),)).astype(np.int64)
        used = take(tensors, "layers", "i", (None,)).tolist()
        counts = take(tensors, "deleted_counts", "i", (len(used),))
        deleted = take(tensors, "deleted", "i", (int(counts.sum()),))
        user_graph, item_graph = LayeredGraph(), LayeredGraph()
        user_graph.restore("users", tensors, n)
        item_graph.restore("items", tensors, len(keys))
        gone = take(tensors, "items_deleted", "i", (None,))
        for edges, graph in ((deleted, user_graph), (gone, item_graph)):
            if not ((edges >= 0) & (edges < len(graph.ends))).all():
                raise FileError("the model file deletes edges that are not there")
        if len(set(keys)) != len(keys) or not set(cluster.tolist()) <= set(used) == set(
            range(max(len(used), 1))
        ):
            raise FileError("the items in the model file contradict each other")
        self.user_rows.rows = self.user_rows.restore("user", tensors, n)
        self._item, self._item_keys = {key: item for item, key in enumerate(keys)}, keys
        self._user_graph, self._item_graph, self._cluster = user_graph, item_graph, cluster
        self._items_alive = item_graph.without(ALL_ALIVE, gone) if len(gone) else ALL_ALIVE
        parts = np.split(deleted, np.cumsum(counts)[:-1])
        self._layers = {
            c: user_graph.without(ALL_ALIVE, edges) if len(edges) else ALL_ALIVE
            for c, edges in zip(used, parts, strict=True)
        }
        self._labels = {}
