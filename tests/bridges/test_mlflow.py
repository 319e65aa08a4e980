"""Comparisons in MLflow itself, with a store in a folder."""

import json
import sys
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from mlflow.tracking import MlflowClient
from typer.testing import CliRunner

from coterie.cli.app import app
from coterie.data import WORLDS
from coterie.errors import FileError, MissingExtraError
from coterie.experiments import Comparison, Plan, compare, parse_specs

run = CliRunner()
POLICIES = "own:make=tests.bridges.agents.greedy,random"

QUICK = ["compare", "clicks", "--policies", "random", "--rounds", "60", "--runs", "1", "--workers", "1"]


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MlflowClient:
    """MLflow with files alone: its other stores need a database or a server."""
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "mlruns").as_uri())
    monkeypatch.setenv("COTERIE_CACHE", str(tmp_path / "cache"))
    return MlflowClient()


def logged(store: MlflowClient, name: str) -> tuple[Any, dict[str, Any]]:
    """Return the run of the only comparison of an experiment, and those of its policies by name."""
    found = store.search_runs([store.get_experiment_by_name(name).experiment_id])
    parents = [one for one in found if "mlflow.parentRunId" not in one.data.tags]
    assert len(parents) == 1
    children = [one for one in found if one is not parents[0]]
    assert {one.data.tags["mlflow.parentRunId"] for one in children} == {parents[0].info.run_id}
    assert {one.info.status for one in found} == {"FINISHED"}
    return parents[0], {one.data.tags["mlflow.runName"]: one for one in children}


def small(folder: Path) -> Comparison:
    plan = Plan("clicks", WORLDS["clicks"](), parse_specs(POLICIES), 100, 2, 3, folder)
    return compare(plan, workers=1)


def test_a_comparison_is_a_run_with_one_run_per_policy(store: MlflowClient, tmp_path: Path) -> None:
    from coterie.bridges import log_to_mlflow

    found = small(tmp_path / "out")
    (tmp_path / "notes.txt").write_text("hello")
    told = log_to_mlflow(found, "music", files=[tmp_path / "notes.txt"])
    parent, policies = logged(store, "music")
    assert parent.info.run_id == told
    assert parent.data.params | {"world": "clicks", "n_rounds": "100", "n_runs": "2"} == parent.data.params
    assert parent.data.params["world.kind"] == "one-hot"
    assert [file.path for file in store.list_artifacts(told)] == ["notes.txt"]
    assert policies.keys() == {"greedy", "RAN"}
    for result in found.results:
        numbers = policies[result.spec.title].data.metrics
        assert numbers["regret"] == pytest.approx(result.over("regret").mean)
        assert numbers["regret_spread"] == pytest.approx(result.over("regret").spread)
        course = store.get_metric_history(policies[result.spec.title].info.run_id, "regret_so_far")
        assert [(one.step, one.value) for one in course] == list(
            zip(result.curve.time.tolist(), result.curve.mean.tolist(), strict=True)
        )
    assert policies["RAN"].data.metrics["regret_to_random"] == 1
    assert policies["greedy"].data.params["make"] == "tests.bridges.agents.greedy"


def test_compare_logs_if_asked_for(store: MlflowClient, tmp_path: Path) -> None:
    told = run.invoke(app, [*QUICK, "--out", str(tmp_path / "out"), "--mlflow", "asked", "--json"])
    assert told.exit_code == 0, told.output
    parent, policies = logged(store, "asked")
    files = {file.path for file in store.list_artifacts(parent.info.run_id)}
    assert files == {"curves.svg", "report.html", "result.json"}
    assert policies["RAN"].data.metrics["regret"] == json.loads(told.stdout)["policies"][0]["regret"]["mean"]
    assert "regret_spread" not in policies["RAN"].data.metrics  # one run has none


def test_tune_logs_a_log_if_asked_for(store: MlflowClient, tmp_path: Path) -> None:
    rows = [(f"user {t % 3}", "abcd"[t * 7 % 4], t % 2) for t in range(200)]
    pl.DataFrame(rows, schema=["user", "item", "payoff"], orient="row").write_csv(tmp_path / "log.csv")
    command = ["tune", str(tmp_path / "log.csv"), "--policies", "random", "--quick", "--runs", "1"]
    told = run.invoke(
        app, [*command, "--workers", "1", "--out", str(tmp_path / "out"), "--mlflow", "asked", "--json"]
    )
    assert told.exit_code == 0, told.output
    parent, policies = logged(store, "asked")
    files = {file.path for file in store.list_artifacts(parent.info.run_id)}
    assert {"numbers.json", "report.html", "runs.parquet", "figure-1.svg"} <= files
    numbers = policies["RAN"].data.metrics
    assert "ctr_error" in numbers
    assert "regret" not in numbers  # a log does not know it


def test_what_mlflow_refuses_is_told_before_anything_runs(
    store: MlflowClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "carrier-pigeon://roof")
    told = run.invoke(app, [*QUICK, "--out", str(tmp_path / "out"), "--mlflow", "asked"])
    assert isinstance(told.exception, FileError)
    assert "MLflow cannot open the experiment 'asked'" in str(told.exception)
    assert "MLFLOW_TRACKING_URI says where it is stored" in str(told.exception)
    assert not (tmp_path / "out" / "traces").exists()


def test_without_mlflow_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "coterie.bridges.mlflow", raising=False)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    told = run.invoke(app, [*QUICK, "--out", str(tmp_path / "out"), "--mlflow", "asked"])
    assert isinstance(told.exception, MissingExtraError)
    assert "logging to MLflow needs mlflow: pip install 'coterie[mlflow]'" in str(told.exception)
    assert not (tmp_path / "out").exists()
