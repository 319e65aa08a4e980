"""How the cost of a dense round grows: with users, features, candidates, and rounds played."""

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from coterie import CAB, Batch
from coterie.bench.rows import Row, at_most, best_of, growth_rows, unit_vectors
from coterie.bench.suites.dense import CANDIDATES, FEATURES, USERS, random_batch

SAMPLE, DECISIONS = 4096, 20


def rows(quick: bool, told: Callable[[str], None]) -> Iterator[Row]:
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
            told(f"dense: {name} = {size:,}")
            costs.append(cost_of(timed, **{name: size}))
        yield from growth_rows("dense", name, sizes, costs, "µs/round", limit=None)
    yield sampled(100_000 if quick else 1_000_000, told)


def sampled(many: int, told: Callable[[str], None], few: int = 10_000) -> Row:
    """Measure a decision over a sample, with many users against few: it must cost the same."""
    rng = np.random.default_rng(0)
    items = unit_vectors(rng, 2000, FEATURES)
    policy = CAB(n_features=FEATURES, alpha=0.1, gamma=0.0, sample=SAMPLE)
    costs = []
    for first, last in ((0, few), (few, many)):
        told(f"dense: sample = {SAMPLE:,}, n_users = {last:,}")
        seen = items[rng.integers(len(items), size=last - first)]
        policy.learn_many(range(first, last), seen, np.ones(len(seen)))
        batch = random_batch(rng, rng.integers(last, size=DECISIONS), items, CANDIDATES)
        costs.append(best_of(5, partial(choose_all, policy, batch)))
    name = f"dense: a decision with sample = {SAMPLE:,}, n_users = {many:,}"
    promise = at_most(1.2, costs[1] / costs[0])
    return Row("growth", name, 1e6 * costs[1] / DECISIONS, "µs", f"n_users = {few:,}", **promise)


def choose_all(policy: CAB, batch: Batch) -> None:
    """Decide once for each round of a batch."""
    for user, shown in zip(batch.users, batch.items[batch.candidates], strict=True):
        policy.choose(user, shown)


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
