"""BASS over all payoffs: every pair of users is tested by looking for a point in both ellipsoids."""

import math
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
from scipy.optimize import minimize_scalar

from tests.twins.linucb import Vector, first_best


class NaiveBASS:
    def __init__(self, d: int, alpha: float, noise: float, size: float, delta: float) -> None:
        self.d, self.alpha, self.noise, self.size, self.delta = d, alpha, noise, size, delta
        self.seen: list[tuple[Hashable, Vector, float]] = []
        self.users: list[Hashable] = []
        self.cut: set[frozenset[Hashable]] = set()

    def fit(self, members: Sequence[Hashable]) -> tuple[Vector, Vector]:
        rows = [(x, y) for user, x, y in self.seen if user in members]
        product = np.eye(self.d) + sum((np.outer(x, x) for x, _ in rows), start=np.zeros((self.d, self.d)))
        return product, sum((y * x for x, y in rows), start=np.zeros(self.d))

    def ellipsoid(self, user: Hashable) -> tuple[Vector, Vector]:
        """Return the centre, and the matrix P of the ellipsoid (θ − centre)ᵀP(θ − centre) ≤ 1."""
        product, sums = self.fit([user])
        reach = self.size + self.noise * math.sqrt(
            2 * math.log(1 / self.delta) + math.log(np.linalg.det(product))
        )
        return np.linalg.inv(product) @ sums, product / reach

    def apart(self, a: Hashable, b: Hashable) -> bool:
        """Return whether some weighted sum of both distances is above 1 everywhere (Lagrange)."""
        (x, p), (y, q) = self.ellipsoid(a), self.ellipsoid(b)

        def most(
            s: float,
        ) -> float:  # minus the least of (1−s)·distance to a + s·distance to b, over all points
            whole = (1 - s) * p + s * q
            point = np.linalg.solve(whole, (1 - s) * p @ x + s * q @ y)
            return -float((1 - s) * (point - x) @ p @ (point - x) + s * (point - y) @ q @ (point - y))

        found = minimize_scalar(most, bounds=(0, 1), method="bounded", options={"xatol": 1e-12})
        return bool(-found.fun > 1)

    def component(self, user: Hashable) -> list[Hashable]:
        if user not in self.users:
            return self.users
        found = [user]
        for one in found:
            found += [v for v in self.users if v not in found and frozenset((one, v)) not in self.cut]
        return found

    def choose(self, user: Hashable, contexts: Sequence[Vector]) -> int:
        product, sums = self.fit(self.component(user))
        inverse, scale = np.linalg.inv(product), self.alpha * math.sqrt(math.log(2 + len(self.seen)))
        return first_best(
            np.array([x @ inverse @ sums + scale * math.sqrt(x @ inverse @ x) for x in contexts])
        )

    def learn(self, user: Hashable, x: Vector, payoff: float) -> None:
        if user not in self.users:
            self.users.append(user)
        self.seen.append((user, np.array(x), payoff))
        for other in self.users:
            pair = frozenset((user, other))
            if other != user and pair not in self.cut and self.apart(user, other):
                self.cut.add(pair)


def twin_of(policy: Any, d: int) -> NaiveBASS:
    """Return the twin of a policy over d features. The contract suite compares their choices."""
    return NaiveBASS(d, policy.alpha, policy.noise, policy.size, policy.delta)
