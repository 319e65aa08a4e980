"""The part that `reproduce` and `tune` share: run a protocol with bars, write its report, print the table."""

import os
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer
from rich.console import Console

from coterie.cli.shared.progress import Compiling, open_bars
from coterie.cli.shared.tables import result_table
from coterie.data.datasets import Dataset
from coterie.experiments import Plan, Spec
from coterie.experiments.report.reproduction import final_table, warnings, write_evidence
from coterie.experiments.report.words import columns, headline, reason
from coterie.experiments.run.parallel import OnProgress, Workers
from coterie.experiments.study.protocol import PAPER_RUNS, QUICK_RUNS, Protocol, run_protocol
from coterie.experiments.study.reproduce import Reproduced, title_of
from coterie.experiments.study.reproduce import reproduce as do_all
from coterie.report.page import count

IN_TERMINAL = 3  # columns of the final table: policy and results; the report has the others, too


def make_protocol(
    data: Dataset,
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
        n_runs=runs if runs is not None else QUICK_RUNS if quick else PAPER_RUNS,
        seed=seed,
        tuning_runs=tuning_runs,
        n_rounds=rounds,
        quick=quick,
    )


def do(
    protocol: Protocol,
    notes: Console,
    workers: int | Workers | None,
    silent: bool,
    answer: Callable[[Protocol], Sequence[str]] = lambda protocol: (),
) -> Reproduced:
    """Run the protocol and write the report. Ctrl-C prints how to continue.

    Unless `silent`, print the lines of `answer`, the verdict and the table.
    """
    try:
        with _bars(protocol, notes) as (tuning, reporting):
            evidence = do_all(protocol, run_protocol(protocol, tuning, reporting, workers))
    except KeyboardInterrupt:
        again = shlex.join(["coterie", *sys.argv[1:]])
        notes.print(f"\nInterrupted. Finished runs are kept in {protocol.out}; to continue: [bold]{again}[/]")
        raise typer.Exit(130) from None
    report = write_evidence(evidence, ["coterie", *sys.argv[1:]])
    if not silent:
        _print(evidence, report, answer(protocol))
    return evidence


@contextmanager
def _bars(protocol: Protocol, console: Console) -> Iterator[tuple[OnProgress, Any]]:
    """Show a bar for tuning and one for the reported runs, with the time left."""
    with open_bars(console) as progress:
        title = title_of(protocol.name, protocol.data)
        n_tasks = sum(len(own) for spec in protocol.specs for _, own in protocol.tuning_tasks(spec))
        first = progress.add_task(f"{title}: tuning", total=max(n_tasks * protocol.n_tuned, 1))
        n_policies = sum(len(spec.variants()) for spec in protocol.specs)
        n_rounds = n_policies * protocol.n_runs * protocol.n_reported
        second = progress.add_task(f"{title}: runs", total=n_rounds, start=False)
        compiling = Compiling(progress)

        def tuning(done: Sequence[int]) -> None:
            progress.update(first, completed=sum(done))
            compiling.show(done)

        def reporting(plan: Plan) -> OnProgress:
            progress.update(first, completed=max(n_tasks * protocol.n_tuned, 1))
            progress.start_task(second)
            return running

        def running(done: Sequence[int]) -> None:
            progress.update(second, completed=sum(done))
            compiling.show(done)

        yield tuning, reporting
        compiling.end()


def _print(evidence: Reproduced, report: Path, answer: Sequence[str]) -> None:
    """Print the answer and the verdict, then the numbers."""
    protocol, comparison = evidence.protocol, evidence.comparison
    error = "sampling error" if protocol.data.is_log else "spread"
    runs = count(protocol.n_runs, "run")
    title = f"{evidence.title}: {protocol.n_reported:,} rounds reported, {runs}, mean ± {error}"
    head, body = final_table(evidence)
    console = Console()
    for text in (*answer, f"{headline(comparison)}. {reason(comparison)}", ""):
        console.print(text, markup=False, highlight=False)
    console.print(result_table(title, head[:IN_TERMINAL], [line[:IN_TERMINAL] for line in body]))
    for text in ("", columns(comparison), *(f"Note: {text}" for text in warnings(evidence))):
        console.print(text, markup=False, highlight=False)
    console.print(f"Report: {os.path.relpath(report)}", soft_wrap=True, highlight=False)
