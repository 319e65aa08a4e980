"""Decisions that may still get a reward, and those that recently got one."""

import math
from typing import Literal, NamedTuple

import numpy as np
from msgspec import Struct

from coterie.service.core.records import Rank
from coterie.service.problems import Problem
from coterie.service.settings import Aggregation
from coterie.service.trial.assignment import Name

# not_learned: taken, but a number of the model would not have been finite
Outcome = Literal["applied", "duplicate", "late", "not_activated", "not_learned", "unknown_event"]
State = Literal["waiting", "deferred", "rewarded", "expired", "discarded", "closed"]
# waiting: shown, a reward may come · deferred: not shown yet · rewarded: learned from its reward ·
# expired: learned the default reward · discarded: never activated, nothing learned ·
# closed: its wait is over, and what became of it is no longer in memory


class Paid(NamedTuple):
    """What a payoff is for: an item, a vector, or, for one model of both, an action and its context by hashes."""

    item: str | None = None
    x: bytes | None = None
    hashed: bytes | None = None


class Event(Struct, gc=False, array_like=True):
    """What the reward of a decision needs of it. The whole decision is in the log at `position`."""

    id: str
    position: int
    user: int
    item: str | None  # the chosen action's id, if actions had no features, …
    x: bytes | None  # … its vector, if they had, …
    at: int  # milliseconds
    deadline: int  # only in snapshots of earlier versions; `waits` has it
    state: State
    digest: bytes
    probability: float
    choices: int  # how many actions it could have been
    baseline: bool  # whether the choice is what the application would have shown
    value: float = 0.0  # the sum of the rewards so far; what was learned once the wait is over
    rewards: tuple[str, ...] = ()  # the names of rewards counted, under aggregation "sum" and "average"
    counted: int = 0  # how many rewards were counted
    parent: str | None = None
    slot: str | None = None
    hashed: bytes | None = None  # … or, for one model of both, the action and the context by hashes
    arm: Name = ""
    alone: bool = False  # whether the request named no user
    agrees: bool | None = None  # whether the policy's best guess is what the application would have shown
    cost: float = 0.0  # of the choice, as far as it is known

    @property
    def open(self) -> bool:
        """Whether its wait goes on."""
        return self.state in ("waiting", "deferred")

    @property
    def paid(self) -> Paid:
        """What its reward is for."""
        return Paid(self.item, self.x, self.hashed)

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

    def check_retry(self, digest: bytes) -> None:
        """Raise if it was decided for a request with another digest."""
        if self.digest != digest:
            raise EventExistsError(self)


class EventExistsError(Problem):
    """A request that has the event id of another one."""

    def __init__(self, event: Event) -> None:
        way_out = "use a new event id, or send the same body again to get the same answer"
        name = event.parent or event.id
        super().__init__(409, "event_exists", f"event {name!r} was decided for another request; {way_out}")
        self.event = event


def deadline_of(record: Rank, wait: float) -> int:
    """Return when the wait of a decision ends; its reward may come within `wait` seconds."""
    return record.at + math.ceil(wait * 1000)


def costs_of(record: Rank) -> list[float]:
    """Return what each action costs, as the request says; nothing if it says nothing."""
    return [] if record.costs is None else np.frombuffer(record.costs).tolist()


def cost_of(record: Rank) -> float:
    """Return what the chosen action costs."""
    return costs_of(record)[record.choice] if record.costs is not None else 0.0


def new_event(record: Rank, position: int, paid: Paid) -> Event:
    """Return the event of a decision at a position of the log."""
    return Event(
        id=record.event,
        position=position,
        user=record.user,
        item=paid.item,
        x=paid.x,
        at=record.at,
        deadline=0,
        state="deferred" if record.deferred else "waiting",
        digest=record.digest,
        probability=record.probability,
        choices=len(record.actions) - len(record.excluded),
        baseline=record.choice == record.baseline,
        parent=record.parent,
        slot=record.slot,
        hashed=paid.hashed,
        arm=record.arm,
        alone=record.alone,
        agrees=record.best == record.baseline,
        cost=cost_of(record),
    )
