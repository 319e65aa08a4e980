"""LOCB over all payoffs: a cluster's model is fitted anew from its members' payoffs whenever it is asked."""

import math
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

from tests.twins.linucb import Vector, first_best


class NaiveLOCB:
    def __init__(self, d: int, n_seeds: int, gamma: float) -> None:
        self.d, self.n_seeds, self.gamma = d, n_seeds, gamma
        self.seen: list[tuple[Hashable, Vector, float]] = []
        self.outside: dict[int, set[Hashable]] = {}  # by seed: who has left its cluster
        self.users: list[Hashable] = []

    def seeds(self) -> list[Hashable]:
        return self.users[: self.n_seeds]

    def fit(self, members: Any) -> tuple[Vector, Vector, int]:
        rows = [(x, y) for user, x, y in self.seen if members(user)]
        product = np.eye(self.d) + sum((np.outer(x, x) for x, _ in rows), start=np.zeros((self.d, self.d)))
        return product, sum((y * x for x, y in rows), start=np.zeros(self.d)), len(rows)

    def profile(self, user: Hashable) -> tuple[Vector, float]:
        product, sums, n = self.fit(lambda one: one == user)
        return np.linalg.inv(product) @ sums, math.sqrt((1 + math.log(1 + n)) / (1 + n))

    def ucb(self, product: Vector, sums: Vector, n: int, contexts: Sequence[Vector]) -> Vector:
        inverse = np.linalg.inv(product)
        t = len(self.seen) + 1
        beta = math.sqrt(self.d * math.log(1 + n / self.d) + 4 * math.log(t) + math.log(2)) + 1
        return np.array([x @ inverse @ sums + beta * (x @ inverse @ x) for x in contexts])

    def choose(self, user: Hashable, contexts: Sequence[Vector]) -> int:
        best: Any = None
        for s in range(len(self.seeds())):
            if user in self.outside[s]:
                continue
            product, sums, n = self.fit(lambda one, s=s: one not in self.outside[s])
            scores = self.ucb(product, sums, n + 1, contexts)
            if best is None or scores.max() > best.max() + 1e-9:
                best = scores
        if best is None:
            best = self.ucb(*self.fit(lambda one: one == user), contexts)
        return first_best(best)

    def learn(self, user: Hashable, x: Vector, payoff: float) -> None:
        if user not in self.users:
            self.users.append(user)
            if len(self.users) <= self.n_seeds:
                self.outside[len(self.users) - 1] = set()
        self.seen.append((user, np.array(x), payoff))
        mine, width = self.profile(user)
        for s, seed in enumerate(self.seeds()):
            other, its = self.profile(seed)
            if its <= self.gamma / 4:
                continue
            apart = float(np.linalg.norm(mine - other))
            if apart > width + its:
                self.outside[s].add(user)
            elif apart < width + its:
                self.outside[s].discard(user)


def twin_of(policy: Any, d: int) -> NaiveLOCB:
    """Return the twin of a policy over d features. The contract suite compares their choices."""
    return NaiveLOCB(d, policy.n_seeds, policy.gamma)
