"""Work without a request: waits that end, snapshots, retention, the check of the log, and whether choices vary."""

import asyncio
import threading
import time
from collections import deque
from contextlib import suppress
from functools import partial
from typing import final

from coterie.data.logs.records import Rank
from coterie.errors import CoterieError, FileError
from coterie.service.clock import JUMP
from coterie.service.coordination.rules import retention_days
from coterie.service.coordination.sequencer import TAIL_EVERY, Sequencer
from coterie.service.log.damage import Damaged, find_damage
from coterie.service.log.retention import remove_old
from coterie.service.logs import log
from coterie.service.problems import Problem
from coterie.service.repeating import repeat
from coterie.service.reports import exploring
from coterie.service.settings import Settings
from coterie.service.store_errors import StoreError
from coterie.service.threads import in_thread

TICK_EVERY = 0.25  # seconds
IDS_EVERY = 1.0  # seconds
SAME_JUMP = 10.0  # seconds within which all services notice that the time of day jumped


@final
class Background:
    """Tasks that run beside requests, as long as work is accepted."""

    def __init__(self, sequencer: Sequencer, settings: Settings) -> None:
        self.stopped_exploring = False
        self.guess_changes: float | None = None  # the share of the last hour's best guesses that would change
        self.damaged: list[Damaged] = []  # records of the log that cannot be read; see `damage`
        self.snapshot_at = 0  # the position of the last snapshot
        self._oldest: deque[int] = deque(maxlen=2)  # the oldest decision that waited at each kept snapshot
        self._removal_seen = 0  # when an event was last removed early, of those that the log tells of
        self._removal_at = 0  # when it told so
        self._sequencer = sequencer
        self._settings = settings

    def start(self) -> list[asyncio.Task[None]]:
        """Start the tasks."""
        sequencer = self._sequencer
        work = (
            repeat(self._pass_time, TICK_EVERY, "ending waits and keeping snapshots"),
            repeat(self._ask_if_accepting, exploring.EVERY, "deciding the last hour's questions again"),
            repeat(sequencer.look, TAIL_EVERY, "following the log"),
            repeat(self._know_ids, IDS_EVERY, "reading the ids of events", at_once=True),
            self.check_log(),
        )
        return [asyncio.create_task(one) for one in work]

    async def _know_ids(self) -> None:
        """Read which events there are, after the start and when most of those known are no longer in the log."""
        await in_thread(self._sequencer.store.read_ids)

    async def check_log(self) -> None:
        """Read the whole log once, because a start reads only what comes after the snapshot."""
        ended = threading.Event()
        reading = asyncio.ensure_future(asyncio.to_thread(find_damage, self._sequencer.store, ended.is_set))
        try:
            self.damaged = await asyncio.shield(reading)
        except asyncio.CancelledError:
            ended.set()
            await asyncio.wait([reading])  # the store is closed after it
            raise
        except CoterieError as error:
            log.error(f"the log could not be checked: {error}")
        if self.damage is not None:
            log.error(f"{self.damage}; drop them with `coterie store repair`, or restore a backup")

    @property
    def damage(self) -> str | None:
        """What of the log is damaged, in words; None if nothing is, or it is not known yet."""
        if not self.damaged:
            return None
        more = f" and {len(self.damaged) - 3} more" if len(self.damaged) > 3 else ""
        return f"log records {', '.join(map(str, self.damaged[:3]))}{more} are damaged, and are passed over"

    async def _pass_time(self) -> None:
        sequencer = self._sequencer
        with suppress(StoreError, FileError):  # following the log tells
            await in_thread(sequencer.store.end)  # which tells the time of day that all services have
        if sequencer.refusing is None:
            with suppress(Problem):
                await self.tick()
            if sequencer.bandit.position - self.snapshot_at >= self._settings.snapshot_every:
                await self._save()  # if it fails, the log alone is enough

    async def _save(self) -> None:
        """Keep a snapshot, and remove what is too old, unless another service has done so."""
        sequencer = self._sequencer
        async with sequencer.lease:
            self.snapshot_at = max(await in_thread(sequencer.store.newest), self.snapshot_at)
            if sequencer.bandit.position - self.snapshot_at >= self._settings.snapshot_every:
                self.snapshot_at = sequencer.bandit.position
                await sequencer.save()
                await self._remove_old()

    async def _remove_old(self) -> None:
        """Remove what is too old from the log, and what is too much."""
        sequencer, largest = self._sequencer, self._settings.max_log_bytes
        days = retention_days(self._settings, sequencer.bandit)
        before = sequencer.clock() - int(days * 86_400_000) if days >= 0 else 0
        oldest = await sequencer.do(sequencer.bandit.remembered.waits.oldest)
        # The kept snapshots are the last two. The first of them needs the decisions that waited then.
        self._oldest.append(sequencer.bandit.position if oldest is None else oldest.position)
        if len(self._oldest) < 2:
            return
        done = await in_thread(remove_old, sequencer.store, before, largest, min(self._oldest))
        if done.records:
            log.info(
                f"the oldest {done.records:,} records were removed from the log (retention-days is {days:g}, "
                f"max-log-bytes {largest:,}); it has {done.size:,} bytes now"
            )
        if done.too_large:
            log.warning(
                f"the log has {done.size:,} bytes, more than max-log-bytes ({largest:,}), because decisions still "
                "wait for their rewards; raise max-log-bytes, or lower the wait"
            )

    async def _ask_if_accepting(self) -> None:
        if self._sequencer.refusing is None:
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

    async def tick(self) -> None:
        """End the waits that are over."""
        self._watch_exploring()
        self._watch_removals()
        await self.follow_clock()
        sequencer = self._sequencer
        if sequencer.bandit.remembered.waits.next <= sequencer.clock():
            await sequencer.put(lambda: sequencer.bandit.tick(sequencer.clock()), alone=False)

    def _watch_exploring(self) -> None:
        """Log it once when the bandit stops exploring, and once when it explores again."""
        bandit = self._sequencer.bandit
        said = exploring.warning(bandit.statistics, bandit.config, bandit.now)
        if said is not None and not self.stopped_exploring:
            log.warning(said)
        elif said is None and self.stopped_exploring:
            log.info("the loop explores again")
        self.stopped_exploring = said is not None

    def _watch_removals(self) -> None:
        """Log it when events were removed before their wait had ended, at most once per minute."""
        bandit, now = self._sequencer.bandit, self._sequencer.clock()
        said = exploring.removal(bandit)
        if (
            said is not None
            and bandit.remembered.removed_at > self._removal_seen
            and now >= self._removal_at + 60_000
        ):
            self._removal_seen, self._removal_at = bandit.remembered.removed_at, now
            log.warning(said)

    async def follow_clock(self) -> None:
        """Tell the bandit if the time of day jumped: just now, or back while the service was stopped."""
        sequencer = self._sequencer
        clock = sequencer.clock
        by = clock.follow()
        if by == 0 and clock() < sequencer.bandit.now - JUMP:
            by = (
                clock() - sequencer.bandit.now
            )  # how long the service was stopped is not known: count it as no time
        if not by:
            return

        def jump() -> bool:
            recent = [size for when, size in sequencer.jumps if time.monotonic() < when + SAME_JUMP]
            if any(abs(size - by) < JUMP for size in recent):
                return False  # another service has told already
            sequencer.bandit.jump(clock(), by)
            return True

        if (await sequencer.put(jump)).value:
            log.warning(f"the time of day jumped by {by / 1000:.1f} s; waits for rewards do not")
