"""Rounds for benchmarks with any number of users: models around a common mean, clicks, 25 features."""

from typing import final

import numpy as np
from numpy.typing import NDArray

from coterie.bench.measuring import unit_vectors
from coterie.policies.base.batch import Batch

FEATURES, CANDIDATES, ITEMS = 25, 25, 5_000
TASTES = 10_000  # different user models; a million would need too much memory


@final
class Crowd:
    """Users with text ids; user n has the model n modulo 10,000."""

    def __init__(self, seed: int = 0) -> None:
        self.rng = np.random.default_rng(seed)
        self.items = unit_vectors(self.rng, ITEMS, FEATURES)
        self.tastes = 0.1 * (self.rng.normal(size=FEATURES) + self.rng.normal(size=(TASTES, FEATURES)))

    def batch(self, users: NDArray[np.int64], n_candidates: int) -> Batch:
        """Return one round for each of `users`, with random candidates and clicks on any of them."""
        shown = self.rng.integers(ITEMS, size=(len(users), n_candidates))
        taste = self.tastes[users % TASTES]
        payoffs = np.empty(shown.shape)
        for k in range(n_candidates):
            rate = 0.2 + np.einsum("tf,tf->t", self.items[shown[:, k]], taste)
            payoffs[:, k] = self.rng.random(len(users)) < rate
        return Batch([name(user) for user in users.tolist()], shown, self.items, payoffs)


def name(user: int) -> str:
    """Return the id of a user: text of 12 characters, as is typical."""
    return f"user-{user:07d}"
