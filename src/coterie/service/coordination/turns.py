"""Turns: requests use the bandit one after another, in the order of asking.

The event loop answers all requests, so nothing may block it. Short work on the bandit is done in the event loop; long
work is done in one thread beside it, and requests that come meanwhile wait for their turn. So two requests never use
the bandit at once, and its records have one order.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar, final

from coterie.service.threads import in_thread

T = TypeVar("T")


@final
class Turns:
    """A lock that is passed on in the order of asking, with a thread for its holder."""

    def __init__(self) -> None:
        self.waiting = 0  # how many wait for their turn
        self._lock = asyncio.Lock()
        self._thread = ThreadPoolExecutor(1, "bandit")

    async def __aenter__(self) -> None:
        self.waiting += 1
        try:
            await self._lock.acquire()  # if it is free, this does not go through the event loop
        finally:
            self.waiting -= 1

    async def __aexit__(self, *_: object) -> None:
        self._lock.release()

    async def beside(self, work: Callable[[], T]) -> T:
        """Return what `work` returns, done in the thread. Only the holder of the turn may call it."""
        return await in_thread(work, thread=self._thread)

    def close(self) -> None:
        """Let the thread end."""
        self._thread.shutdown(wait=False)
