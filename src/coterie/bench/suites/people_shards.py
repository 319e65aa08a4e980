"""The cost of shards for `Hierarchical`: decisions and payoffs in one process, and with 1, 2 and 4 shards.

A decision fetches one user's facts from one shard and is computed in the calling process, so more shards give
one caller more memory, not more decisions per second.
"""

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from coterie import Hierarchical
from coterie.bench.rows import Row, best_of, no_limit

SHARDS = (1, 2, 4)
FEATURES, CANDIDATES, BATCH = 25, 25, 64


class Found(NamedTuple):
    """The measurements, in calls per second and bytes."""

    alone: float  # decisions one by one
    together: float  # decisions in batches
    payoffs: float  # learned one by one
    at_once: float  # payoffs of `learn_many`
    memory: int  # of all shards


def rows(quick: bool, told: Callable[[str], None]) -> Iterator[Row]:
    """Measure decisions, payoffs and memory."""
    from coterie.engines import Ray

    n_users = 5_000 if quick else 100_000
    told(f"learned prior: {n_users:,} users in one process")
    one = measure(None, n_users)
    for shards in (None, *SHARDS):
        where = "one process" if shards is None else f"{shards} shards"
        found, empty = one, 0
        if shards is not None:
            told(f"learned prior: {n_users:,} users in {where}")
            with Ray(shards=shards) as engine:
                empty = memory_of(Hierarchical(n_features=FEATURES, engine=engine))
                found = measure(engine, n_users)
        for name, unit in (
            ("alone", "decisions/s"), ("together", f"decisions/s in batches of {BATCH}"),
            ("payoffs", "payoffs/s"), ("at_once", "payoffs/s of learn_many"),
        ):  # fmt: skip
            rate = getattr(found, name)
            what = f"learned prior, d = {FEATURES}: {n_users:,} users, {where}"
            yield Row("shards", what, rate, unit, "one process", **no_limit(rate / getattr(one, name)))
        if shards is not None:
            what = f"learned prior, d = {FEATURES}: memory per user, {where}"
            each = (found.memory - empty) / n_users
            yield Row("shards", what, each, "bytes", "empty shards", **no_limit(found.memory / empty))


def measure(engine: Any, n_users: int) -> Found:
    """Fill a policy, and call it. One process is timed by its processor time, shards by wall-clock time."""
    clock = time.process_time if engine is None else time.perf_counter
    rng = np.random.default_rng(0)
    items = rng.normal(size=(2000, FEATURES))
    policy = Hierarchical(n_features=FEATURES, engine=engine)
    policy.learn_many(range(100), items[:100], np.ones(100))  # compiled before it is timed
    policy.choose(0, items[:CANDIDATES])
    start = clock()
    policy.learn_many(range(n_users), _some(items, rng, n_users), rng.integers(2, size=n_users))
    at_once = n_users / (clock() - start)
    users = rng.integers(n_users, size=30 * BATCH).tolist()
    lists = [_some(items, rng, CANDIDATES) for _ in users]
    alone = _rate(clock, lambda k: policy.choose(users[k], lists[k]), 200)
    batches = [slice(k, k + BATCH) for k in range(0, len(users), BATCH)]
    some = [(users[batch], lists[batch]) for batch in batches]
    together = BATCH * _rate(clock, lambda k: policy.choose_many(*some[k]), len(some))
    payoffs = _rate(clock, lambda k: policy.learn(users[-1 - k], lists[k][0], 1.0), 200)
    return Found(alone, together, payoffs, at_once, 0 if engine is None else memory_of(policy))


def memory_of(policy: Hierarchical) -> int:
    """Return the memory of all shards, in bytes, without memory shared by processes."""
    backend = policy.models._supervisor.backend
    return sum(backend.take(backend.ask(shard, "memory")) for shard in range(policy.models.shards))


def _some(items: NDArray[np.float64], rng: np.random.Generator, n: int) -> NDArray[np.float64]:
    return items[rng.integers(len(items), size=n)]


def _rate(clock: Callable[[], float], work: Callable[[int], Any], times: int) -> float:
    """Return calls per second, from the fastest tenth, because other programs may run on the machine."""
    taken = [best_of(1, partial(work, k), clock) for k in range(times)]
    return float(1 / np.quantile(taken, 0.1))
