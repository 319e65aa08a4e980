"""The part that `reproduce` and `tune` share: run a protocol with bars, write its report, print the table."""

import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from coterie.cli.shared.tables import result_table
from coterie.experiments import Plan, Spec
from coterie.experiments.report.evidence import final_table, warnings, write_evidence
from coterie.experiments.run.parallel import Told, Workers
from coterie.experiments.study.protocol import QUICK_RUNS, Protocol, run_protocol
from coterie.experiments.study.reproduce import Evidence, title_of
from coterie.experiments.study.reproduce import reproduce as do_all


def make_protocol(
    data: Any,
    specs: Sequence[Spec],
    *,
    out: Path,
    quick: bool,
    runs: int | None,
    rounds: int | None,
    seed: int,
    tuning_runs: int,
) -> Protocol:
    """Return the protocol for a dataset or a log, with a folder of its own below `out`."""
    stem = Path(data.name).stem
    return Protocol(
        data.name,
        data,
        specs,
        out / (f"{stem}-quick" if quick else stem),
        n_runs=runs if runs is not None else QUICK_RUNS if quick else 5,
        seed=seed,
        tuning_runs=tuning_runs,
        n_rounds=rounds,
        quick=quick,
    )


def do(protocol: Protocol, notes: Console, workers: int | Workers | None, silent: bool) -> Evidence:
    """Run the protocol and write the report; print the table unless `silent`. Ctrl-C prints how to continue."""
    try:
        with _bars(protocol, notes) as (tuning, reporting):
            evidence = do_all(protocol, run_protocol(protocol, tuning, reporting, workers))
    except KeyboardInterrupt:
        again = shlex.join(["coterie", *sys.argv[1:]])
        notes.print(f"\nInterrupted. Finished runs are kept in {protocol.out}; to continue: [bold]{again}[/]")
        raise typer.Exit(130) from None
    report = write_evidence(evidence, ["coterie", *sys.argv[1:]])
    if not silent:
        _print(evidence, report)
    return evidence


@contextmanager
def _bars(protocol: Protocol, console: Console) -> Iterator[tuple[Told, Any]]:
    """Show a bar for tuning and one for the reported runs, with the time left."""
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as progress:
        title = title_of(protocol.name, protocol.data)
        n_tasks = sum(len(own) for spec in protocol.specs for _, own in protocol.tuning_tasks(spec))
        first = progress.add_task(f"{title}: tuning", total=max(n_tasks * protocol.n_tuned, 1))
        n_policies = sum(len(spec.variants()) for spec in protocol.specs)
        n_rounds = n_policies * protocol.n_runs * protocol.n_reported
        second = progress.add_task(f"{title}: runs", total=n_rounds, start=False)

        def tuning(done: Sequence[int]) -> None:
            progress.update(first, completed=sum(done))

        def reporting(plan: Plan) -> Told:
            progress.update(first, completed=max(n_tasks * protocol.n_tuned, 1))
            progress.start_task(second)
            return lambda done: progress.update(second, completed=sum(done))

        yield tuning, reporting


def _print(evidence: Evidence, report: Path) -> None:
    protocol = evidence.protocol
    title = (
        f"{evidence.title}: {protocol.n_reported:,} rounds reported, {protocol.n_runs} runs, mean ± "
        f"{'sampling error' if protocol.data.is_log else 'spread'}"
    )
    console = Console()
    console.print(result_table(title, *final_table(evidence)))
    for text in warnings(evidence):
        console.print(f"Note: {text}", highlight=False)
    console.print(f"Report: {os.path.relpath(report)}", soft_wrap=True, highlight=False)
