"""`coterie bench`: speed, as ratios within one run."""

import json
import os
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text
from threadpoolctl import threadpool_limits

from coterie.bench import SUITES, describe_machine, run_suites, write_rows
from coterie.bench.measuring import Measured
from coterie.bench.plots import draw_growth
from coterie.cli.app import need_service
from coterie.cli.shared.options import JsonOption

NEED_SERVICE = {"decisions", "sizes", "snapshots"}


def bench(
    suites: Annotated[
        list[str] | None,
        typer.Argument(
            help=f"{', '.join(SUITES)}; all of these without a name. cuda, decisions, sizes, snapshots: see below."
        ),
    ] = None,
    as_json: JsonOption = False,
    out: Annotated[
        Path | None, typer.Option(help="Write rows, machine and plots to this folder (results/benchmarks).")
    ] = None,
    quick: Annotated[
        bool, typer.Option(help="Smaller sizes: minutes become seconds, and noise grows.")
    ] = False,
) -> None:
    """Measure speed as ratios within one run, on one core.

    The table says which limits hold; exit code 1 if any does not. `coterie bench decisions` measures what decisions
    of the service earn, beside Vowpal Wabbit on the same rounds: digits, MovieLens (from the folder that
    COTERIE_DATA names) and two worlds like Personalizer's quickstarts.

    `coterie bench snapshots` measures what a million users with features cost the service: a start, memory, how long
    a snapshot holds up requests and what it writes, and the processor time of a rank and a reward beside 100 users.

    `coterie bench sizes` measures the bytes of a decision in memory and on the disk, with ids and with features.

    `coterie bench cuda` measures users' models on a GPU, beside its memory's speed and one core.
    """
    os.environ["COTERIE_COMPILE"] = "first"  # what is measured is machine code
    notes = Console(stderr=True)
    suites = suites or []
    if NEED_SERVICE & {*suites}:
        need_service()
    found: list[Measured] = []
    with threadpool_limits(1), notes.status("starting") as status:

        def on_progress(text: str) -> None:
            if "left out" in text:
                notes.print(text, markup=False)
            else:
                status.update(text)

        for row in run_suites(suites, quick, on_progress):
            found.append(row)
            notes.print(f"{row.suite}: {row.name}: {row.ratio:.3g}", highlight=False, markup=False)
    if out is not None:
        name = "-".join(suites) if suites else "all"
        write_rows(found, out / f"{name}.json")
        machine = describe_machine()
        if "cuda" in suites:
            from coterie.bench.suites import cuda

            machine |= cuda.machine()
        (out / f"{name}-machine.json").write_text(json.dumps(machine, indent=2) + "\n")
        draw_growth(found, out)
    if as_json:
        print(json.dumps([row._asdict() for row in found], indent=2))
    else:
        _print(found)
    if any(row.holds is False for row in found):
        raise typer.Exit(1)


def _print(rows: list[Measured]) -> None:
    shown = Table(box=None, padding=(0, 2, 0, 0))
    shown.add_column("what, and against what", overflow="fold")
    for title in ("ratio", "limit", "holds"):
        shown.add_column(title, justify="right", no_wrap=True)
    for row in rows:
        holds = {None: "", True: "yes", False: "[bold red]no[/]"}[row.holds]
        measured = f"{row.value:.4g} {row.unit}"
        what = Text(f"{row.suite}: {row.name}\n").append(f"  {measured}, against {row.against}", style="dim")
        shown.add_row(what, f"{row.ratio:.3g}", row.limit or "", holds)
    console = Console()
    console.print(shown)
    console.print("  ".join(f"{key} {value}" for key, value in describe_machine().items()), style="dim")
