"""Erasing a forgotten user from the log. The store's index says which batches have records of the user.

One transaction writes the Forget record, deletes the user's name, and notes that earlier records are to be scrubbed.
Scrubbing removes from them what else could identify the person: features as sent, and event ids, which clients
choose. A number with its choices and payoffs stays, so that a replay still gives what others learned.

Every step may be interrupted. First, a snapshot made after the Forget record replaces the others, so that no replay
starts before it. Then the records are rewritten, the last ones first, so that no reward has the id of an event that
is already renamed. When no trace is left, the note is removed. If a start finds the note, it does everything again.
"""

from collections.abc import Collection, Sequence

import msgspec

from coterie.data.logs.records import Activate, Rank, Record, Reward, encode, pack
from coterie.service.log.damage import drop_damaged
from coterie.service.log.store import Store


class Scrubber:
    """Takes records in log order, and returns them without what identifies some users."""

    def __init__(self, users: Collection[int]) -> None:
        self._users = frozenset(users)
        self._renamed: dict[str, str] = {}

    def clean(self, position: int, record: Record) -> Record:
        """Return a record, scrubbed if it is of these users."""
        if isinstance(record, Rank):
            if record.user not in self._users:
                self._renamed.pop(record.event, None)  # a forgotten user had used the same id
                return record
            if record.event.startswith("\0"):
                return record  # an earlier scrub was interrupted after it
            name = self._renamed[record.event] = f"\0{position}"  # no client can send U+0000
            return msgspec.structs.replace(
                record, event=name, features=None, parts=None, digest=b"", slot=None
            )
        if isinstance(record, Reward | Activate) and record.event in self._renamed:
            return msgspec.structs.replace(record, event=self._renamed[record.event])
        return record


def scrub(store: Store, users: Sequence[int]) -> int:
    """Scrub forgotten users' records, the last batch first, and return how many were changed."""
    scrubber = Scrubber(users)
    cleaned: dict[int, dict[int, Record]] = {}  # by batch, then by position
    places = store.batches_of(users)
    if not all(batch.is_sound() for batch in map(store.batch_at, places) if batch is not None):
        drop_damaged(store)  # what cannot be read cannot be scrubbed
    for first in places:
        batch = store.batch_at(first)
        for position, record in enumerate([] if batch is None else batch.records(), first):
            clean = scrubber.clean(position, record)
            if clean is not record:
                cleaned.setdefault(first, {})[position] = clean
    for first in sorted(cleaned, reverse=True):
        batch = store.batch_at(first)
        if batch is None:
            continue  # removed meanwhile, because it is older than the retention
        old = dict(enumerate(batch.records(), first))
        new = {k: cleaned[first].get(k, record) for k, record in old.items()}
        renamed = {r.event: k for k, r in old.items() if isinstance(r, Rank) and new[k] is not r}
        store.rewrite(pack(first, [encode(record) for record in new.values()]), renamed)
    return sum(map(len, cleaned.values()))
