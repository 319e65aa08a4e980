"""Users and events that are remembered, in blocks, so that a snapshot copies only those that changed."""

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from typing import final

import msgspec
from msgspec import Struct

from coterie.data.logs.records import Rank
from coterie.models.parts import Blocks
from coterie.service.core.caps import Looks
from coterie.service.core.events import Event, State
from coterie.service.core.waits import DEFERRED, NAME, REWARDED, WAITING, Partial, Wait, Waits

USERS = 1 << 11  # numbers of one block
EVENTS = 1 << 9  # positions of one block
WHOLE = 800  # bytes of an event in memory, without its features and names
STATES: dict[State, int] = {"waiting": WAITING, "deferred": DEFERRED, "rewarded": REWARDED}
NAMES = {number: state for state, number in STATES.items()}

_encoder = msgspec.msgpack.Encoder()


class User(Struct, gc=False, array_like=True):
    """What is known of a user besides the model."""

    number: int
    first: int  # milliseconds
    last: int
    decisions: int = 0
    learned: int = 0
    earned: float = 0.0
    seen: int = 0  # `Remembered.sights` when the user was last seen; the user with the lowest goes first
    # Of the trial that began at the record before `trial`: how many payoffs, and their sum.
    trial: int = 0
    tried: int = 0
    gained: float = 0.0
    looks: Looks = {}  # while there are frequency caps
    # By guardrail: since which record it counts, how many values of its part, and their sum.
    guarded: dict[int, tuple[int, int, float]] | None = None

    def count_in_trial(self, start: int, value: float) -> tuple[int, float]:
        """Add a payoff to those of the trial that began at `start`; returns their count and sum before."""
        if self.trial != start + 1:
            self.trial, self.tried, self.gained = start + 1, 0, 0.0
        before = self.tried, self.gained
        self.tried += 1
        self.gained += value
        return before

    def count_for(self, guardrail: int, start: int, value: float) -> tuple[int, float]:
        """Add a value of the part that a guardrail is on; returns their count and sum before, since `start`."""
        held = self.guarded or {}
        began, n, s = held.get(guardrail, (start, 0, 0.0))
        n, s = (n, s) if began == start else (0, 0.0)
        self.guarded = {**held, guardrail: (start, n + 1, s + value)}
        return n, s


@final
class Remembered:
    """All users, the latest events, and all waits. Call `touch_user` or `touch_event` before changing one.

    An event leaves memory when there is no more room for it. Its wait stays, and so does its decision, in the log.
    """

    def __init__(self) -> None:
        self.users: dict[int, User] = {}  # unseen for longest first
        self.events: dict[str, Event] = {}  # those in memory, oldest first
        self.waits = Waits()
        self.sights = 0  # how often users were seen
        self.open = 0  # events that may still get a reward
        self.removed = 0  # events that were removed before their wait had ended
        self.removed_at = 0  # when the last of them was
        self._bytes = 0  # about what the events in memory take
        self._counts: dict[int, int] = {}  # users of a block
        self._rows: dict[int, list[Event]] = {}  # events of a block, oldest first
        self.mark_none()

    @property
    def size(self) -> int:
        """About what events and waits take."""
        return self._bytes + self.waits.bytes

    def touch_user(self, number: int) -> None:
        """Say that a user is about to change."""
        self.user_parts.touch(number // USERS)

    def touch_event(self, event: Event) -> None:
        """Say that an event is about to change."""
        if self.events.get(event.id) is event:
            self.event_parts.touch(event.position // EVENTS)

    def see(self, number: int, at: int) -> User:
        """Return a user, new or known, who is now the last to be dropped."""
        block = number // USERS
        self.user_parts.touch(block)
        user = self.users.pop(number, None)
        if user is None:
            user = User(number, at, at)
            self._counts[block] = self._counts.get(block, 0) + 1
        self.sights += 1
        user.last, user.seen = at, self.sights
        self.users[number] = user
        return user

    def drop_user(self, number: int) -> None:
        """Remove a user."""
        block = number // USERS
        self.user_parts.touch(block)
        del self.users[number]
        self._counts[block] -= 1
        if not self._counts[block]:
            del self._counts[block]

    def put_event(self, event: Event, deadline: int) -> None:
        """Remember an event, the newest, and begin its wait if it is open."""
        self._add(event)
        if event.open:
            self.open += 1
            self.waits.add(event.position, deadline, event.user)

    def _add(self, event: Event) -> None:
        block = event.position // EVENTS
        self.event_parts.touch(block)
        self.events[event.id] = event
        self._bytes += size_of(event)
        self._rows.setdefault(block, []).append(event)

    def drop_event(self, event: Event) -> None:
        """Forget an event, and end its wait."""
        self.open -= event.open
        self.waits.end(event.position)
        self._release(event)

    def page_out(self) -> None:
        """Let the oldest event leave memory; its wait goes on."""
        event = next(iter(self.events.values()))
        self.keep(event)
        self._release(event)

    def _release(self, event: Event) -> None:
        block = event.position // EVENTS
        self.event_parts.touch(block)
        self._bytes -= size_of(event)
        del self.events[event.id]
        rows = self._rows[block]
        if rows[0] is event:
            del rows[0]
        else:
            rows[:] = [other for other in rows if other is not event]
        if not rows:
            del self._rows[block]

    def at(self, position: int) -> Event | None:
        """Return the event of the decision at a position, if it is in memory."""
        rows = self._rows.get(position // EVENTS, [])
        k = bisect_left(rows, position, key=lambda event: event.position)
        return rows[k] if k < len(rows) and rows[k].position == position else None

    def keep(self, event: Event) -> None:
        """Keep the state of an event that is not in memory, or is about to leave it."""
        summed = event.open and event.counted
        partial = Partial(event.value, event.counted, event.rewards) if summed else None
        self.waits.put(event.position, STATES.get(event.state, REWARDED), partial)

    def changed(self, event: Event) -> None:
        """Keep a change of an event that may not be in memory."""
        if self.events.get(event.id) is not event:
            self.keep(event)

    def add_reward(self, event: Event, value: float, name: str | None) -> None:
        """Add a reward to those of an event."""
        self.touch_event(event)
        event.value += value
        event.counted += 1
        if name is not None:
            event.rewards = (*event.rewards, name)
            if self.events.get(event.id) is event:
                self._bytes += NAME + len(name)
        self.changed(event)

    def remove_oldest(self, at: int) -> bool:
        """End the oldest wait because there is no room for it, and return whether there was one."""
        oldest = self.waits.oldest()
        if oldest is None:
            return False
        self.waits.end(oldest.position)
        if oldest.state in (WAITING, DEFERRED):
            self.lose(at)
        return True

    def lose(self, at: int) -> None:
        """Count an open event that can no longer be learned."""
        self.open -= 1
        self.removed += 1
        self.removed_at = at

    def drop_events_of(self, user: int) -> None:
        """Forget all events of a user."""
        for event in [event for event in self.events.values() if event.user == user]:
            self.drop_event(event)
        for position in self.waits.of_user(user):
            wait = self.waits.get(position)
            self.open -= wait is not None and wait.state in (WAITING, DEFERRED)
            self.waits.end(position)

    def take_users(self, users: Sequence[User], sights: int) -> None:
        """Remember these users instead, unseen for longest first."""
        for number in list(self.users):
            self.drop_user(number)
        self.sights = sights
        for user in users:
            self.users[user.number] = user
            block = user.number // USERS
            self.user_parts.touch(block)
            self._counts[block] = self._counts.get(block, 0) + 1

    def read_events(self, events: Iterable[Event], waits: Iterable[bytes]) -> None:
        """Remember the events of a snapshot, oldest first, and their waits."""
        for event in events:
            self._add(event)
            self.open += event.open
        for part in waits:
            self.open += self.waits.read(part)

    def end_wait(self, event: Event, state: State) -> None:
        """Say what became of an open event."""
        self.touch_event(event)
        event.state = state
        self.open -= 1

    def mark_none(self) -> None:
        """Say that nothing changed."""
        self.user_parts = Blocks(lambda: list(self._counts), self.encode_users)
        self.event_parts = Blocks(lambda: list(self._rows), self._encode_events)
        self.waits.mark_none()

    def encode_users(self, block: int, turns: Mapping[int, int] | None = None) -> bytes:
        """Return the users of a block; `turns` has what to write for `seen` instead, by number."""
        numbers = range(block * USERS, (block + 1) * USERS)
        found = [user for user in map(self.users.get, numbers) if user is not None]
        if turns:
            found = [msgspec.structs.replace(user, seen=turns[user.number]) for user in found]
        return _encoder.encode(found)

    def _encode_events(self, block: int) -> bytes:
        return _encoder.encode(self._rows.get(block, []))


def event_of(record: Rank, position: int, wait: Wait | None) -> Event:
    """Return the event of a decision that is not in memory, as its wait says; without one its wait is over."""
    event = Event.of(record, position)
    event.state = "closed" if wait is None else NAMES.get(wait.state, "closed")
    if wait is not None and wait.partial is not None:
        event.value, event.counted = wait.partial.value, wait.partial.counted
        event.rewards = wait.partial.rewards
    return event


def size_of(event: Event) -> int:
    """Return about how many bytes an event takes."""
    own = len(event.id) + len(event.action.id) + len(event.action.hashed or b"")
    return WHOLE + own + (sum(NAME + len(name) for name in event.rewards) if event.rewards else 0)
