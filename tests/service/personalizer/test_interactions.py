"""`/logs/interactions` and `/logs/observations`: batches of the client library, lines of JSON, what is refused."""

import json
import struct
from collections.abc import Iterator
from typing import Any

import flatbuffers
import pytest
from hypothesis import given
from hypothesis import strategies as st
from litestar.testing import TestClient

from coterie.data.logs.records import Rank
from coterie.data.logs.rules import Config
from coterie.service.core.bandit import Bandit
from coterie.service.log.sqlite_store import SqliteStore
from coterie.service.personalizer.event_batch import MOST, read_batch
from coterie.service.serve import make_app
from coterie.service.settings import Settings

BASE = "/personalizer/v1.1-preview.3"
FILE = {"content-type": "application/octet-stream"}
CONTEXT: dict[str, Any] = {
    "user": {"id": "bob"},
    "_multi": [{"_tag": "a", "j": [{"x": 1}]}, {"TAction": {"y": "b"}}, {"_tag": "c"}],
}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[TestClient[Any], Any]]:
    chosen = Settings(store=str(tmp_path_factory.mktemp("sent") / "log.db"), config=Config())
    app: Any = make_app(chosen, SqliteStore(chosen.store))
    with TestClient(app, base_url="http://127.0.0.1") as client:
        yield client, app.app.state.coordinator


def table(build: Any, *fields: tuple[int, Any]) -> int:
    """Add a table; a field is (number, what puts it there), offsets of its children made before."""
    build.StartObject(8)
    for number, put in fields:
        put(number)
    return int(build.EndObject())


def finished(build: Any, root: int) -> bytes:
    build.Finish(root)
    return bytes(build.Output())


def event(name: str, kind: int, payload: bytes, encoding: int = 0) -> bytes:
    build = flatbuffers.Builder(64)
    id_, content = build.CreateString(name), build.CreateByteVector(payload)
    meta = table(
        build,
        (0, lambda n: build.PrependUOffsetTRelativeSlot(n, id_, 0)),
        (3, lambda n: build.PrependUint8Slot(n, kind, 0)),
        (5, lambda n: build.PrependUint8Slot(n, encoding, 0)),
    )
    root = table(
        build,
        (0, lambda n: build.PrependUOffsetTRelativeSlot(n, meta, 0)),
        (1, lambda n: build.PrependUOffsetTRelativeSlot(n, content, 0)),
    )
    return finished(build, root)


def decided(order: list[int], chances: list[float], context: Any, deferred: bool = False) -> bytes:
    build = flatbuffers.Builder(64)
    around = build.CreateByteVector(json.dumps(context).encode())
    build.StartVector(8, len(order), 8)
    for k in reversed(order):
        build.PrependUint64(k)
    actions = build.EndVector()
    build.StartVector(4, len(chances), 4)
    for chance in reversed(chances):
        build.PrependFloat32(chance)
    likely = build.EndVector()
    root = table(
        build,
        (0, lambda n: build.PrependBoolSlot(n, deferred, False)),
        (1, lambda n: build.PrependUOffsetTRelativeSlot(n, actions, 0)),
        (2, lambda n: build.PrependUOffsetTRelativeSlot(n, around, 0)),
        (3, lambda n: build.PrependUOffsetTRelativeSlot(n, likely, 0)),
    )
    return finished(build, root)


def outcome(value: float | str | None = None, index: int | None = None, taken: bool = False) -> bytes:
    build = flatbuffers.Builder(64)
    if isinstance(value, str):
        kind, given = 2, build.CreateString(value)
    else:
        kind = 0 if value is None else 1
        given = table(build, (0, lambda n: build.PrependFloat32Slot(n, value or 0.0, 0.0)))
    place = table(build, (0, lambda n: build.PrependInt32Slot(n, index or 0, 0)))
    fields: list[tuple[int, Any]] = [(4, lambda n: build.PrependBoolSlot(n, taken, False))]
    if kind:
        fields += [
            (0, lambda n: build.PrependUint8Slot(n, kind, 0)),
            (1, lambda n: build.PrependUOffsetTRelativeSlot(n, given, 0)),
        ]
    if index is not None:
        fields += [
            (2, lambda n: build.PrependUint8Slot(n, 1, 0)),
            (3, lambda n: build.PrependUOffsetTRelativeSlot(n, place, 0)),
        ]
    return finished(build, table(build, *fields))


def batch(*events: bytes, encoding: str = "IDENTITY", kind: int = 11) -> bytes:
    build = flatbuffers.Builder(64)
    rows = []
    for content in events:
        held = build.CreateByteVector(content)
        rows.append(table(build, (0, lambda n, held=held: build.PrependUOffsetTRelativeSlot(n, held, 0))))
    build.StartVector(4, len(rows), 4)
    for row in reversed(rows):
        build.PrependUOffsetTRelative(row)
    listed, text = build.EndVector(), build.CreateString(encoding)
    meta = table(build, (0, lambda n: build.PrependUOffsetTRelativeSlot(n, text, 0)))
    root = table(
        build,
        (0, lambda n: build.PrependUOffsetTRelativeSlot(n, listed, 0)),
        (1, lambda n: build.PrependUOffsetTRelativeSlot(n, meta, 0)),
    )
    content = finished(build, root)
    return struct.pack(">BBHI", 0, 0, kind, len(content)) + content


def send(service: tuple[TestClient[Any], Any], where: str, body: bytes) -> Any:
    return service[0].post(f"{BASE}/logs/{where}", content=body, headers=FILE)


def last_decision(coordinator: Any, name: str) -> Rank:
    for data in coordinator.store.read(coordinator.bandit.events[name].position):
        found = data.records()[coordinator.bandit.events[name].position - data.first]
        assert isinstance(found, Rank)
        return found
    raise AssertionError(name)


def test_a_batch_of_decisions_is_kept_with_its_probabilities_and_learned(service: Any) -> None:
    client, coordinator = service
    body = batch(
        event("fb-1", 0, decided([3, 1], [0.25, 0.75], CONTEXT)),
        event("fb-2", 0, decided([1, 2, 3], [0.5, 0.25, 0.25], CONTEXT, True)),
    )
    answer = send(service, "interactions", body)
    assert (answer.status_code, answer.headers["x-coterie-decisions"]) == (204, "new=2, known=0")
    record = last_decision(coordinator, "fb-1")
    assert record.actions == ("a", "2", "c")
    assert (record.choice, record.best, record.excluded, record.order) == (2, 0, (1,), (2, 0, 1))
    assert (record.probability, record.shown) == (0.25, "explored")
    told = client.get("/v1/events/fb-1").json()
    assert (told["user"], told["chosen"], told["baseline"]) == ("bob", "c", "a")
    assert {one["id"]: one["probability"] for one in told["ranking"]} == {"c": 0.25, "a": 0.75, "2": 0}
    before = coordinator.bandit.policies.made["model"].learned
    rewards = batch(
        event("fb-1", 3, outcome(1.0)),
        event("fb-2", 3, outcome("0.5", taken=True)),
        event("fb-9", 3, outcome(0.5)),
    )
    answer = send(service, "observations", rewards)
    assert answer.status_code == 204
    assert answer.headers["x-coterie-reward"] == "applied=2, activated=1, unknown_event=1"
    assert coordinator.bandit.policies.made["model"].learned == before + 2
    again = send(service, "interactions", body)
    assert again.headers["x-coterie-decisions"] == "new=0, known=2"


def test_the_learned_decision_is_that_of_a_rank(service: Any) -> None:
    """The same request, ranked here with one action open, learns the same effects."""
    client, coordinator = service
    line = {
        "EventId": "same-1",
        "a": [1],
        "p": [1.0],
        "c": {"user": {"id": "cyd"}, "d": {"m": True}, "_multi": [{"_tag": "a", "j": [{"x": 1}]}]},
    }
    assert send(service, "interactions", json.dumps(line).encode()).status_code == 204
    body = {
        "contextFeatures": [{"user": {"id": "cyd"}}, {"d": {"m": True}}],
        "actions": [{"id": "a", "features": [{"x": 1}]}],
        "eventId": "same-2",
    }
    assert client.post(f"{BASE}/rank", json=body).status_code == 201
    events = coordinator.bandit.events
    assert events["same-1"].action == events["same-2"].action
    assert events["same-1"].user == events["same-2"].user


def test_decisions_sent_are_replayed_from_the_log(service: Any) -> None:
    _, coordinator = service
    send(
        service,
        "interactions",
        json.dumps(
            {
                "EventId": "replay",
                "a": [2, 1],
                "p": [0.4, 0.6],
                "c": CONTEXT | {"_multi": CONTEXT["_multi"][:2]},
            }
        ).encode(),
    )
    again = Bandit()
    again.user_names.take(coordinator.bandit.ids)
    for data in coordinator.store.read():
        for record in data.records():
            again.apply(record)
    assert "model" in again.policies.made
    assert (again.position, again.policies.made["model"].learned) == (
        coordinator.bandit.position,
        coordinator.bandit.policies.made["model"].learned,
    )


def test_rewards_of_slots_find_their_slot(service: Any) -> None:
    client, _ = service
    actions, slots = (
        [{"id": name} for name in "ab"],
        [{"id": f"s{k}", "baselineAction": "a"} for k in range(2)],
    )
    client.post(f"{BASE}/multislot/rank", json={"actions": actions, "slots": slots, "eventId": "page"})
    lines = [{"EventId": "page", "Index": "s0", "v": 1}, {"EventId": "page", "Index": 0, "v": 1}]
    answer = send(service, "observations", "\n".join(map(json.dumps, lines)).encode())
    assert answer.headers["x-coterie-reward"] == "applied=1, duplicate=1"
    assert (
        send(service, "observations", batch(event("page", 3, outcome(1.0, 1)))).headers["x-coterie-reward"]
        == "applied=1"
    )


GOOD = {"EventId": "e", "a": [1, 2], "p": [0.5, 0.5], "c": {"_multi": [{"_tag": "a"}, {"_tag": "b"}]}}


@pytest.mark.parametrize(
    ("where", "body", "message"),
    [
        ("interactions", b"", "it is empty"),
        ("interactions", b"hello", "line 1 is no JSON object"),
        ("interactions", b"{}", "KeyError 'EventId'"),
        ("interactions", json.dumps(GOOD | {"EventId": "."}).encode(), "neither '.' nor '..'"),
        ("interactions", json.dumps(GOOD | {"p": [0.5, 0.6]}).encode(), "do not add up to 1"),
        ("interactions", json.dumps(GOOD | {"p": [0.0, 1.0]}).encode(), "the shown action has 0"),
        ("interactions", json.dumps(GOOD | {"p": [1.0]}).encode(), "one probability for each"),
        ("interactions", json.dumps(GOOD | {"a": [1, 3]}).encode(), "other than the 2 of c"),
        ("interactions", b"\n".join([json.dumps(GOOD).encode()] * (MOST + 1)), "expected at most 1000"),
        ("interactions", batch(event("e", 0, b""), kind=9), "its kind is 9"),
        ("interactions", batch(encoding="DEDUP"), "turn deduplication off"),
        ("interactions", batch(event("e", 0, b"1234", encoding=1)), "turn compression off"),
        ("interactions", batch(event("e", 3, outcome(1.0))), "expected 0 (CB)"),
        ("interactions", batch(event("e", 1, outcome(1.0)))[:-1], "its head says"),
        ("observations", json.dumps({"EventId": "e", "v": 2}).encode(), "expected a number from -1 to 1"),
        ("observations", json.dumps({"EventId": "e"}).encode(), "neither a reward"),
        ("observations", batch(event("e", 0, decided([1], [1.0], CONTEXT))), "expected 3 (Outcome)"),
    ],
)
def test_what_cannot_be_read_is_refused_and_changes_nothing(
    service: Any, where: str, body: bytes, message: str
) -> None:
    before = service[1].bandit.position
    answer = send(service, where, body)
    assert (answer.status_code, answer.headers["x-ms-error-code"]) == (400, "InvalidRequest")
    assert message in answer.json()["error"]["message"]
    assert service[1].bandit.position == before


def test_one_wrong_decision_keeps_all_out(service: Any) -> None:
    _, coordinator = service
    send(service, "interactions", json.dumps(GOOD | {"EventId": "taken"}).encode())
    other = GOOD | {"EventId": "taken", "c": {"_multi": [{"_tag": "a"}, {"_tag": "z"}]}}
    lines = [GOOD | {"EventId": "fresh"}, other]
    answer = send(service, "interactions", "\n".join(map(json.dumps, lines)).encode())
    assert answer.status_code == 409
    assert "fresh" not in coordinator.bandit.events
    twice = [GOOD | {"EventId": "twice"}, other | {"EventId": "twice"}]
    assert send(service, "interactions", "\n".join(map(json.dumps, twice)).encode()).status_code == 409
    assert "twice" not in coordinator.bandit.events


@given(st.data())
def test_damaged_batches_never_fail_otherwise(data: st.DataObject) -> None:
    body = bytearray(
        batch(event("fb-1", 0, decided([2, 1], [0.5, 0.5], CONTEXT)), event("fb-2", 3, outcome(1.0, 1)))
    )
    for _ in range(data.draw(st.integers(1, 4))):
        body[data.draw(st.integers(8, len(body) - 1))] = data.draw(st.integers(0, 255))
    try:
        for sent in read_batch(bytes(body)):
            sent.table.numbers(1, "Q"), sent.table.content(2), sent.table.numbers(3, "f"), sent.table.table(1)
    except (ValueError, UnicodeDecodeError):
        pass
