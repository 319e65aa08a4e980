"""Rounds for benchmarks, with any number of users: click logs, drawn in parts, and visits with features."""

from collections.abc import Iterator
from typing import NamedTuple, final

import numpy as np

from coterie.arrays import Floats, Ints
from coterie.bench.measuring import unit_vectors
from coterie.policies.base.batch import Batch


class ClickLog(NamedTuple):
    """Records, as `replay` takes them."""

    users: Ints
    candidates: Ints
    served: Ints
    payoffs: Floats


class Clicks:
    """Ads with click rates per group of users; each ad groups the users differently.

    The group of a user for an ad is a hash of both, so no array of size users × items is needed.
    """

    def __init__(self, n_users: int, n_items: int, n_candidates: int, groups: int = 4, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self.n_users, self.n_items, self.n_candidates, self.groups = n_users, n_items, n_candidates, groups
        base = rng.uniform(0.02, 0.15, size=(n_items, 1))
        lift = rng.choice([0.0, 0.0, 0.2, 0.4], size=(n_items, groups))
        self.rates = base + lift  # (items, groups)
        self.salt = rng.integers(1, 2**31, size=n_items)

    def records(self, total: int, seed: int = 1, part: int = 1 << 18) -> Iterator[ClickLog]:
        """Yield `total` records: users and candidates uniform, the served one uniform among the candidates."""
        rng = np.random.default_rng(seed)
        for first in range(0, total, part):
            n = min(part, total - first)
            users = rng.integers(self.n_users, size=n)
            candidates = self._lists(rng, n)
            served = rng.integers(self.n_candidates, size=n)
            item = candidates[np.arange(n), served]
            group = ((users + 1) * self.salt[item] >> 7) % self.groups
            yield ClickLog(
                users, candidates, served, (rng.random(n) < self.rates[item, group]).astype(np.float64)
            )

    def _lists(self, rng: np.random.Generator, n: int) -> Ints:
        """Return lists of different items: from a random start, with a random step coprime to the number of items."""
        coprime = np.flatnonzero(np.gcd(np.arange(self.n_items), self.n_items) == 1)
        start = rng.integers(self.n_items, size=(n, 1))
        step = coprime[rng.integers(len(coprime), size=(n, 1))]
        return (start + step * np.arange(self.n_candidates)) % self.n_items


FEATURES, CANDIDATES, ITEMS = 25, 25, 5_000
TASTES = 10_000  # different user models; a million would need too much memory


@final
class RandomVisits:
    """Users with text ids; user n has the model n modulo 10,000."""

    def __init__(self, seed: int = 0) -> None:
        self.rng = np.random.default_rng(seed)
        self.items = unit_vectors(self.rng, ITEMS, FEATURES)
        self.tastes = 0.1 * (self.rng.normal(size=FEATURES) + self.rng.normal(size=(TASTES, FEATURES)))

    def batch(self, users: Ints, n_candidates: int) -> Batch:
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
