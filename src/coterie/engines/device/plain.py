"""A simple dense CAB in NumPy, the reference for choices on a device; needs no compiler."""

import math
from typing import Any, final

import numpy as np

from coterie.arrays import Floats


@final
class Plain:
    """One run of Algorithm 1 over numbered users. Users without updates are not neighbours of others."""

    def __init__(
        self, users: int, n_features: int, alpha: float, gamma: float, rounding: float, tie: float
    ) -> None:
        self.inverses = np.tile(np.eye(n_features), (users, 1, 1))
        self.weights = np.zeros((users, n_features))
        self.updated = np.zeros(users, dtype=np.bool_)
        self.alpha, self.limit, self.rounding, self.tie = alpha, gamma / 4, rounding, tie
        self.learned = 0

    @property
    def scale(self) -> float:
        """The factor of spreads now."""
        return self.alpha * math.sqrt(math.log1p(self.learned + 1))

    def near(self, user: int, contexts: Floats) -> tuple[Any, Floats, Floats]:
        """Return which users are near for each candidate, and all estimates and spreads: (candidates, users)."""
        estimates = contexts @ self.weights.T
        outer = (contexts[:, :, None] * contexts[:, None, :]).reshape(len(contexts), -1)
        spreads = np.sqrt(np.maximum(outer @ self.inverses.reshape(len(estimates.T), -1).T, 0))
        bound = self.scale * (spreads[:, user, None] + spreads) + self.rounding
        near = np.abs(estimates[:, user, None] - estimates) <= bound
        return near & (self.updated | (np.arange(len(self.updated)) == user)), estimates, spreads

    def choose(self, user: int, contexts: Floats) -> int:
        """Return the choice."""
        near, estimates, spreads = self.near(user, contexts)
        score = ((near * estimates).sum(1) + self.scale * (near * spreads).sum(1)) / near.sum(1)
        return int(np.argmax(score.max() - score < self.tie))

    def learn(self, user: int, context: Floats, payoff: float) -> int:
        """Learn a payoff, and return how many users were updated."""
        near, estimates, spreads = (part[0] for part in self.near(user, context[None]))
        learns = np.arange(len(self.updated)) == user
        if self.scale * spreads[user] < self.limit:
            learns = learns | (near & (self.scale * spreads < self.limit))
        for row in np.flatnonzero(learns):
            v = self.inverses[row] @ context
            gain = v / (1 + context @ v)
            self.inverses[row] -= np.outer(gain, v)
            self.weights[row] += gain * (payoff - estimates[row])
        self.updated |= learns
        self.learned += 1
        return int(learns.sum())
