"""`coterie tune`: the best settings on a user's own log."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from coterie.cli.shared import options
from coterie.cli.shared.protocol import do, make_protocol
from coterie.cli.shared.runs import EngineOption, MlflowOption, open_mlflow, open_workers
from coterie.data.logs.log import open_log
from coterie.errors import ParameterError
from coterie.experiments import parse_specs
from coterie.experiments.run.specs import DEFAULT
from coterie.experiments.study.protocol import Protocol
from coterie.experiments.study.reproduce import numbers


def tune(
    log: Annotated[
        str,
        typer.Argument(
            help="A .csv or .parquet file with the columns user, payoff, and item or features (a list, or "
            "columns named feature_…), or a service's export (.parquet, .dsjson)."
        ),
    ],
    policies: Annotated[
        str,
        typer.Option(help="Policies, separated by commas. What a spec fixes (cab:alpha=0.1) is not tuned."),
    ] = DEFAULT,
    quick: Annotated[
        bool, typer.Option("--quick", help="A few settings and rounds; the report says what was left out.")
    ] = False,
    runs: options.RunsOption = None,
    rounds: Annotated[int | None, typer.Option(help="Use only this many records. [default: all]")] = None,
    seed: options.SeedOption = 0,
    tuning_runs: options.TuningRunsOption = 1,
    out: options.OutOption = Path("out/tune"),
    settings: options.SettingsOption = None,
    as_json: options.JsonOption = False,
    mlflow: MlflowOption = None,
    workers: options.WorkersOption = None,
    engine: EngineOption = None,
) -> None:
    """Find each policy's best settings on a log of your own.

    They are tried on the first fifth of the log, and the best is played on the rest, where the policies are compared.
    Settings of a log: candidates=5 (how many in each list). Interrupted tuning continues where it stopped.
    """
    if not Path(log).suffix:
        other = f"for a dataset, `coterie reproduce {log}`"
        raise ParameterError(f"{log!r} is not a .csv or .parquet file; {other}")
    notes = Console(stderr=True)
    protocol = make_protocol(
        open_log(log, **options.read_settings_given(settings or [])),
        parse_specs(policies),
        out=out, quick=quick, runs=runs, rounds=rounds, seed=seed, tuning_runs=tuning_runs,
    )  # fmt: skip
    log_evidence = open_mlflow(mlflow)
    evidence = do(protocol, notes, open_workers(workers, engine), as_json, _answer)
    log_evidence(evidence.comparison, protocol.out.iterdir())
    if as_json:
        print(json.dumps(numbers(evidence), indent=2))


def _answer(protocol: Protocol) -> list[str]:
    """Return each policy's best settings, as `--policies` takes them."""
    best = ",".join(protocol.best(spec).text for spec in protocol.specs)
    return [f"Best settings in tuning on {protocol.name}: {best}"]
