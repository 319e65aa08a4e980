"""spCAB as the appendix describes it: Algorithm 1 with sparse proxies, whole histories, a loop over users."""

import math
from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import NDArray

from tests.twins.recovery import support_of, two_stage

Vector = NDArray[np.float64]


class NaiveSparseCAB:
    """Every user's contexts and payoffs, and the proxy found from them when the last one came."""

    def __init__(self, d: int, s: int, ell: int, alpha: float, gamma: float) -> None:
        self.d, self.s, self.ell = d, s, ell
        self.alpha, self.gamma = alpha, gamma
        self.X: dict[Hashable, list[Vector]] = {}
        self.y: dict[Hashable, list[float]] = {}
        self.proxy: dict[Hashable, Vector] = {}
        self.support: dict[Hashable, list[int]] = {}
        self.inverse: dict[Hashable, Vector] = {}
        self.t = 1

    def add(self, user: Hashable) -> None:
        if user not in self.X:
            self.X[user], self.y[user] = [], []

    def drop(self, user: Hashable) -> None:
        del self.X[user], self.y[user]
        for kept in (self.proxy, self.support, self.inverse):
            kept.pop(user, None)

    def w(self, user: Hashable) -> Vector:
        return self.proxy.get(user, np.zeros(self.d))

    def cb(self, user: Hashable, x: Vector) -> float:
        scale = self.alpha * math.sqrt(math.log(1 + self.t))
        S = self.support.get(user, [])
        if not S:
            return scale * float(np.linalg.norm(x))
        return scale * math.sqrt(max(0.0, float(x[S] @ self.inverse[user] @ x[S])))

    def neighbourhood(self, i: Hashable, x: Vector) -> list[Hashable]:
        others = [j for j in self.X if j != i and self.X[j]]
        return [i] + [
            j for j in others if abs(self.w(i) @ x - self.w(j) @ x) <= self.cb(i, x) + self.cb(j, x) + 1e-12
        ]

    def choose(self, i: Hashable, contexts: Sequence[Vector]) -> int:
        scores = []
        for x in contexts:
            near = self.neighbourhood(i, x)
            scores.append(sum(self.w(j) @ x + self.cb(j, x) for j in near) / len(near))
        return min(k for k in range(len(scores)) if max(scores) - scores[k] < 1e-9)

    def learn(self, i: Hashable, x: Vector, payoff: float) -> int:
        if self.cb(i, x) >= self.gamma / 4:
            learners = [i]
        else:
            learners = [j for j in self.neighbourhood(i, x) if self.cb(j, x) < self.gamma / 4]
        for j in learners:
            self.add(j)
            self.X[j].append(x)
            self.y[j].append(payoff)
            X, y = np.array(self.X[j]), np.array(self.y[j])
            self.proxy[j] = two_stage(X, y, self.s, self.ell, self.support.get(j, []))
            S = self.support[j] = sorted(support_of(self.proxy[j], y))
            self.inverse[j] = np.linalg.inv(np.eye(len(S)) + X[:, S].T @ X[:, S]).astype(np.float64)
        self.t += 1
        return len(learners)
