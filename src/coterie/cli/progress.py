"""Progress bars for a comparison: one a policy, over all its runs."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from coterie.experiments import Plan
from coterie.experiments.parallel import Told


@contextmanager
def bars(plan: Plan, console: Console) -> Iterator[Told]:
    """Show bars on `console`, and yield what is to be told the rounds done of each run."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("rounds"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as progress:
        total = plan.n_rounds * plan.n_runs
        tasks = [progress.add_task(spec.title, total=total) for spec in plan.specs]

        def told(done: Sequence[int]) -> None:
            for number, task in enumerate(tasks):
                own = done[number * plan.n_runs : (number + 1) * plan.n_runs]
                progress.update(task, completed=sum(own))

        yield told
