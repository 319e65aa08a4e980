"""Turns: who may use the engine, one after another in the order of asking, and a thread for what takes long.

The event loop answers everybody, so nothing may hold it. Short work on the engine is done in the loop; long work is
done in one thread beside it, and whoever comes meanwhile waits for the turn. So the engine is never used by two at
once, and its records have one order.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import TypeVar, final

T = TypeVar("T")


@final
class Turns:
    """A lock that is passed on in the order of asking, with a thread for its holder."""

    def __init__(self) -> None:
        self.waiting = 0  # how many wait for their turn
        self._lock = asyncio.Lock()
        self._thread = ThreadPoolExecutor(1, "engine")

    async def __aenter__(self) -> None:
        if not self._lock.locked():  # with nobody before, this does not even go through the loop
            await self._lock.acquire()
            return
        self.waiting += 1
        try:
            await self._lock.acquire()
        finally:
            self.waiting -= 1

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.release()

    async def beside(self, work: Callable[[], T]) -> T:
        """Return what `work` returns, done in the thread. The holder of the turn alone may ask for it.

        A caller that is cancelled still waits for the end, because the turn goes on with it.
        """
        job = asyncio.get_running_loop().run_in_executor(self._thread, work)
        cancelled: asyncio.CancelledError | None = None
        while not job.done():
            try:
                await asyncio.wait([job])
            except asyncio.CancelledError as error:
                cancelled = error
        if cancelled is not None:
            job.exception()  # nobody is left to be told
            raise cancelled
        return job.result()

    def close(self) -> None:
        """Let the thread end."""
        self._thread.shutdown(wait=False)
