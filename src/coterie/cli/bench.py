"""`coterie bench`: how fast, as ratios within one run."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text
from threadpoolctl import threadpool_limits

from coterie.cli.extra import need_service
from coterie.cli.options import JsonOption, tell_old
from coterie.experiments.bench import SUITES, describe_machine, run_suites, write_rows
from coterie.experiments.bench.plots import draw_growth
from coterie.experiments.bench.rows import Row

DECISIONS = "decisions"


def bench(
    suites: Annotated[
        list[str] | None,
        typer.Argument(help=f"{', '.join(SUITES)}; all of these without a name. decisions: see below."),
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
    """
    notes = Console(stderr=True)
    suites, old_file = _without_file(suites or [], as_json)
    found: list[Row] = []
    with threadpool_limits(1), notes.status("starting") as status:
        for row in _rows(suites, quick, status.update, notes):
            found.append(row)
            notes.print(f"{row.suite}: {row.name}: {row.ratio:.3g}", highlight=False, markup=False)
    if old_file is not None:
        write_rows(found, old_file)
    if out is not None:
        name = "-".join(suites) if suites else "all"
        write_rows(found, out / f"{name}.json")
        (out / f"{name}-machine.json").write_text(json.dumps(describe_machine(), indent=2) + "\n")
        draw_growth(found, out)
    if as_json and old_file is None:
        print(json.dumps([row.as_dict() for row in found], indent=2))
    else:
        _print(found)
    if any(row.holds is False for row in found):
        raise typer.Exit(1)


def _without_file(suites: list[str], as_json: bool) -> tuple[list[str], Path | None]:
    """Return the suites, and the file that --json had before it was a flag."""
    files = [name for name in suites if as_json and name.endswith(".json")]
    if not files:
        return suites, None
    tell_old(f"coterie bench --json {files[0]}", f"coterie bench --json > {files[0]}")
    return [name for name in suites if name not in files], Path(files[0])


def _rows(suites: list[str], quick: bool, told: Callable[[str], None], notes: Console) -> Iterator[Row]:
    speed = [name for name in suites if name != DECISIONS]
    if speed or not suites:
        yield from run_suites(speed, quick, told)
    if DECISIONS in suites:
        yield from decision_rows(quick, told, lambda text: notes.print(text, markup=False))


def decision_rows(quick: bool, told: Callable[[str], None], left_out: Callable[[str], None]) -> Iterator[Row]:
    """Yield what the service's decisions earn beside the best of Vowpal Wabbit's settings, then ways to explore."""
    need_service()
    from coterie.service.decisions import exploring, results

    def tell(text: str) -> None:
        (left_out if "left out" in text else told)(text)

    for one in results(quick, tell):
        unit = "of a random choice's regret" if one.by_regret else "earned a round"
        ratio = one.ours / one.rival
        against = f"{one.rival:.3f}, Vowpal Wabbit's best of five ({one.setting})"
        limit = "< 1" if one.by_regret else "> 1"
        holds = None if ratio != ratio else ratio < 1 if one.by_regret else ratio > 1
        yield Row(DECISIONS, one.game, one.ours, unit, against, ratio, limit, holds)
        if one.game == "digits":
            yield Row(
                DECISIONS,
                "digits, right answers",
                one.ours,
                unit,
                "0.80",
                one.ours / 0.8,
                ">= 1",
                one.ours >= 0.8,
            )
    for game, way, score in exploring(quick, told):
        unit = "of a random choice's regret" if "MovieLens" in game else "earned a round"
        against = "share of the rounds that the log is worth to evaluate a uniform choice"
        yield Row(
            DECISIONS, f"{game}, exploring by {way}", score.value, unit, against, score.worth, None, None
        )


def _print(rows: list[Row]) -> None:
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
