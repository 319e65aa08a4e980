"""Recovery: the newest sound snapshot, then the log after it. The result equals the state before the crash."""

from collections.abc import Collection
from contextlib import suppress

from coterie.errors import FileError
from coterie.policies.cab import Engine as Shards
from coterie.service.core.engine import Engine
from coterie.service.log.erasure import Scrubber
from coterie.service.log.store import Store
from coterie.service.settings import Config
from coterie.service.snapshots import snapshot
from coterie.service.snapshots.pieces import DamagedError


def recover(store: Store, from_empty: bool = False, shards: Shards | None = None) -> Engine:
    """Return the engine as the store's log says, its users in `shards` if any; `from_empty` ignores snapshots."""
    first, end = store.bounds()
    engine = Engine(shards)
    for position, state in () if from_empty else store.snapshots():
        if first <= position <= end:
            with suppress(DamagedError):  # the one before it may be whole
                engine = snapshot.restore(state, shards, store.piece)
                break
    if engine.position < first:
        raise FileError(
            f"the log begins at record {first}, and there is no sound snapshot to begin from; restore a backup"
        )
    engine.know(store.users())
    catch_up(engine, store, shards)
    return engine


def catch_up(engine: Engine, store: Store, shards: Shards | None = None) -> None:
    """Apply what the log holds beyond the engine's position."""
    engine.relearn = lambda config: relearn(store, config, engine.position, shards)
    replay(engine, store)
    engine.relearn = None


def replay(
    engine: Engine, store: Store, end: int | None = None, users: Collection[int] | None = None
) -> None:
    """Apply the log's records from where the engine stands, up to `end`.

    Users whose records are only half scrubbed, because a crash interrupted it, are read as if it were done:
    those whom the store names, or `users`.
    """
    scrubber = Scrubber(store.scrubs() if users is None else users)
    for batch in store.read(engine.position):
        for position, record in enumerate(batch.records(), batch.first):
            if position >= engine.position and (end is None or position < end):
                engine.apply(scrubber.clean(position, record))
        if end is not None and engine.position >= end:
            break
    engine.drain()


def relearn(
    store: Store,
    config: Config,
    end: int,
    shards: Shards | None = None,
    users: Collection[int] | None = None,
) -> Engine:
    """Return an engine that learned the kept log up to `end` with another policy; `users` as in `replay`."""
    engine = Engine(shards)
    engine.position = store.bounds()[0]
    engine.fixed = engine.config = config
    replay(engine, store, end, users)
    return engine
