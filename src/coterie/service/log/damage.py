"""Damage in the log: found, passed over, and dropped.

A start reads the newest snapshot and the log after it, so damage before the snapshot does not stop it. `find_damage`
reads all of the log. `readable` puts as many Ticks that say so in the place of what is damaged or missing: all that
reads the whole log goes on without it, and `drop_damaged` writes them into the store.
"""

import time
from collections.abc import Callable, Iterator

from msgspec import Struct

from coterie.data.logs.records import Batch, Tick, encode, pack
from coterie.errors import FileError
from coterie.service.log.store import PAGE_OF_LOG, Store

MOST = 10_000  # lost records in one batch
PAUSE = 0.005  # seconds between two pages of the log, so that requests go first


class Damaged(Struct, frozen=True):
    """Records that cannot be read."""

    first: int
    last: int

    def __str__(self) -> str:
        return f"{self.first} to {self.last}" if self.last > self.first else str(self.first)


OnDamage = Callable[
    [Damaged, list[Batch]], None
]  # called with what is damaged, and what is read in its place


def readable(store: Store, first: int = 0, on_damage: OnDamage = lambda found, new: None) -> Iterator[Batch]:
    """Yield what `Store.read` does, with lost records in the place of those that are damaged or missing."""
    start, end = store.bounds()
    place, last = max(first, start), None
    for batch in store.scan(place):
        if batch.first >= end:
            break
        if batch.first > place and store.bounds()[0] <= place:  # else the older ones were removed meanwhile
            yield from _replaced(place, batch.first, last, on_damage)
        if last is None or batch.first > place:
            place = batch.first
        if batch.is_sound():
            yield batch
            place, last = batch.first + batch.count, batch
    if place < end and store.bounds()[0] <= place:
        yield from _replaced(place, end, last, on_damage)


def _replaced(first: int, end: int, before: Batch | None, on_damage: OnDamage) -> list[Batch]:
    new = lost(first, end, before)
    on_damage(Damaged(first, end - 1), new)
    return new


def lost(first: int, end: int, before: Batch | None) -> list[Batch]:
    """Return lost records for the places from `first` up to `end`, at the time of the record `before` them."""
    tick = encode(Tick(0 if before is None else before.records()[-1].at, lost=True))
    return [pack(k, [tick] * (min(k + MOST, end) - k)) for k in range(first, end, MOST)]


def find_damage(store: Store, ended: Callable[[], bool] = lambda: False) -> list[Damaged]:
    """Return which records of the log cannot be read; reads all of it, unless it is `ended`."""
    found: list[Damaged] = []
    for k, _ in enumerate(readable(store, on_damage=lambda one, _: found.append(one))):
        if k % PAGE_OF_LOG == 0:
            if ended():
                break
            time.sleep(PAUSE)
    return found


def drop_damaged(store: Store) -> list[Damaged]:
    """Write lost records in the place of damaged ones, and return these; a snapshot must have what they said."""
    found: list[tuple[Damaged, list[Batch]]] = []
    for _ in readable(store, on_damage=lambda one, new: found.append((one, new))):
        pass
    newest = max(store.positions(), default=0)
    for one, _ in found:
        check_before(one, newest)
    for one, new in found:
        store.replace_batches(one.first, one.last, new)
    return [one for one, _ in found]


def check_before(damaged: Damaged, snapshot: int) -> None:
    """Raise if records are damaged that come after the newest snapshot: their effect is lost."""
    if damaged.last >= snapshot:
        raise FileError(
            f"log records {damaged} are damaged, and no snapshot has what they said; restore a backup of the store, "
            f"or keep what comes before with `coterie store cut --at {damaged.first}`"
        )
