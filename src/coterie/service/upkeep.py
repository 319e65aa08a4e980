"""Upkeep of the log: scrubbing forgotten users, and letting go what is older than the retention.

A forgotten user's name is gone with the Forget record, in one transaction. What else could point to the person
is scrubbed from the earlier records: features as sent, and the names of events, which clients choose. What is
left is a number that chose and paid, needed so that a replay still gives what others learned.
"""

import msgspec

from coterie.service.records import Activate, Batch, Rank, Record, Reward, encode, pack
from coterie.service.store import Store


def scrub(store: Store, user: int) -> int:
    """Scrub a forgotten user's records, and return how many were changed."""
    renamed: dict[str, str] = {}
    changed = 0
    for batch in store.read():
        records = batch.records()
        clean = [
            scrub_record(record, user, position, renamed)
            for position, record in enumerate(records, batch.first)
        ]
        different = sum(a is not b for a, b in zip(records, clean, strict=True))
        if different:
            store.rewrite(pack(batch.first, [encode(record) for record in clean]))
            changed += different
    store.scrubbed(user)
    return changed


def scrub_record(record: Record, user: int, position: int, renamed: dict[str, str]) -> Record:
    """Return a record without what points to the user; `renamed` collects the events' new names."""
    if isinstance(record, Rank) and record.user == user:
        if record.event.startswith("\0"):
            return record  # by an earlier scrub that was interrupted
        renamed[record.event] = f"\0{position}"  # no client can send U+0000
        return msgspec.structs.replace(
            record, event=renamed[record.event], features=None, parts=None, digest=b"", parent=None, slot=None
        )
    if isinstance(record, Reward | Activate) and record.event in renamed:
        return msgspec.structs.replace(record, event=renamed[record.event])
    return record


def let_go(store: Store, before: int) -> int:
    """Remove what is older than `before` (milliseconds) and not needed by a snapshot; returns the records."""
    kept = store.positions()
    if not kept:
        return 0
    boundary = store.bounds()[0]
    for batch in store.read():
        if batch.first + batch.count > min(kept) or newest(batch) >= before:
            break
        boundary = batch.first + batch.count
    return store.compact(boundary) if boundary > store.bounds()[0] else 0


def newest(batch: Batch) -> int:
    """Return the time of a batch's last record."""
    return batch.records()[-1].at
