"""Upkeep of the log: letting go what is older than the retention."""

from coterie.service.core.records import Batch
from coterie.service.log.store import Store


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
