"""Waiting for a store that another process owns. Its log is read meanwhile, so a takeover has little left to read."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import final

from coterie.errors import FileError
from coterie.policies.cab import Engine as Shards
from coterie.service.core.bandit import Bandit
from coterie.service.core.warm_up import warm_up
from coterie.service.log.errors import PassingError
from coterie.service.log.recovery import Progress, ScrubbedMeanwhileError, catch_up, recover
from coterie.service.log.store import Store
from coterie.service.logs import log
from coterie.service.threads import in_thread

WAITING = "waiting, because another coterie owns the database"
EVERY = 0.25  # seconds between two looks


@final
class Standby:
    """Reads a log as it grows until the store is ours, and then returns the bandit as the log says."""

    def __init__(self, store: Store, shards: Shards | None = None, progress: Progress | None = None) -> None:
        self.store = store
        self.progress = progress
        self.shards = shards  # shards belong to the owner, so with them nothing is followed
        self._bandit: Bandit | None = None
        self._epoch = -1

    async def wait(self, waiting: Callable[[], None], read_first: bool = False) -> None:
        """Return once the store is ours; `waiting` is called if it is not at once.

        With `read_first`, the log is read before the store is taken, so that a process that has read it is faster.
        """
        if read_first:
            await in_thread(self.follow)
        while not await in_thread(self.store.own):
            waiting()
            await in_thread(self.follow)
            await asyncio.sleep(EVERY)

    def follow(self) -> None:
        """Read what the owner has written since the last call. Raises PassingError if that cannot be done now."""
        epoch = self.store.epoch()
        if self.shards is not None:
            return
        if epoch != self._epoch:  # another owner may have cut the log
            self._bandit, self._epoch = None, epoch
        bandit, self._bandit = self._bandit, None
        try:
            if bandit is None:
                bandit = recover(self.store, owned=False)
                warm_up(bandit.config)
            else:
                self._catch_up(bandit)
        except FileError as error:
            # The owner may have removed what was being read; the next call starts from the beginning.
            log.debug(f"the log could not be followed: {error}")
            return
        except PassingError:
            self._bandit = bandit  # as far as it was read
            raise
        self._bandit = bandit

    def bandit(self) -> Bandit:
        """Return the bandit as the log says. The store must be ours."""
        bandit = self._bandit
        # Nobody else has owned the store since the last look: a file has no other owners, and a database counts them.
        if bandit is not None and self.store.epoch() in (self._epoch, self._epoch + 1):
            with suppress(ScrubbedMeanwhileError):
                self._catch_up(bandit)
                return bandit
        return recover(self.store, False, self.shards, progress=self.progress)

    def _catch_up(self, bandit: Bandit) -> None:
        catch_up(bandit, self.store, owned=False)
        # New users get new, higher numbers, and a record tells when a name goes: only names of new users are missing.
        bandit.user_names.take(self.store.users(max(bandit.ids, default=-1) + 1))
