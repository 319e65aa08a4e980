"""The native API over HTTP: answers, errors in one shape, keys, limits and headers."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from litestar.testing import TestClient

from coterie.data.logs.rules import Config
from coterie.service.coordination.sequencer import LEARNING, Sequencer
from coterie.service.http.keys import Keyring, hash_key, new_key
from coterie.service.http.limits import Rate
from coterie.service.log.sqlite_store import SqliteStore
from coterie.service.log.store import KeyRow
from coterie.service.problems import Problem
from coterie.service.serve import make_app
from coterie.service.settings import Settings
from tests.service.helpers import served


@contextmanager
def client_of(folder: Path, keys: list[KeyRow] | None = None, **more: Any) -> Iterator[TestClient[Any]]:
    chosen = Settings(store=str(folder / "log.db"), **more)
    store = SqliteStore(chosen.store)
    for key in keys or []:
        store.save_key(key)
    with TestClient(make_app(chosen, store), base_url="http://127.0.0.1") as client:
        yield client


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient[Any]]:
    with client_of(tmp_path_factory.mktemp("http"), config=Config(exploration=0.2)) as made:
        yield made


ACTIONS = [{"id": "jazz"}, {"id": "news"}]


@pytest.mark.parametrize("policy", ["hierarchical", "cab"])
def test_ten_thousand_actions_are_ranked_and_learned_from(tmp_path: Path, policy: str) -> None:
    actions = [
        {"id": f"a{k}", "features": [{f"f{j}": (k * 7 + j) % 50 for j in range(5)}]} for k in range(10_000)
    ]
    body = {
        "actions": actions,
        "eventId": "e",
        "user": "ann",
        "context": [{f"c{j}": f"v{j}" for j in range(6)}],
    }
    limits: dict[str, Any] = {"max_actions": 10_000, "max_features": 100_000, "max_body": 4_000_000}
    with client_of(tmp_path, config=Config(policy=policy), **limits) as client:
        answer = client.post("/v1/rank", json=body)
        assert answer.status_code == 201, answer.text[:500]
        ranking = answer.json()["ranking"]
        assert {one["id"] for one in ranking} == {one["id"] for one in actions}
        assert sum(one["probability"] for one in ranking) == pytest.approx(1)
        assert client.post("/v1/events/e/reward", json={"value": 1.0}).json()["outcome"] == "applied"
        assert client.get("/v1/events/e").json()["chosen"] == answer.json()["chosen"]
        theirs = {"actions": actions, "eventId": "e2", "contextFeatures": body["context"]}
        assert client.post("/personalizer/v1.0/rank", json=theirs).status_code == 201
        more = {**body, "eventId": "e3", "actions": [*actions, {"id": "one more"}]}
        assert client.post("/v1/rank", json=more).status_code in (400, 413)


def test_a_visitor_who_is_not_known_is_ranked_and_learned_from(tmp_path: Path) -> None:
    with client_of(tmp_path) as client:
        for given in ({}, {"user": None}):
            answer = client.post("/v1/rank", json={"actions": ACTIONS, **given})
            assert answer.status_code == 201, answer.text
            event = answer.json()["eventId"]
            done = client.post(f"/v1/events/{event}/reward", json={"value": 1.0})
            assert done.json()["outcome"] == "applied"


def test_rank_reward_explain_and_forget(client: TestClient[Any]) -> None:
    answer = client.post("/v1/rank", json={"user": "ann", "actions": ACTIONS, "eventId": "first"})
    assert answer.status_code == 201
    body = answer.json()
    assert body["eventId"] == "first"
    assert {candidate["id"] for candidate in body["ranking"]} == {"jazz", "news"}
    rewarded = client.post("/v1/events/first/reward", json={"value": 1})
    assert (rewarded.status_code, rewarded.json()) == (200, {"eventId": "first", "outcome": "applied"})
    assert client.post("/v1/events/first/reward", json={"value": 1}).json()["outcome"] == "duplicate"
    why = client.get("/v1/events/first").json()
    assert why["state"] == "rewarded"
    assert why["user"] == "ann"
    assert [reason["id"] for reason in why["reasons"]] == ["jazz", "news"]
    assert all(reason["score"] > reason["estimate"] == 0 for reason in why["reasons"])
    assert client.get("/v1/users/ann").json()["learned"] == 1
    assert client.delete("/v1/users/ann").status_code == 204
    assert client.get("/v1/users/ann").status_code == 404
    assert client.get("/v1/events/first").status_code == 404
    assert client.post("/v1/events/first/reward", json={"value": 1}).json()["outcome"] == "unknown_event"


def test_what_if_records_nothing(client: TestClient[Any]) -> None:
    before = client.get("/metrics").text
    answer = client.post("/v1/what-if", json={"user": "zoe", "actions": ACTIONS, "eventId": "maybe"})
    assert answer.status_code == 200
    assert answer.json()["state"] == "imagined"
    assert client.get("/v1/events/maybe").status_code == 404
    position = [line for line in before.splitlines() if line.startswith("coterie_log_position")]
    assert position[0] in client.get("/metrics").text


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    event=st.text("abcdefg-é", min_size=4, max_size=20),
    users=st.tuples(st.sampled_from("xyz"), st.sampled_from("xyz")),
    tries=st.integers(1, 3),
)
def test_a_retry_is_the_same_answer_and_another_body_is_409(
    client: TestClient[Any], event: str, users: tuple[str, str], tries: int
) -> None:
    """R3."""
    event = f"{event}-{users[0]}"
    bodies = [{"user": user, "actions": ACTIONS, "eventId": event} for user in users]
    first = client.post("/v1/rank", json=bodies[0])
    decisions = _number(client, "coterie_decisions ")
    for _ in range(tries):
        again = client.post("/v1/rank", json=bodies[0])
        assert (again.status_code, again.content) == (201, first.content)
    other = client.post("/v1/rank", json=bodies[1])
    assert other.status_code == (201 if users[0] == users[1] else 409)
    if other.status_code == 409:
        assert other.json()["error"]["code"] == "event_exists"
    assert _number(client, "coterie_decisions ") == decisions


def _number(client: TestClient[Any], name: str) -> float:
    lines = client.get("/metrics").text.splitlines()
    return float(next(line for line in lines if line.startswith(name)).split()[1])


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "code"),
    [
        ("POST", "/v1/rank", b"{", 400, "invalid_request"),
        ("POST", "/v1/rank", b"[]", 400, "invalid_request"),
        ("POST", "/v1/rank", b'{"user":"a","actions":[]}', 400, "invalid_request"),
        ("POST", "/v1/rank", b'{"user":"","actions":[{"id":"a"}]}', 400, "invalid_request"),
        ("POST", "/v1/rank", b'{"user":"a\\nb","actions":[{"id":"a"}]}', 400, "invalid_request"),
        ("POST", "/v1/rank", b'{"user":"a","actions":[{"id":"a"}],"extra":1}', 400, "invalid_request"),
        ("POST", "/v1/rank", b'{"user":"a","actions":[{"id":"a"},{"id":"a"}]}', 422, "same_action_twice"),
        ("POST", "/v1/rank", b'{"user":"a","actions":[{"id":"a"}],"excluded":["a"]}', 422, "no_action_left"),
        ("POST", "/v1/rank", json.dumps({"user": "a", "actions": [{"id": str(k)} for k in range(51)]}).encode(),
         413, "too_many_actions"),
        ("POST", "/v1/rank", b'{"user":"a","actions":[{"id":"a","features":[{"x":1e999}]}]}', 400, "invalid_request"),
        ("POST", "/v1/rank", b'{"user":"a","actions":[{"id":"a","features":[{"x":NaN}]}]}', 400, "invalid_request"),
        ("POST", "/v1/events/e/reward", b'{"value":1.1}', 400, "invalid_request"),
        ("POST", "/v1/events/e/reward", b'{"value":NaN}', 400, "invalid_request"),
        ("POST", "/v1/events/e/reward", b'{"value":1e999}', 400, "invalid_request"),
        ("POST", "/v1/events/e/reward", b'{"value":"1"}', 400, "invalid_request"),
        ("GET", "/v1/events/nothing", b"", 404, "unknown_event"),
        ("GET", "/nowhere", b"", 404, "not_found"),
        ("GET", "/v1/rank", b"", 405, "method_not_allowed"),
        ("PUT", "/v1/configuration", b'{"policy":"nope"}', 422, "not_possible"),
    ],
)  # fmt: skip
def test_every_error_has_one_shape(
    client: TestClient[Any], method: str, path: str, body: bytes, status: int, code: str
) -> None:
    answer = client.request(method, path, content=body, headers={"content-type": "application/json"})
    assert answer.status_code == status, answer.text
    error = answer.json()
    assert set(error) == {"error"}
    assert set(error["error"]) == {"code", "message"}
    assert error["error"]["code"] == code
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_security_headers_are_on_every_answer(client: TestClient[Any]) -> None:
    for path in ("/healthz", "/nowhere", "/v1/configuration"):
        headers = client.get(path).headers
        assert headers["content-security-policy"].startswith("default-src 'none'")
        assert headers["x-frame-options"] == "DENY"
        assert headers["cache-control"] == "no-store"


def test_keys_open_what_their_scope_says(tmp_path: Path) -> None:
    keys = {scope: new_key(scope, [scope]) for scope in ("decide", "read", "admin")}
    body = {"user": "ann", "actions": ACTIONS, "eventId": "e"}
    with client_of(tmp_path, [row for _, row in keys.values()]) as client:

        def status(scope: str | None, method: str, path: str, **more: Any) -> int:
            headers = {"authorization": f"Bearer {keys[scope][0]}"} if scope else {}
            return int(client.request(method, path, headers=headers, **more).status_code)

        assert status(None, "POST", "/v1/rank", json=body) == 401
        assert status("decide", "POST", "/v1/rank", json=body) == 201
        assert status("read", "POST", "/v1/rank", json=body) == 403
        assert status("read", "GET", "/v1/events/e") == 200
        assert status("decide", "GET", "/v1/events/e") == 403
        assert status("read", "DELETE", "/v1/users/ann") == 403
        assert status("admin", "DELETE", "/v1/users/ann") == 204
        assert status(None, "GET", "/metrics") == 401
        assert status(None, "GET", "/healthz") == 200
        other = {"ocp-apim-subscription-key": keys["read"][0]}
        assert client.get("/v1/configuration", headers=other).status_code == 200
        assert client.get("/v1/configuration", headers={"x-api-key": "wrong"}).status_code == 401
    data = (tmp_path / "log.db").read_bytes()
    assert all(key.encode() not in data for key, _ in keys.values())


def test_without_a_key_only_loopback_names_are_answered(client: TestClient[Any]) -> None:
    answer = client.get("/v1/configuration", headers={"host": "evil.example"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "wrong_host")


def test_large_bodies_are_refused(tmp_path: Path) -> None:
    with client_of(tmp_path, max_body=1000) as client:
        answer = client.post("/v1/rank", content=b" " * 1001)
        assert (answer.status_code, answer.json()["error"]["code"]) == (413, "body_too_large")
        chunks = (b" " * 600 for _ in range(3))
        answer = client.post("/v1/rank", content=chunks, headers={"content-type": "application/json"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (413, "body_too_large")


def test_too_many_features_are_refused_before_any_work(tmp_path: Path) -> None:
    with client_of(tmp_path, max_features=10) as client:
        body = {"user": "a", "actions": [{"id": "a", "features": [{str(k): k for k in range(11)}]}]}
        assert client.post("/v1/rank", json=body).status_code == 413
        nested = {"user": "a", "actions": [{"id": "a", "features": [{"x": [{"y": k} for k in range(11)]}]}]}
        assert client.post("/v1/rank", json=nested).status_code == 413


def test_a_rate_is_kept_and_says_when_to_come_back(tmp_path: Path) -> None:
    now = [0.0]
    rate = Rate(2.0, lambda: now[0])
    rate.check("ann")
    rate.check("ann")
    with pytest.raises(Problem, match="more than 2 requests a second") as caught:
        rate.check("ann")
    assert (caught.value.status, caught.value.retry_after) == (429, 0.5)
    rate.check("bob")
    now[0] = 0.5
    rate.check("ann")
    with client_of(tmp_path, rate=1.0) as client:
        answers = [client.get("/v1/configuration") for _ in range(3)]
        assert answers[-1].status_code == 429
        assert answers[-1].headers["retry-after"] == "1"


def test_keys_are_found_by_hash_only() -> None:
    key, row = new_key("app", ["decide"])
    ring = Keyring([row])
    assert ring.find(key) == row
    assert ring.find(key + "x") is None
    assert len(key) > 40
    assert row.hash == hash_key(key)


def test_another_policy_learns_the_log_before_it_decides(tmp_path: Path) -> None:
    with client_of(tmp_path, config=Config(exploration=0.0)) as client:
        for k in range(10):
            client.post("/v1/rank", json={"user": "ann", "actions": ACTIONS, "eventId": f"e{k}"})
            client.post(f"/v1/events/e{k}/reward", json={"value": -1})
        answer = client.put("/v1/configuration", json={"policy": "linucb", "exploration": 0.0})
        assert answer.status_code == 200
        assert answer.json()["policy"] == "linucb"
        assert _number(client, "coterie_payoffs_learned") == 10
        client.post("/v1/rank", json={"user": "ann", "actions": ACTIONS, "eventId": "after"})
    with client_of(tmp_path, config=Config(policy="linucb", exploration=0.0)) as client:
        assert _number(client, "coterie_payoffs_learned") == 10
        assert client.get("/v1/events/after").status_code == 200


def test_a_balancer_lets_requests_end_while_another_policy_learns_the_log(tmp_path: Path) -> None:
    with served(tmp_path / "log.db") as (client, coordinator):
        coordinator.sequencer.refusing = LEARNING
        assert client.get("/readyz").status_code == 404
        refused = client.post("/v1/rank", json={"actions": [{"id": "a"}]})
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        coordinator.sequencer.refusing = None
        assert client.get("/readyz").status_code == 200


def test_a_service_that_is_far_behind_the_log_says_so_and_still_decides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with served(tmp_path / "log.db") as (client, _):
        monkeypatch.setattr(Sequencer, "behind", 4.0)
        assert client.get("/readyz").status_code == 200
        monkeypatch.setattr(Sequencer, "behind", 6.0)
        told = client.get("/readyz")
        assert (told.status_code, told.json()["status"]) == (503, "6.0 s behind the log")
        assert told.json()["behind"] == 6.0 == client.get("/v1/statistics").json()["behind"]
        assert "coterie_behind_seconds 6.0" in client.get("/metrics").text
        body = {"user": "ann", "actions": [{"id": "a"}]}
        assert client.post("/v1/rank", json=body).status_code == 201
