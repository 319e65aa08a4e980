"""Which shard a user belongs to: a hash of the id gives one of SLOTS slots, and a table gives the slot's shard.

The hash is the same on every machine and never changes. Users are moved by moving slots.
"""

import hashlib
import json
from collections.abc import Hashable, Sequence
from typing import TypeVar, final

import numpy as np

from coterie.errors import FileError, UserError
from coterie.models.files import to_json

SLOTS = 4096

T = TypeVar("T")


def slot_of(user: Hashable) -> int:
    """Return a user's slot. Ids that are equal in Python (1, 1.0, True) have the same slot."""
    try:
        text = json.dumps(to_json(_plain(user)))
    except FileError as error:
        raise UserError(
            f"user id {user!r} is a {type(user).__name__}, which has no hash that is the same on every machine; "
            "use str, int, float, bytes, None or tuples of these"
        ) from error
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest()) % SLOTS


def _plain(user: Hashable) -> Hashable:
    if isinstance(user, np.generic):
        user = user.item()
    if isinstance(user, bool | float) and user == user and abs(user) != float("inf") and user == int(user):
        return int(user)
    return tuple(_plain(part) for part in user) if isinstance(user, tuple) else user


@final
class Placement:
    """The table from slot to shard. At first, shards have equal numbers of slots, up to one."""

    def __init__(self, shards: int) -> None:
        self.table = [slot % shards for slot in range(SLOTS)]

    def shard_of(self, user: Hashable) -> int:
        """Return the shard that has the user."""
        return self.table[slot_of(user)]

    def group(self, users: Sequence[Hashable], things: Sequence[T]) -> dict[int, list[T]]:
        """Return the things of users by the shards that have the users."""
        found: dict[int, list[T]] = {}
        for user, thing in zip(users, things, strict=True):
            found.setdefault(self.shard_of(user), []).append(thing)
        return found

    def moves_to(self, shards: int) -> list[tuple[int, int, int]]:
        """Return the fewest moves (slot, source, target) that give `shards` shards equal shares, up to one slot."""
        wanted = [SLOTS // shards + (shard < SLOTS % shards) for shard in range(shards)]
        moving = []
        for slot, shard in enumerate(self.table):
            if shard < shards and wanted[shard] > 0:
                wanted[shard] -= 1
            else:
                moving.append(slot)
        room = [shard for shard, count in enumerate(wanted) for _ in range(count)]
        return [(slot, self.table[slot], target) for slot, target in zip(moving, room, strict=True)]
