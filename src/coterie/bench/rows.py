"""What a benchmark says: a ratio measured in one run, against something a reader trusts."""

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
    ratio: float  # value over that, or that over value: `name` says which is better
    limit: str | None  # what the ratio must keep, such as "<= 1.6"; None where it is only told
    holds: bool | None  # whether it does

    def as_dict(self) -> dict[str, Any]:
        """Return the row ready for JSON."""
        return asdict(self)


def at_most(limit: float, ratio: float) -> dict[str, Any]:
    """Return the fields of a row whose ratio must not exceed `limit`."""
    return {"ratio": ratio, "limit": f"<= {limit:g}", "holds": ratio <= limit}


def at_least(limit: float, ratio: float) -> dict[str, Any]:
    """Return the fields of a row whose ratio must reach `limit`."""
    return {"ratio": ratio, "limit": f">= {limit:g}", "holds": ratio >= limit}


def only_told(ratio: float) -> dict[str, Any]:
    """Return the fields of a row that promises nothing."""
    return {"ratio": ratio, "limit": None, "holds": None}


def best_of(times: int, work: Callable[[], Any], clock: Callable[[], float] = time.thread_time) -> float:
    """Return the shortest of several timings, in seconds of processor time of this thread, or by another clock.

    Processor time, because the clock on the wall also counts what other programs take of a shared machine; nearly
    all that is measured runs in one thread.
    """
    shortest = float("inf")
    for _ in range(times):
        start = clock()
        work()
        shortest = min(shortest, clock() - start)
    return shortest
