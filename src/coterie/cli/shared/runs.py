"""Options of `compare`, `tune` and `reproduce`: where runs are played, and whether MLflow gets the results."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated

import typer

from coterie.errors import ParameterError
from coterie.experiments import Comparison
from coterie.experiments.run.parallel import Workers

EngineOption = Annotated[
    str | None,
    typer.Option(
        "--engine",
        help="`cuda` plays all runs of CAB over feature vectors side by side on a GPU, and the others in "
        "processes; cuda?device=cuda:1 names the device.",
    ),
]
MlflowOption = Annotated[
    str | None,
    typer.Option(
        "--mlflow",
        metavar="EXPERIMENT",
        help="Log the result to this MLflow experiment as well; MLFLOW_TRACKING_URI says where MLflow is.",
    ),
]
Log = Callable[[Comparison, Iterable[Path]], None]


def open_workers(workers: int | None, engine: str | None = None) -> int | Workers | None:
    """Return the workers for `record_all`."""
    if engine is None:
        return workers
    if workers is not None:
        raise ParameterError(f"--workers {workers} and --engine {engine} are given; choose one")
    if engine.partition("?")[0] != "cuda":
        raise ParameterError(f"--engine is {engine!r}, expected cuda")
    from coterie.engines import open_engine

    device = open_engine(engine).device  # says if JAX is missing
    from coterie.experiments.run.on_device import on_device

    return on_device(device)


def open_mlflow(experiment: str | None) -> Log:
    """Return a function that logs a comparison with its files. Errors of MLflow are raised now, before any work."""
    if experiment is None:
        return lambda comparison, files: None
    from coterie.bridges.mlflow import log_to_mlflow, open_experiment

    open_experiment(experiment)

    def log(comparison: Comparison, files: Iterable[Path]) -> None:
        log_to_mlflow(comparison, experiment, files=[file for file in files if file.is_file()])

    return log
