"""`coterie compare`: compares policies on a world or a log."""

import json
import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from coterie.cli.shared.options import JsonOption, SeedOption
from coterie.cli.shared.progress import bars
from coterie.cli.shared.runs import EngineOption, MlflowOption, open_mlflow, open_workers
from coterie.cli.shared.tables import result_table
from coterie.data import WORLDS
from coterie.experiments import Comparison, Plan, open_world, parse_specs, write_report
from coterie.experiments.report.figures import write_curves
from coterie.experiments.report.words import columns, headline, next_step, reason
from coterie.experiments.run.specs import DEFAULT, names
from coterie.experiments.study.compare import LOG_RUNS, MOST_RUNS, N_RUNS, compare_until_clear
from coterie.experiments.study.table import as_json, table
from coterie.report.page import count

FIRST_WORLD = next(iter(WORLDS))
N_ROUNDS = 3_000


def compare(
    given: Annotated[
        str | None,
        typer.Argument(
            metavar="WORLD|LOG",
            show_default=FIRST_WORLD,
            help=f"A built-in world ({', '.join(WORLDS)}), a .json file with a world's parameters, or a log of "
            "your own: a .csv or .parquet file with the columns user, item, payoff, or a service's export.",
        ),
    ] = None,
    policies: Annotated[
        str,
        typer.Option(
            help=f"Policies, separated by commas: {', '.join(names())}. Parameters follow with colons: "
            "cab:alpha=0.05:gamma=0.1. items=features, ids or both sets which part of the items a policy sees."
        ),
    ] = DEFAULT,
    rounds: Annotated[
        int | None, typer.Option(help="Rounds of each run.", show_default=f"{N_ROUNDS}; all of a log")
    ] = None,
    runs: Annotated[
        int | None,
        typer.Option(
            help="Runs of each policy, each with a seed of its own.",
            show_default=f"{N_RUNS}, and {MOST_RUNS} if these show no winner; {LOG_RUNS} on a log",
        ),
    ] = None,
    seed: SeedOption = 0,
    out: Annotated[Path, typer.Option(help="Folder for the report and the traces.")] = Path("out/compare"),
    as_json_: JsonOption = False,
    workers: Annotated[
        int | None, typer.Option(help="Worker processes.", show_default="one per core", min=1)
    ] = None,
    engine: EngineOption = None,
    mlflow: MlflowOption = None,
) -> None:
    """Compare policies on a world or a log of your own.

    Prints a table and writes a report. Without options: Hierarchical, CAB, DynUCB, CLUB, both LinUCBs and a random
    choice, on a built-in world. Interrupted runs continue where they stopped, and finished ones are not run
    again.
    """
    world = given or FIRST_WORLD
    place = open_world(world)
    longest = getattr(place, "n_rounds", None)  # a log ends, a world does not
    n_rounds = longest or N_ROUNDS if rounds is None else min(rounds, longest or rounds)
    usual = LOG_RUNS if place.is_log else N_RUNS
    plan = Plan(world, place, parse_specs(policies), n_rounds, usual if runs is None else runs, seed, out)
    notes = Console(stderr=True)
    log = open_mlflow(mlflow)
    before = sum(path.exists() for _, path in plan.all_tasks())
    most = MOST_RUNS if runs is None else runs
    try:
        them = open_workers(workers, engine)
        comparison = compare_until_clear(plan, most, lambda plan: bars(plan, notes), them)
        report = write_report(comparison, out / "report.html")
        write_curves(comparison, out / "curves.svg")
    except KeyboardInterrupt:
        again = shlex.join(["coterie", *sys.argv[1:]])
        _say(notes, f"\nInterrupted. Finished runs are kept in {out}. To continue:\n{again}")
        raise typer.Exit(130) from None
    (out / "result.json").write_text(json.dumps(as_json(comparison), indent=2))
    log(comparison, [out / name for name in ("report.html", "curves.svg", "result.json")])
    if before:
        _say(notes, f"{count(before, 'run')} had been played before; to play again, remove {out / 'traces'}.")
    if as_json_:
        print(json.dumps(as_json(comparison), indent=2))
    else:
        _print(comparison, report)


def _say(console: Console, text: str) -> None:
    """Print text unchanged: no markup, no colours, no line breaks within a path or a command."""
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def _print(comparison: Comparison, report: Path) -> None:
    plan = comparison.plan
    console = Console()
    for text in (f"{headline(comparison)}. {reason(comparison)}", ""):
        console.print(text, markup=False, highlight=False)
    shown = "mean ± sampling error" if plan.is_log else "mean ± spread" if plan.n_runs > 1 else "no spread"
    title = f"{plan.name}: {plan.n_rounds:,} rounds, {count(plan.n_runs, 'run')}, {shown}"
    console.print(result_table(title, *table(comparison)))
    for text in ("", columns(comparison), "", next_step(comparison)):
        console.print(text, markup=False, highlight=False)
    _say(console, f"Report: {report}")
