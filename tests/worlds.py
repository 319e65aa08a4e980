"""Small worlds for tests: groups of users with a common taste, and rounds of them."""

from collections.abc import Hashable, Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from coterie import CAB
from coterie.policies.base.batch import Batch

Vector = NDArray[np.float64]


class Visit(NamedTuple):
    """One round."""

    user: Hashable
    contexts: Any  # as the policy takes them
    vectors: list[Vector]  # the same as a twin takes them; an item is its basis vector
    payoffs: Vector  # one for each candidate


def unit_vectors(rng: np.random.Generator, n: int, d: int) -> Vector:
    """Return n random vectors of length 1."""
    x = rng.normal(size=(n, d))
    found: Vector = x / np.linalg.norm(x, axis=1, keepdims=True)
    return found


def visits(
    n_rounds: int,
    *,
    one_hot: bool,
    seed: int,
    n_users: int = 8,
    n_groups: int = 2,
    d: int = 4,
    candidates: int = 4,
    noise: float = 0.2,
) -> Iterator[Visit]:
    """Yield rounds with new vectors each time and payoffs in [-1, 1]; a list of items may hold an item twice."""
    rng = np.random.default_rng(seed)
    tastes = rng.uniform(-1, 1, size=(n_groups, d)) if one_hot else unit_vectors(rng, n_groups, d)
    for _ in range(n_rounds):
        user = int(rng.integers(n_users))
        contexts: Any
        if one_hot:
            picked = rng.integers(d, size=candidates)
            vectors, contexts = list(np.eye(d)[picked]), [f"item {i}" for i in picked]
        else:
            contexts = unit_vectors(rng, candidates, d)
            vectors = list(contexts)
        means = np.array([tastes[user % n_groups] @ v for v in vectors])
        payoffs = np.clip(means + noise * rng.normal(size=candidates), -1, 1)
        yield Visit(user, contexts, vectors, payoffs)


def batch_of(rounds: list[Visit], one_hot: bool, d: int, log: bool) -> Batch:
    """Return rounds as a batch, with known payoffs or as a log that served candidate 1 each time."""
    n, c = len(rounds), len(rounds[0].vectors)
    if one_hot:
        items: Any = [f"item {i}" for i in range(d)]
        shown = np.array([[int(np.argmax(v)) for v in visit.vectors] for visit in rounds])
    else:
        items = np.concatenate([visit.contexts for visit in rounds])
        shown = np.arange(n * c).reshape(n, c)
    payoffs = np.array([visit.payoffs for visit in rounds])
    users = [visit.user for visit in rounds]
    if log:
        return Batch(users, shown, items, payoffs[:, 1].copy(), np.ones(n, dtype=np.int64))
    return Batch(users, shown, items, payoffs)


class World(NamedTuple):
    """Users in clusters with equal tastes, a fixed pool of items, payoffs of 0 or 1."""

    users: list[Hashable]
    taste: Vector  # (users, d)
    items: Vector  # (items, d): feature vectors, or the identity
    one_hot: bool

    def visits(self, n_rounds: int, seed: int, n_candidates: int = 5) -> Iterator[Visit]:
        """Yield rounds; items are known by their positions if they have no features."""
        rng = np.random.default_rng(seed)
        for _ in range(n_rounds):
            u = int(rng.integers(len(self.users)))
            shown = rng.permutation(len(self.items))[:n_candidates]
            vectors = self.items[shown]
            contexts: Any = shown.tolist() if self.one_hot else vectors
            chances = np.clip(vectors @ self.taste[u], 0.02, 0.98)
            yield Visit(self.users[u], contexts, list(vectors), (rng.random() < chances).astype(np.float64))


def make_world(seed: int, n_users: int, d: int, n_items: int, n_clusters: int, one_hot: bool) -> World:
    """Return a world; users are dealt into clusters in turn."""
    rng = np.random.default_rng(seed)
    if one_hot:
        d, items = n_items, np.eye(n_items)
        centres = rng.uniform(0, 1, size=(n_clusters, d))
    else:
        items = unit_vectors(rng, n_items, d)
        centres = unit_vectors(rng, n_clusters, d)
    users: list[Hashable] = [f"u{i}" for i in range(n_users)]
    return World(users, centres[np.arange(n_users) % n_clusters], items, one_hot)


def random_graph(rng: np.random.Generator, world: World, p: float, weighted: bool) -> list[Any]:
    """Return edges between users; users of one cluster have them three times as often."""
    edges: list[Any] = []
    for i, u in enumerate(world.users):
        for j in range(i):
            alike = (world.taste[i] == world.taste[j]).all()
            if rng.random() < (3 * p if alike else p):
                edges.append(
                    (u, world.users[j], float(rng.choice([0.5, 1, 2]))) if weighted else (u, world.users[j])
                )
    return edges


def adjacency(users: list[Any], edges: list[Any]) -> tuple[dict[Any, int], Vector]:
    """Return the users' numbers and the matrix of the edges' weights."""
    node = {user: i for i, user in enumerate(users)}
    weights = np.zeros((len(users), len(users)))
    for edge in edges:
        a, b = node[edge[0]], node[edge[1]]
        weights[a, b] = weights[b, a] = edge[2] if len(edge) == 3 else 1.0
    return node, weights


def candidates(rng: np.random.Generator, policy: CAB, n: int = 5) -> Any:
    """Return a random list of what the policy takes: ids of 12 items, or vectors a little shorter than 1."""
    if policy.one_hot:
        return [f"item {k}" for k in rng.choice(12, n, replace=False)]
    return unit_vectors(rng, n, policy.n_features or 0) / 1.01


def random_visits(policy: CAB, n_rounds: int, seed: int, n_users: int = 30) -> Iterator[Visit]:
    """Yield rounds without any taste: the payoff is drawn, the same for all candidates."""
    rng = np.random.default_rng(seed)
    for _ in range(n_rounds):
        user, contexts = int(rng.integers(n_users)), candidates(rng, policy)
        yield Visit(user, contexts, [], np.full(len(contexts), rng.choice([0.0, 1.0, -0.5])))
