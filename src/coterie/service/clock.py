"""The service's clock: the time of day, as records have it, but without jumps.

Waits for rewards use it. When the time of day jumps (it is set, or the machine wakes up), the clock continues as
before until `follow` applies the jump; the bandit then moves the ends of all waits by as much.
"""

import time
from collections.abc import Callable
from typing import Protocol, final

JUMP = 2_000  # milliseconds; less is an ordinary correction of a clock


class Clock(Protocol):
    """What the service needs of a clock."""

    def __call__(self) -> int:
        """Return the time for the next record, in milliseconds since 1970."""

    def follow(self) -> int:
        """Apply a jump of the time of day, and return its milliseconds; usually 0."""


@final
class SteadyClock:
    """A clock that applies jumps only in `follow`; `day` and `steady` return milliseconds."""

    def __init__(
        self,
        day: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        steady: Callable[[], int] = lambda: time.monotonic_ns() // 1_000_000,  # never runs backwards
    ) -> None:
        self._day = day
        self._steady = steady
        self._ahead = day() - steady()  # of the steady time

    def __call__(self) -> int:
        """Return the time of day without jumps since the last `follow`."""
        return self._steady() + self._ahead

    def follow(self) -> int:
        """Continue from the time of day if it is far from this clock."""
        by = self._day() - self()
        if abs(by) < JUMP:
            return 0
        self._ahead += by
        return by
