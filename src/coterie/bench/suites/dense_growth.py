"""How the cost of a dense round grows: with users, features, candidates, and rounds played."""

from collections.abc import Callable, Iterator

import numpy as np

from coterie import CAB
from coterie.bench.measuring import Row, best_of, growth_rows, unit_vectors
from coterie.bench.suites.dense import CANDIDATES, FEATURES, USERS, random_batch


def rows(quick: bool, on_progress: Callable[[str], None]) -> Iterator[Row]:
    """Measure rounds of dense CAB around LastFM's size, and fit the exponents."""
    timed = 40 if quick else 200
    for name, sizes in (
        ("n_users", (500, 1000, 2000, 4000, 8000)),
        ("n_features", (10, 20, 40, 80)),
        ("n_candidates", (5, 10, 20, 40, 80)),
        ("rounds", (2_000, 4_000, 8_000, 16_000)),
    ):
        costs = []
        for size in sizes:
            on_progress(f"dense: {name} = {size:,}")
            costs.append(cost_of(timed, **{name: size}))
        yield from growth_rows("dense", name, sizes, costs, "µs/round", limit=None)


def cost_of(
    timed: int,
    n_users: int = USERS,
    n_features: int = FEATURES,
    n_candidates: int = CANDIDATES,
    rounds: int = 0,
) -> float:
    """Return the microseconds per round after every user has learned and played `rounds` more."""
    rng = np.random.default_rng(0)
    items = unit_vectors(rng, 2000, n_features)
    policy = CAB(n_features=n_features, alpha=0.1, gamma=0.0)
    policy.run(random_batch(rng, np.arange(n_users), items, 1))
    policy.run(random_batch(rng, rng.integers(n_users, size=rounds), items, 1))
    batch = random_batch(rng, rng.integers(n_users, size=timed), items, n_candidates)
    return 1e6 * best_of(3, lambda: policy.run(batch)) / timed
