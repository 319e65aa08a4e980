"""`coterie reproduce`: the paper's experiments on a dataset."""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from coterie.arrays import JsonObject
from coterie.cli.shared import options
from coterie.cli.shared.protocol import do, make_protocol
from coterie.cli.shared.runs import EngineOption, MlflowOption, open_mlflow, open_workers
from coterie.data import WORLDS, make_world
from coterie.data.datasets import DATASETS, Dataset, open_dataset
from coterie.data.files import VARIABLE
from coterie.data.logs.log import open_log
from coterie.data.logs.log_file import READERS
from coterie.data.published.dealt import Dealt
from coterie.data.worlds.world_as_dataset import N_ROUNDS, Stage
from coterie.errors import CoterieError, ParameterError
from coterie.experiments import parse_specs
from coterie.experiments.run.specs import names
from coterie.experiments.study.contest_games import why_unable
from coterie.experiments.study.reproduce import numbers

PAPER = "cab,club,dynucb,linucb-single,linucb-multiple,random"
ALL = ("lastfm", "delicious", "tuenti", "kddcup", "avazu")


def reproduce(
    dataset: Annotated[
        str,
        typer.Argument(
            help=f"A dataset ({', '.join(DATASETS)}), `all` for the paper's five, or a built-in world "
            f"({', '.join(WORLDS)})."
        ),
    ],
    data: options.DataOption = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="A small version; the report says what was left out.")
    ] = False,
    policies: Annotated[
        str | None,
        typer.Option(help="Policies, separated by commas, or `all`. [default: those of the paper]"),
    ] = None,
    runs: options.RunsOption = None,
    rounds: Annotated[
        int | None,
        typer.Option(help=f"Use only this many rounds of the data. [default: all; {N_ROUNDS} of a world]"),
    ] = None,
    seed: options.SeedOption = 0,
    tuning_runs: options.TuningRunsOption = 1,
    settings: options.SettingsOption = None,
    unverified: Annotated[
        bool, typer.Option("--unverified", help="Take files that differ from the published ones.")
    ] = False,
    out: options.OutOption = Path("out/reproduce"),
    as_json: options.JsonOption = False,
    workers: options.WorkersOption = None,
    engine: EngineOption = None,
    mlflow: MlflowOption = None,
) -> None:
    """Do the paper's experiments on a dataset.

    All of section 5: tune on the first fifth, report the rest, draw the figures. Settings are another reading of the
    data, such as pool=all or untagged=drop; for a world, one of its parameters. An interrupted reproduction
    continues where it stopped.
    """
    if Path(dataset).suffix.lower() in READERS:
        raise ParameterError(f"{dataset} is a log of your own; use `coterie tune {dataset}`")
    chosen_settings = options.read_settings_given(settings or [])
    if data is not None:
        os.environ[VARIABLE] = str(data)  # worker processes read it
    notes = Console(stderr=True)
    plans = []
    for name in ALL if dataset == "all" else [dataset]:
        place = open_place(
            name, chosen_settings, notes, rounds, unverified=unverified, fall_back=dataset == "all"
        )
        chosen = parse_specs(",".join(names()) if policies == "all" else policies or PAPER)
        if policies == "all":
            chosen = [spec for spec in chosen if why_unable(spec, place, seed) is None]
        protocol = make_protocol(
            place, chosen,
            out=out, quick=quick, runs=runs, rounds=rounds, seed=seed, tuning_runs=tuning_runs,
        )  # fmt: skip
        plans.append(protocol)
    log_evidence = open_mlflow(mlflow)
    them = open_workers(workers, engine)
    found = [do(protocol, notes, them, as_json) for protocol in plans]
    for evidence in found:
        log_evidence(evidence.comparison, evidence.protocol.out.iterdir())
    if as_json:
        results = [numbers(evidence) for evidence in found]
        print(json.dumps(results if dataset == "all" else results[0], indent=2))


def open_place(
    name: str,
    settings: JsonObject,
    notes: Console,
    rounds: int | None,
    *,
    unverified: bool = False,
    fall_back: bool = False,
) -> Dataset:
    """Return a dataset, a built-in world as rounds, or a log, by its name."""
    chosen = dict(settings)
    if name in WORLDS:
        world = make_world({"seed": 0, **WORLDS[name].parameters, **chosen})
        return Stage(name, world, N_ROUNDS if rounds is None else rounds)
    if Path(name).suffix.lower() in READERS:
        return open_log(name, **chosen)
    if name in ("kddcup", "avazu"):
        chosen["on_progress"] = lambda what: notes.print(f"{name}: {what}", highlight=False)
    try:
        place = open_dataset(name, **chosen)
        if unverified and isinstance(place, Dealt):
            place = replace(place, verify=False)
        _ = place.n_users  # so that errors in the files are raised now
        if not fall_back or place.provenance == "real" or name == "delicious":
            return place
    except CoterieError:
        if not fall_back or name not in ("kddcup", "avazu"):
            raise
    if f"{name}-twin" not in DATASETS:
        return place
    notes.print(f"The full {name} data are missing; its generated twin is used.", highlight=False)
    return open_dataset(f"{name}-twin")
