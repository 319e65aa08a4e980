"""Progress bars for a comparison: one per policy, over all its runs."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn, TimeRemainingColumn

from coterie.experiments import Plan
from coterie.experiments.run.parallel import OnProgress

QUIET = 2.0  # seconds of compiling before it is shown


def open_bars(console: Console) -> Progress:
    """Return bars with the time left, which fit 80 columns."""
    columns = (TextColumn("{task.description}"), BarColumn(20), TaskProgressColumn(), TimeRemainingColumn())
    return Progress(*columns, console=console)


class Compiling:
    """A line below the bars that counts the functions that processes compile, if that takes longer than QUIET."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._since: float | None = None
        self._line: TaskID | None = None

    def show(self, done: Sequence[int]) -> None:
        """Show how many functions were compiled until now."""
        n = getattr(done, "n_compiled", 0)
        if not n:
            return
        self._since = self._since or time.monotonic()
        if self._line is None and time.monotonic() - self._since > QUIET:
            self._line = self._progress.add_task("", total=None)
        if self._line is not None:
            text = f"Compiling, once on this machine: {n} functions"
            self._progress.update(self._line, description=text)

    def end(self) -> None:
        """Show that nothing is compiled any more."""
        if self._line is not None:
            self._progress.update(self._line, total=1, completed=1)


@contextmanager
def bars(plan: Plan, console: Console) -> Iterator[OnProgress]:
    """Show bars on `console`, and yield a function that takes the rounds done of each run."""
    with open_bars(console) as progress:
        n_runs = [plan.n_runs * len(spec.variants()) for spec in plan.specs]
        totals = zip(plan.specs, n_runs, strict=True)
        tasks = [progress.add_task(spec.title, total=plan.n_rounds * n) for spec, n in totals]
        compiling = Compiling(progress)

        def on_progress(done: Sequence[int]) -> None:
            first = 0
            for task, n in zip(tasks, n_runs, strict=True):
                progress.update(task, completed=sum(done[first : first + n]))
                first += n
            compiling.show(done)

        yield on_progress
        compiling.end()
