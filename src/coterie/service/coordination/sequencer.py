"""The order of all work on the bandit, and the log that it follows.

The log has one order for all services, and gives records their places when they are written. Decisions and rewards
of known users hold wherever they come, so nothing has to be planned again if other services wrote at the same time:
their records are applied first. What depends on the order (new users, erasures, other rules, caps) is planned again.
Many requests wait for one commit, and while one batch is written, the next one is collected. A record is applied when
the log has it, so the bandit is always what the log says up to its position, and no answer is given before it is
durable.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar, final

from numpy.linalg import LinAlgError

from coterie.data.logs.records import Configure, Forget, Rank, Record, Tick, index_of, join, pack_content
from coterie.errors import ContextError, FileError, UnavailableError
from coterie.service.clock import Clock
from coterie.service.coordination.lease import Lease
from coterie.service.coordination.turns import Turns
from coterie.service.core.bandit import Bandit, models_to_learn
from coterie.service.core.draft import Draft, PostponedError
from coterie.service.core.events import Outcome
from coterie.service.core.workload import long_to_apply
from coterie.service.log.erasure import scrub
from coterie.service.log.reading import LogReader
from coterie.service.log.store import MAINTENANCE, Append, Store
from coterie.service.logs import log
from coterie.service.problems import Problem
from coterie.service.settings import Durability
from coterie.service.snapshots.recovery import BehindError, New, read_new, recover, serve_from
from coterie.service.snapshots.saving import save
from coterie.service.store_errors import (
    BrokenError,
    LostError,
    StaleError,
    StoreError,
    TakenError,
    keep_trying,
)
from coterie.service.threads import in_thread

T = TypeVar("T")
STARTING = "starting"  # why work is refused until the log is read,
LEARNING = "another policy learns the log"  # and while it is read again
LONG_LOG = 1_000  # records that are learned so fast that answers may wait for it
MOST = 1_000  # requests in one batch
FEW = 64  # records of others that are applied in the event loop at once
GATHER = 0.003  # seconds in which a batch takes more requests where other services write, too
SYNC_AFTER = 0.5  # seconds, for the level that promises one
TAIL_EVERY = 0.025  # seconds between two looks for what others have written
PATIENCE = 3.0  # seconds behind the log, because it cannot be read, after which new work is refused


class Written(NamedTuple, Generic[T]):
    """What a request gave, and what became of its last record."""

    value: T
    applied: Any


class _Item(Generic[T]):
    """A request that waits for the log."""

    __slots__ = ("alone", "answer", "error", "future", "last", "long", "work")

    def __init__(
        self, work: Callable[[], T], long: bool, alone: bool, future: "asyncio.Future[Written[T]]"
    ) -> None:
        self.work = work
        self.long = long
        self.alone = alone
        self.future = future
        self.answer: Any = None
        self.error: Exception | None = None
        self.last = -1  # the place of its last record in the draft

    def fail(self, error: BaseException) -> None:
        if not self.future.done():  # its request may have been cancelled
            self.future.set_exception(error)

    def succeed(self, applied: Any) -> None:
        if not self.future.done():
            self.future.set_result(Written(self.answer, applied))


@final
class Sequencer:
    """Does work on the bandit in turns, appends to the log and follows it; lives in the event loop's thread."""

    def __init__(self, store: Store, clock: Clock, engine: Any = None, max_queue: int = 10_000) -> None:
        self.store = store
        self.clock = clock
        self.engine = engine  # an engine of coterie.engines, where users' models are kept
        self.max_queue = max_queue
        self.log = LogReader(store)
        self.bandit = Bandit(engine)
        self.turns = Turns()
        self.refusing: str | None = STARTING  # why writes are refused, if they are
        self.on_failure: Callable[[StoreError], None] = lambda error: None  # called when the store fails
        self.on_batch: Callable[[int, float], None] = lambda count, seconds: None  # called with each commit
        # Of snapshots, retention, erasures, and policies that learn the log.
        self.lease = Lease(store, MAINTENANCE)
        # Of the time of day: when applied, and by how much.
        self.jumps: deque[tuple[float, int]] = deque(maxlen=10)
        self._current = time.monotonic()  # when the bandit was last known to be what the log says
        self._items: deque[_Item[Any]] = deque()
        self._writing = 0  # requests in the batch that is being written
        self._committing: asyncio.Task[None] | None = None
        self._syncing: asyncio.Task[None] | None = None
        self._beside_others = False  # whether another service had written since the batch before
        self._gone: list[int] = []  # users without a name from now on, for the next batch
        self._thread = ThreadPoolExecutor(1, "committer")
        self._reader = ThreadPoolExecutor(1, "follower")
        self._following = asyncio.Lock()

    def accept(self) -> None:
        """Raise if no new work is accepted now."""
        if self.refusing is not None:
            raise Problem(503, "not_accepting", f"no new work is accepted now: {self.refusing}", 1)
        if (queued := self.queued) >= self.max_queue:
            raise Problem(503, "overloaded", f"{queued} requests wait for their turn or for the disk", 1)

    @property
    def queued(self) -> int:
        """How many requests wait for their turn or for the disk."""
        return self.turns.waiting + len(self._items) + self._writing

    @property
    def behind(self) -> float:
        """How many seconds ago the bandit was last known to be what the log says."""
        return time.monotonic() - self._current

    async def write(self, work: Callable[[], T], long: bool = False, alone: bool = True) -> Written[T]:
        """Add what `work` plans to the log, and return once that is durable and applied.

        `work` changes nothing but the draft, because it is called again if another service was faster. It is done
        beside the event loop if it may be `long`, and in a batch of its own if it is `alone`.
        """
        self.accept()
        return await self.put(work, long, alone)

    async def put(self, work: Callable[[], T], long: bool = False, alone: bool = True) -> Written[T]:
        """Do what `write` does, also while no new work is accepted."""
        future: asyncio.Future[Written[T]] = asyncio.get_running_loop().create_future()
        self._items.append(_Item(work, long, alone, future))
        if self._committing is None:
            # Requests that are ready in this turn of the event loop join the batch: one sync for all of them.
            self._committing = asyncio.create_task(self._commit_all())
        return await future

    async def do(self, work: Callable[[], T], long: bool = False) -> T:
        """Do work on the bandit in its turn that changes nothing, beside the event loop if it may be `long`."""
        async with self.turns:
            try:
                if long or self.engine is not None:
                    return await self.turns.beside(work)
                return work()
            except Exception as error:
                problem = self._problem(error)
                if problem is None:
                    raise
                raise problem from error

    def _problem(self, error: Exception) -> Problem | None:
        """Return the answer to an error of the bandit."""
        if isinstance(error, ContextError):
            return Problem(422, "invalid_features", str(error))
        if isinstance(error, (ArithmeticError, LinAlgError)):  # NumberError is one
            return Problem(422, "out_of_range", str(error))
        if isinstance(error, UnavailableError):
            # The device has no room for more users. The log has what was learned, and a restart reads it.
            self.refusing = str(error)
            return Problem(503, "device_full", str(error), 1)
        return None

    # Writing.

    async def _commit_all(self) -> None:
        try:
            while self._items:
                if self._beside_others:
                    await asyncio.sleep(GATHER)
                taken = [self._items.popleft()]
                while self._items and len(taken) < MOST and not (taken[0].alone or self._items[0].alone):
                    taken.append(self._items.popleft())
                try:
                    await self._commit(taken)
                except StoreError as error:  # the log could not be read, so nothing was written
                    self._fail(taken, error)
                except Exception as error:  # of ours: nobody may wait for ever
                    log.exception("a batch could not be written")
                    for item in taken:
                        item.fail(error)
        finally:
            self._writing, self._committing = 0, None

    async def _commit(self, taken: list[_Item[Any]]) -> None:
        """Add what requests plan to the log as one batch, and answer them."""
        done = False
        while not done:
            async with self._following:
                # A request whose client has gone is not written.
                waiting = [item for item in taken if not item.future.done()]
                done = not waiting or await self._try(waiting)

    async def _try(self, items: list[_Item[Any]]) -> bool:
        """Do it once, and return False if another service was faster, whose records are applied now."""
        long = any(item.long for item in items)
        async with self.turns:
            plan = partial(self._plan, items)
            draft, taken, first = await self.turns.beside(plan) if long else plan()
        self._writing = len(items)
        later = [item for item in items if isinstance(item.error, PostponedError)]
        for item in items:
            if item.error is not None and item not in later:
                item.fail(item.error)
        if not draft.records:
            for item in taken:
                item.succeed(None)
            self._items.extendleft(reversed(later))
            return True
        start, current = time.perf_counter(), time.monotonic()
        try:
            place, new = await in_thread(self._append, first, draft, items[0].alone, thread=self._thread)
        except StaleError:
            if await self._follow():
                return False
            self._fail(
                [*taken, *later], BrokenError(f"the log ends before record {first}: it was cut meanwhile")
            )
            return True
        except TakenError as error:
            followed = await self._follow()  # another service may have decided it
            if len(taken) == 1:
                if followed or await in_thread(self._free, draft):
                    return False
                taken[0].fail(Problem(503, "not_stored", error.said, 1))
            again = [item for item in (*taken, *later) if not item.future.done()]
            for item in again:
                item.alone = True  # so that the others are stored
            self._items.extendleft(reversed(again))
            return True
        except StoreError as error:
            self._fail([*taken, *later], error)
            return True
        self._beside_others = place > first
        if place > first and not await self._catch_up(place, new):
            self._fail([*taken, *later], LostError("what others wrote before it cannot be read"))
            return True
        self.on_batch(len(draft.records), time.perf_counter() - start)
        if self.store.durability is Durability.LOSE_ONE_SECOND and self._syncing is None:
            self._syncing = asyncio.create_task(self._sync_later())
        applied = await self._apply(draft.records, draft.named, long)
        self._gone = self.bandit.drain().gone
        self._current = current
        for item in taken:
            item.succeed(applied[item.last] if item.last >= 0 else None)
        self._items.extendleft(reversed(later))
        return True

    def _plan(self, items: Sequence[_Item[Any]]) -> tuple[Draft, list[_Item[Any]], int]:
        """Let requests plan their records after the last one that was applied; returns those without an error."""
        bandit = self.bandit
        draft = bandit.draft = Draft(max(self.clock(), bandit.now))
        try:
            for item in items:
                mark = draft.mark()
                item.error, item.last = None, -1
                try:
                    item.answer = item.work()
                except Exception as error:
                    draft.cut(mark)
                    item.error = self._problem(error) or error
                if len(draft.records) > mark[0]:
                    item.last = len(draft.records) - 1
        finally:
            bandit.draft = None
        return draft, [item for item in items if item.error is None], bandit.position

    def _append(self, first: int, draft: Draft, alone: bool) -> tuple[int, New | None]:
        """Return the place of a draft in the log, and what others wrote before it, or some of that."""
        content = join(draft.encoded)
        index = index_of(first, content)
        batch = pack_content(first, len(draft.encoded), content)
        gone = [*self._gone, *draft.forgotten]
        fixes = alone or draft.fixes
        appends = Append(batch, draft.named, gone, draft.forgotten, index, moves=True, fixes=fixes)
        try:
            place = keep_trying(self.store.append, appends)
        except StoreError:
            raise
        except Exception as error:  # after any error, what the disk holds is not known
            raise BrokenError(f"writing to the store failed: {type(error).__name__}: {error}") from error
        with suppress(FileError, StoreError):  # then it is read again
            return place, read_new(self.store, first, self.bandit.next_user, place) if place > first else None
        return place, None

    def _free(self, draft: Draft) -> bool:
        """Let events be decided that the index has, but whose decisions cannot be read; says if there are any."""
        events = [record.event for record in draft.records if isinstance(record, Rank)]
        return sum(self.log.free(event) for event in events) > 0

    def _fail(self, items: Sequence[_Item[Any]], error: StoreError) -> None:
        lost = isinstance(error, LostError)
        what = "it is not known whether the request was stored" if lost else "the request was not stored"
        for item in items:
            problem = Problem(503, "not_stored", f"{what}: {error.said}", 1)
            problem.__cause__ = error
            item.fail(problem)
        self.on_failure(error)

    async def _sync_later(self) -> None:
        await asyncio.sleep(SYNC_AFTER)
        self._syncing = None
        await self.sync()

    async def sync(self) -> None:
        """Make what was written survive a power cut, if that was not done with each commit."""
        try:
            await in_thread(keep_trying, self.store.sync, thread=self._thread)
        except StoreError as error:
            self.on_failure(error)

    # Following.

    async def look(self) -> None:
        """Apply what other services have written, if there was no look at it just now."""
        try:
            if self.behind > TAIL_EVERY:
                await self.follow()
        except StoreError as error:
            if self.behind > PATIENCE:
                self.on_failure(error)
            raise

    async def follow(self) -> bool:
        """Apply all that other services have written so far, and return whether there was something."""
        async with self._following:
            return await self._follow()

    async def _catch_up(self, place: int, new: New | None) -> bool:
        """Apply all records before a place of ours, and return whether the next one is applied there."""
        with suppress(FileError, StoreError):
            await self._follow(place, new)
        return self.bandit.position == place

    async def _follow(self, until: int = 2**62, read: New | None = None) -> bool:
        before = self.bandit.position
        while True:
            asked, bandit = time.monotonic(), self.bandit
            look = partial(read_new, self.store, bandit.position, bandit.next_user, until)
            try:
                new = await in_thread(look, thread=self._reader) if read is None else read
            except BehindError as error:
                log.warning(f"the state is read again: {error}")
                found = await in_thread(recover, self.store, False, self.engine)
                async with self.turns:
                    self.take(found)
                continue
            if new.records:
                await self._apply_news(new)
                # Each service removes the names of users who made room, because the one that wrote this may be gone.
                self._gone += self.bandit.drain().gone
            if new.all:
                self._current = asked
                return self.bandit.position > before
            read = None

    async def _apply_news(self, new: New) -> None:
        """Apply what others have written. If that takes long, new work is refused: others have less to do."""
        if self.refusing is None and self.bandit.position >= LONG_LOG:
            rules = [record.config for record in new.records if isinstance(record, Configure)]
            if any(models_to_learn(self.bandit, config) for config in rules):
                self.refusing = LEARNING
        try:
            await self._apply(new.records, new.names)
        finally:
            if self.refusing == LEARNING:
                self.refusing = None

    async def _apply(
        self, records: Sequence[Record], names: Mapping[int, str], long: bool = False
    ) -> list[Outcome | None]:
        """Apply records that the log has, some at a time."""
        self.bandit.user_names.take(names)
        applied: list[Outcome | None] = []
        try:
            for start in range(0, len(records), FEW):
                some = records[start : start + FEW]
                async with self.turns:
                    work = partial(self._apply_some, some)
                    beside = long or self.engine is not None or long_to_apply(self.bandit, some)
                    applied += await self.turns.beside(work) if beside else work()
                if start:
                    await asyncio.sleep(0)
        except Exception as error:
            log.exception("a record of the log could not be applied")
            self.on_failure(BrokenError(f"record {self.bandit.position} could not be applied: {error}"))
            raise
        return applied

    def _apply_some(self, records: Sequence[Record]) -> list[Outcome | None]:
        for record in records:
            if isinstance(record, Tick) and record.jump:
                self.jumps.append((time.monotonic(), record.jump))
            elif isinstance(record, Forget):
                self.log.forget_cache()
        return [self.bandit.apply(record) for record in records]

    def take(self, bandit: Bandit) -> None:
        """Use a bandit that is what the log says."""
        serve_from(bandit, self.store, self.log, self.engine)
        self.bandit = bandit
        self._gone = bandit.drain().gone

    def read(self, position: int) -> Record | None:
        """Return a record from the log."""
        return self.log.record(position)

    # What must happen once.

    async def snapshot(self, alone: bool = False) -> None:
        """Keep the state as it is now, so that a start need not replay the whole log."""
        async with self.lease:
            await self.save(alone)

    async def save(self, alone: bool = False) -> None:
        """Do what `snapshot` does; the lease must be ours."""
        await save(self.bandit, self.store, self.do, alone)

    async def scrub(self) -> None:
        """Scrub forgotten users from the log. If a crash interrupts it, the next start finishes it; see erasure."""
        if not await in_thread(self.store.scrubs):
            return
        async with self.lease:
            users = await in_thread(self.store.scrubs)
            if users:
                await self.follow()  # so that the snapshot is made after the records that forget them
                await self.save(alone=True)
                await in_thread(scrub, self.store, users)
                self.log.forget_cache()
                await in_thread(self.store.scrubbed, users)

    async def close(self) -> None:
        """Finish what was accepted, and let the threads end."""
        while self._committing is not None:
            await asyncio.wait([self._committing])
        if self._syncing is not None:
            self._syncing.cancel()
            await self.sync()
        await self.do(lambda: None)  # work beside the event loop ends first
        for thread in (self._thread, self._reader):
            thread.shutdown(wait=False)
