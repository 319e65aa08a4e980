"""`coterie loadtest`: the service's speed, and whether acknowledged events are lost."""

import asyncio
import json
import os
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from coterie.cli.shared.options import JsonOption
from coterie.errors import ParameterError

if TYPE_CHECKING:
    from coterie.bench.service.loadtest import LoadPlan

MOST_WORKERS = 16


def loadtest(
    url: Annotated[
        str | None, typer.Option(help="A running service. [default: a fresh one, killed at the end]")
    ] = None,
    seconds: Annotated[float, typer.Option(help="The total duration.")] = 30.0,
    connections: Annotated[int, typer.Option(help="Requests at the same time.")] = 32,
    users: Annotated[int, typer.Option(help="How many different users.")] = 10_000,
    actions: Annotated[int, typer.Option(help="Actions of each rank.")] = 20,
    rewards: Annotated[float, typer.Option(help="The share of decisions that get a reward.")] = 0.5,
    warm: Annotated[
        int, typer.Option(help="Payoffs learned before the test; only for a fresh service.")
    ] = 100_000,
    durability: Annotated[str, typer.Option(help="The level of a fresh service.")] = "lose-nothing",
    features: Annotated[
        bool | None,
        typer.Option(
            "--features/--ids", help="Send 6 context features and 5 per action, or ids only. [default: both]"
        ),
    ] = None,
    dialect: Annotated[str, typer.Option(help="The API: native or personalizer.")] = "native",
    key: Annotated[str | None, typer.Option(help="A key, if the service requires one.")] = None,
    anywhere: Annotated[bool, typer.Option("--anywhere", help="Allow a URL beyond this machine.")] = False,
    workers: Annotated[
        str | None,
        typer.Option(help="Compare so many services on one store, for example 1,2,4."),
    ] = None,
    empty_store: Annotated[
        str | None,
        typer.Option(help="With --workers: an empty store, for example in PostgreSQL. [default: a new file]"),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Put load on a service, and check that nothing is lost.

    It sends ranks and rewards, and prints throughput and latencies, by ids and with features. A rank's processor
    time includes that of its rewards.
    Without --url, a new service and a plain Litestar endpoint with the same bodies are loaded in turns, each
    on one core; the service is killed without warning, and every acknowledged event is searched in its log.
    With --workers, several services share a store. It prints their processor time for a rank and a reward: that of
    the one that decides, and that of one that follows as a share of it.
    """
    from coterie.bench.service.loadtest import LoadPlan, check_plan, press, run, summary

    os.environ["COTERIE_COMPILE"] = "first"  # what is measured is machine code
    if workers is not None:
        _compare(
            workers,
            LoadPlan(seconds, connections, users, actions, rewards, features=bool(features)),
            empty_store,
            durability,
            warm,
            as_json,
        )
        return
    kinds = [False, True] if features is None else [features]
    found: dict[str, dict[str, object]] = {}
    for kind in kinds:
        each = seconds / len(kinds)
        plan = LoadPlan(each, connections, users, actions, rewards, key=key, dialect=dialect, features=kind)  # type: ignore[arg-type]
        check_plan(url, plan, anywhere)
        result = run(plan, durability, warm=warm) if url is None else summary(asyncio.run(press(url, plan)))
        found["features" if kind else "ids"] = result
    if as_json:
        print(json.dumps(found if features is None else next(iter(found.values())), indent=2))
        return
    table = Table(box=None, show_header=len(found) > 1)
    for name in ("", *found):
        table.add_column(name)
    for name in next(iter(found.values())):
        table.add_row(name.replace("_", " "), *(_cell(result[name]) for result in found.values()))
    Console().print(table)


def _compare(
    workers: str, plan: "LoadPlan", store: str | None, durability: str, warm: int, as_json: bool
) -> None:
    """Print what numbers of services do on one store."""
    from coterie.bench.service.loadtest import check_plan
    from coterie.bench.service.many_services import run_many

    counts = [int(part) if part.isdecimal() else 0 for part in workers.split(",")]
    if not all(1 <= count <= MOST_WORKERS for count in counts):
        raise ParameterError(
            f"--workers is {workers!r}, expected numbers from 1 to {MOST_WORKERS}, like 1,2,4"
        )
    check_plan(None, plan, False)
    rows = run_many(plan, counts, store, durability, warm)
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    table = Table(box=None, show_header=False)
    for name in rows[0]:
        cells = ("" if row[name] is None else _cell(row[name]) for row in rows)
        table.add_row(name.replace("_", " "), *cells)
    Console().print(table)


def _cell(value: object) -> str:
    return f"{value:,.2f}" if isinstance(value, float) else str(value)
