"""Epsilon-greedy with a full matrix; an item is its basis vector."""

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

from tests.twins.linucb import Vector, first_best


class NaiveEpsilonGreedy:
    def __init__(self, d: int, epsilon: float, seed: int) -> None:
        self.epsilon, self.rng = epsilon, np.random.default_rng(seed)
        self.M, self.b = np.eye(d), np.zeros(d)

    def choose(self, user: Hashable, contexts: Sequence[Vector]) -> int:
        n, w = len(contexts), np.linalg.inv(self.M) @ self.b
        chance = np.full(n, self.epsilon / n)
        chance[first_best(np.array([w @ x for x in contexts]))] += 1 - self.epsilon
        return int(self.rng.choice(n, p=chance))

    def learn(self, user: Hashable, x: Vector, payoff: float) -> None:
        self.M = self.M + np.outer(x, x)
        self.b = self.b + payoff * x


def twin_of(policy: Any, d: int) -> NaiveEpsilonGreedy:
    return NaiveEpsilonGreedy(d, policy.epsilon, policy.seed)
