"""HierTS as one Gaussian process: two payoffs are alike by their contexts, and more so if they are of one user."""

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

from tests.twins.linucb import Vector
from tests.twins.probability import chances, choose_by


class NaiveHierTS:
    def __init__(self, mean_sd: float, user_sd: float, noise: float, seed: int) -> None:
        self.mean_sd, self.user_sd, self.noise = mean_sd, user_sd, noise
        self.rng = np.random.default_rng(seed)
        self.seen: list[tuple[Hashable, Vector, float]] = []

    def covariance(self, user: Hashable, x: Vector, other: Hashable, y: Vector) -> float:
        return float((self.mean_sd**2 + (user == other) * self.user_sd**2) * (x @ y))

    def posterior(self, user: Hashable, contexts: Sequence[Vector]) -> tuple[Vector, Vector]:
        """Mean and covariance of what the candidates pay this user."""
        prior = np.array([[self.covariance(user, x, user, y) for y in contexts] for x in contexts])
        if not self.seen:
            return np.zeros(len(contexts)), prior
        cross = np.array([[self.covariance(user, x, who, y) for who, y, _ in self.seen] for x in contexts])
        between = np.array([[self.covariance(u, x, v, y) for v, y, _ in self.seen] for u, x, _ in self.seen])
        inverse = np.linalg.inv(between + self.noise**2 * np.eye(len(self.seen)))
        return cross @ inverse @ np.array([y for _, _, y in self.seen]), prior - cross @ inverse @ cross.T

    def choose(self, user: Hashable, contexts: Sequence[Vector]) -> int:
        return choose_by(chances(*self.posterior(user, contexts), len(self.seen)), self.rng)

    def learn(self, user: Hashable, x: Vector, payoff: float) -> None:
        self.seen.append((user, np.array(x), payoff))


def twin_of(policy: Any, d: int) -> NaiveHierTS:
    """Return the twin of a policy over d features. The contract suite compares their choices."""
    return NaiveHierTS(policy.mean_sd, policy.user_sd, policy.noise, policy.seed)
