"""Decisions that may still get a reward, and when it is final, as the service's engine has it.

A decision is settled at the first tick after its wait. Without a reward it then gets the default reward. If the time
of day jumps, the ends of all waits move with it.
"""

import math
from collections import deque
from collections.abc import Iterator
from typing import Any, Generic, NamedTuple, TypeVar, final

Decision = TypeVar("Decision")


class Settled(NamedTuple):
    """A decision whose reward is final."""

    event: str
    decision: Any
    reward: float
    has_reward: bool  # False for the default reward


@final
class Pending(Generic[Decision]):
    """The decisions that wait, oldest first. Times are in milliseconds, `wait` is in seconds."""

    def __init__(self) -> None:
        self.configure()
        self._waiting: deque[tuple[float, str, Decision]] = deque()  # the end of the wait, the event
        self._earned: dict[str, tuple[float, int]] = {}  # the sum and the number of rewards

    def configure(
        self, wait: float = 600.0, default_reward: float = 0.0, aggregation: str = "earliest"
    ) -> None:
        """Take over the rules for what follows."""
        self.wait, self.default_reward, self.aggregation = wait, default_reward, aggregation

    def add(self, event: str, at: int, decision: Decision) -> None:
        """Add a decision."""
        self._waiting.append((at + math.ceil(self.wait * 1000), event, decision))

    def reward(self, event: str, value: float) -> None:
        """Add a reward that was applied."""
        total, count = self._earned.get(event, (0.0, 0))
        self._earned[event] = total + value, count + 1

    def tick(self, at: int, jump: int = 0) -> Iterator[Settled]:
        """Yield the decisions whose wait has ended."""
        if jump:
            self._waiting = deque((end + jump, event, one) for end, event, one in self._waiting)
        while self._waiting and self._waiting[0][0] <= at:
            yield self._settle()

    def rest(self) -> Iterator[Settled]:
        """Yield the decisions that still wait, with what they have earned so far."""
        while self._waiting:
            yield self._settle()

    def _settle(self) -> Settled:
        _, event, decision = self._waiting.popleft()
        total, count = self._earned.pop(event, (self.default_reward, 0))
        value = total / count if count and self.aggregation == "average" else total
        return Settled(event, decision, min(1.0, max(-1.0, value)), count > 0)
