"""Algorithm 1 line by line: full matrices, `np.linalg.inv`, a Python loop over users for every candidate."""

import math
from collections.abc import Callable, Hashable, Sequence

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]


class NaiveCAB:
    """The users' M and b, kept whole; an item is its basis vector."""

    def __init__(
        self,
        d: int,
        alpha: float | Callable[[int], float],
        gamma: float,
        keep: float = 1.0,
    ) -> None:
        self.d, self.alpha, self.gamma, self.keep = d, alpha, gamma, keep
        self.M: dict[Hashable, Vector] = {}
        self.b: dict[Hashable, Vector] = {}
        self.updates: dict[Hashable, int] = {}
        self.t = 1

    def add(self, user: Hashable) -> None:
        if user not in self.M:
            self.M[user], self.b[user], self.updates[user] = np.eye(self.d), np.zeros(self.d), 0

    def drop(self, user: Hashable) -> None:
        del self.M[user], self.b[user], self.updates[user]

    def factor(self) -> float:
        if callable(self.alpha):
            return self.alpha(self.t)
        return self.alpha * math.sqrt(math.log(1 + self.t))

    def w(self, user: Hashable) -> Vector:
        return np.linalg.inv(self.M.get(user, np.eye(self.d))) @ self.b.get(user, np.zeros(self.d))

    def cb(self, user: Hashable, x: Vector) -> float:
        return self.factor() * math.sqrt(
            max(0.0, float(x @ np.linalg.inv(self.M.get(user, np.eye(self.d))) @ x))
        )

    def neighbourhood(self, i: Hashable, x: Vector) -> list[Hashable]:
        others = [j for j in self.M if j != i and self.updates[j] > 0]
        return [i] + [
            j for j in others if abs(self.w(i) @ x - self.w(j) @ x) <= self.cb(i, x) + self.cb(j, x) + 1e-12
        ]

    def scores(self, i: Hashable, contexts: Sequence[Vector]) -> Vector:
        found = []
        for x in contexts:
            near = self.neighbourhood(i, x)
            found.append(
                sum(self.w(j) @ x for j in near) / len(near) + sum(self.cb(j, x) for j in near) / len(near)
            )
        return np.array(found)

    def choose(self, i: Hashable, contexts: Sequence[Vector]) -> int:
        scores = self.scores(i, contexts)
        return min(k for k in range(len(scores)) if max(scores) - scores[k] < 1e-9)

    def learn(self, i: Hashable, x: Vector, y: float) -> int:
        if self.cb(i, x) >= self.gamma / 4:
            learners = [i]
        else:
            learners = [j for j in self.neighbourhood(i, x) if self.cb(j, x) < self.gamma / 4]
        for j in learners:
            self.add(j)
            self.M[j] = np.eye(self.d) + self.keep * (self.M[j] - np.eye(self.d)) + np.outer(x, x)
            self.b[j] = self.keep * self.b[j] + y * x
            self.updates[j] += 1
        self.t += 1
        return len(learners)


class CachedCAB(NaiveCAB):
    """The same, remembering each inverse until the user learns: only to make long comparisons bearable."""

    def __init__(
        self,
        d: int,
        alpha: float | Callable[[int], float],
        gamma: float,
        keep: float = 1.0,
    ) -> None:
        super().__init__(d, alpha, gamma, keep)
        self.memory: dict[Hashable, tuple[int, Vector, Vector]] = {}

    def solved(self, user: Hashable) -> tuple[Vector, Vector]:
        version = self.updates.get(user, 0)
        if user not in self.memory or self.memory[user][0] != version or user not in self.M:
            inverse = np.linalg.inv(self.M.get(user, np.eye(self.d))).astype(np.float64)
            self.memory[user] = (version, inverse, inverse @ self.b.get(user, np.zeros(self.d)))
        return self.memory[user][1], self.memory[user][2]

    def w(self, user: Hashable) -> Vector:
        return self.solved(user)[1]

    def cb(self, user: Hashable, x: Vector) -> float:
        return self.factor() * math.sqrt(max(0.0, float(x @ self.solved(user)[0] @ x)))

    def drop(self, user: Hashable) -> None:
        super().drop(user)
        self.memory.pop(user, None)
