"""A policy and its slow twin, round by round in the same world: the choices must be equal, and the scores close."""

from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import pytest
from numpy.typing import NDArray

from coterie import Policy

Vector = NDArray[np.float64]


class Twin(Protocol):
    """What a duel needs of a twin; an item is its basis vector."""

    def scores(self, user: Any, contexts: Sequence[Vector]) -> Vector: ...

    def learn(self, user: Any, x: Vector, y: float) -> Any: ...


class World(NamedTuple):
    """Users in clusters with equal tastes, items drawn from a fixed pool, payoffs of 0 or 1."""

    users: list[Hashable]
    taste: Vector  # (users, d)
    items: Vector  # (items, d): feature vectors, or the identity
    one_hot: bool


def make_world(seed: int, n_users: int, d: int, n_items: int, n_clusters: int, one_hot: bool) -> World:
    rng = np.random.default_rng(seed)
    if one_hot:
        d, items = n_items, np.eye(n_items)
        centres = rng.uniform(0, 1, size=(n_clusters, d))
    else:
        items = unit_vectors(rng, n_items, d)
        centres = unit_vectors(rng, n_clusters, d)
    users: list[Hashable] = [f"u{i}" for i in range(n_users)]
    return World(users, centres[np.arange(n_users) % n_clusters], items, one_hot)


def unit_vectors(rng: np.random.Generator, n: int, d: int) -> Vector:
    x = rng.normal(size=(n, d))
    found: Vector = x / np.linalg.norm(x, axis=1, keepdims=True)
    return found


def random_graph(rng: np.random.Generator, world: World, p: float, weighted: bool) -> list[Any]:
    """Edges between users, those of a cluster three times as often."""
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
    node = {user: i for i, user in enumerate(users)}
    weights = np.zeros((len(users), len(users)))
    for edge in edges:
        a, b = node[edge[0]], node[edge[1]]
        weights[a, b] = weights[b, a] = edge[2] if len(edge) == 3 else 1.0
    return node, weights


def duel(
    policy: Policy,
    twin: Twin,
    world: World,
    n_rounds: int,
    seed: int,
    check: Callable[[int], None] = lambda t: None,
    n_candidates: int = 5,
) -> float:
    """Play both, assert that they agree in every round, and return the mean payoff. `check` runs every round."""
    rng = np.random.default_rng(seed)
    earned = 0.0
    for t in range(n_rounds):
        u = int(rng.integers(len(world.users)))
        shown = rng.permutation(len(world.items))[:n_candidates]
        user, vectors = world.users[u], world.items[shown]
        contexts: Any = [int(i) for i in shown] if world.one_hot else vectors
        expected = twin.scores(user, list(vectors))
        told = policy.decide(user, contexts)
        assert told.score == pytest.approx(expected, abs=1e-8), f"round {t}"
        k = min(k for k in range(len(shown)) if max(expected) - expected[k] < 1e-9)
        assert told.choice == k, f"round {t}"
        payoff = float(rng.random() < np.clip(world.taste[u] @ vectors[k], 0.02, 0.98))
        policy.learn(user, contexts[k], payoff)
        twin.learn(user, vectors[k], payoff)
        earned += payoff
        check(t)
    return earned / n_rounds
