"""MLflow: a comparison as a run with its files, and in it one run per policy with its settings, numbers and curve.

MLflow's own setting MLFLOW_TRACKING_URI says where it is stored: on a server, or on this machine.
"""

import math
import time
from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import coterie
from coterie.errors import FileError, MissingExtraError
from coterie.experiments.study.compare import Comparison, PolicyResult
from coterie.experiments.study.metrics import Spread, Summary

if find_spec("mlflow") is None:
    raise MissingExtraError("logging to MLflow needs mlflow: pip install 'coterie[mlflow]'")

from mlflow import MlflowException
from mlflow.entities import Metric, Param, RunTag
from mlflow.tracking import MlflowClient

PARENT = "mlflow.parentRunId"
NAME = "mlflow.runName"


def open_experiment(name: str) -> tuple[MlflowClient, str]:
    """Return MLflow's client and the id of the experiment with that name, which is created if needed."""
    try:
        client = MlflowClient()
        found = client.get_experiment_by_name(name)
        return client, client.create_experiment(name) if found is None else found.experiment_id
    except MlflowException as error:
        raise FileError(
            f"MLflow cannot open the experiment {name!r}: {error}; MLFLOW_TRACKING_URI says where it is stored"
        ) from error


def log_to_mlflow(
    comparison: Comparison, experiment: str = "coterie", *, files: Iterable[str | Path] = ()
) -> str:
    """Write a comparison to MLflow, and return the id of its run.

    `comparison` is what `compare` returns, `experiment` the name of an MLflow experiment, which is created if needed,
    and `files` are stored with the run. Numbers are means over the runs; those named `…_spread` are their spread.
    Raises FileError if MLflow refuses it, and MissingExtraError if MLflow is not installed.

    >>> log_to_mlflow(comparison, "music")  # doctest: +SKIP
    '3f1c…'
    """
    client, where = open_experiment(experiment)
    plan = comparison.plan
    settings = {
        "world": plan.name,
        "n_rounds": plan.n_rounds,
        "n_runs": plan.n_runs,
        "seed": plan.seed,
        "coterie": coterie.__version__,
        **{f"world.{name}": value for name, value in plan.world.parameters().items()},
    }
    try:
        run = client.create_run(where, run_name=plan.name).info.run_id
        client.log_batch(run, params=_params(settings))
        for result in comparison.results:
            child = client.create_run(where, tags={PARENT: run, NAME: result.spec.title}).info.run_id
            params = _params({"policy": result.spec.text, **result.spec.parameters})
            tags = [RunTag("world", plan.name)]
            client.log_batch(child, metrics=_metrics(result), params=params, tags=tags)
            client.set_terminated(child)
        for file in files:
            client.log_artifact(run, str(file))
        client.set_terminated(run)
    except MlflowException as error:
        raise FileError(f"MLflow refuses the comparison: {error}") from error
    return str(run)


def _params(settings: Mapping[str, Any]) -> list[Param]:
    return [Param(name, str(value)) for name, value in settings.items()]


def _metrics(result: PolicyResult) -> list[Metric]:
    """Return a policy's finite numbers, and its curve."""
    spreads: dict[str, Spread] = {name: result.over(name) for name in Summary._fields}
    if result.to_random is not None:
        spreads["regret_to_random"] = result.to_random
    numbers = {name: value.mean for name, value in spreads.items()}
    numbers |= {f"{name}_spread": value.spread for name, value in spreads.items()}
    if result.rate is not None:
        numbers |= {"ctr": result.rate.value, "ctr_error": result.rate.error}
    now = int(time.time() * 1000)
    found = [Metric(name, value, now, 0) for name, value in numbers.items() if math.isfinite(value)]
    course = "regret_so_far" if result.rate is None else "ctr_so_far"
    steps = zip(result.curve.time.tolist(), result.curve.mean.tolist(), strict=True)
    return found + [Metric(course, value, now, step) for step, value in steps]
