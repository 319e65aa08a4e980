"""A given graph over users: reading it, and cutting it into clusters of limited size."""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from coterie.arrays import Ints
from coterie.errors import FileError, ParameterError
from coterie.models.checks import check_number
from coterie.models.files import Tensors, take

if TYPE_CHECKING:  # functions import what they need of SciPy: it is slow to import
    from scipy.sparse import csr_array

Edge: TypeAlias = tuple[Hashable, Hashable, float]
Graph: TypeAlias = Iterable[Any] | Mapping[Any, Any]
DENSE = 50  # below this many nodes, computing all eigenvectors is faster than two by iteration


class SocialGraph(NamedTuple):
    """An undirected graph, each pair once, the users in order of appearance."""

    users: list[Hashable]
    edges: list[Edge]

    def matrix(self) -> "csr_array":
        """Return the symmetric weights between users, sparse: (users, users)."""
        from scipy.sparse import csr_array

        row = {user: i for i, user in enumerate(self.users)}
        ends = np.array([(row[u], row[v]) for u, v, _ in self.edges], dtype=np.int64).reshape(-1, 2)
        weight = np.array([w for _, _, w in self.edges], dtype=np.float64)
        n = len(self.users)
        half = csr_array((weight, (ends[:, 0], ends[:, 1])), shape=(n, n))
        return csr_array(half + half.T)


def read_graph(graph: Graph, users: Iterable[Hashable] | None, name: str = "graph") -> SocialGraph:
    """Read edges (user, user) or (user, user, weight), {user: neighbours} or {(user, user): weight}.

    `users`, if given, are all users who may be in the graph, and come first. `name` is the parameter's, for errors.
    """
    if isinstance(users, str | bytes):
        raise ParameterError(f"users is the single string {users!r}; give a list of ids, such as [{users!r}]")
    known = dict.fromkeys(_each("users", () if users is None else users))
    seen: dict[Hashable, None] = {}
    weights: dict[tuple[Hashable, Hashable], float] = {}
    for u, v, weight in _edges(graph, seen, name):
        if u == v:
            raise ParameterError(f"{name} has an edge from {u!r} to itself; leave it out")
        pair = (v, u) if (v, u) in weights else (u, v)
        value = check_number(f"{name}: the weight between {u!r} and {v!r}", weight)
        if value <= 0:
            raise ParameterError(
                f"{name}: the weight between {u!r} and {v!r} is {value:g}, expected more than 0"
            )
        if weights.setdefault(pair, value) != value:
            raise ParameterError(
                f"{name} gives {u!r} and {v!r} two weights, {weights[pair]:g} and {value:g}; it is undirected"
            )
        seen.update({u: None, v: None})
    strangers = [user for user in seen if user not in known] if users is not None else []
    if strangers:
        raise ParameterError(
            f"{name} has {len(strangers)} users that are not in users, such as {strangers[0]!r}; "
            "add them to users or leave their edges out"
        )
    return SocialGraph(list({**known, **seen}), [(u, v, weight) for (u, v), weight in weights.items()])


def _each(name: str, values: Iterable[Hashable]) -> list[Hashable]:
    """Return ids as a list, all of them hashable."""
    try:
        found = list(values)
        for value in found:
            hash(value)
    except TypeError as error:
        raise ParameterError(f"{name} is {values!r}, expected a sequence of user ids ({error})") from error
    return found


def _edges(graph: Graph, seen: dict[Hashable, None], name: str) -> Iterable[tuple[Hashable, Hashable, Any]]:
    """Yield (user, user, weight) for every form; users of a mapping without neighbours go to `seen`."""
    if isinstance(graph, Mapping):
        for key, value in graph.items():
            if isinstance(value, int | float | np.number) and not isinstance(value, bool):
                yield *_pair(key, name), value
            elif isinstance(value, str | bytes):
                raise ParameterError(
                    f"{name}[{key!r}] is the single string {value!r}; give a list of neighbours"
                )
            else:
                seen.setdefault(key)
                weighted = (
                    value
                    if isinstance(value, Mapping)
                    else dict.fromkeys(_each(f"{name}[{key!r}]", value), 1.0)
                )
                for neighbour, weight in weighted.items():
                    yield key, neighbour, weight
        return
    if isinstance(graph, str | bytes) or not isinstance(graph, Iterable):
        raise ParameterError(
            f"{name} is {graph!r}, expected edges (user, user) or a mapping user to neighbours"
        )
    for edge in graph:
        if isinstance(edge, tuple | list) and len(edge) == 3:
            yield *_pair(edge[:2], name), edge[2]
        else:
            yield *_pair(edge, name), 1.0


def _pair(edge: object, name: str) -> tuple[Hashable, Hashable]:
    if isinstance(edge, np.ndarray):
        edge = edge.tolist()
    if not (isinstance(edge, tuple | list) and len(edge) == 2):
        raise ParameterError(f"{name} holds {edge!r}, expected an edge of two users")
    a, b = _each(name, edge)
    return a, b


def read_friends(
    user: Hashable, friends: Iterable[Hashable] | Mapping[Hashable, float]
) -> dict[Hashable, float]:
    """Return a user's friends, given as ids or as a mapping of ids to weights, with their weights."""
    graph = read_graph(
        {user: friends} if not isinstance(friends, Mapping) else {user: {**friends}}, None, "friends"
    )
    return {two if one == user else one: weight for one, two, weight in graph.edges}


def read_groups(clusters: Any) -> list[list[Hashable]]:
    """Return clusters as a list of groups of users."""
    if isinstance(clusters, str | bytes | Mapping) or not isinstance(clusters, Iterable):
        raise ParameterError(f"clusters is {clusters!r}, expected a list of groups of users")
    groups = list(clusters)
    for group in groups:
        if isinstance(group, str | bytes):
            raise ParameterError(
                f"clusters holds the single string {group!r}; give a list of groups of users"
            )
    return [_each("clusters", group) for group in groups]


def label_users(groups: Sequence[Sequence[Hashable]], users: Sequence[Hashable]) -> Ints:
    """Return the number of each user's group; users in no group get a group each."""
    row = {user: i for i, user in enumerate(users)}
    label = np.full(len(users), -1, dtype=np.int64)
    for number, group in enumerate(groups):
        for user in group:
            if user not in row:
                raise ParameterError(f"clusters holds user {user!r}, who is not in the graph")
            if label[row[user]] >= 0:
                raise ParameterError(f"clusters holds user {user!r} twice")
            label[row[user]] = number
    alone = label < 0
    label[alone] = len(groups) + np.arange(alone.sum())
    return label


def cut(weights: "csr_array", largest: int, rng: np.random.Generator) -> Ints:
    """Return a cluster number for each node, clusters of at most `largest` nodes, few edges between them.

    Every connected component that is small enough is one cluster. The others are split in two repeatedly, by
    the best normalised cut along the Fiedler vector (Shi and Malik, 2000).
    """
    label = np.full(weights.shape[0], -1, dtype=np.int64)
    waiting = components(weights)
    found = 0
    while waiting:
        nodes = waiting.pop()
        if len(nodes) <= largest:
            label[nodes] = found
            found += 1
            continue
        order = nodes[_fiedler_order(weights[nodes][:, nodes], rng)]
        at = _best_cut(weights[order][:, order])
        for half in (order[:at], order[at:]):
            waiting += components(weights[half][:, half], half)
    return label


def components(weights: "csr_array", nodes: Ints | None = None) -> list[Ints]:
    """Return the nodes of each connected component, in order; `nodes` are their numbers, if not 0, 1, …"""
    from scipy.sparse.csgraph import connected_components

    nodes = np.arange(weights.shape[0]) if nodes is None else nodes
    if not len(nodes):
        return []
    count, label = connected_components(weights, directed=False)
    order = np.argsort(label, kind="stable")
    return np.split(nodes[order], np.cumsum(np.bincount(label, minlength=count))[:-1])


def _fiedler_order(weights: "csr_array", rng: np.random.Generator) -> Ints:
    """Return the nodes of a connected graph along the second eigenvector of its normalised Laplacian."""
    from scipy.sparse import csr_array, diags_array
    from scipy.sparse.csgraph import reverse_cuthill_mckee
    from scipy.sparse.linalg import ArpackError, eigsh

    n = weights.shape[0]
    scale = 1 / np.sqrt(weights.sum(axis=1))
    similar = diags_array(scale) @ weights @ diags_array(scale)
    start = rng.standard_normal(n)  # always drawn, so that the random stream does not depend on the size
    if n < DENSE:
        second = np.linalg.eigh(similar.toarray())[1][:, -2]
    else:
        try:
            values, vectors = eigsh(similar, k=2, which="LA", v0=start, tol=1e-4, maxiter=50)
            second = vectors[:, np.argmin(values)]
        except ArpackError:  # no convergence: any order that keeps neighbours together is good enough
            return np.asarray(reverse_cuthill_mckee(csr_array(weights), symmetric_mode=True), dtype=np.int64)
    second = second * scale
    sign = 1 if second[np.argmax(np.abs(second))] > 0 else -1  # an eigenvector's sign is arbitrary
    return np.argsort(sign * second, kind="stable")


def _best_cut(weights: "csr_array") -> int:
    """Return where to split ordered nodes by the normalised cut, with at least a quarter of them on each side."""
    n = weights.shape[0]
    edges = weights.tocoo()
    forward = edges.row < edges.col
    across = np.zeros(n + 1)  # across[k]: how the cut weight changes when the k-th node joins the first half
    np.add.at(across, edges.row[forward] + 1, edges.data[forward])
    np.add.at(across, edges.col[forward] + 1, -edges.data[forward])
    cut_weight = np.cumsum(across)[1:-1]  # for first halves of 1 … n-1 nodes
    volume = np.cumsum(weights.sum(axis=1))
    value = cut_weight * (1 / volume[:-1] + 1 / (volume[-1] - volume[:-1]))
    low = max(1, n // 4)
    return int(low + np.argmin(value[low - 1 : n - low]))


def check_size(nodes: int, n_features: int | None, limit: int, way_out: str) -> None:
    """Raise ParameterError if a part of the graph needs a matrix of more than `limit` rows."""
    rows = nodes * (n_features or 1)
    if rows > limit:
        raise ParameterError(
            f"a part of the graph has {nodes} nodes, which needs a matrix of {rows} × {rows} "
            f"({rows * rows * 8 / 1e9:.3g} GB), more than limit={limit} rows; {way_out}"
        )


def pack_graph(
    users: Sequence[Hashable], edges: Sequence[Edge], clusters: Sequence[Sequence[Hashable]] | None
) -> Tensors:
    """Return edges and clusters as arrays; users are positions in `users`."""
    row = {user: i for i, user in enumerate(users)}
    groups = [] if clusters is None else clusters
    return {
        "graph_edges": np.array([(row[u], row[v]) for u, v, _ in edges], dtype=np.int64).reshape(-1, 2),
        "graph_weights": np.array([weight for _, _, weight in edges], dtype=np.float64),
        "clustered": np.array([clusters is not None], dtype=np.uint8),
        "cluster_sizes": np.array([len(group) for group in groups], dtype=np.int64),
        "cluster_users": np.array([row[user] for group in groups for user in group], dtype=np.int64),
    }


def unpack_graph(
    users: Sequence[Hashable], tensors: Tensors
) -> tuple[list[Edge], list[list[Hashable]] | None]:
    """Return the edges and clusters that `pack_graph` packed."""
    pairs = take(tensors, "graph_edges", "i", (None, 2))
    weights = take(tensors, "graph_weights", "f", (len(pairs),))
    sizes = take(tensors, "cluster_sizes", "i", (None,))
    grouped = take(tensors, "cluster_users", "i", (int(sizes.sum()),))
    for rows in (pairs, grouped):
        if not ((rows >= 0) & (rows < len(users))).all():
            raise FileError("the graph in the model file has users that the file does not have")
    edges = [(users[a], users[b], w) for (a, b), w in zip(pairs.tolist(), weights.tolist(), strict=True)]
    if not take(tensors, "clustered", "u", (1,))[0]:
        return edges, None
    names = iter([users[row] for row in grouped.tolist()])
    return edges, [[next(names) for _ in range(size)] for size in sizes.tolist()]
