"""Retention: removing what is too old from the log."""

from coterie.service.log.store import Store


def remove_old(store: Store, before: int) -> int:
    """Remove records older than `before` (milliseconds) that no snapshot needs; returns how many."""
    kept = store.positions()
    if not kept:
        return 0
    boundary = store.bounds()[0]
    for batch in store.read():
        if batch.first + batch.count > min(kept) or batch.records()[-1].at >= before:
            break
        boundary = batch.first + batch.count
    return store.compact(boundary) if boundary > store.bounds()[0] else 0
