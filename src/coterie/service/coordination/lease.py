"""What must happen once among all services of a store is done under a lease."""

import asyncio
from contextlib import suppress
from typing import final

from coterie.service.log.store import Store
from coterie.service.store_errors import StoreError, keep_trying
from coterie.service.threads import in_thread

EVERY = 0.5  # seconds between two renewals
LOOK = 0.05  # seconds between two looks whether it is free


@final
class Lease:
    """A lock among processes, which is free again soon after its holder has died or stands still."""

    def __init__(self, store: Store, name: str, look: float = LOOK) -> None:
        self._store = store
        self._name = name
        self._look = look
        self._here = asyncio.Lock()  # among the tasks of this process
        self._renewing: asyncio.Task[None] | None = None

    async def __aenter__(self) -> None:
        """Wait until it is ours."""
        await self._here.acquire()
        try:
            while not await in_thread(keep_trying, self._store.take_lease, self._name):
                await asyncio.sleep(self._look)
        except BaseException:
            self._here.release()
            raise
        self._renewing = asyncio.create_task(self._renew())

    async def __aexit__(self, *_: object) -> None:
        assert self._renewing is not None
        self._renewing.cancel()
        await asyncio.gather(self._renewing, return_exceptions=True)
        try:
            await in_thread(self._store.drop_lease, self._name)
        finally:
            self._here.release()

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(EVERY)
            with suppress(StoreError):
                await in_thread(self._store.take_lease, self._name)
