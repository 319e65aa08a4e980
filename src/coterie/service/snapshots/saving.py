"""Saving a snapshot: the state is copied part by part in the event loop, and written beside it.

The snapshot before stays until the new one is complete. A crash may leave pieces that no snapshot needs; the next
snapshot removes them.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from coterie.service.core.bandit import Bandit
from coterie.service.log import pieces
from coterie.service.log.store import Store
from coterie.service.snapshots.snapshot import Copy, prepare
from coterie.service.store_errors import keep_trying
from coterie.service.threads import in_thread

Part = tuple[str, str, bytes]  # source, key and content
Turn = Callable[[Callable[[], Any]], Awaitable[Any]]  # does work on the bandit when its turn comes


async def save(bandit: Bandit, store: Store, turn: Turn, alone: bool = False) -> None:
    """Keep the state as it is now; only one call may run at a time, among all processes that share the store.

    Each part, of about 100 KB, is copied in its own `turn`, so that nothing changes it meanwhile.
    """
    there = await in_thread(store.pieces)
    await in_thread(prepare, bandit)
    copy = await turn(lambda: Copy(bandit, there))
    kept = False
    try:
        taken: list[Part] = []
        size = 0
        parts = copy.parts()
        while (part := await turn(lambda: next(parts, None))) is not None:
            taken.append(part)
            size += len(part[2])
            if size >= pieces.PIECE:
                await in_thread(_write, copy, store, there, taken)
                taken, size = [], 0
            else:
                await asyncio.sleep(0)
        await in_thread(_finish, copy, store, there, taken, alone)
        kept = True
    finally:
        await turn(lambda: copy.end(kept))


def save_now(bandit: Bandit, store: Store, alone: bool = False) -> None:
    """Do what `save` does while nothing else runs; the log must be durable."""
    there = store.pieces()
    copy = Copy(bandit, there)
    kept = False
    try:
        for part in copy.parts():
            _write(copy, store, there, [part])
        _finish(copy, store, there, [], alone)
        kept = True
    finally:
        copy.end(kept)


def _name(copy: Copy, there: set[bytes], parts: list[Part]) -> dict[bytes, bytes]:
    """Return the pieces to write, by name."""
    new = {}
    for source, key, body in parts:
        name = pieces.name_of(body)
        copy.keep(source, key, name)
        if name not in there:
            new[name] = body
    there.update(new)
    return new


def _write(copy: Copy, store: Store, there: set[bytes], parts: list[Part]) -> None:
    keep_trying(store.save_pieces, _name(copy, there, parts))


def _finish(copy: Copy, store: Store, there: set[bytes], parts: list[Part], alone: bool) -> None:
    last = _name(copy, there, parts)
    keep_trying(store.save_snapshot, copy.position, copy.row(), alone, last)
