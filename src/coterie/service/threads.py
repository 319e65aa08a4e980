"""Work in a thread, from the event loop."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial
from typing import Any, TypeVar

T = TypeVar("T")


async def in_thread(work: Callable[..., T], *arguments: Any, thread: Executor | None = None) -> T:
    """Return what `work` returns, done in `thread` or in any.

    A caller that is cancelled still waits for the end, so that nothing runs on unnoticed.
    """
    job = asyncio.get_running_loop().run_in_executor(thread, partial(work, *arguments))
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
