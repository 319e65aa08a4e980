"""Nothing holds the event loop: what may take long is counted, refused beyond a limit, and done beside it."""

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from litestar.testing import TestClient

from coterie import CAB
from coterie.data.logs.records import Rank, Reward, flatten
from coterie.data.logs.rules import Config
from coterie.models.features import DEPTH, count
from coterie.models.hierarchy.named import NamedModel
from coterie.service.coordination import relearning
from coterie.service.coordination.coordinator import Coordinator
from coterie.service.coordination.turns import Turns
from coterie.service.core.bandit import Bandit
from coterie.service.core.question import Action, Question
from coterie.service.core.workload import LONG, long_to_decide
from coterie.service.http.routes import decisions
from coterie.service.log.sqlite_store import SqliteStore
from coterie.service.personalizer import routes as personalizer
from coterie.service.problems import Problem
from coterie.service.serve import make_app
from coterie.service.settings import Settings
from coterie.service.snapshots import snapshot
from coterie.service.snapshots.recovery import recover, relearn
from tests.playing import Elsewhere
from tests.service.helpers import Clock, ask, opened, settings_of, with_coordinator

SLOTS = "/personalizer/v1.0/multislot/rank"


class Gate:
    """Holds whoever comes from another thread than the one that made it, until it is opened."""

    def __init__(self) -> None:
        self.loop = threading.current_thread()
        self.opened = threading.Event()
        self.reached = threading.Event()

    def __call__(self) -> None:
        assert threading.current_thread() is not self.loop, "this was done in the event loop"
        self.reached.set()
        assert self.opened.wait(60)


@contextmanager
def gate_before(kind: Any, name: str, when: Callable[..., bool] = lambda *_: True) -> Iterator[Gate]:
    """Let a method of a class wait at a gate first."""
    gate, method = Gate(), getattr(kind, name)

    def held(self: Any, *arguments: Any, **more: Any) -> Any:
        if when(*arguments):
            gate()
        return method(self, *arguments, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kind, name, held)
        try:
            yield gate
        finally:
            gate.opened.set()


def large(event: str, user: str = "ann", actions: int = 3) -> Question:
    """Return a question that makes many crosses, and says so."""
    shown = [Action(f"a{k}", [{f"f{k} {j}": 1 for j in range(60)}]) for k in range(actions)]
    context = [{f"c{j}": 1 for j in range(150)}]
    return Question(event, user, shown, context, work=152 * 61 * actions)


def long_to_score(user: Any, encoded: Any, *more: Any) -> bool:
    return len(encoded.hashed.context) > 100


def test_a_large_decision_is_made_beside_the_loop_and_keeps_the_order_of_things(tmp_path: Path) -> None:
    """While it is held at a gate, reads are answered; decisions are made after it, in the order they came."""
    path = tmp_path / "log.db"

    async def go() -> bytes:
        store = SqliteStore(str(path))
        app: Any = make_app(Settings(store=str(path)), store)
        coordinator: Coordinator = app.app.state.coordinator
        await coordinator.start()
        await coordinator.rank(ask("before"))
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            with gate_before(NamedModel, "score", long_to_score) as gate:
                writes = [asyncio.create_task(coordinator.rank(large("large")))]
                await asyncio.to_thread(gate.reached.wait, 60)
                writes += [asyncio.create_task(coordinator.rank(ask(f"small {k}"))) for k in range(3)]
                reward = asyncio.create_task(coordinator.reward("before", 1.0))
                for read in ("/healthz", "/readyz", "/metrics", "/v1/events/before", "/v1/configuration"):
                    assert (await client.get(read)).status_code == 200
                assert "coterie_queue 4.0" in (await client.get("/metrics")).text
                assert not any(work.done() for work in (*writes, reward))
                gate.opened.set()
                await asyncio.gather(*writes, reward)
        state = snapshot.dump(coordinator.bandit)
        await coordinator.stop()
        return state

    state = asyncio.run(go())
    with opened(path) as store:
        records = [record for _, record in flatten(store.read()) if isinstance(record, Rank | Reward)]
        events = [record.event for record in records if isinstance(record, Rank)]
        assert events == ["before", "large", "small 0", "small 1", "small 2"]
        assert snapshot.dump(recover(store, from_empty=True)) == state


def test_learning_many_crosses_is_done_beside_the_loop_when_rewarded_and_when_a_wait_ends(
    tmp_path: Path,
) -> None:
    clock = Clock()

    async def work(coordinator: Coordinator) -> bytes:
        for name in ("rewarded", "left alone"):
            await coordinator.rank(large(name, actions=1))
        learn = Bandit._learn

        def learned(self: Bandit, *arguments: Any) -> int:
            places.append(threading.current_thread())
            return learn(self, *arguments)

        places: list[threading.Thread] = []
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Bandit, "_learn", learned)
            await coordinator.rank(ask("small"))
            await coordinator.reward("small", 1.0)
            assert places == [threading.current_thread()]  # a small one is learned at once
            await coordinator.reward("rewarded", 1.0)
            clock.turn(601)
            await coordinator.rank(ask("after the wait"))
        assert len(places) == 3
        assert threading.current_thread() not in places[1:]
        assert (await coordinator.event("left alone")).state == "expired"
        return snapshot.dump(coordinator.bandit)

    state = with_coordinator(settings_of(tmp_path / "log.db"), work, clock)
    with opened(tmp_path / "log.db") as store:
        assert snapshot.dump(recover(store, from_empty=True)) == state


def test_many_waits_that_end_at_once_end_beside_the_loop(tmp_path: Path) -> None:
    clock = Clock()

    async def work(coordinator: Coordinator) -> None:
        await asyncio.gather(*(coordinator.rank(ask(f"e{k}")) for k in range(100)))
        clock.turn(601)
        with gate_before(Bandit, "_close") as gate:
            gate.opened.set()
            await coordinator.activate("e1")
        assert gate.reached.is_set()
        assert coordinator.bandit.remembered.open == 0

    with_coordinator(settings_of(tmp_path / "log.db"), work, clock)


def test_policies_that_slow_down_with_users_decide_beside_the_loop_once_there_are_many() -> None:
    made = Bandit()
    made.configure(Config(policy="cab"), 0)
    assert not long_to_decide(made, 0, 20)
    for k in range(LONG // 20 + 1):
        made._see(k, 0)
    assert long_to_decide(made, 0, 20)
    assert not long_to_decide(made, 0, 2)


def test_a_device_is_called_beside_the_loop(tmp_path: Path) -> None:
    async def work(coordinator: Coordinator) -> None:
        with gate_before(CAB, "decide") as gate:
            ranks = [asyncio.create_task(coordinator.rank(ask(f"e{k}"))) for k in range(3)]
            await asyncio.to_thread(gate.reached.wait, 60)
            gate.opened.set()
            await asyncio.gather(*ranks)
        for name in ("learn", "explain"):
            with gate_before(CAB, name) as gate:
                gate.opened.set()
                await (
                    coordinator.reward("e1", 1.0) if name == "learn" else coordinator.what_if(ask("imagined"))
                )
        with gate_before(CAB, "tensors") as gate:
            gate.opened.set()
            await coordinator.snapshot()
        assert gate.reached.is_set()

    config = Config(policy="cab", exploration=0.0)
    with_coordinator(settings_of(tmp_path / "log.db", config), work, engine=Elsewhere())


def test_a_cancelled_request_keeps_its_turn_until_its_work_is_done() -> None:
    async def go() -> None:
        turns, gate, order = Turns(), Gate(), []

        def slow() -> None:
            gate()
            order.append("slow")

        async def first() -> None:
            async with turns:
                await turns.beside(slow)

        async def second() -> None:
            async with turns:
                order.append("second")

        one, two = asyncio.create_task(first()), asyncio.create_task(second())
        await asyncio.to_thread(gate.reached.wait, 60)
        one.cancel()
        await asyncio.sleep(0)
        one.cancel()  # whoever is impatient
        await asyncio.sleep(0)
        assert turns.waiting == 1
        gate.opened.set()
        await two
        with pytest.raises(asyncio.CancelledError):
            await one
        assert order == ["slow", "second"]
        turns.close()

    asyncio.run(go())


def test_what_comes_in_while_another_policy_learns_the_log_is_caught_up_with_beside_the_loop(
    tmp_path: Path,
) -> None:
    caught: list[tuple[int, bool]] = []

    async def work(coordinator: Coordinator) -> bytes:
        catch_up, loop = relearning._catch_up, threading.current_thread()
        gate = Gate()

        def held(*arguments: Any, **more: Any) -> Bandit:
            gate()
            return relearn(*arguments, **more)

        def noted(bandits: Sequence[Bandit], records: Any) -> None:
            caught.append((len(records), threading.current_thread() is loop))
            catch_up(bandits, records)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(relearning, "relearn", held)
            patch.setattr(relearning, "_catch_up", noted)
            changing = asyncio.create_task(coordinator.configure(Config(policy="linucb")))
            await asyncio.to_thread(gate.reached.wait, 60)
            await asyncio.gather(*(coordinator.rank(ask(f"e{k}")) for k in range(250)))
            gate.opened.set()
            await changing
        await coordinator.reward("e7", 1.0)
        return snapshot.dump(coordinator.bandit)

    state = with_coordinator(settings_of(tmp_path / "log.db"), work)
    assert sum(size for size, _ in caught) == 250
    assert caught[-1][0] <= relearning.FEW  # nothing else runs while it catches up with these
    assert not any(in_loop for _, in_loop in caught)
    with opened(tmp_path / "log.db") as store:
        assert snapshot.dump(recover(store, from_empty=True)) == state


def test_nobody_is_scrubbed_from_the_log_while_another_policy_learns_it(tmp_path: Path) -> None:
    """The reward came in after the log's end for the other policy, so it must still find its decision there."""

    async def work(coordinator: Coordinator) -> bytes:
        gate = Gate()

        def held(*arguments: Any, **more: Any) -> Bandit:
            gate()
            return relearn(*arguments, **more)

        await coordinator.rank(ask("e1"))
        await coordinator.rank(ask("e2", user="bob"))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(relearning, "relearn", held)
            changing = asyncio.create_task(coordinator.configure(Config(policy="linucb")))
            await asyncio.to_thread(gate.reached.wait, 60)
            await coordinator.reward("e1", 1.0)
            forgetting = asyncio.create_task(coordinator.forget("ann"))
            while "ann" in coordinator.bandit.names:  # in the model at once
                await asyncio.sleep(0.001)
            with pytest.raises(Problem, match="another policy is learning the log already"):
                await coordinator.configure(Config(policy="cab"))
            await asyncio.sleep(0.05)
            assert not forgetting.done()
            gate.opened.set()
            await changing
            assert await forgetting
        return snapshot.dump(coordinator.bandit)

    state = with_coordinator(settings_of(tmp_path / "log.db"), work)
    with opened(tmp_path / "log.db") as store:
        events = [record.event for _, record in flatten(store.read()) if isinstance(record, Rank)]
        assert events[0].startswith("\0")
        assert events[1] == "e2"
        assert snapshot.dump(recover(store, from_empty=True)) == state


def test_waits_that_end_as_another_policy_takes_over_end_once(tmp_path: Path) -> None:
    """They ended in the model that goes, and again in the one that comes, which had not heard of it."""

    async def work(coordinator: Coordinator) -> tuple[bytes, int]:
        clock = coordinator.clock
        late = Late(clock)

        def held(*arguments: Any, **more: Any) -> Bandit:
            other = relearn(*arguments, **more)
            late.by = 2_000
            return other

        for k in range(5):
            await coordinator.rank(ask(f"e{k}"))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(relearning, "relearn", held)
            patch.setattr(coordinator.sequencer, "clock", late)
            await coordinator.configure(Config(policy="linucb", wait=1.0))
            await coordinator.background.tick()
        return snapshot.dump(coordinator.bandit), coordinator.bandit.statistics.total.learned

    state, learned = with_coordinator(settings_of(tmp_path / "log.db", config=Config(wait=1.0)), work)
    assert learned == 5
    with opened(tmp_path / "log.db") as store:
        assert snapshot.dump(recover(store, from_empty=True)) == state


class Late:
    """A clock that is ahead of another."""

    def __init__(self, clock: Any) -> None:
        self.clock, self.by = clock, 0

    def __call__(self) -> int:
        return int(self.clock()) + self.by

    def follow(self) -> int:
        return 0


def slots_body(actions: int, slots: int, features: int, context: int, slot_features: int) -> dict[str, Any]:
    return {
        "actions": [
            {"id": f"a{k}", "features": [{f"f{j}": k for j in range(features)}]} for k in range(actions)
        ],
        "contextFeatures": [{f"c{j}": 1 for j in range(context)}],
        "slots": [
            {
                "id": f"s{k}",
                "baselineAction": f"a{k}",
                "features": [{f"s{j}": 1 for j in range(slot_features)}],
            }
            for k in range(slots)
        ],
    }


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient[Any]]:
    path = tmp_path_factory.mktemp("stalls") / "log.db"
    app = make_app(Settings(store=str(path), max_features=1000), SqliteStore(str(path)))
    with TestClient(app, base_url="http://127.0.0.1") as made:
        yield made


def test_features_of_slots_count_towards_the_limit_of_a_request(client: TestClient[Any]) -> None:
    assert client.post(SLOTS, json=slots_body(5, 5, 10, 10, 10)).status_code == 201
    refused = client.post(SLOTS, json=slots_body(5, 5, 10, 10, 200))
    assert refused.status_code == 413
    assert "more than 1000 features (max-features)" in refused.text


def test_crosses_of_all_slots_count_towards_the_limit_of_a_request(client: TestClient[Any]) -> None:
    """50 slots with 450 of 50 actions' features in a context of 100: 2.3 million crosses in 23 KB."""
    body = slots_body(50, 50, 9, 100, 0)
    assert len(msgspec.json.encode(body)) < 23_000
    before = client.get("/metrics").text
    refused = client.post(SLOTS, json=body)
    assert refused.status_code == 400
    assert "make about 2550000 crosses, expected at most 1000000 in all slots" in refused.text
    position = next(line for line in before.splitlines() if line.startswith("coterie_log_position"))
    assert position in client.get("/metrics").text
    assert client.post(SLOTS, json=slots_body(50, 3, 9, 100, 0)).status_code == 201  # 153,000


def test_more_excluded_actions_than_actions_are_allowed_are_refused(client: TestClient[Any]) -> None:
    body = {"user": "ann", "actions": [{"id": "a"}], "excluded": [f"x{k}" for k in range(51)]}
    assert client.post("/v1/rank", json=body).json()["error"]["code"] == "too_many_actions"
    slots = slots_body(2, 1, 1, 1, 0)
    slots["slots"][0]["excludedActions"] = body["excluded"]
    assert client.post(SLOTS, json=slots).status_code == 413


@pytest.mark.parametrize("path", ["/v1/rank", "/v1/what-if", "/personalizer/v1.0/rank", SLOTS])
def test_a_body_of_a_million_lists_is_refused_before_it_is_read(
    client: TestClient[Any], path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: Any) -> None:
        raise AssertionError("the body was read")

    monkeypatch.setattr(decisions, "read", never)
    monkeypatch.setattr(personalizer, "read", never)
    body = b'{"context": [{"a": [' + b"[]," * 300_000 + b"[]]}]}"
    answer = client.post(path, content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 413
    assert "more than 1000 features (max-features)" in answer.text


def test_counting_ends_soon_after_the_limit() -> None:
    """A million values, or a million lists around nothing, are not looked at one by one."""
    assert count([1] * 1_000_000, 10) == 11
    assert count([[]] * 1_000_000, 10) == 11
    assert count([[[]]] * 3, 10) == 0
    deep: Any = 1
    for _ in range(DEPTH):
        deep = [deep]
    assert count([deep] * 10, 10) == 10  # what `flatten` takes is counted to the end


def test_many_slots_are_decided_beside_the_loop_however_few_their_features(tmp_path: Path) -> None:
    async def work(coordinator: Coordinator) -> None:
        letters = "abcdefghijklmnopqrst"
        questions = [ask(f"page\u001f{k}", actions=letters, slot=str(k)) for k in range(20)]
        with gate_before(Bandit, "decide") as gate:
            gate.opened.set()
            assert len(await coordinator.rank_slots(questions)) == 20
        assert gate.reached.is_set()

    with_coordinator(settings_of(tmp_path / "log.db"), work)


def test_a_retry_of_slots_gets_the_same_answer_before_the_first_is_durable(tmp_path: Path) -> None:
    async def work(coordinator: Coordinator) -> None:
        def questions() -> list[Question]:
            return [ask(f"page\u001f{k}", slot=str(k)) for k in range(3)]

        first, second = await asyncio.gather(
            coordinator.rank_slots(questions()), coordinator.rank_slots(questions())
        )
        assert first == second
        other = [ask(f"page\u001f{k}", user="bob", slot=str(k)) for k in range(3)]
        with pytest.raises(Exception, match="was decided for another request"):
            await coordinator.rank_slots(other)

    with_coordinator(settings_of(tmp_path / "log.db"), work)
