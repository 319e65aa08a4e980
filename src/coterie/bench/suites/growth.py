"""How costs grow: of a record with users, items, candidates and records; of a dense round with features too."""

import time
from collections.abc import Callable, Iterator

import numpy as np

from coterie import CAB
from coterie.bench.measuring import Measured, best_of, growth_rows, unit_vectors
from coterie.bench.rounds import Clicks
from coterie.bench.suites import dense
from coterie.experiments.run.replay import replay

USERS, ITEMS, CANDIDATES = 10_000, 105, 15


def rows(quick: bool, on_progress: Callable[[str], None]) -> Iterator[Measured]:
    """Measure the cost of one-hot CAB's records and of dense CAB's rounds, and fit the exponents."""
    records = 500_000 if quick else 2_000_000
    cost_of(records // 10)  # compiled before it is timed
    for name, values, limit in (
        ("n_users", (10_000, 31_623, 100_000, 316_228, 1_000_000), 0.2),
        ("n_items", (105, 420, 1_680, 5_000), None),
        ("n_candidates", (5, 15, 45, 105), None),
        ("records", (records // 16, records // 4, records), None),
    ):
        costs = []
        for value in values:
            on_progress(f"one-hot: {name} = {value:,}")
            costs.append(cost_of(value) if name == "records" else cost_of(records, **{name: value}))
        yield from growth_rows("one-hot", name, values, costs, "µs/record", limit)
    yield from dense_rows(quick, on_progress)


def cost_of(
    records: int, n_users: int = USERS, n_items: int = ITEMS, n_candidates: int = CANDIDATES
) -> float:
    """Return the microseconds per record of a whole replay from an empty policy, without drawing the log."""
    policy, spent = CAB(one_hot=True, alpha=0.1, gamma=0.2), 0.0
    for log in Clicks(n_users, n_items, n_candidates).records(records):
        began = time.thread_time()
        replay(policy, *log)
        spent += time.thread_time() - began
    return 1e6 * spent / records


def dense_rows(quick: bool, on_progress: Callable[[str], None]) -> Iterator[Measured]:
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
            costs.append(dense_cost_of(timed, **{name: size}))
        yield from growth_rows("dense", name, sizes, costs, "µs/round", limit=None)


def dense_cost_of(
    timed: int,
    n_users: int = dense.USERS,
    n_features: int = dense.FEATURES,
    n_candidates: int = dense.CANDIDATES,
    rounds: int = 0,
) -> float:
    """Return the microseconds per round after every user has learned and played `rounds` more."""
    rng = np.random.default_rng(0)
    items = unit_vectors(rng, 2000, n_features)
    policy = CAB(n_features=n_features, alpha=0.1, gamma=0.0)
    policy.run(dense.random_batch(rng, np.arange(n_users), items, 1))
    policy.run(dense.random_batch(rng, rng.integers(n_users, size=rounds), items, 1))
    batch = dense.random_batch(rng, rng.integers(n_users, size=timed), items, n_candidates)
    return 1e6 * best_of(3, lambda: policy.run(batch)) / timed
