"""The rows of a benchmark: a ratio measured in one run, against a known reference."""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    suite: str
    name: str
    value: float  # what was measured, in `unit`
    unit: str
    against: str  # what it was measured against, in the same run
    ratio: float  # value divided by the reference, or the inverse; `name` says which is better
    limit: str | None  # the ratio's limit, such as "<= 1.6"; None without one
    holds: bool | None  # whether the ratio keeps the limit

    def as_dict(self) -> dict[str, Any]:
        """Return the row ready for JSON."""
        return asdict(self)


def at_most(limit: float, ratio: float) -> dict[str, Any]:
    """Return the fields of a row whose ratio must not exceed `limit`."""
    return {"ratio": ratio, "limit": f"<= {limit:g}", "holds": ratio <= limit}


def at_least(limit: float, ratio: float) -> dict[str, Any]:
    """Return the fields of a row whose ratio must reach `limit`."""
    return {"ratio": ratio, "limit": f">= {limit:g}", "holds": ratio >= limit}


def no_limit(ratio: float) -> dict[str, Any]:
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
