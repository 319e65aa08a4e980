"""Decisions that may still get a reward, and those that recently got one."""

import math
from typing import Literal

from msgspec import Struct

from coterie.data.logs.records import ArmName, Rank, ShownAction
from coterie.data.logs.rules import Aggregation

# not_learned: taken, but a number of the model would not have been finite
Outcome = Literal["applied", "duplicate", "late", "not_activated", "not_learned", "unknown_event"]
State = Literal["waiting", "deferred", "rewarded", "expired", "discarded", "closed"]
# waiting: shown, a reward may come · deferred: not shown yet · rewarded: learned from its reward ·
# expired: learned the default reward · discarded: never activated, nothing learned ·
# closed: its wait is over, and what became of it is no longer in memory


class Event(Struct, gc=False, array_like=True):
    """What the reward of a decision needs of it. The whole decision is in the log at `position`."""

    id: str
    position: int
    user: int
    action: ShownAction
    at: int  # milliseconds
    state: State
    probability: float
    choices: int  # how many actions it could have been
    baseline: bool  # whether the choice is what the application would have shown
    agrees: bool  # whether the policy's best guess is what the application would have shown
    cost: float = 0.0  # of the choice, as far as it is known
    slot: str | None = None
    arm: ArmName = ""
    alone: bool = False  # whether the request named no user
    value: float = 0.0  # the sum of the rewards so far; what was learned once the wait is over
    rewards: tuple[str, ...] = ()  # the names of rewards counted, under aggregation "sum" and "average"
    counted: int = 0  # how many rewards were counted

    @classmethod
    def of(cls, record: Rank, position: int) -> "Event":
        """Return the event of a decision at a position of the log."""
        return cls(
            record.event,
            position,
            record.user,
            record.action,
            record.at,
            "deferred" if record.deferred else "waiting",
            record.probability,
            len(record.open_to),
            record.choice == record.baseline,
            record.best == record.baseline,
            record.cost,
            record.slot,
            record.arm,
            record.alone,
        )

    @property
    def open(self) -> bool:
        """Whether its wait goes on."""
        return self.state in ("waiting", "deferred")

    def payoff(self, aggregation: Aggregation) -> float:
        """Return what its rewards so far are worth together, while its wait goes on."""
        value = self.value / self.counted if aggregation == "average" and self.counted else self.value
        return min(1.0, max(-1.0, value))

    def outcome(self, name: str | None) -> Outcome:
        """Return what becomes of a reward of that name which comes now."""
        if self.state == "deferred":
            return "not_activated"
        if self.state in ("expired", "discarded", "closed"):
            return "late"
        if self.state == "rewarded" or (name is not None and name in self.rewards):
            return "duplicate"
        return "applied"


def deadline_of(record: Rank, wait: float) -> int:
    """Return when the wait of a decision ends; its reward may come within `wait` seconds."""
    return record.at + math.ceil(wait * 1000)
