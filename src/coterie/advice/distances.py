"""Distances between users' models: the paper's Figure 3, and how much of it is noise."""

from typing import NamedTuple

import numpy as np

from coterie.advice.fitted import Fitted
from coterie.advice.groups import MOST_USERS, halves
from coterie.advice.records import Records
from coterie.arrays import Floats

POINTS = 200


class Distances(NamedTuple):
    """Mean Euclidean distances between users' regularised least-squares models."""

    times: Floats  # (points,) rounds
    served: Floats  # (points,) from the users served at that time to all others, as in Figure 3
    mean: float  # over all records
    paid: float  # the same with models from paying records only, as in the paper
    between: float  # from one half of a user's records to the other half of another user's
    within: float  # to the other half of the same user's records: noise alone

    @property
    def ratio(self) -> float:
        """The distance between users relative to the noise within a user; 1 if users do not differ."""
        return self.between / self.within if self.within > 0 else float("inf")


def measure_distances(records: Records, *, seed: int = 0) -> Distances:
    """Return how far apart users' models are, over time and on average."""
    whole = Fitted(records).add(np.arange(len(records.users)))
    whole.solve()
    own = _mean_to_others(whole.weights, whole.weights)
    paying = Fitted(records).add(np.flatnonzero(records.payoffs > 0))
    paying.solve()
    rng = np.random.default_rng([seed, 10])
    first, second = halves(records.of_some_users(MOST_USERS, rng), rng)
    both = (first.n_records > 0) & (second.n_records > 0)
    one, two = first.weights[both], second.weights[both]
    blocks = np.array_split(own[records.users], min(POINTS, len(records.users)))
    sizes = np.array([len(block) for block in blocks], dtype=np.float64)
    return Distances(
        np.cumsum(sizes),
        np.array([block.mean() for block in blocks]),
        float(own.mean()),
        float(_mean_to_others(paying.weights, paying.weights).mean()),
        float(_mean_to_others(one, two).mean()) if len(one) > 1 else 0.0,
        float(np.linalg.norm(one - two, axis=1).mean()) if len(one) else 0.0,
    )


def _mean_to_others(a: Floats, b: Floats) -> Floats:
    """Return the mean distance from each row of `a` to all rows of `b` but its own: (rows,)."""
    if len(a) < 2:
        return np.zeros(len(a))
    squares = np.einsum("jf,jf->j", b, b)
    mean = np.zeros(len(a))
    for first in range(0, len(a), 1000):
        part = a[first : first + 1000]
        square = np.einsum("jf,jf->j", part, part)[:, None] + squares - 2 * part @ b.T
        rows = np.arange(len(part))
        square[rows, first + rows] = 0
        mean[first : first + 1000] = np.sqrt(np.maximum(square, 0)).sum(axis=1) / (len(b) - 1)
    return mean
