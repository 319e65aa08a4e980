"""Threads for the one product that is worth them; the answer does not depend on their number."""

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TypeVar

from coterie.errors import ParameterError

Answer = TypeVar("Answer")


@cache
def thread_count() -> int:
    """Return COTERIE_THREADS, or the number of cores this process may use. Parallel runs set it to 1."""
    text = os.environ.get("COTERIE_THREADS", "")
    if not text:
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if not text.isdigit() or int(text) < 1:
        raise ParameterError(f"COTERIE_THREADS is {text!r}, expected a number of threads of at least 1")
    return int(text)


@cache
def _pool(process: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(thread_count(), thread_name_prefix="coterie")


# Each of these variables, set to "1", keeps one library of a process in one thread.
ONE_THREAD = (
    "COTERIE_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"
)  # fmt: skip


def in_chunks(work: Callable[[int, int], Answer], size: int, chunk: int) -> Iterable[Answer]:
    """Return work(first, last) for the chunks of range(size), in order, computed side by side.

    Chunks are the same whatever the number of threads, so sums made in order are the same to the last bit.
    """
    bounds = [(first, min(first + chunk, size)) for first in range(0, size, chunk)]
    if thread_count() == 1 or len(bounds) == 1:
        return [work(first, last) for first, last in bounds]
    return list(_pool(os.getpid()).map(lambda pair: work(*pair), bounds))
