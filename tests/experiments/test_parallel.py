"""Many runs at once: the order in which processes begin them, and their threads."""

import os
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from numba import njit

from coterie.data import make_world
from coterie.experiments import Run, parse_spec
from coterie.experiments.run import parallel
from coterie.experiments.run.parallel import Task, in_turns, record_all
from coterie.models.threads import thread_count


def tasks(*policies: str) -> list[Task]:
    world = make_world({"kind": "one-hot", "n_users": 3, "n_items": 4, "n_candidates": 2, "seed": 0})
    runs = [Run.of(parse_spec(text), world, seed, 1) for seed, text in enumerate(policies)]
    return [(run, Path(f"{number}.parquet")) for number, run in enumerate(runs)]


def test_the_first_run_of_each_policy_is_begun_before_the_second_of_any() -> None:
    """Two settings of CAB are one policy: they run the same compiled loops."""
    all_of_them = tasks("cab", "cab:alpha=0.3", "cab", "dynucb", "dynucb", "random")
    assert in_turns(all_of_them) == [0, 3, 5, 1, 4, 2]
    assert in_turns([]) == []


def test_processes_begin_with_different_policies(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[int] = []

    class Pool:
        def __init__(self, *given: Any, **more: Any) -> None: ...

        def __enter__(self) -> "Pool":
            return self

        def __exit__(self, *error: object) -> None: ...

        def submit(self, _: Any, number: int, *rest: Any) -> "Future[None]":
            begun.append(number)
            future: Future[None] = Future()
            future.set_result(None)
            return future

    monkeypatch.setattr(parallel, "ProcessPoolExecutor", Pool)
    record_all(tasks("cab", "cab", "random", "random"), workers=2)
    assert begun == [0, 2, 1, 3]


def say_threads(run: Run, path: Path, tick: Any) -> None:
    """Take the place of a run: compile a function, and write how many threads its process would use."""
    njit(lambda x: x)(1)
    path.write_text(str(thread_count()))


def test_processes_of_several_runs_use_one_thread_each_and_count_what_they_compile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COTERIE_THREADS", "7")
    work = [(run, tmp_path / path) for run, path in tasks("random", "random")]
    compiled = []
    record_all(work, lambda done: compiled.append(getattr(done, "n_compiled", 0)), 2, say_threads)
    assert compiled[-1] == 2
    assert [path.read_text() for _, path in work] == ["1", "1"]
    assert os.environ["COTERIE_THREADS"] == "7"
