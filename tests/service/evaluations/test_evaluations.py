"""Evaluations in the service: made, done in a process beside it, kept, applied, deleted; and what they say."""

import os
import random
import sys
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from litestar.testing import TestClient

from coterie.data.logs.records import pack
from coterie.data.logs.rules import Config
from coterie.data.logs.service_log import read_store
from coterie.errors import FileError
from coterie.evaluation import evaluate
from coterie.evaluation.targets import encode_interaction
from coterie.service.coordination.coordinator import Coordinator
from coterie.service.core.question import Action, Question
from coterie.service.evaluations import job_process, job_queue, worker
from coterie.service.evaluations.importance import scores
from coterie.service.evaluations.jobs import EvaluatedPolicy, Job, WorkerAnswer, WorkerInput
from coterie.service.evaluations.served_policy import ServedPolicy
from coterie.service.log.sqlite_store import SqliteStore
from coterie.service.log.store import open_store
from coterie.service.problems import Problem
from coterie.service.serve import make_app
from coterie.service.settings import Settings
from coterie.service.store_errors import BrokenError, FullError, LostError
from tests.service import postgres
from tests.service.helpers import START, Clock, bandit, with_coordinator

ACTIONS = [{"id": name, "features": [{"kind": name}]} for name in "abc"]
OPEN = ("waiting", "running")
FAKE: dict[str, Any] = {"verdict": "it is", "words": "so", "better": None, "policies": []}


@contextmanager
def running(store: str, **more: Any) -> Iterator[tuple[TestClient[Any], Any]]:
    settings = Settings(store=store, **more)
    app: Any = make_app(settings, open_store(store))
    with TestClient(app, base_url="http://127.0.0.1") as client:
        yield client, app.app.state


def fill(client: TestClient[Any], count: int, best: str = "c", prefix: str = "e") -> None:
    """Decide, and pay what is best; the kind of the action and the hour of the context matter."""
    for k in range(count):
        body = {
            "user": f"u{k % 5}",
            "actions": ACTIONS,
            "context": [{"hour": k % 3, "noise": k % 7}],
            "eventId": f"{prefix}{k}",
        }
        chosen = client.post("/v1/rank", json=body).json()["chosen"]
        client.post(f"/v1/events/{prefix}{k}/reward", json={"value": 1.0 if chosen == best else 0.0})


def until(true: Callable[[], Any]) -> Any:
    """Wait for something that must come."""
    end = time.monotonic() + 300
    while not (found := true()):
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.05)
    return found


def finished(client: TestClient[Any], name: str) -> Any:
    def look() -> Any:
        found = client.get(f"/v1/evaluations/{name}").json()
        return None if found["status"] in OPEN else found

    return until(look)


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_an_evaluation_is_made_done_kept_applied_and_deleted(kind: str, tmp_path: Path) -> None:
    with postgres.server() if kind == "postgresql" else _file(tmp_path) as store:
        with running(store, config=Config(exploration=0.5)) as (client, _):
            fill(client, 90)
            greedy = {"name": "greedy", "policy": "hierarchical", "parameters": {"explore": 0.0}}
            body = {"name": "mine", "policies": [greedy]}
            made = client.put("/v1/evaluations/one", json=body)
            assert (made.status_code, made.json()["status"]) == (201, "waiting")
            done = finished(client, "one")
            assert (done["status"], done["error"], done["name"]) == ("done", None, "mine")
            told = {part["policy"]: part["dr"] for part in done["result"]["policies"]}
            assert told.keys() == {"logged", "baseline", "uniform", "current", "greedy"}
            assert all(one["low"] <= one["value"] <= one["high"] for one in told.values())
            assert done["result"]["records"] == 90
            assert done["result"]["features"][0]["score"] == 100
            assert client.get("/v1/evaluations").json()["evaluations"][0]["verdict"] == done["verdict"]
        with running(store) as (client, state):  # a restart
            assert client.get("/v1/evaluations/one").json() == done
            before = state.coordinator.bandit.config
            applied = client.post("/v1/evaluations/one/apply", json={"policy": "greedy"})
            assert (applied.status_code, applied.json()["applied"]) == (200, "greedy")
            assert state.coordinator.bandit.config == msgspec.structs.replace(
                before, parameters={"explore": 0.0}
            )
            assert client.delete("/v1/evaluations/one").status_code == 204
            assert client.get("/v1/evaluations/one").status_code == 404
        with running(store) as (client, _):
            assert client.get("/v1/evaluations").json() == {"evaluations": []}


@contextmanager
def _file(folder: Path) -> Iterator[str]:
    yield str(folder / "log.db")


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Evaluations that are held at a gate, in the thread where the worker would be waited for."""

    class Held:
        gate = threading.Event()
        begun: list[str] = []  # noqa: RUF012
        answer = WorkerAnswer(FAKE)

    def do(run: job_process.JobProcess) -> WorkerAnswer | None:
        Held.begun.append(run.work.job.id)
        while not (Held.gate.is_set() or run.ended):
            time.sleep(0.01)
        return None if run.ended else Held.answer

    monkeypatch.setattr(job_process.JobProcess, "do", do)
    yield Held
    Held.gate.set()


def test_serving_goes_on_while_one_is_worked_on_and_the_next_waits(held: Any, tmp_path: Path) -> None:
    with running(str(tmp_path / "log.db")) as (client, _):
        fill(client, 3)
        for name in ("one", "two"):
            assert client.put(f"/v1/evaluations/{name}", json={}).status_code == 201
        until(lambda: held.begun)
        fill(client, 5, prefix="f")  # ranks, rewards and reads are answered meanwhile
        assert client.get("/healthz").status_code == 200
        told = {one["id"]: one["status"] for one in client.get("/v1/evaluations").json()["evaluations"]}
        assert told == {"one": "running", "two": "waiting"}
        assert held.begun == ["one"]
        held.gate.set()
        assert finished(client, "two")["status"] == "done"
        assert held.begun == ["one", "two"]


def test_a_stop_ends_what_runs_and_the_next_start_begins_it_anew(held: Any, tmp_path: Path) -> None:
    store = str(tmp_path / "log.db")
    with running(store) as (client, _):
        client.put("/v1/evaluations/one", json={})
        until(lambda: held.begun)
    held.gate.set()
    with running(store) as (client, _):
        assert finished(client, "one")["status"] == "done"
    assert held.begun == ["one", "one"]


def test_one_that_runs_can_be_deleted(held: Any, tmp_path: Path) -> None:
    with running(str(tmp_path / "log.db")) as (client, _):
        client.put("/v1/evaluations/one", json={})
        until(lambda: held.begun)
        assert client.delete("/v1/evaluations/one").status_code == 204
        assert client.put("/v1/evaluations/one", json={}).status_code == 201  # the id is free again
        until(lambda: len(held.begun) == 2)


def test_one_that_fails_is_told_and_the_next_is_done(
    held: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that the store interrupts stays open and is tried again; a broken store is told without its secrets."""
    lost, broken = LostError("it is back soon"), BrokenError("secrets of the database")
    faults: list[Exception] = [lost, broken, OSError("no more processes")]

    def do(run: job_process.JobProcess) -> WorkerAnswer:
        if faults:
            raise faults.pop(0)
        return WorkerAnswer(FAKE)

    monkeypatch.setattr(job_process.JobProcess, "do", do)
    with running(str(tmp_path / "log.db")) as (client, _):
        for name in ("one", "two", "three"):
            client.put(f"/v1/evaluations/{name}", json={})
        told = {name: finished(client, name) for name in ("one", "two", "three")}
    assert [one["status"] for one in told.values()] == ["failed", "failed", "done"]
    assert told["one"]["error"] == BrokenError.said
    assert told["two"]["error"] == "no more processes"


def test_what_contradicts_the_rules_is_refused(held: Any, tmp_path: Path) -> None:
    with running(str(tmp_path / "log.db"), max_evaluations=2) as (client, state):

        def put(name: str, body: Any) -> Any:
            return client.put(f"/v1/evaluations/{name}", json=body)

        assert put("one", {}).status_code == 201
        for name, body, status, code in (
            ("one", {}, 409, "evaluation_exists"),
            ("x", {"start": 5, "end": 5}, 422, "invalid_evaluation"),
            ("x", {"policies": [{"name": "p", "policy": "nothing"}]}, 422, "invalid_policy"),
            (
                "x",
                {"policies": [{"name": "p", "policy": "cab", "parameters": {"alpha": "?"}}]},
                422,
                "invalid_policy",
            ),
            ("x", {"policies": [{"name": "p", "policy": "cab"}] * 2}, 422, "same_policy_twice"),
            ("x", {"policies": [{"name": "logged", "policy": "cab"}]}, 422, "same_policy_twice"),
            (
                "x",
                {"policies": [{"name": f"p{k}", "policy": "cab"} for k in range(21)]},
                400,
                "invalid_request",
            ),
            ("x", {"surprise": 1}, 400, "invalid_request"),
        ):
            answer = put(name, body)
            assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
        # As many as the page on limits says, besides the current policy and those of the search.
        many = {"policies": [{"name": f"p{k}", "policy": "random"} for k in range(20)], "search": True}
        assert put("two", many).status_code == 201
        assert put("three", {}).json()["error"]["code"] == "too_many_evaluations"
        assert (
            client.post("/v1/evaluations/one/apply", json={"policy": "p"}).json()["error"]["code"]
            == "not_evaluated"
        )
        held.gate.set()
        finished(client, "one")
        for policy, status, code in (("nobody", 404, "unknown_policy"), ("uniform", 422, "not_applicable")):
            answer = client.post("/v1/evaluations/one/apply", json={"policy": policy})
            assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
        assert client.post("/v1/evaluations/none/apply", json={"policy": "p"}).status_code == 404
        assert state.coordinator.bandit.config == Config()


# What the worker says.


def logged(folder: Path, count: int, config: Config, best: str = "c", mode: Any = "online") -> Path:
    """Return a store in which every reward came at once."""
    path = folder / "log.db"

    async def work(coordinator: Coordinator) -> None:
        rng = np.random.default_rng(3)
        for k in range(count):
            actions = [Action(name, [{"kind": name}]) for name in "abc"]
            context = [{"hour": int(rng.integers(3)), "noise": int(rng.integers(5))}]
            record = await coordinator.rank(Question(f"e{k}", f"u{k % 4}", actions, context))
            paid = rng.random() < (0.8 if record.actions[record.choice] == best else 0.2)
            await coordinator.reward(f"e{k}", float(paid))

    with_coordinator(
        Settings(store=str(path), config=msgspec.structs.replace(config, mode=mode)), work, Clock()
    )
    return path


def batches(path: Path) -> Any:
    store = SqliteStore(str(path))
    try:
        return [*store.read()]
    finally:
        store.close()


def job(*policies: EvaluatedPolicy, **more: Any) -> Job:
    return Job("one", "evaluation", "one", 0, START + 10_000_000, START, policies, **more)


def work_of(one: Job, config: Config, records: int = 1000, size: int = 10**9) -> WorkerInput:
    return WorkerInput(one, config, records, size, os.getppid())


def test_the_worker_says_what_the_library_says(tmp_path: Path) -> None:
    config = Config(exploration=0.3)
    path = logged(tmp_path, 60, config)
    said = worker.do(work_of(job(), config), batches(path))
    found = evaluate(str(path))
    for part in said["policies"]:
        result = found[part["policy"]]
        for method, value in result.estimates.items():
            assert part[method] == pytest.approx(value._asdict(), abs=1e-12)
        evidence = result.evidence
        assert part["sums"]["n"] == 60
        assert part["ips"]["value"] == pytest.approx(part["sums"]["weighted"] / 60, abs=1e-9)
        assert part["snips"]["value"] == pytest.approx(
            part["sums"]["weighted"] / part["sums"]["weights"], abs=1e-9
        )
        assert sum(window["sums"]["n"] for window in part["windows"]) == evidence.n
    assert [len(read_store(path).interactions), said["records"]] == [60, 60]


@pytest.mark.parametrize(
    "config",
    [
        Config(exploration=0.3),
        Config(exploration=0.3, explore="epsilon"),
        Config(policy="linucb", exploration=0.2),
    ],
)
def test_a_policy_is_replayed_as_the_service_serves_it(tmp_path: Path, config: Config) -> None:
    """With every reward learned at once, the replay of the log's own policy has the log's own probabilities."""
    path = logged(tmp_path, 40, config)
    log = worker.log_of(batches(path), work_of(job(), config))
    served = ServedPolicy(config, 40)
    for t, one in enumerate(log.interactions):
        encoded = encode_interaction(one)
        assert served.probabilities(t, one, encoded) == pytest.approx(one.chances, abs=1e-9), t
        served.learn(one, encoded)


def test_only_the_newest_decisions_of_the_time_are_evaluated(tmp_path: Path) -> None:
    config = Config(exploration=0.3, default_reward=0.25)
    path = logged(tmp_path, 30, config)
    rows = batches(path)
    whole = worker.log_of(rows, work_of(job(), config)).interactions
    some = worker.log_of(rows, work_of(job(), config, records=10))
    assert [one.context for one in some.interactions] == [one.context for one in whole[-10:]]
    assert [one.reward for one in some.interactions] == [one.reward for one in whole[-10:]]
    assert "20 are older" in some.notes[-1]
    each = worker.EACH + worker.PER_ACTION * len(whole[0].actions)
    fitting = worker.log_of(rows, work_of(job(), config, size=12 * each)).interactions
    assert 5 <= len(fitting) <= 12
    assert [one.context for one in fitting] == [one.context for one in whole[-len(fitting) :]]
    early = msgspec.structs.replace(job(), end=START)
    with pytest.raises(FileError, match="no decision in this time"):
        worker.log_of(rows, work_of(early, config))


def test_policies_without_support_are_left_out_with_the_reason(tmp_path: Path) -> None:
    config = Config(exploration=0.3)
    path = logged(tmp_path, 30, config, mode="apprentice")
    said = worker.do(work_of(job(EvaluatedPolicy("mine", "linucb")), config), batches(path))
    assert {part["policy"] for part in said["policies"]} == {"logged", "baseline"}
    assert any("cannot tell what 'uniform' would have earned" in note for note in said["notes"])
    assert said["better"] is None


def test_better_is_only_what_is_better_beyond_doubt(tmp_path: Path) -> None:
    """The log chose at random; whoever learns earns twice as much, and of two that do the same none is better."""
    config = Config(policy="random", exploration=1.0)
    path = logged(tmp_path, 400, config)
    learned = Config(exploration=0.1)
    rows = batches(path)
    current = EvaluatedPolicy("current", "random", {}, "current")
    tried = EvaluatedPolicy("new", "hierarchical", {}, "search")
    said = worker.do(work_of(job(current, tried), learned), rows)
    assert said["better"] == "new"
    same = msgspec.structs.replace(tried, name="current", source="current")
    assert worker.do(work_of(job(same, tried), learned), rows)["better"] is None


def test_the_features_that_decide_have_the_largest_scores(tmp_path: Path) -> None:
    config = Config(policy="random", exploration=1.0)
    path = logged(tmp_path, 200, config)
    log = worker.log_of(batches(path), work_of(job(), config))
    found = scores(log, lambda done, records: None)
    assert (found[0]["namespace"], found[0]["name"], found[0]["score"]) == ("action", "kind", 100)
    assert {(one["namespace"], one["name"]) for one in found} == {
        ("action", "kind"),
        ("context", "hour"),
        ("context", "noise"),
    }
    assert all(one["score"] < 70 for one in found[1:])


# The process.


def test_a_process_that_takes_too_long_or_fails_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = Config()
    path = logged(tmp_path, 3, config)
    store = SqliteStore(str(path))
    try:
        late = job_process.JobProcess(work_of(job(), config), store, 0.01)
        assert late.do() == WorkerAnswer(error="it took longer than 0.01 s (evaluation-within)")
        assert late.timed_out
        ended = job_process.JobProcess(work_of(job(), config), store, 100)
        ended.end()
        assert ended.do() is None
        monkeypatch.setattr(sys, "executable", "/bin/false")
        failed = job_process.JobProcess(work_of(job(), config), store, 100).do()
        assert failed is not None
        assert failed.error is not None
        assert "the service's log says more" in failed.error
    finally:
        store.close()


def test_a_store_that_fails_refuses_the_evaluation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(coordinator: Coordinator) -> None:
        made = job_queue.Evaluations(coordinator)

        def full(*_: Any) -> None:
            raise FullError("full")

        monkeypatch.setattr(coordinator.store, "save_evaluation", full)
        with pytest.raises(Problem, match="the evaluation was not stored"):
            await made.make(job())
        assert made.every("evaluation") == []
        assert coordinator.refusing is None  # decisions go on

    with_coordinator(Settings(store=str(tmp_path / "log.db")), work, Clock())


def test_a_log_takes_memory_for_what_differs_in_it(tmp_path: Path) -> None:
    """Actions that are offered many times are kept once, and what is read is forgotten: 10 KB per decision before."""
    config, chance = Config(exploration=0.3), random.Random(3)
    features = [[{"kind": f"k{k % 7}", "price": k / 7, "brand": f"b{k % 30}"}] for k in range(200)]
    made = bandit(exploration=0.3)
    for k in range(1000):
        actions = [Action(f"item-{j}", features[j]) for j in chance.sample(range(200), 20)]
        made.rank(Question(f"e{k}", "ann", actions, [{"hour": k % 24}]), START + k)
    records = made.drain().records
    rows = [pack(first, records[first : first + 50]) for first in range(0, len(records), 50)]
    tracemalloc.start()
    log = worker.log_of(rows, work_of(job(), config))
    kept, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(log.interactions) == 1000
    assert kept < 2_500_000
    assert peak < 6_000_000
