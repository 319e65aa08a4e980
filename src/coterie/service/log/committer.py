"""Group commit: many requests wait for one sync. No request is answered before it is as durable as configured.

Only the event loop changes the state; the thread only calls `store.append`. While one batch is being written, the
next one is collected. A batch that the store refuses for a reason that passes is tried again for some seconds, while
its requests wait: the store keeps it once, however often it is tried.
"""

import asyncio
import queue
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from coterie.service.core.records import Drained, index_of, join, pack_content
from coterie.service.log.errors import BrokenError, StoreError, keep_trying
from coterie.service.log.store import Append, Store
from coterie.service.settings import Durability

SYNC_EVERY = 1.0  # seconds, for the level that promises it


def appended(first: int, drained: Drained) -> Append:
    """Return what the log gets: the records, compressed, and their index."""
    content = join(drained.records)
    index = index_of(first, content)
    batch = pack_content(first, len(drained.records), content)
    return Append(batch, drained.named, drained.gone, drained.scrub, index)


class Committer:
    """Writes records in log order, and tells when they are durable."""

    def __init__(
        self, store: Store, position: int, on_batch: Callable[[int, float], None] | None = None
    ) -> None:
        self.store = store
        self.position = position  # of the next record handed over
        self.failed: StoreError | None = None
        self.on_batch = on_batch  # called with the number of records and the seconds of each commit
        self._loop = asyncio.get_running_loop()
        self._next = Drained([], {}, [], [])  # the batch that is being collected
        self._next_waiters: list[asyncio.Future[None]] = []
        self._waiters: list[asyncio.Future[None]] = []  # for the batch that is being written
        self._writing: tuple[int, list[bytes]] = (position, [])  # the last batch handed over
        self._moving = threading.Lock()  # while records go from one batch to the next
        self._busy = False
        self._jobs: queue.SimpleQueue[tuple[int, Drained] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="committer", daemon=True)
        self._thread.start()

    def find(self, position: int) -> bytes | None:
        """Return an encoded record that may not be stored yet."""
        with self._moving:
            for first, records in (self._writing, (self.position, self._next.records)):
                if 0 <= position - first < len(records):
                    return records[position - first]
        return None

    @property
    def queued(self) -> int:
        """How many requests wait for the disk."""
        return len(self._waiters) + len(self._next_waiters)

    def submit(self, drained: Drained) -> None:
        """Take records, in log order."""
        self._next.records.extend(drained.records)
        self._next.named.update(drained.named)
        for number in drained.gone:
            self._next.named.pop(number, None)
        self._next.gone.extend(drained.gone)
        self._next.scrub.extend(drained.scrub)
        if not self._busy:
            # Requests that are ready in this turn of the event loop join the batch: one sync for all of them.
            self._busy = True
            self._loop.call_soon(self._hand_over)

    async def durable(self) -> None:
        """Return once all that was submitted is durable; raises StoreError if it cannot be."""
        if self.failed is not None:
            raise self.failed
        if not self._busy:
            return
        waiter: asyncio.Future[None] = self._loop.create_future()
        # An answer may depend on records of other requests, so it waits for all that came before it.
        (self._next_waiters if self._next.records else self._waiters).append(waiter)
        await waiter

    async def give_up(self, error: StoreError) -> None:
        """Fail what is not being written yet, and return when the write that runs has ended."""
        if self.failed is None:
            self.failed = error
            self._fail(self._next_waiters)
        while self._busy:
            await asyncio.sleep(0.01)

    def abandon(self) -> None:
        """Let the thread end; waiting callers have already failed."""
        self._jobs.put(None)

    async def close(self) -> None:
        """Finish what was submitted, then stop the thread; `failed` has the error, if any."""
        with suppress(StoreError):
            await self.durable()
        self._jobs.put(None)
        await asyncio.to_thread(self._thread.join)

    def _hand_over(self) -> None:
        new = self._next
        self._busy = bool(new.records) and self.failed is None
        if not self._busy:
            return
        with self._moving:
            self._writing = self.position, new.records
            self.position += len(new.records)
            self._next = Drained([], {}, [], [])
        self._jobs.put((self._writing[0], new))
        self._waiters, self._next_waiters = self._next_waiters, []

    def _done(self, error: StoreError | None, count: int, seconds: float) -> None:
        self._busy = False
        waiters, self._waiters = self._waiters, []
        if error is not None:
            self.failed = self.failed or error
            self._fail([*waiters, *self._next_waiters])
            return
        for waiter in waiters:
            if not waiter.done():  # its request may have been cancelled
                waiter.set_result(None)
        if self.failed is None:
            if self.on_batch is not None:
                self.on_batch(count, seconds)
            self._hand_over()

    def _fail(self, waiters: Sequence[asyncio.Future[None]]) -> None:
        for waiter in waiters:
            if not waiter.done():
                assert self.failed is not None
                waiter.set_exception(self.failed)
        self._next_waiters = []
        self._next.records.clear()

    def _work(self) -> None:
        lazy = getattr(self.store, "durability", None) is Durability.LOSE_ONE_SECOND
        unsynced_since: float | None = None

        def given_up() -> bool:
            return self.failed is not None

        while True:
            try:
                job = self._jobs.get(timeout=SYNC_EVERY / 4 if unsynced_since is not None else None)
            except queue.Empty:
                job = (0, Drained([], {}, [], []))
            error: StoreError | None = None
            start = time.perf_counter()
            try:
                if job is not None and job[1].records:
                    keep_trying(self.store.append, appended(*job), stop=given_up)
                    if lazy and unsynced_since is None:
                        unsynced_since = start
                now = time.perf_counter()
                if unsynced_since is not None and (job is None or now - unsynced_since > SYNC_EVERY * 0.5):
                    keep_trying(self.store.sync, stop=given_up)
                    unsynced_since = None
            except StoreError as caught:
                error = caught
            except Exception as caught:  # after any error, what the disk holds is not known
                error = BrokenError(f"writing to the store failed: {type(caught).__name__}: {caught}")
            if job is None:
                return
            if job[1].records or error is not None:
                seconds = time.perf_counter() - start
                self._loop.call_soon_threadsafe(self._done, error, len(job[1].records), seconds)
            if error is not None:
                unsynced_since = None
