"""How a forgotten user leaves the log.

A forgotten user's name is gone with the Forget record, in one transaction, which also notes that the rest is to be
done. What else could point to the person is scrubbed from the earlier records: features as sent, and the names of
events, which clients choose. What is left is a number that chose and paid, needed so that a replay still gives what
others learned.

The order makes every step safe to interrupt: first the snapshots are replaced by one that was made after the Forget
record, so that nothing is replayed from before; then the records are rewritten, the last ones first, so that a reward
never outlives the name of its event; and when no trace is left, the note is removed. The next start finds the note,
and does it all again.
"""

from collections.abc import Collection, Sequence

import msgspec

from coterie.service.core.records import Activate, Rank, Record, Reward, encode, pack
from coterie.service.log.store import Store


class Scrubber:
    """Takes records in log order, and returns them without what points to some users."""

    def __init__(self, users: Collection[int]) -> None:
        self._users = frozenset(users)
        self._renamed: dict[str, str] = {}

    def clean(self, position: int, record: Record) -> Record:
        """Return a record as it is to be."""
        if isinstance(record, Rank):
            if record.user not in self._users:
                self._renamed.pop(
                    record.event, None
                )  # an id that was used before, by somebody who is forgotten
                return record
            if record.event.startswith("\0"):
                return record  # by an earlier scrub that was interrupted
            name = self._renamed[record.event] = f"\0{position}"  # no client can send U+0000
            return msgspec.structs.replace(
                record, event=name, features=None, parts=None, digest=b"", parent=None, slot=None
            )
        if isinstance(record, Reward | Activate) and record.event in self._renamed:
            return msgspec.structs.replace(record, event=self._renamed[record.event])
        return record


def scrub(store: Store, users: Sequence[int]) -> int:
    """Scrub forgotten users' records, the last batch first, and return how many were changed."""
    scrubber = Scrubber(users)
    cleaned: dict[int, dict[int, Record]] = {}  # by batch, then by position
    for batch in store.read():
        for position, record in enumerate(batch.records(), batch.first):
            clean = scrubber.clean(position, record)
            if clean is not record:
                cleaned.setdefault(batch.first, {})[position] = clean
    for first in sorted(cleaned, reverse=True):
        found = next(iter(store.read(first)), None)
        if found is None or found.first != first:
            continue  # beyond the retention, and gone meanwhile
        records = [cleaned[first].get(k, record) for k, record in enumerate(found.records(), first)]
        store.rewrite(pack(first, [encode(record) for record in records]))
    return sum(map(len, cleaned.values()))
