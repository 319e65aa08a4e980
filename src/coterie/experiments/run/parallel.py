"""Records many runs in parallel, one process per core, with progress reports."""

import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, wait
from contextlib import contextmanager
from multiprocessing import get_context, parent_process
from pathlib import Path
from threading import Thread
from typing import Any

from numba.core import event

from coterie.experiments.run.record import record
from coterie.experiments.run.runs import Run
from coterie.models.threads import ONE_THREAD

Task = tuple[Run, Path]
OnProgress = Callable[[Sequence[int]], None]  # takes the rounds done of each run: a `Done` from processes
Work = Callable[..., None]  # takes a run, a path and the keywords `tick` and `placed`, like `record`
Workers = Callable[[Sequence[Task], OnProgress, Work], None]  # records runs elsewhere, see `on_device`
STOP = -1  # instead of a count: workers must stop


class Done(list[int]):
    """The rounds done of each run."""

    n_compiled = 0  # functions that the processes have compiled


def record_all(
    tasks: Sequence[Task],
    on_progress: OnProgress = lambda done: None,
    workers: int | Workers | None = None,
    work: Work = record,
) -> None:
    """Record every run, or do other `work` on it. `on_progress` is called with the rounds done of each run.

    With one worker all runs are played in this process; by default there is one process per core; `workers`
    may also be those of a GPU. An interrupt (Ctrl-C) stops all workers; the next call continues.
    """
    if callable(workers):
        workers(tasks, on_progress, work)
        return
    workers = min(workers or os.cpu_count() or 1, len(tasks))
    if workers <= 1:
        _record_here(tasks, on_progress, work)
        return
    context = get_context("spawn")  # fork would copy locks of threads that no longer exist
    counts = context.Array("q", len(tasks) + 1, lock=False)  # the last one says STOP
    compiled = context.Value("q", 0)
    shared = (counts, compiled)
    with _one_thread(), ProcessPoolExecutor(workers, context, initializer=_start, initargs=shared) as pool:
        waiting = {pool.submit(_record, number, work, *tasks[number]) for number in in_turns(tasks)}
        try:
            while waiting:
                done, waiting = wait(waiting, timeout=0.1)
                so_far = Done(counts[:-1])
                so_far.n_compiled = compiled.value
                on_progress(so_far)
                for future in done:
                    future.result()
        except BaseException:
            counts[-1] = STOP
            pool.shutdown(wait=True, cancel_futures=True)
            raise


def in_turns(tasks: Sequence[Task]) -> list[int]:
    """Return the tasks' numbers in starting order: the first run of each policy, then the second, and so on.

    So processes that start together compile different loops, and later runs find the machine code on disk.
    """
    before = Counter[str]()
    turns = []
    for number, (run, _) in enumerate(tasks):
        turns.append((before[run.policy], number))
        before[run.policy] += 1
    return [number for _, number in sorted(turns)]


def _record_here(tasks: Sequence[Task], on_progress: OnProgress, work: Work) -> None:
    counts = [0] * len(tasks)
    for number, (run, path) in enumerate(tasks):

        def tick(done: int, number: int = number) -> None:
            counts[number] = done
            on_progress(counts)

        work(run, path, tick=tick)
        tick(run.n_rounds)


class RunStoppedError(Exception):
    """The comparison was interrupted."""


_counts: Any = None  # in a worker: the rounds done of each run, shared with the parent


class _Counter(event.Listener):  # type: ignore[misc]
    """Counts the functions that all processes compile."""

    def __init__(self, compiled: Any) -> None:
        self.compiled = compiled

    def on_start(self, _: Any) -> None: ...

    def on_end(self, _: Any) -> None:
        with self.compiled.get_lock():
            self.compiled.value += 1


def _start(counts: Any, compiled: Any) -> None:
    global _counts
    _counts = counts
    event.register("numba:compile", _Counter(compiled))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what Ctrl-C means
    Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """End this process when the parent ends: its work would be lost, and it would keep the lock."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _record(number: int, work: Work, run: Run, path: Path) -> None:
    def tick(done: int) -> None:
        _counts[number] = done
        if _counts[-1] == STOP:
            raise RunStoppedError

    work(run, path, tick=tick)
    tick(run.n_rounds)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Make processes that are started in this block use one thread each: several would compete for the cores."""
    before = {name: os.environ.get(name) for name in ONE_THREAD}
    os.environ.update(dict.fromkeys(ONE_THREAD, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
