"""Retention: removing what is too old from the log."""

from coterie.service.log.store import Store


def remove_old(store: Store, before: int) -> None:
    """Remove records older than `before` (milliseconds) that no snapshot needs."""
    kept = store.positions()
    if not kept:
        return
    boundary = store.bounds()[0]
    for batch in store.read():
        if batch.first + batch.count > min(kept) or batch.records()[-1].at >= before:
            break
        boundary = batch.first + batch.count
    if boundary > store.bounds()[0]:
        store.compact(boundary)
