"""Users and events as the engine remembers them, in blocks, so that a snapshot copies those that changed."""

from collections.abc import Iterable, Mapping, Sequence
from typing import final

import msgspec
from msgspec import Struct

from coterie.models.parts import Blocks
from coterie.service.core.events import Event

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
    seen: int = 0  # which sight of any user was the last one of this user: the order in which users go


@final
class Remembered:
    """All users and events. Whoever changes one says so before, by `touch_user` or `touch_event`."""

    def __init__(self) -> None:
        self.users: dict[int, User] = {}  # unseen for longest first
        self.events: dict[str, Event] = {}  # oldest first
        self.sights = 0  # how often users were seen
        self._crowds: dict[int, int] = {}  # users of a block
        self._rows: dict[int, list[Event]] = {}  # events of a block, oldest first
        self.user_parts = Blocks(lambda: list(self._crowds), self._encode_users)
        self.event_parts = Blocks(lambda: list(self._rows), self._encode_events)

    def touch_user(self, number: int) -> None:
        """Say that a user is about to change."""
        self.user_parts.touch(number // USERS)

    def touch_event(self, event: Event) -> None:
        """Say that an event is about to change."""
        self.event_parts.touch(event.position // EVENTS)

    def see(self, number: int, at: int) -> User:
        """Return a user, new or known, moved to the end of the queue of those who may go."""
        block = number // USERS
        self.user_parts.touch(block)
        user = self.users.pop(number, None)
        if user is None:
            user = User(number, at, at)
            self._crowds[block] = self._crowds.get(block, 0) + 1
        self.sights += 1
        user.last, user.seen = at, self.sights
        self.users[number] = user
        return user

    def drop_user(self, number: int) -> None:
        """Remove a user."""
        block = number // USERS
        self.user_parts.touch(block)
        del self.users[number]
        self._crowds[block] -= 1
        if not self._crowds[block]:
            del self._crowds[block]

    def put_event(self, event: Event) -> None:
        """Remember an event, the newest."""
        block = event.position // EVENTS
        self.event_parts.touch(block)
        self.events[event.id] = event
        self._rows.setdefault(block, []).append(event)

    def drop_event(self, event: Event) -> None:
        """Forget an event."""
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
            self._crowds[block] = self._crowds.get(block, 0) + 1

    def take_events(self, events: Iterable[Event]) -> None:
        """Remember these events instead, oldest first."""
        for event in list(self.events.values()):
            self.drop_event(event)
        for event in events:
            self.put_event(event)

    def mark_none(self) -> None:
        """Say that nothing changed."""
        self.user_parts = Blocks(lambda: list(self._crowds), self._encode_users)
        self.event_parts = Blocks(lambda: list(self._rows), self._encode_events)

    def _encode_users(self, block: int) -> bytes:
        return self.encode_users(block, {})

    def encode_users(self, block: int, turns: Mapping[int, int]) -> bytes:
        """Return the users of a block; `turns` is what to write for `seen`, if not what it is."""
        numbers = range(block * USERS, (block + 1) * USERS)
        found = [user for user in map(self.users.get, numbers) if user is not None]
        if turns:
            found = [msgspec.structs.replace(user, seen=turns[user.number]) for user in found]
        return _encoder.encode(found)

    def _encode_events(self, block: int) -> bytes:
        return _encoder.encode(self._rows.get(block, []))
