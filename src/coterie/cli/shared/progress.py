"""Progress bars for a comparison: one per policy, over all its runs."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from coterie.experiments import Plan
from coterie.experiments.run.parallel import OnProgress


@contextmanager
def bars(plan: Plan, console: Console) -> Iterator[OnProgress]:
    """Show bars on `console`, and yield a function that takes the rounds done of each run."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("rounds"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as progress:
        n_runs = [plan.n_runs * len(spec.variants()) for spec in plan.specs]
        totals = zip(plan.specs, n_runs, strict=True)
        tasks = [progress.add_task(spec.title, total=plan.n_rounds * n) for spec, n in totals]

        def on_progress(done: Sequence[int]) -> None:
            first = 0
            for task, n in zip(tasks, n_runs, strict=True):
                progress.update(task, completed=sum(done[first : first + n]))
                first += n

        yield on_progress
