"""Users and events that are remembered, in blocks, so that a snapshot copies only those that changed."""

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import final

import msgspec
from msgspec import Struct

from coterie.models.parts import Blocks
from coterie.service.core.events import Event, State

USERS = 1 << 11  # numbers of one block
EVENTS = 1 << 9  # positions of one block

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

    def count_in_trial(self, start: int, value: float) -> tuple[int, float]:
        """Add a payoff to those of the trial that began at `start`; returns their count and sum before."""
        if self.trial != start + 1:
            self.trial, self.tried, self.gained = start + 1, 0, 0.0
        before = self.tried, self.gained
        self.tried += 1
        self.gained += value
        return before


@final
class Remembered:
    """All users and events. Call `touch_user` or `touch_event` before changing one."""

    def __init__(self) -> None:
        self.users: dict[int, User] = {}  # unseen for longest first
        self.events: dict[str, Event] = {}  # oldest first
        self.sights = 0  # how often users were seen
        self.deadlines: list[tuple[int, int, str]] = []  # a heap of (deadline, position, id)
        self.open = 0  # events that may still get a reward
        self._counts: dict[int, int] = {}  # users of a block
        self._rows: dict[int, list[Event]] = {}  # events of a block, oldest first
        self.mark_none()

    def touch_user(self, number: int) -> None:
        """Say that a user is about to change."""
        self.user_parts.touch(number // USERS)

    def touch_event(self, event: Event) -> None:
        """Say that an event is about to change."""
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

    def put_event(self, event: Event) -> None:
        """Remember an event, the newest."""
        block = event.position // EVENTS
        self.event_parts.touch(block)
        self.events[event.id] = event
        self._rows.setdefault(block, []).append(event)
        if event.open:
            self.open += 1
            heapq.heappush(self.deadlines, (event.deadline, event.position, event.id))

    def drop_event(self, event: Event) -> None:
        """Forget an event."""
        self.open -= event.open
        block = event.position // EVENTS
        self.event_parts.touch(block)
        del self.events[event.id]
        rows = self._rows[block]
        if rows[0] is event:
            del rows[0]
        else:
            rows[:] = [other for other in rows if other is not event]
        if not rows:
            del self._rows[block]

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

    def take_events(self, events: Iterable[Event]) -> None:
        """Remember these events instead, oldest first."""
        for event in list(self.events.values()):
            self.drop_event(event)
        self.deadlines = []
        for event in events:
            self.put_event(event)

    def end_wait(self, event: Event, state: State) -> None:
        """Say what became of an open event."""
        self.touch_event(event)
        event.state = state
        self.open -= 1

    def over(self, at: int) -> Iterator[Event]:
        """Yield the events whose wait is over, and take their deadlines from the heap."""
        while self.deadlines and self.deadlines[0][0] <= at:
            _, position, name = heapq.heappop(self.deadlines)
            event = self.events.get(name)
            if event is not None and event.position == position:
                yield event

    def move_deadlines(self, by: int) -> None:
        """Move the ends of all waits."""
        for event in self.events.values():
            if event.open:
                self.touch_event(event)
                event.deadline += by
        # All move alike, so the heap stays one.
        self.deadlines = [(end + by, position, name) for end, position, name in self.deadlines]

    def mark_none(self) -> None:
        """Say that nothing changed."""
        self.user_parts = Blocks(lambda: list(self._counts), self.encode_users)
        self.event_parts = Blocks(lambda: list(self._rows), self._encode_events)

    def encode_users(self, block: int, turns: Mapping[int, int] | None = None) -> bytes:
        """Return the users of a block; `turns` has what to write for `seen` instead, by number."""
        numbers = range(block * USERS, (block + 1) * USERS)
        found = [user for user in map(self.users.get, numbers) if user is not None]
        if turns:
            found = [msgspec.structs.replace(user, seen=turns[user.number]) for user in found]
        return _encoder.encode(found)

    def _encode_events(self, block: int) -> bytes:
        return _encoder.encode(self._rows.get(block, []))
