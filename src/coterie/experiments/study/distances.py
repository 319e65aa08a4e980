"""Distances between users' models: the paper's Figure 3.

Each user gets the regularised least-squares model of the reported rounds: (I + Σ x xᵀ)⁻¹ Σ y x. The text of
section 5 takes the pairs (x, y) with y = 1; the caption of Figure 3 takes all pairs of the user's rounds.
"""

from collections.abc import Hashable

import numpy as np
import polars as pl

from coterie.arrays import Floats
from coterie.data.datasets import Source
from coterie.errors import ParameterError
from coterie.models.candidates import project

SAMPLES = ("liked", "all")


def user_distances(data: Source, n_rounds: int, seed: int, samples: str = "liked") -> pl.DataFrame:
    """Return for each round the mean distance of the served user's model to all others': round, user, distance.

    `data` has blocks of labelled rounds whose items are vectors.
    """
    if samples not in SAMPLES:
        raise ParameterError(f"samples is {samples!r}, expected one of: {', '.join(SAMPLES)}")
    n_features = data.n_features
    if n_features is None or data.is_log:
        raise ParameterError("distances between users need labelled rounds of items with features")
    users: list[Hashable] = []
    sums: dict[Hashable, tuple[Floats, Floats]] = {}
    for block in data.blocks(n_rounds, seed):
        users += block.users.tolist()
        items = project(block.items, "features")
        for user, row, payoffs in zip(block.users.tolist(), block.candidates, block.payoffs, strict=True):
            chosen = payoffs == 1 if samples == "liked" else np.ones(len(row), dtype=np.bool_)
            x, y = items[row[chosen]], payoffs[chosen]
            m, b = sums.setdefault(user, (np.eye(n_features), np.zeros(n_features)))
            m += x.T @ x
            b += x.T @ y
    names = list(sums)
    models = np.array([np.linalg.solve(*sums[name]) for name in names])  # (users, n_features)
    n_others = max(len(models) - 1, 1)
    mean = {
        name: float(np.linalg.norm(models - own, axis=1).sum() / n_others)
        for name, own in zip(names, models, strict=True)
    }
    distances = [mean[u] for u in users]
    return pl.DataFrame({"round": np.arange(len(users)), "user": [*map(str, users)], "distance": distances})
