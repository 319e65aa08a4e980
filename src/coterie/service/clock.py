"""The service's clock: the time of day, which records have, carried on by a clock that cannot jump.

Waits for rewards go by it. When the time of day jumps (somebody sets it, or a machine wakes up), it goes on as if
nothing had happened until `follow` takes the jump over; the bandit then moves the ends of all waits by as much.
"""

import time
from collections.abc import Callable
from typing import Protocol, final

JUMP = 2_000  # milliseconds; less is the everyday correction of a clock


def time_of_day() -> int:
    """Return milliseconds since 1970, as the system says."""
    return time.time_ns() // 1_000_000


def steady_time() -> int:
    """Return milliseconds since some moment, never running backwards."""
    return time.monotonic_ns() // 1_000_000


class Clock(Protocol):
    """What the coordinator asks for the time."""

    def __call__(self) -> int:
        """Return the time for the next record, in milliseconds since 1970."""

    def follow(self) -> int:
        """Take over a jump of the time of day, and return by how many milliseconds it was; mostly 0."""


@final
class SteadyClock:
    """A clock that takes over jumps only when told to."""

    def __init__(self, day: Callable[[], int] = time_of_day, steady: Callable[[], int] = steady_time) -> None:
        self._day = day
        self._steady = steady
        self._ahead = day() - steady()  # of the time of day

    def __call__(self) -> int:
        """Return the time of day as it would be without jumps since the last `follow`."""
        return self._steady() + self._ahead

    def follow(self) -> int:
        """Go on from the time of day if it is far from what this clock says."""
        by = self._day() - self()
        if abs(by) < JUMP:
            return 0
        self._ahead += by
        return by
