"""DynUCB line by line: every cluster's statistics are summed anew over its members when they are needed."""

import math
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

from tests.twins.linucb import Vector, first_best, thompson_choice, ucb
from tests.twins.probability import seed_number, uniform_at


class NaiveDynUCB:
    def __init__(
        self,
        d: int,
        k: int,
        alpha: float,
        seed: int = 0,
        thompson: bool = False,
        one_hot: bool = False,
    ) -> None:
        self.d, self.k, self.alpha, self.thompson, self.one_hot = d, k, alpha, thompson, one_hot
        self.rng = np.random.default_rng(seed)
        self.M: dict[Hashable, Vector] = {}
        self.b: dict[Hashable, Vector] = {}
        self.cluster: dict[Hashable, int] = {}
        self.seed = seed_number(seed)
        self.t = 1

    @property
    def next(self) -> int:
        """Where the next newcomer goes."""
        return int(uniform_at(self.seed, len(self.M), 0) * self.k)

    def add(self, user: Hashable) -> None:
        if user not in self.M:
            self.cluster[user] = self.next
            self.M[user], self.b[user] = np.eye(self.d), np.zeros(self.d)

    def drop(self, user: Hashable) -> None:
        del self.M[user], self.b[user], self.cluster[user]

    def pooled(self, cluster: int) -> tuple[Vector, Vector]:
        M, b = np.eye(self.d), np.zeros(self.d)
        for user in self.M:
            if self.cluster[user] == cluster:
                M = M + (self.M[user] - np.eye(self.d))
                b = b + self.b[user]
        return M, b

    def members(self, user: Hashable) -> int:
        home = self.cluster.get(user, self.next)
        return len({u for u, c in self.cluster.items() if c == home} | {user})

    def choose(self, user: Hashable, contexts: Sequence[Vector]) -> int:
        M, b = self.pooled(self.cluster.get(user, self.next))
        scale = self.alpha * math.sqrt(math.log(1 + self.t))
        if self.thompson:
            return thompson_choice(M, b, contexts, scale, self.t, self.rng)
        return first_best(ucb(M, b, contexts, scale))

    def learn(self, user: Hashable, x: Vector, y: float) -> None:
        self.add(user)
        self.M[user] = self.M[user] + np.outer(x, x)
        self.b[user] = self.b[user] + y * x
        w = np.linalg.inv(self.M[user]) @ self.b[user]
        gaps = []
        for cluster in range(self.k):
            M, b = self.pooled(cluster)
            gaps.append(float(np.sum((w - np.linalg.inv(M) @ b) ** 2)))
        if gaps[self.cluster[user]] > min(gaps) + 1e-12:
            self.cluster[user] = min(c for c in range(self.k) if gaps[c] <= min(gaps) + 1e-12)
        self.t += 1


def twin_of(policy: Any, d: int) -> NaiveDynUCB:
    return NaiveDynUCB(d, policy.k, policy.alpha, policy.seed, policy.thompson, policy.one_hot)
