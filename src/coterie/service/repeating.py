"""Work that is done again and again beside requests: no error ends it."""

import asyncio
import time
from collections.abc import Awaitable, Callable

from coterie.errors import CoterieError
from coterie.service.logs import log

SAY_EVERY = 60.0  # seconds between two lines about the same trouble


async def repeat(
    work: Callable[[], Awaitable[object]], every: float, what: str, at_once: bool = False
) -> None:
    """Do `work` every so many seconds, for ever. An error is logged, with `what` it is, and it is done again."""
    said = -SAY_EVERY
    while True:
        await asyncio.sleep(0.0 if at_once else every)
        at_once = False
        try:
            await work()
        except Exception as error:
            if time.monotonic() > said + SAY_EVERY:
                said = time.monotonic()
                ours = isinstance(error, CoterieError)
                log.error(f"{what} failed, trying again: {error}", exc_info=None if ours else error)
