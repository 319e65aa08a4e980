"""Sweeps on Ray: the same files as local runs make, whatever happens on the way."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open

from coterie.cli import main
from coterie.data.datasets import open_dataset
from coterie.data.worlds.twins import twin
from coterie.errors import ClusterError, FileError
from coterie.experiments import Run, parse_spec, parse_specs, record
from coterie.experiments.run.on_ray import on_ray
from coterie.experiments.run.parallel import record_all
from coterie.experiments.run.worlds import make_world
from coterie.experiments.study.protocol import Protocol, run_protocol
from tests.miniature import write_lastfm

TWIN: dict[str, Any] = {"n_users": 12, "n_items": 8, "n_candidates": 3, "n_records": 900}
WORLD = make_world({"kind": "one-hot", "n_users": 30})


def files(folder: Path) -> dict[str, Any]:
    """Return what lies under a folder; policies by their values, since their files list them in any order."""
    found: dict[str, Any] = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        name = str(path.relative_to(folder))
        if path.suffix == ".safetensors":
            with safe_open(path, "np") as policy:
                values = {key: policy.get_tensor(key).tobytes() for key in policy.keys()}  # noqa: SIM118
                found[name] = (policy.metadata(), values)
        else:
            found[name] = path.read_bytes()
    return found


def tasks(out: Path, n_runs: int = 4, n_rounds: int = 600) -> list[tuple[Run, Path]]:
    runs = [Run.of(parse_spec("cab:alpha=0.3"), WORLD, seed, n_rounds) for seed in range(n_runs)]
    return [(run, out / run.file_name()) for run in runs]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["music", "twin"])
def test_reproduction_is_that_of_local_runs_and_data_are_sent_once(
    kind: str, ray_cluster: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the cluster has no data files: they are moved away before its workers could look."""
    import ray

    write_lastfm(tmp_path / "data")
    monkeypatch.setenv("COTERIE_DATA", str(tmp_path / "data"))
    music = {"verify": False, "components": 4, "n_candidates": 5, "n_rounds": 300}
    data = open_dataset("lastfm", **music) if kind == "music" else twin("tuenti", **TWIN)
    specs = parse_specs("cab,linucb-single:alpha=0.1,random")
    here, there = (
        Protocol(data.name, data, specs, tmp_path / name, n_runs=2, quick=True) for name in ("here", "there")
    )
    run_protocol(here, workers=1)
    (tmp_path / "data").rename(tmp_path / "elsewhere")
    put, sent, tuned, reported = ray.put, [], [], []

    def count(value: Any) -> Any:
        sent.append(value)
        return put(value)

    monkeypatch.setattr(ray, "put", count)
    with on_ray(ray_cluster) as workers:
        run_protocol(
            there,
            lambda done: tuned.append(sum(done)),
            lambda plan: lambda done: reported.append(sum(done)),
            workers,
        )
    assert len(sent) == 1
    assert (tuned[-1], reported[-1]) == (5 * here.n_tuned, 6 * here.n_reported)
    assert files(here.out) == files(there.out)
    assert len(list(there.out.glob("tuning/*.json"))) == 5
    assert len(list(there.out.glob("traces/*.parquet"))) == 6


def fatal_once(marks: Path, run: Run, path: Path, *, tick: Callable[[int], None] = lambda done: None) -> None:
    """Record a run, in a process that is killed in the middle of it the first time."""

    def fatal(done: int) -> None:
        tick(done)
        mark = marks / str(run.seed)
        if done >= 300 and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    record(run, path, tick=fatal)


def patient(marks: Path, run: Run, path: Path, *, tick: Callable[[int], None] = lambda done: None) -> None:
    """Record a run; from seed 2 on not before there is a mark `go`."""
    if not path.exists():
        (marks / f"{run.seed}-{os.getpid()}").touch()
    while run.seed >= 2 and not (marks / "go").exists():
        time.sleep(0.02)
        tick(0)
    record(run, path, tick=tick)


def broken(run: Run, path: Path, *, tick: Callable[[int], None] = lambda done: None) -> None:
    raise FileError(f"no room for seed {run.seed}")


@pytest.fixture
def marks(tmp_path: Path) -> Path:
    (tmp_path / "marks").mkdir()
    return tmp_path / "marks"


@pytest.mark.slow
def test_run_whose_worker_dies_is_played_again_in_silence(
    ray_cluster: str, tmp_path: Path, marks: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record_all(tasks(tmp_path / "here", 2), workers=1)
    with on_ray(ray_cluster) as workers:
        record_all(tasks(tmp_path / "there", 2), workers=workers, work=partial(fatal_once, marks))
    assert sorted(path.name for path in marks.iterdir()) == ["0", "1"]
    assert capsys.readouterr() == ("", "")
    assert files(tmp_path / "here") == files(tmp_path / "there")


@pytest.mark.slow
def test_interrupted_sweep_ends_its_tasks_and_goes_on(ray_cluster: str, tmp_path: Path, marks: Path) -> None:
    import ray

    here, there = tmp_path / "here", tmp_path / "there"
    record_all(tasks(here), workers=1)

    def interrupt(done: Any) -> None:
        if sum(path.exists() for _, path in tasks(there)) == 2 and len(list(marks.glob("[23]-*"))) == 2:
            raise KeyboardInterrupt

    with on_ray(ray_cluster) as workers:
        with pytest.raises(KeyboardInterrupt):
            record_all(tasks(there), interrupt, workers, partial(patient, marks))
        done = {path: path.stat().st_mtime_ns for path in there.iterdir()}
        assert len(done) == 4  # two traces, two policies
        until = time.monotonic() + 300
        while ray.available_resources().get("CPU") != ray.cluster_resources()["CPU"]:
            assert time.monotonic() < until, "tasks that were called off are still at work"
            time.sleep(0.1)
        (marks / "go").touch()
        heard: list[int] = []
        record_all(tasks(there), lambda done: heard.append(sum(done)), workers, partial(patient, marks))
    assert (heard[0], heard[-1]) == (2 * 600, 4 * 600)
    assert {path: path.stat().st_mtime_ns for path in done} == done
    assert len(list(marks.glob("[01]-*"))) == 2  # those two were not played again
    assert files(here) == files(there)


@pytest.mark.slow
def test_sweep_whose_driver_is_killed_goes_on(ray_cluster: str, tmp_path: Path) -> None:
    options = ["--policies", "cab,linucb-multiple", "--runs", "3", "--rounds", "4000", "--json"]

    def start(out: str, *more: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-W", "error", "-m", "coterie.cli", "compare", *options, *more]
        return subprocess.Popen([*command, "--out", out], cwd=tmp_path, stdout=subprocess.PIPE)

    start("here", "--workers", "1").communicate(timeout=300)
    killed = start("there", "--ray", ray_cluster)
    while not list(tmp_path.glob("there/traces/*.parquet")) and killed.poll() is None:
        time.sleep(0.05)
    killed.kill()
    killed.communicate()
    again = start("there", "--ray", ray_cluster)
    told, _ = again.communicate(timeout=300)
    assert again.returncode == 0
    assert len(json.loads(told)["policies"]) == 2
    assert files(tmp_path / "here" / "traces") == files(tmp_path / "there" / "traces")


def test_error_of_a_run_is_told_as_if_it_were_here(ray_cluster: str, tmp_path: Path) -> None:
    with on_ray(ray_cluster) as workers, pytest.raises(FileError, match=r"^no room for seed [01]$"):
        record_all(tasks(tmp_path, 2), workers=workers, work=broken)


def test_cluster_with_another_code_is_told(
    ray_cluster: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coterie.__version__", "0.0.0")
    with (
        on_ray(ray_cluster) as workers,
        pytest.raises(ClusterError, match=r"different code .* the same coterie"),
    ):
        record_all(tasks(tmp_path, 1), workers=workers)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--ray", "there"], "ray address 'there' cannot be read; expected local, auto, host:port or ray://"),
        (["--ray", "auto", "--workers", "2"], "--workers 2 and --ray auto are given; choose one"),
    ],
)
@pytest.mark.parametrize(
    "command", [["compare"], ["reproduce", "tuenti", "--quick"]], ids=lambda words: words[0]
)
def test_mistakes_are_told_in_one_line(
    command: list[str],
    words: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["coterie", *command, "--out", str(tmp_path), *words])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_missing_extra_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("coterie.engines.cluster.find_spec", lambda name: None)
    monkeypatch.setattr(sys, "argv", ["coterie", "compare", "--out", str(tmp_path), "--ray", "local"])
    with pytest.raises(SystemExit):
        main()
    assert capsys.readouterr().err == "error: this needs ray: pip install 'coterie[ray]'\n"
