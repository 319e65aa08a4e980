"""Whether the store takes records; while it does not, the sequencer refuses work."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import final

from coterie.errors import CoterieError
from coterie.service.coordination.sequencer import Sequencer
from coterie.service.logs import log
from coterie.service.problems import Problem
from coterie.service.repeating import SAY_EVERY
from coterie.service.snapshots.recovery import Progress
from coterie.service.store_errors import BrokenError, PassingError, StoreError

PAUSES = (0.1, 0.25, 0.5, 1.0)  # seconds between two tries to use a store again; the last one repeats


@final
class Availability:
    """What passes by itself is waited for, however long it takes. What does not pass ends the process.

    The state needs no repair: only what the log has was applied.
    """

    def __init__(self, sequencer: Sequencer) -> None:
        self.ending = False  # whether the process ends, because the store cannot be used
        self.give_up: Callable[[], None] = lambda: None  # called to end the process
        self.pauses: Sequence[float] = PAUSES
        self.progress = Progress()  # of reading the log
        self.healing: asyncio.Task[None] | None = None
        self._sequencer = sequencer
        self._said: tuple[str, float] = ("", 0.0)  # the last trouble in the log, and when that was
        sequencer.on_failure = self.fail

    async def begin(self, begin: Callable[[], Awaitable[None]]) -> None:
        """Call `begin` until it succeeds; raises what does not pass."""
        tries = 0
        while True:
            try:
                await begin()
                return
            except CoterieError as error:
                cause = error.__cause__ if isinstance(error, Problem) else error
                if not isinstance(cause, PassingError):
                    raise
                await self._pause(cause, tries)
                tries += 1

    def fail(self, error: StoreError) -> None:
        """Stop accepting until the store takes records; end the process if that is not enough."""
        sequencer = self._sequencer
        if isinstance(error, BrokenError):
            # After a failed write or sync, no write is tried again: only a restart finds out what the disk holds.
            if not self.ending:
                log.error(f"the service ends, so that another can begin: {error}")
                self.ending, sequencer.refusing = True, error.said
                self.give_up()
        elif sequencer.refusing is None:
            log.error(f"no new work is accepted: {error}")
            self._said = error.said, time.monotonic()
            sequencer.refusing = error.said
            self.healing = asyncio.create_task(self._heal())

    async def _heal(self) -> None:
        """Try to write a record that changes nothing, until the store takes it; then accept work again."""
        sequencer, tries = self._sequencer, 0
        while not self.ending:
            try:
                await asyncio.sleep(self.pauses[min(tries, len(self.pauses) - 1)])
                await sequencer.put(lambda: sequencer.bandit.jump(sequencer.bandit.now, 0))
                sequencer.refusing = None
                log.warning("the store takes records again, and new work is accepted")
                return
            except Exception as error:  # whatever it is, work is refused until the store takes a record
                cause = error.__cause__ if isinstance(error, Problem) else error
                if isinstance(cause, StoreError):
                    await self._pause(cause, tries, 0.0)
                else:
                    log.exception("the store could not be tried")
                tries += 1

    async def _pause(self, error: StoreError, tries: int, most: float = 600.0) -> None:
        """Say what is in the way, and wait before the next try."""
        if self._sequencer.refusing is not None:
            self._sequencer.refusing = error.said
        said, when = self._said
        if error.said != said or time.monotonic() > when + SAY_EVERY:
            self._said = error.said, time.monotonic()
            log.warning(f"trying again, every {self.pauses[-1]:g} s at least: {error}")
        await asyncio.sleep(min(most, self.pauses[min(tries, len(self.pauses) - 1)]))
