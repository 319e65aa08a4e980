"""Waiting for a store that another process owns: its log is followed, so that a takeover has little left to read."""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import final

from coterie.errors import FileError
from coterie.policies.cab import Engine as Shards
from coterie.service.core.engine import Engine, warm_up
from coterie.service.log.recovery import ScrubbedMeanwhileError, catch_up, recover
from coterie.service.log.store import Store
from coterie.service.snapshots.saving import beside

WAITING = "waiting, because another coterie owns the database"
EVERY = 0.25  # seconds between two looks

log = logging.getLogger("coterie.service")


@final
class Standby:
    """Follows a log until the store is ours, and then returns the engine as the log says."""

    def __init__(self, store: Store, shards: Shards | None = None) -> None:
        self.store = store
        self.shards = shards  # shards belong to the owner, so with them nothing is followed
        self._engine: Engine | None = None
        self._epoch = -1

    async def wait(self, waiting: Callable[[], None]) -> None:
        """Return once the store is ours; `waiting` is called if it is not at once."""
        while not await beside(self.store.own):
            waiting()
            await beside(self.follow)
            await asyncio.sleep(EVERY)

    def follow(self) -> None:
        """Read what the owner has written since the last call. Raises LostError if the connection is lost."""
        epoch = self.store.epoch()
        if self.shards is not None:
            return
        if epoch != self._epoch:  # another owner may have cut the log
            self._engine, self._epoch = None, epoch
        engine, self._engine = self._engine, None
        try:
            if engine is None:
                engine = recover(self.store, owned=False)
                warm_up(engine.config)
            else:
                self._catch_up(engine)
        except FileError as error:
            # The owner may have removed what was being read; the next call begins anew.
            log.debug(f"the log could not be followed: {error}")
            return
        self._engine = engine

    def engine(self) -> Engine:
        """Return the engine as the log says. The store must be ours."""
        engine = self._engine
        if engine is not None and self.store.epoch() == self._epoch + 1:
            with suppress(ScrubbedMeanwhileError):
                self._catch_up(engine)
                return engine
        return recover(self.store, False, self.shards)

    def _catch_up(self, engine: Engine) -> None:
        catch_up(engine, self.store, owned=False)
        # New users get new numbers, and names go with a record: only names beyond the last known one are missing.
        engine.know_more(self.store.users(max(engine.ids, default=-1) + 1))
