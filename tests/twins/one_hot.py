"""CAB over item ids as a direct loop over users: each user's (times, total) on each item, and nothing else."""

import math
from collections.abc import Hashable, Sequence

import numpy as np

from tests.twins.probability import choose_by, probability_of_best

History = dict[Hashable, tuple[int, float]]


class DirectCAB:
    """Algorithm 1 where w_j·x is total / (1 + times) and CB_j(x) is factor / √(1 + times)."""

    def __init__(self, alpha: float, gamma: float, seed: int | None = None) -> None:
        self.alpha, self.gamma = alpha, gamma
        self.rng = None if seed is None else np.random.default_rng(seed)
        self.history: dict[Hashable, History] = {}
        self.updated: set[Hashable] = set()
        self.t = 1

    def add(self, user: Hashable) -> None:
        self.history.setdefault(user, {})

    def drop(self, user: Hashable) -> None:
        del self.history[user]
        self.updated.discard(user)

    def factor(self) -> float:
        return self.alpha * math.sqrt(math.log(1 + self.t))

    def pair(self, user: Hashable, item: Hashable) -> tuple[int, float]:
        return self.history.get(user, {}).get(item, (0, 0.0))

    def w(self, user: Hashable, item: Hashable) -> float:
        times, total = self.pair(user, item)
        return total / (1 + times)

    def spread(self, user: Hashable, item: Hashable) -> float:
        return 1 / math.sqrt(1 + self.pair(user, item)[0])

    def neighbourhood(self, user: Hashable, item: Hashable) -> list[Hashable]:
        return [user] + [
            j
            for j in self.updated
            if j != user
            and abs(self.w(user, item) - self.w(j, item))
            <= self.factor() * (self.spread(user, item) + self.spread(j, item)) + 1e-12
        ]

    def scores(self, user: Hashable, items: Sequence[Hashable]) -> list[float]:
        scores = []
        for item in items:
            near = self.neighbourhood(user, item)
            score = sum(self.w(j, item) for j in near) / len(near)
            if self.rng is None:
                score += self.factor() * sum(self.spread(j, item) for j in near) / len(near)
            scores.append(score)
        return scores

    def probability(self, user: Hashable, items: Sequence[Hashable]) -> list[float]:
        """How likely each is best, if the neighbours' averages are drawn; an item listed twice counts once."""
        names = list(dict.fromkeys(items))
        near = [self.neighbourhood(user, item) for item in names]
        variance = [sum(self.spread(j, i) ** 2 for j in n) for i, n in zip(names, near, strict=True)]
        sd = self.factor() * np.sqrt(variance) / [len(n) for n in near]
        found = probability_of_best(np.array(self.scores(user, names)), sd)
        return [found[names.index(item)] * (items.index(item) == k) for k, item in enumerate(items)]

    def choose(self, user: Hashable, items: Sequence[Hashable]) -> int:
        if self.rng is not None and self.alpha > 0:
            return choose_by(self.probability(user, items), self.rng)
        scores = self.scores(user, items)
        return min(k for k in range(len(scores)) if max(scores) - scores[k] < 1e-9)

    def learn(self, user: Hashable, item: Hashable, payoff: float) -> int:
        learners = [user]
        if self.factor() * self.spread(user, item) < self.gamma / 4:
            near = self.neighbourhood(user, item)
            learners = [j for j in near if self.factor() * self.spread(j, item) < self.gamma / 4]
        for j in learners:
            times, total = self.pair(j, item)
            self.history.setdefault(j, {})[item] = (times + 1, total + payoff)
            self.updated.add(j)
        self.t += 1
        return len(learners)
