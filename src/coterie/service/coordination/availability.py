"""Having the store: taking it, renewing the lease on it, waiting while another owns it, and getting it back."""

import asyncio
import gc
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import final

from coterie.errors import CoterieError
from coterie.service.coordination.sequencer import Sequencer
from coterie.service.coordination.standby import WAITING, Standby
from coterie.service.core.bandit import Bandit
from coterie.service.core.records import Tick, encode, pack
from coterie.service.log.errors import BrokenError, LostError, PassingError, StaleError, StoreError
from coterie.service.log.recovery import Progress, StoppedError
from coterie.service.log.store import Append
from coterie.service.logs import log
from coterie.service.problems import Problem
from coterie.service.threads import in_thread

OWN_EVERY = 0.5  # seconds between two renewals of the lease
PATIENCE = 3.0  # seconds without a renewal, after which new work is refused
PAUSES = (0.1, 0.25, 0.5, 1.0)  # seconds between two tries to use a store again; the last one repeats
SAY_EVERY = 60.0  # seconds between two lines about the same trouble


@final
class Availability:
    """Whether the store is ours and works; while it does not, the sequencer refuses work.

    What passes by itself is waited for, however long it takes. What does not pass ends the process: the store is
    released, another process takes it over, and a supervisor starts this one again.
    """

    def __init__(self, sequencer: Sequencer, refuse_partial: bool = False) -> None:
        self.waiting = False  # whether another process owns the store
        self.ending = False  # whether the process ends, because the store cannot be used
        self.give_up: Callable[[], None] = lambda: None  # called to end the process
        self.pauses: Sequence[float] = PAUSES
        self.progress = Progress()  # of reading the log
        self.healing: asyncio.Task[None] | None = None
        self._sequencer = sequencer
        self._store = sequencer.store
        self._refuse_partial = refuse_partial
        self._standby: Standby | None = None
        self._ours = False  # whether the lease is to be renewed
        self._beginning = False
        self._said: tuple[str, float] = ("", 0.0)  # the last trouble in the log, and when that was
        self._thread = ThreadPoolExecutor(1, "lease")  # of its own: other threads may wait for the store
        sequencer.on_failure = self.fail

    def wait(self, why: str = WAITING) -> None:
        """Refuse work and reads, because another process owns the store, or it cannot be read yet."""
        if not self.waiting:
            log.warning(why)
        self.waiting, self._sequencer.refusing = True, why

    async def begin(self, begin: Callable[[], Awaitable[None]]) -> bool:
        """Call `begin` if the store is free, and return whether it has succeeded; raises what does not pass."""
        try:
            if not await in_thread(self._store.own):
                self.wait()
                return False
            await self._begin(begin)
            return True
        except CoterieError as error:
            if (passing := _passing(error)) is None:
                raise
            self.wait(passing.said)
            return False

    async def take_over(self, begin: Callable[[], Awaitable[None]]) -> None:
        """Call `begin`, which waits for the store, until it succeeds; end the process if it cannot."""
        tries = 0
        while True:
            try:
                await self._begin(begin)
                gc.freeze()  # as after a start
                log.warning("the database is ours now, and new work is accepted")
                return
            except StoppedError:
                return
            except Exception as error:
                if (passing := _passing(error)) is None:
                    self._end(f"the start failed: {error}", "the start failed")
                    return
                await self._pause(passing, tries)
                tries += 1

    async def _begin(self, begin: Callable[[], Awaitable[None]]) -> None:
        if self._ours:  # an earlier try has failed halfway
            await self._let_go()
            if self._sequencer.committer is not None:
                self._sequencer.committer.abandon()
        self._beginning = True  # so that a failure is not healed, but begun again
        try:
            await begin()
        finally:
            self._beginning = False

    async def recovered(self, read_first: bool = False) -> Bandit:
        """Return the bandit as the log says, once the store is ours."""
        if self._standby is None:
            self._standby = Standby(self._store, self._sequencer.shards, self.progress)
        standby = self._standby
        await standby.wait(self.wait, read_first)
        self._ours = True
        async with self._sequencer.scrubbing:
            bandit = await in_thread(standby.bandit)
        bandit.refuse_partial = self._refuse_partial
        self.waiting, self._standby = False, None
        return bandit

    async def watch(self) -> None:
        """Renew the lease on the store for as long as it is ours, also while there is nothing to write."""
        renewed = time.monotonic()
        while True:
            await asyncio.sleep(OWN_EVERY)
            try:
                if self._ours:
                    await in_thread(self._store.own, thread=self._thread)
                renewed = time.monotonic()
            except PassingError as error:
                if time.monotonic() > renewed + PATIENCE:
                    self.fail(error)
            except StoreError as error:
                self.fail(error)

    def fail(self, error: StoreError) -> None:
        """Stop accepting, and go back to what the log says; end the process if that is not enough."""
        if self._sequencer.refusing is None and not self._beginning:
            log.error(f"no new work is accepted: {error}")
            self._said = error.said, time.monotonic()
            self._sequencer.refusing = error.said
            self.healing = asyncio.create_task(self._heal(error))

    async def _heal(self, error: StoreError) -> None:
        """Read the log again, because the bandit has applied records that were not stored; then accept work again.

        After a failed write or sync, no write is tried again: only a restart finds out what the disk holds.
        """
        sequencer = self._sequencer
        assert sequencer.committer is not None
        await sequencer.committer.give_up(error)
        if isinstance(error, BrokenError):
            self._end(str(error), error.said)
            return
        tries = 0
        current = False  # whether the bandit is what the log says
        while True:
            try:
                if not current:
                    await self._let_go()
                    bandit = await self.recovered(read_first=True)
                    async with sequencer.turns:
                        sequencer.bandit, current = bandit, True
                if not isinstance(error, LostError | StaleError):
                    await self._probe()  # otherwise taking the store has shown that it takes records
                break
            except (PassingError, StaleError) as again:
                error = again
                current = current and not isinstance(again, LostError | StaleError)
                await self._pause(again, tries)
                tries += 1
            except StoppedError:
                return
            except CoterieError as again:
                said = again.said if isinstance(again, StoreError) else "the log cannot be read"
                self._end(f"the log cannot be used: {again}", said)
                return
        sequencer.committer.abandon()
        sequencer.open_log()
        log.warning("the store takes records again, and new work is accepted")

    async def _let_go(self) -> None:
        """Stop renewing the lease, so that a process that is ready can take over."""
        self._ours = False
        await in_thread(self._store.disown)

    async def _pause(self, error: StoreError, tries: int) -> None:
        """Say what is in the way, and wait before the next try."""
        self._sequencer.refusing = error.said
        pause = self.pauses[min(tries, len(self.pauses) - 1)]
        said, when = self._said
        if error.said != said or time.monotonic() > when + SAY_EVERY:
            self._said = error.said, time.monotonic()
            log.warning(f"trying again, every {self.pauses[-1]:g} s at least: {error}")
        await asyncio.sleep(pause)

    def _end(self, why: str, said: str) -> None:
        log.error(f"the service ends, so that another can begin: {why}")
        self.ending, self.waiting, self._sequencer.refusing = True, False, said
        self.give_up()

    def close(self) -> None:
        """Let the thread end."""
        self._thread.shutdown(wait=False)

    async def _probe(self) -> None:
        """Write a record that changes nothing, to see whether the store takes records."""
        bandit = self._sequencer.bandit
        probe = Tick(max(self._sequencer.clock(), bandit.now))
        batch = pack(bandit.position, [encode(probe)])
        await in_thread(self._store.append, Append(batch))
        await self._sequencer.do(lambda: bandit.apply(probe), long=True)


def _passing(error: Exception) -> StoreError | None:
    """Return the error of the store behind an error, if it is one after which the work can begin again."""
    cause = error.__cause__ if isinstance(error, Problem) else error
    return cause if isinstance(cause, PassingError | StaleError) else None
