"""Runs of CAB side by side on a device: each has the trace of a run alone. JAX's CPU stands for the device."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from coterie import CAB
from coterie.cli.app import app
from coterie.data.datasets import open_dataset
from coterie.data.worlds.world_as_dataset import Rest
from coterie.errors import FileError, ParameterError
from coterie.experiments import Run, parse_spec
from coterie.experiments.run import parallel
from coterie.experiments.run.parallel import Task, record_all
from coterie.experiments.run.record import policy_path, record
from coterie.experiments.run.trace import read_trace
from coterie.experiments.study.tuning import score
from coterie.models.users.dense import Dense
from coterie.policies import load
from coterie.policies.base.batch import Batch
from tests.miniature import write_lastfm

jax = pytest.importorskip("jax", reason="jax is not installed (the extra gpu)")

from coterie.engines.runs import JointRuns  # noqa: E402
from coterie.experiments.run import on_device  # noqa: E402

CPU = jax.devices("cpu")[0]
SPECS = ("cab:alpha=0.0", "cab:alpha=0.05:gamma=2.0", "cab:alpha=0.2:gamma=3.0")
ROUNDS = 300  # more than one batch


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("data")
    write_lastfm(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COTERIE_DATA", str(folder))
        yield open_dataset("lastfm", verify=False, n_rounds=1_000)


def tasks(
    world: Any, folder: Path, *specs: str, suffix: str = ".parquet", n_rounds: int = ROUNDS
) -> list[Task]:
    runs = [Run.of(parse_spec(text), world, seed, n_rounds) for text in specs for seed in (3, 4)]
    return [(run, folder / Path(run.file_name()).with_suffix(suffix)) for run in runs]


@pytest.fixture(scope="module")
def alone(data: Any, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The traces of runs that were played one after the other in this process."""
    given = tasks(Rest(data, 100), tmp_path_factory.mktemp("alone"), *SPECS)
    record_all(given, workers=1)
    return [path for _, path in given]


def assert_same(made: list[Path], alone: list[Path]) -> None:
    for path, other in zip(made, alone, strict=True):
        found = read_trace(path)
        assert found.equals(read_trace(other))
        assert (found["updated"] > 1).any()
        mine, others = load(policy_path(path)), load(policy_path(other))
        assert mine.learned == others.learned == ROUNDS
        assert set(mine.users) == set(others.users)
        for user in mine.users:
            one, another = mine.decide(user, np.eye(25)), others.decide(user, np.eye(25))
            np.testing.assert_allclose(one.score, another.score, rtol=0, atol=1e-12)


def test_runs_side_by_side_go_on_from_wherever_each_was_and_have_the_trace_of_a_run_alone(
    data: Any, alone: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One has ended, others have played some batches, and one has played nothing."""
    given = tasks(Rest(data, 100), tmp_path, *SPECS)
    monkeypatch.setattr("coterie.data.published.labelled.Labelled.every", 250)

    play, played = JointRuns.play, list[int]()

    def stop(runs: JointRuns, asked: Any) -> Any:
        played.append(len(asked))
        if len(played) == 2:  # all have kept their first batch, and ask for the next
            raise KeyboardInterrupt
        return play(runs, asked)

    with monkeypatch.context() as patch:
        patch.setattr(JointRuns, "play", stop)
        with pytest.raises(KeyboardInterrupt):
            record_all(given[:4], workers=on_device.on_device(CPU))
    assert played == [4, 4]
    assert list(tmp_path.glob("*.partial/*.policy"))
    record_all(given[4:5], workers=1)
    told: list[list[int]] = []
    record_all(given, lambda counts: told.append(list(counts)), on_device.on_device(CPU))
    assert_same([path for _, path in given], alone)
    assert told[-1] == [ROUNDS] * len(given)


@pytest.mark.slow
def test_scores_are_those_of_runs_alone(data: Any, tmp_path: Path) -> None:
    side = tasks(data, tmp_path / "side", *SPECS, suffix=".json")
    alone = tasks(data, tmp_path / "alone", *SPECS, suffix=".json")
    record_all(side, workers=on_device.on_device(CPU), work=score)
    record_all(alone, workers=1, work=score)
    for (_, one), (_, other) in zip(side, alone, strict=True):
        assert json.loads(one.read_text()) == json.loads(other.read_text())


def test_what_a_device_cannot_play_goes_to_processes(
    data: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    specs = ["cab", "cab:thompson=true", "cab:half_life=9", "linucb"]
    given = tasks(data, tmp_path, *specs, n_rounds=40)
    assert [on_device.shape_of(run) for run, _ in given[::2]] == [(12, 25), *[None] * 3]
    asked: list[Any] = []

    def processes(some: list[Task], told: Any, workers: Any, work: Any) -> None:
        asked.extend(run.label for run, _ in some)
        told([run.n_rounds for run, _ in some])

    monkeypatch.setattr(parallel, "record_all", processes)
    told: list[list[int]] = []
    on_device.on_device(CPU)(given, lambda counts: told.append(list(counts)), record)
    assert asked == [text for text in specs[1:] for _ in range(2)]
    assert told[-1] == [40] * len(given)
    assert [path.exists() for _, path in given] == [True] * 2 + [False] * 6


def test_an_error_of_one_run_stops_all_and_is_told(data: Any, tmp_path: Path) -> None:
    given = tasks(data, tmp_path, *SPECS)
    given[1][1].write_text("something else")
    with pytest.raises(FileError, match="not a readable Parquet file"):
        record_all(given, workers=on_device.on_device(CPU))


def test_an_error_of_the_device_stops_all_and_is_told(
    data: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise MemoryError("the device is full")

    monkeypatch.setattr(JointRuns, "play", full)
    with pytest.raises(MemoryError, match="the device is full"):
        record_all(tasks(data, tmp_path, *SPECS), workers=on_device.on_device(CPU))


def test_runs_of_different_lengths_lists_and_logs_are_played_together() -> None:
    """Three runs with tables of their own; one is a log, one has shorter lists, and one has fewer rounds."""
    rng = np.random.default_rng(0)
    alpha, gamma = (0.05, 0.2, 0.0), (3.0, 2.0, 0.2)
    policies = [CAB(n_features=3, alpha=a, gamma=g) for a, g in zip(alpha, gamma, strict=True)]
    runs = JointRuns(CPU, alpha, gamma, 9, 3, 1_000)
    tables = [rng.normal(size=(20, 3)) / 9 for _ in alpha]
    learned, shared, left_out = [0] * 3, 0, 0
    for lengths in ((40, 25, 30), (10, 300, 5), (20, 0, 20)):
        asked, batches = {}, {}
        for k, n in enumerate(lengths):
            if n == 0:
                continue
            users = rng.integers(9, size=n)
            candidates = rng.integers(20, size=(n, (5, 5, 3)[k]))
            served = rng.integers(5, size=n) if k == 1 else None
            payoffs = rng.random(candidates.shape if served is None else n)
            batches[k] = Batch(users.tolist(), candidates, tables[k], payoffs, served)
            known = np.full(n, -1) if served is None else served
            asked[k] = Batch(users, candidates, tables[k], payoffs.reshape(n, -1), known), learned[k]
        for k, played in runs.play(asked).items():
            truth = policies[k].run(batches[k])
            for mine, others in zip(played, truth, strict=True):
                np.testing.assert_array_equal(mine, others)
            learned[k] += int(truth.kept.sum())
            shared += int((truth.updated > 1).sum())
            left_out += int((~truth.kept).sum())
    assert min(shared, left_out) > 20
    for k, policy in enumerate(policies):
        rows, models = runs.read(k)
        assert isinstance(policy.models, Dense)
        found = policy.models.part(rows.tolist())
        np.testing.assert_allclose(models["weights"], found["weights"], rtol=0, atol=1e-13)
        np.testing.assert_allclose(models["inverses"], found["inverses"], rtol=0, atol=1e-13)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--engine", "ray"], "--engine is 'ray', expected cuda"),
        (["--engine", "cuda?device=tpu"], "device is 'tpu', but JAX finds"),
        (["--engine", "cuda", "--workers", "2"], "--workers 2 and --engine cuda are given; choose one"),
    ],
)
def test_engines_that_cannot_be_are_refused(options: list[str], message: str, tmp_path: Path) -> None:
    told = CliRunner().invoke(app, ["compare", "--rounds", "5", "--out", str(tmp_path), *options])
    assert isinstance(told.exception, ParameterError)
    assert message in str(told.exception)
