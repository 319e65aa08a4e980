"""Checking a store: its snapshot and the log after it must give the same state as the whole log, bit for bit."""

from msgspec import Struct

from coterie.service.log.recovery import recover
from coterie.service.log.store import Store
from coterie.service.snapshots import snapshot


class Checked(Struct, frozen=True):
    """What a store holds. Damage is raised, not returned."""

    first: int  # the oldest kept record
    end: int  # the next record to come
    users: int
    same: bool | None  # whether the replay from empty agrees; None if it was not made


def check(store: Store, replay: bool = True) -> Checked:
    """Read all of a store, and with `replay` compare; a log without its beginning cannot be replayed from empty."""
    first, end = store.bounds()
    bandit = recover(store)
    same = None
    if replay and first == 0:
        same = snapshot.dump(bandit) == snapshot.dump(recover(store, from_empty=True))
    return Checked(first, end, len(bandit.users), same)
