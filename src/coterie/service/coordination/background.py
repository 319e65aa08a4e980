"""Work without a request: waits that end, snapshots, retention, and whether the choices still vary."""

import asyncio
from contextlib import suppress
from functools import partial
from typing import final

from coterie.errors import CoterieError
from coterie.service.clock import JUMP
from coterie.service.coordination.rules import retention_days
from coterie.service.coordination.sequencer import Sequencer
from coterie.service.core.records import Rank
from coterie.service.figures import exploring
from coterie.service.log.retention import remove_old
from coterie.service.logs import log
from coterie.service.problems import Problem
from coterie.service.settings import Settings
from coterie.service.threads import in_thread

TICK_EVERY = 0.25  # seconds


@final
class Background:
    """Tasks that run beside requests, as long as work is accepted."""

    def __init__(self, sequencer: Sequencer, settings: Settings) -> None:
        self.stopped_exploring = False
        self.guess_changes: float | None = None  # the share of the last hour's best guesses that would change
        self.snapshot_at = 0  # the position of the last snapshot
        self._sequencer = sequencer
        self._settings = settings

    def start(self) -> list[asyncio.Task[None]]:
        """Start the tasks."""
        return [asyncio.create_task(self._pass_time()), asyncio.create_task(self._keep_asking())]

    async def _pass_time(self) -> None:
        sequencer = self._sequencer
        while True:
            await asyncio.sleep(TICK_EVERY)
            if sequencer.refusing is None:
                with suppress(Problem):
                    await sequencer.write(self.tick)
                if sequencer.bandit.position - self.snapshot_at >= self._settings.snapshot_every:
                    self.snapshot_at = sequencer.bandit.position
                    try:
                        await sequencer.snapshot()
                        await self._remove_old()
                    except CoterieError as error:  # the log alone is enough
                        log.error(f"a snapshot failed: {error}")

    async def _remove_old(self) -> None:
        days = retention_days(self._settings, self._sequencer.bandit)
        if days >= 0:
            before = self._sequencer.clock() - int(days * 86_400_000)
            await in_thread(remove_old, self._sequencer.store, before)

    async def _keep_asking(self) -> None:
        while True:
            await asyncio.sleep(exploring.EVERY)
            if self._sequencer.refusing is None:
                with suppress(CoterieError):  # the next time is soon
                    await self.ask_again()

    async def ask_again(self) -> None:
        """Find how many best guesses of the last hour would change now; each question takes a turn of its own."""
        sequencer = self._sequencer
        changed = []
        for position in await sequencer.do(lambda: exploring.to_ask(sequencer.bandit), long=True):
            record = await in_thread(sequencer.read, position)
            if isinstance(record, Rank):
                again = partial(exploring.asked_again, record, sequencer.bandit)
                changed.append(await sequencer.do(again, long=True))
        self.guess_changes = exploring.share(changed)

    def tick(self) -> None:
        """End the waits that are over."""
        self._watch_exploring()
        self.follow_clock()
        self._sequencer.bandit.tick(self._sequencer.clock())

    def _watch_exploring(self) -> None:
        """Log it once when the bandit stops exploring, and once when it explores again."""
        bandit = self._sequencer.bandit
        said = exploring.warning(bandit.statistics, bandit.config, bandit.now)
        if said is not None and not self.stopped_exploring:
            log.warning(said)
        elif said is None and self.stopped_exploring:
            log.info("the loop explores again")
        self.stopped_exploring = said is not None

    def follow_clock(self) -> None:
        """Tell the bandit if the time of day jumped: just now, or back while the service was stopped."""
        bandit, clock = self._sequencer.bandit, self._sequencer.clock
        by, at = clock.follow(), clock()
        if by == 0 and at < bandit.now - JUMP:
            by = at - bandit.now  # how long the service was stopped is not known: count it as no time
        if by:
            log.warning(f"the time of day jumped by {by / 1000:.1f} s; waits for rewards do not")
            bandit.jump(at, by)
