"""Checking a store: its snapshot and the log after it must give the same state as the whole log, bit for bit."""

from msgspec import Struct

from coterie.errors import FileError
from coterie.service.log.damage import find_damage
from coterie.service.log.store import Store
from coterie.service.snapshots import snapshot
from coterie.service.snapshots.recovery import recover


class Checked(Struct, frozen=True):
    """What a store holds. Damage is raised, not returned."""

    first: int  # the oldest kept record
    end: int  # the next record to come
    users: int
    same: bool | None  # whether the replay from empty agrees; None if it cannot be made
    lost: int = 0  # records that were damaged and dropped, as far as the log was read


def check(store: Store, replay: bool = True) -> Checked:
    """Read all of a store, and with `replay` compare; a log that is not whole cannot be replayed from empty."""
    first, end = store.bounds()
    bandit = recover(store)
    for damaged in find_damage(store):
        raise FileError(
            f"log records {damaged} are damaged, but a snapshot has what they said; drop them with `coterie store "
            "repair`, or restore a backup"
        )
    same, lost = None, 0
    if replay and first == 0:
        whole = recover(store, from_empty=True)
        lost = whole.lost
        same = None if lost else snapshot.dump(bandit) == snapshot.dump(whole)
    return Checked(first, end, len(bandit.users), same, lost)
