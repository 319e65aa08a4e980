"""The rows of a benchmark: a ratio measured in one run, against a known reference."""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from coterie.arrays import Floats, JsonObject
from coterie.policies import Policy
from coterie.policies.base.batch import Batch


class Measured(NamedTuple):
    """One line of the table."""

    suite: str
    name: str
    value: float  # what was measured, in `unit`
    unit: str
    against: str  # what it was measured against, in the same run
    ratio: float  # value divided by the reference, or the inverse; `name` says which is better
    limit: str | None  # the ratio's limit, such as "<= 1.6"; None without one
    holds: bool | None  # whether the ratio keeps the limit


def at_most(limit: float, ratio: float) -> JsonObject:
    """Return the fields of a row whose ratio must not exceed `limit`."""
    return {"ratio": ratio, "limit": f"<= {limit:g}", "holds": ratio <= limit}


def at_least(limit: float, ratio: float) -> JsonObject:
    """Return the fields of a row whose ratio must reach `limit`."""
    return {"ratio": ratio, "limit": f">= {limit:g}", "holds": ratio >= limit}


def no_limit(ratio: float) -> JsonObject:
    """Return the fields of a row without a limit."""
    return {"ratio": ratio, "limit": None, "holds": None}


def best_of(times: int, work: Callable[[], Any], clock: Callable[[], float] = time.thread_time) -> float:
    """Return the shortest of several timings, in seconds of processor time of this thread, or by another clock.

    Processor time, because wall-clock time includes other programs on a shared machine; nearly all measured
    code runs in one thread.
    """
    shortest = float("inf")
    for _ in range(times):
        start = clock()
        work()
        shortest = min(shortest, clock() - start)
    return shortest


def one_by_one(policy: Policy, batch: Batch) -> float:
    """Play a batch with one call of `choose` and one of `learn` per round; return the seconds per round."""
    shown = [batch.items[row] for row in batch.candidates]
    start = time.thread_time()
    for t, user in enumerate(batch.users):
        k = policy.choose(user, shown[t])
        policy.learn(user, shown[t][k], batch.payoffs[t, k])
    return (time.thread_time() - start) / len(batch.users)


def unit_vectors(rng: np.random.Generator, n: int, n_features: int) -> Floats:
    """Draw `n` vectors of norm 1."""
    drawn = rng.normal(size=(n, n_features))
    drawn /= np.linalg.norm(drawn, axis=1, keepdims=True)
    return drawn


def peak_resident() -> int:
    """Return the peak resident memory of this process, in bytes."""
    import resource  # not on Windows

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def fit(sizes: Sequence[int], costs: Sequence[float]) -> float:
    """Return the exponent of the power law fitted to the costs."""
    slope, _ = np.polyfit(np.log(sizes), np.log(costs), 1)
    return float(slope)


def growth_rows(
    what: str, name: str, sizes: Sequence[int], costs: Sequence[float], unit: str, limit: float | None
) -> Iterator[Measured]:
    """Yield a row for each size, then one for the exponent, which must keep `limit` if there is one."""
    for size, cost in zip(sizes, costs, strict=True):
        against = f"{name} = {sizes[0]:,}"
        yield Measured(
            "growth", f"{what}: {name} = {size:,}", cost, unit, against, **no_limit(cost / costs[0])
        )
    exponent = fit(sizes, costs)
    promise = no_limit(exponent) if limit is None else at_most(limit, exponent)
    yield Measured("growth", f"{what}: cost ~ {name} ** exponent", exponent, "", "1", **promise)
