"""`coterie bench`: speed, as ratios within one run."""

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text
from threadpoolctl import threadpool_limits

from coterie.bench import SUITES, describe_machine, run_suites, write_rows
from coterie.bench.measuring import Measured, at_most, no_limit
from coterie.bench.plots import draw_growth
from coterie.cli.app import need_service
from coterie.cli.shared.options import JsonOption

DECISIONS = "decisions"
SNAPSHOTS = "snapshots"
SIZES = "sizes"


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
    found: list[Measured] = []
    with threadpool_limits(1), notes.status("starting") as status:
        for row in _rows(suites, quick, status.update, notes):
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


def _rows(
    suites: list[str], quick: bool, on_progress: Callable[[str], None], notes: Console
) -> Iterator[Measured]:
    speed = [name for name in suites if name not in (DECISIONS, SIZES, SNAPSHOTS)]
    if speed or not suites:
        yield from run_suites(speed, quick, on_progress)
    if DECISIONS in suites:
        yield from decision_rows(quick, on_progress, lambda text: notes.print(text, markup=False))
    if SNAPSHOTS in suites:
        yield from snapshot_rows(quick, on_progress)
    if SIZES in suites:
        yield from size_rows(quick, on_progress)


def size_rows(quick: bool, on_progress: Callable[[str], None]) -> Iterator[Measured]:
    """Yield the bytes of a decision between 20 actions, with a reward for every second one."""
    need_service()
    from coterie.bench.service.sizes import measure
    from coterie.service.core.waits import ROW

    for features in (False, True):
        what = "with features" if features else "with ids"
        on_progress(f"decisions {what}")
        found = measure(features, 2_000 if quick else 20_000)
        for name, value, against, reference, limit in (
            ("in the log", found.log, "before it is compressed", found.plain, 0.6),
            ("of the store's file, with the index", found.file, "before it is compressed", found.plain, None),
            ("of an event in memory", found.memory, "what max-event-bytes counts", found.counted, 1.3),
            ("of a wait whose event left memory", found.wait, "what max-event-bytes counts", float(ROW), 1.3),
        ):
            ratio = value / reference
            bound = no_limit(ratio) if limit is None else at_most(limit, ratio)
            yield Measured(
                SIZES, f"a decision {what}, {name}", value, "bytes", f"{reference:,.0f} B {against}", **bound
            )


def snapshot_rows(quick: bool, on_progress: Callable[[str], None]) -> Iterator[Measured]:
    """Yield the cost of many users: 20,000 if quick, else a million."""
    need_service()
    from coterie.bench.service.many_users import measure

    few, many = measure(100, on_progress), measure(20_000 if quick else 1_000_000, on_progress)
    users = f"{many.users:,} users"

    def row(name: str, value: float, unit: str, against: str, **rest: Any) -> Measured:
        return Measured(SNAPSHOTS, name, value, unit, against, **rest)

    yield row(f"a start, {users}", many.start, "s", "60 s", **at_most(1, many.start / 60))
    yield row(f"peak memory, {users}", many.memory / 1e9, "GB", "2 GB", **at_most(1, many.memory / 2e9))
    yield row(
        f"longest turn of the event loop during a snapshot, {users}",
        1000 * many.held, "ms of processor time", "50 ms", **at_most(1, many.held / 0.05),
    )  # fmt: skip
    yield row(
        "the same without a snapshot",
        1000 * many.held_before, "ms of processor time", "50 ms", **no_limit(many.held_before / 0.05),
    )  # fmt: skip
    yield row(
        f"slowest rank and reward during a snapshot, {users}",
        1000 * many.waited, "ms", f"{1000 * many.waited_before:.3g} ms, the slowest without one",
        **no_limit(many.waited / many.waited_before),
    )  # fmt: skip
    yield row(
        "written by a snapshot after one more rank and reward",
        many.part / 1e6, "MB", f"{many.whole / 1e6:.4g} MB, all of it", **no_limit(many.part / many.whole),
    )  # fmt: skip
    for what, value, before, limit in (
        ("a rank with features", many.rank, few.rank, at_most(1.1, many.rank / few.rank)),
        ("a reward", many.reward, few.reward, no_limit(many.reward / few.reward)),
    ):
        against = f"{1e6 * before:.3g} µs with 100 users"
        yield row(f"{what}, {users}", 1e6 * value, "µs of processor time", against, **limit)


def decision_rows(
    quick: bool, on_progress: Callable[[str], None], left_out: Callable[[str], None]
) -> Iterator[Measured]:
    """Yield the payoffs of the service's decisions against Vowpal Wabbit's best setting, then ways to explore."""
    need_service()
    from coterie.bench.service.decisions import exploring, results

    def tell(text: str) -> None:
        (left_out if "left out" in text else on_progress)(text)

    for one in results(quick, tell):
        unit = "of a random choice's regret" if one.by_regret else "earned a round"
        ours, ratio = one.ours, one.ours / one.rival
        against = f"{one.rival:.3f}, Vowpal Wabbit's best of five ({one.setting})"
        limit = "< 1" if one.by_regret else "> 1"
        holds = None if ratio != ratio else ratio < 1 if one.by_regret else ratio > 1
        yield Measured(DECISIONS, one.game, ours, unit, against, ratio, limit, holds)
        if one.game == "digits":
            yield Measured(
                DECISIONS, "digits, right answers", ours, unit, "0.80", ours / 0.8, ">= 1", ours >= 0.8
            )
    for game, way, score in exploring(quick, on_progress):
        unit = "of a random choice's regret" if "MovieLens" in game else "earned a round"
        against = "share of the rounds that the log is worth to evaluate a uniform choice"
        name = f"{game}, exploring by {way}"
        yield Measured(DECISIONS, name, score.value, unit, against, score.worth, None, None)


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
