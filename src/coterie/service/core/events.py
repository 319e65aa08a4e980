"""Decisions whose rewards may still come, and what is remembered of those whose rewards have."""

from typing import Literal

from msgspec import Struct

Outcome = Literal["applied", "duplicate", "late", "not_activated", "unknown_event"]
State = Literal["waiting", "deferred", "rewarded", "expired", "discarded"]
# waiting: shown, a reward may come · deferred: not shown yet · rewarded: learned from its reward ·
# expired: learned the default reward · discarded: never activated, nothing learned


class Event(Struct, gc=False, array_like=True):
    """One decision, as small as its reward needs it. The whole of it is in the log at `position`."""

    id: str
    position: int
    user: int
    item: str | None  # the chosen action's id, if actions had no features, …
    x: bytes | None  # … its vector, if they had, …
    at: int  # milliseconds
    deadline: int
    state: State
    digest: bytes
    probability: float
    choices: int  # how many actions it could have been
    baseline: bool  # whether the choice is what the application would have shown
    value: float = 0.0  # the reward so far
    rewards: tuple[str, ...] = ()  # the names of rewards counted, under aggregation "sum"
    counted: int = 0  # how many rewards were counted
    parent: str | None = None
    slot: str | None = None
    hashed: bytes | None = None  # or, for one model of all, the action and the context by hashes

    @property
    def open(self) -> bool:
        """Whether something can still become of it."""
        return self.state in ("waiting", "deferred")
