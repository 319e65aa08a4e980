"""The latest decisions, read from the end of the log as it grows, and what they earned."""

from collections import deque
from collections.abc import Sequence

from msgspec import Struct

from coterie.data.logs.records import Rank, Record, Reward, ShownAction, flatten
from coterie.service.core.bandit import Bandit
from coterie.service.core.reasons import rows_of
from coterie.service.log.damage import readable
from coterie.service.log.store import Store
from coterie.service.trial.intervals import Interval, interval, unweighted

LATEST = 2_000  # decisions remembered
STRETCHES = 20  # of the latest decisions, at most
LEAST_STRETCH = 50  # decisions


class LoggedDecision(Struct):
    """One of the latest decisions."""

    event: str
    at: int
    user: int
    action: ShownAction
    shown: str
    choices: int
    members: int | None  # the size of the chosen action's neighbourhood at the time of the choice
    reward: float | None = None
    arm: str = ""


class LatestDecisions:
    """Follows the log, and remembers its latest decisions."""

    def __init__(self) -> None:
        self.decisions: deque[LoggedDecision] = deque(maxlen=LATEST)
        self._by_event: dict[str, LoggedDecision] = {}
        self._next = 0

    def follow(self, store: Store, sums: bool = False) -> None:
        """Read the new records; never more than a few times what is remembered. With `sums`, all rewards count."""
        first, end = store.bounds()
        start = max(self._next, first, end - 4 * LATEST)
        for position, record in flatten(readable(store, start)) if start < end else ():
            if position >= start:
                self._take(record, sums)
                self._next = position + 1

    def _take(self, record: Record, sums: bool = False) -> None:
        if isinstance(record, Rank):
            if len(self.decisions) == LATEST:
                self._by_event.pop(self.decisions[0].event, None)
            made = LoggedDecision(
                record.event,
                record.at,
                record.user,
                record.action,
                record.shown or "best",
                len(record.open_to),
                members_of(record),
                arm=record.arm,
            )
            self.decisions.append(made)
            self._by_event[record.event] = made
        elif isinstance(record, Reward) and record.outcome == "applied":
            found = self._by_event.get(record.event)
            if found is not None and (sums or found.reward is None):
                found.reward = (found.reward or 0.0) + record.value

    def of(self, bandit: Bandit) -> list[LoggedDecision]:
        """Return the decisions for users who are still known, newest first."""
        kept = [made for made in self.decisions if made.user in bandit.ids]
        if len(kept) != len(self.decisions):  # a user was forgotten, so forget the user's decisions here too
            self.decisions = deque(kept, maxlen=LATEST)
            self._by_event = {made.event: made for made in kept}
        return kept[::-1]


def members_of(record: Rank) -> int | None:
    """Return how many users a choice rested on; None if the log does not say so."""
    rows = rows_of(record)
    if rows is None or "neighbours" not in rows[0]:
        return None
    return int(rows[record.open_to.index(record.choice)]["neighbours"])


class Stretch(Struct, frozen=True, rename="camel"):
    """Some consecutive decisions and what they earned: learning per decision rather than per minute."""

    start: int  # when the first of them was made
    decisions: int
    payoff: float
    payoff_interval: Interval | None


def stretches(latest: Sequence[LoggedDecision], bandit: Bandit) -> list[Stretch]:
    """Return what the latest decisions of the champion earned, newest last, without those that still wait."""
    settled = []
    for made in reversed(latest):
        event = bandit.events.get(made.event)
        if made.arm in ("", "champion") and event is not None and event.state in ("rewarded", "expired"):
            settled.append((made.at, event.value))
    size = max(LEAST_STRETCH, -(-len(settled) // STRETCHES))
    found = []
    for first in range(len(settled) % size, len(settled), size):
        part = [value for _, value in settled[first : first + size]]
        sums = unweighted(size, sum(part), sum(value * value for value in part))
        least = -1.0 if min(part) < 0 else 0.0
        found.append(Stretch(settled[first][0], size, sum(part) / size, interval(sums, least)))
    return found
