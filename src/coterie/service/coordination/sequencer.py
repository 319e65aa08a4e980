"""The order of all work on the bandit, which is the order of the log."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar, final

from numpy.linalg import LinAlgError

from coterie.errors import ContextError, UnavailableError
from coterie.service.clock import Clock
from coterie.service.coordination.turns import Turns
from coterie.service.core.bandit import Bandit
from coterie.service.core.records import Record
from coterie.service.core.workload import long_to_end
from coterie.service.log.committer import Committer
from coterie.service.log.erasure import scrub
from coterie.service.log.errors import LostError, StoreError
from coterie.service.log.reading import LogReader
from coterie.service.log.recovery import attach
from coterie.service.log.store import Store
from coterie.service.problems import Problem
from coterie.service.snapshots.saving import save
from coterie.service.threads import in_thread

T = TypeVar("T")
STARTING = "starting"  # why work is refused until the log is read


@final
class Sequencer:
    """Does work on the bandit in turns, and hands its records to the log; lives in the event loop's thread."""

    def __init__(self, store: Store, clock: Clock, shards: Any = None, max_queue: int = 10_000) -> None:
        self.store = store
        self.clock = clock
        self.shards = shards  # an engine of coterie.engines, where users' models are kept
        self.max_queue = max_queue
        self.log = LogReader(store)
        self.bandit = Bandit(shards)
        self.turns = Turns()
        self.committer: Committer | None = None  # as long as the store is not ours
        self.refusing: str | None = STARTING  # why writes are refused, if they are
        self.on_failure: Callable[[StoreError], None] = lambda error: None  # called when the store fails
        self.on_batch: Callable[[int, float], None] | None = None  # called with each commit; see Committer
        self.scrubbing = asyncio.Lock()  # no user is scrubbed from the log while it is held
        self._saving = asyncio.Lock()  # one snapshot at a time

    def accept(self) -> None:
        """Raise if no new work is accepted now."""
        if self.refusing is not None:
            raise Problem(503, "not_accepting", f"no new work is accepted now: {self.refusing}", 1)
        if (queued := self.queued) >= self.max_queue:
            raise Problem(503, "overloaded", f"{queued} requests wait for their turn or for the disk", 1)

    @property
    def queued(self) -> int:
        """How many requests wait for their turn or for the disk."""
        return self.turns.waiting + (0 if self.committer is None else self.committer.queued)

    async def write(self, work: Callable[[], T], long: bool = False) -> T:
        """Change the bandit, if new work is accepted: now, and when its turn comes."""
        self.accept()

        def accepted() -> T:
            if self.refusing is not None:
                self.accept()
            return work()

        return await self.do(accepted, long)

    async def do(self, work: Callable[[], T], long: bool = False) -> T:
        """Do work on the bandit in its turn, beside the event loop if it may be `long`; its records go to the log."""
        async with self.turns:
            try:
                with self.refusals():
                    if long or self.shards is not None or long_to_end(self.bandit, self.clock()):
                        return await self.turns.beside(work)
                    return work()
            finally:
                self.flush()

    @contextmanager
    def refusals(self) -> Iterator[None]:
        """Turn the bandit's errors into answers."""
        try:
            yield
        except ContextError as error:
            raise Problem(422, "invalid_features", str(error)) from error
        except (ArithmeticError, LinAlgError) as error:  # NumberError is one
            raise Problem(422, "out_of_range", str(error)) from error
        except UnavailableError as error:
            # Some users' models are lost. The log has them, and a restart reads it.
            self.refusing = str(error)
            raise Problem(503, "shards_lost", str(error), 1) from error

    def flush(self) -> None:
        """Hand new records to the log."""
        if self.bandit.outbox and self.committer is not None:
            self.committer.submit(self.bandit.drain())

    async def durable(self) -> None:
        """Return once all records so far are durable."""
        assert self.committer is not None
        try:
            await self.committer.durable()
        except StoreError as error:
            self.on_failure(error)
            lost = isinstance(error, LostError)
            what = "it is not known whether the request was stored" if lost else "the request was not stored"
            raise Problem(503, "not_stored", f"{what}: {error.said}", 1) from error

    def open_log(self) -> None:
        """Write to the log from where the bandit stands, and accept work."""
        self.committer = self.log.committer = Committer(self.store, self.bandit.position, self.on_batch)
        attach(self.bandit, self.log)
        self.refusing = None

    def read(self, position: int) -> Record | None:
        """Return a record from the log."""
        return self.log.record(position)

    async def snapshot(self, alone: bool = False) -> None:
        """Keep the state as it is now, so that a start need not replay the whole log."""
        async with self._saving:
            await save(self.bandit, self.store, self.durable, self.do, alone)

    async def scrub(self) -> None:
        """Scrub forgotten users from the log. If a crash interrupts it, the next start finishes it; see erasure."""
        async with self.scrubbing:
            users = await asyncio.to_thread(self.store.scrubs)
            if users:
                await self.snapshot(alone=True)
                await in_thread(scrub, self.store, users)
                self.log.forget_cache()
                await in_thread(self.store.scrubbed, users)
