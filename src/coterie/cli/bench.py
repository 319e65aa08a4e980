"""`coterie bench`: how fast, as ratios within one run."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from threadpoolctl import threadpool_limits

from coterie.experiments.bench import SUITES, describe_machine, run_suites, write_rows
from coterie.experiments.bench.plots import draw_growth
from coterie.experiments.bench.rows import Row


def bench(
    suites: Annotated[
        list[str] | None, typer.Argument(help=f"{', '.join(SUITES)}; all without a name.")
    ] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the rows to this file.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="Write rows, machine and plots to this folder (results/benchmarks).")
    ] = None,
    quick: Annotated[
        bool, typer.Option(help="Smaller sizes: minutes become seconds, and noise grows.")
    ] = False,
) -> None:
    """Measure speed as ratios within one run, on one core, and say which limits hold."""
    notes = Console(stderr=True)
    found: list[Row] = []
    with threadpool_limits(1), notes.status("starting") as status:
        for row in run_suites(suites or [], quick, lambda text: status.update(text)):
            found.append(row)
            notes.print(f"{row.suite}: {row.name}: {row.ratio:.3g}", highlight=False, markup=False)
    if json_file is not None:
        write_rows(found, json_file)
    if out is not None:
        name = "-".join(suites) if suites else "all"
        write_rows(found, out / f"{name}.json")
        (out / f"{name}-machine.json").write_text(json.dumps(describe_machine(), indent=2) + "\n")
        draw_growth(found, out)
    _print(found)
    if any(row.holds is False for row in found):
        raise typer.Exit(1)


def _print(rows: list[Row]) -> None:
    shown = Table(box=None, padding=(0, 2, 0, 0))
    for title, side in (("suite", "left"), ("what", "left"), ("measured", "right"), ("against", "left"),
                        ("ratio", "right"), ("limit", "left"), ("holds", "left")):  # fmt: skip
        shown.add_column(title, justify=side, overflow="fold")  # type: ignore[arg-type]
    for row in rows:
        holds = {None: "", True: "yes", False: "[bold red]no[/]"}[row.holds]
        measured = f"{row.value:.4g} {row.unit}"
        shown.add_row(row.suite, row.name, measured, row.against, f"{row.ratio:.3g}", row.limit or "", holds)
    console = Console()
    console.print(shown)
    console.print("  ".join(f"{key} {value}" for key, value in describe_machine().items()), style="dim")
