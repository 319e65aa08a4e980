"""Having the store: taking it, waiting while another process owns it, and getting it back after a failure."""

import asyncio
import gc
from collections.abc import Awaitable, Callable, Sequence
from itertools import chain, repeat
from typing import final

from coterie.errors import CoterieError, FileError
from coterie.service.coordination.sequencer import Sequencer
from coterie.service.coordination.standby import WAITING, Standby
from coterie.service.core.bandit import Bandit
from coterie.service.core.records import Tick, encode, pack
from coterie.service.log.errors import BrokenError, FullError, LostError, StoreError
from coterie.service.log.recovery import Progress
from coterie.service.log.store import Append
from coterie.service.logs import log
from coterie.service.threads import in_thread

OWN_EVERY = 1.0  # seconds between two checks that the store is still ours
PAUSES = (1.0, 2.0, 4.0, 8.0, 16.0, 30.0)  # seconds between two tries to reach a store again


@final
class Availability:
    """Whether the store is ours and works; while it does not, the sequencer refuses work."""

    def __init__(self, sequencer: Sequencer, refuse_partial: bool = False) -> None:
        self.waiting = False  # whether another process owns the store
        self.give_up: Callable[[], None] = lambda: None  # called when a free store cannot be served
        self.pauses: Sequence[float] = PAUSES
        self.progress = Progress()  # of reading the log
        self.healing: asyncio.Task[None] | None = None
        self._sequencer = sequencer
        self._store = sequencer.store
        self._refuse_partial = refuse_partial
        sequencer.on_failure = self.fail

    def wait(self) -> None:
        """Refuse work, because another process owns the store."""
        if not self.waiting:
            log.warning(WAITING)
        self.waiting, self._sequencer.refusing = True, WAITING

    async def take_over(self, begin: Callable[[], Awaitable[None]]) -> None:
        """Call `begin`, which waits for the store; if it fails, call `give_up`, so that another process can try."""
        while True:
            try:
                await begin()
                gc.freeze()  # as after a start
                log.warning("the database is ours now, and new work is accepted")
                return
            except Exception as error:
                if self.waiting and isinstance(error, LostError):
                    await self._connect_again(error)
                    continue
                log.error(f"the database is free, but the start failed: {error}")
                self.waiting, self._sequencer.refusing = False, "the start failed"
                self.give_up()
                return

    async def _connect_again(self, error: CoterieError) -> None:
        """Connect to the database, after a pause that grows with every try."""
        for pause in chain(self.pauses, repeat(self.pauses[-1])):
            log.warning(f"the database cannot be reached, trying again in {pause:g} s: {error}")
            await asyncio.sleep(pause)
            try:
                await in_thread(self._store.reconnect)
                return
            except FileError as again:
                error = again

    async def recovered(self) -> Bandit:
        """Return the bandit as the log says, once the store is ours."""
        standby = Standby(self._store, self._sequencer.shards, self.progress)
        await standby.wait(self.wait)
        async with self._sequencer.scrubbing:
            bandit = await in_thread(standby.bandit)
        bandit.refuse_partial = self._refuse_partial
        self.waiting = False
        return bandit

    async def watch(self) -> None:
        """Check every second that the store is still ours, also while there is nothing to write."""
        while True:
            await asyncio.sleep(OWN_EVERY)
            if self._sequencer.refusing is None:
                try:
                    await in_thread(self._store.own)
                except StoreError as error:
                    self.fail(error)

    def fail(self, error: StoreError) -> None:
        """Stop accepting, and go back to what the log says."""
        if self._sequencer.refusing is None:
            log.error(f"no new work is accepted: {error}")
            self._sequencer.refusing = error.said
            self.healing = asyncio.create_task(self._heal(error))

    async def _heal(self, error: StoreError) -> None:
        """Read the log again, because the bandit has applied records that were not stored; then accept work again.

        After a failed write or sync, no write is tried again: only a restart finds out what the disk holds.
        """
        sequencer = self._sequencer
        tries = 0
        current = False  # whether the bandit is what the log says
        assert sequencer.committer is not None
        await sequencer.committer.give_up(error)
        while True:
            try:
                if isinstance(error, LostError):
                    await in_thread(self._store.reconnect)
                if not current:
                    bandit = await self.recovered()
                    async with sequencer.turns:
                        sequencer.bandit, current = bandit, True
                if isinstance(error, FullError):
                    await asyncio.sleep(self.pauses[0])
                    await self._probe()
                break
            except FullError as again:
                error = again
            except StoreError as again:
                error, current = again, False
            except FileError as again:
                if not isinstance(error, LostError):
                    log.error(f"the log cannot be read: {again}")
                    return
                pause = self.pauses[min(tries, len(self.pauses) - 1)]
                log.warning(f"the database cannot be reached, trying again in {pause:g} s: {again}")
                await asyncio.sleep(pause)
                tries += 1
            sequencer.refusing = error.said
        if not isinstance(error, BrokenError):
            sequencer.committer.abandon()
            sequencer.open_log()
            log.warning("the store takes records again, and new work is accepted")

    async def _probe(self) -> None:
        """Write a record that changes nothing, to see whether there is room."""
        bandit = self._sequencer.bandit
        probe = Tick(max(self._sequencer.clock(), bandit.now))
        batch = pack(bandit.position, [encode(probe)])
        await in_thread(self._store.append, Append(batch))
        await self._sequencer.do(lambda: bandit.apply(probe), long=True)
