"""`--mlflow`: writes the results of `compare`, `reproduce` and `tune` to an MLflow experiment as well."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated

import typer

from coterie.experiments import Comparison

MlflowOption = Annotated[
    str | None,
    typer.Option(
        "--mlflow",
        metavar="EXPERIMENT",
        help="Log the result to this MLflow experiment as well; MLFLOW_TRACKING_URI says where MLflow is.",
    ),
]
Log = Callable[[Comparison, Iterable[Path]], None]


def opened(experiment: str | None) -> Log:
    """Return a function that logs a comparison with its files. Errors of MLflow are raised now, before any work."""
    if experiment is None:
        return lambda comparison, files: None
    from coterie.bridges.mlflow import log_to_mlflow, open_experiment

    open_experiment(experiment)

    def log(comparison: Comparison, files: Iterable[Path]) -> None:
        log_to_mlflow(comparison, experiment, files=[file for file in files if file.is_file()])

    return log
