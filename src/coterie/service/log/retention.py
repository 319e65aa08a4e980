"""Retention: removing the oldest records from the log, by their age and by the size of the log.

What no snapshot needs may go, but no decision whose wait has not ended: it is read when its reward comes.
"""

from msgspec import Struct

from coterie.data.logs.records import decode
from coterie.service.log.damage import readable
from coterie.service.log.store import Store

MARGIN = (
    0.05  # of the log's size: so much more is removed, so that it is not done for a few records each time
)


class Removed(Struct, frozen=True):
    """What was removed, and what is left."""

    records: int
    size: int  # bytes of the log now
    too_large: bool  # whether the log is still larger than it should be


def remove_old(store: Store, before: int = 0, largest: int = 0, keep_from: int | None = None) -> Removed:
    """Remove records older than `before` (milliseconds), and more if the log has over `largest` bytes (0: no limit).

    Records from the position `keep_from` on stay, and those that a kept snapshot needs.
    """
    size = store.log_bytes()
    goal = (1 - MARGIN) * largest if 0 < largest < size else size
    kept = store.positions()
    end = min(kept, default=0) if keep_from is None else min([*kept, keep_from] if kept else [0])
    start = boundary = store.bounds()[0]
    left = size
    for batch in readable(store) if start < end else ():
        old = decode(batch.parts()[-1]).at < before
        if batch.first + batch.count > end or not (old or left > goal):
            break
        boundary = batch.first + batch.count
        left -= len(batch.body)
    if boundary > start:
        store.compact(boundary)
    return Removed(boundary - start, left, 0 < largest < left)
