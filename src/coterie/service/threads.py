"""Work in a thread, from the event loop."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

T = TypeVar("T")


async def in_thread(work: Callable[..., T], *arguments: Any, thread: Executor | None = None) -> T:
    """Return what `work` returns, done in `thread` or in any.

    A caller that is cancelled still waits for the end, so that nothing runs on unnoticed.
    """
    job = asyncio.get_running_loop().run_in_executor(thread, partial(work, *arguments))
    try:
        return await asyncio.shield(job)
    except asyncio.CancelledError:
        while not job.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([job])
        job.exception()  # nobody is left to be told
        raise
