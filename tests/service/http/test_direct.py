"""Decisions and rewards answered by the guard itself are answered as Litestar would: status, headers and body."""

import json
from pathlib import Path
from typing import Any

import pytest
from litestar.testing import TestClient

from coterie.data.logs.rules import Config
from coterie.service.log.sqlite_store import SqliteStore
from coterie.service.serve import make_app
from coterie.service.settings import Settings

A, B = {"id": "a"}, {"id": "b", "features": [{"tone": "calm"}]}
NATIVE: list[Any] = [
    {"user": "ann", "actions": [A, {"id": "c"}], "eventId": "e1"},
    {"user": "ann", "actions": [A, {"id": "c"}], "eventId": "e1"},  # a retry
    {"user": "ann", "actions": [A], "eventId": "e1"},  # another body
    {"user": "bob", "actions": [A, B], "context": [{"device": "phone"}], "eventId": "e2", "excluded": ["a"]},
    {"user": "bob", "actions": [A, A], "eventId": "e3"},
    {"user": "bob", "actions": [A], "eventId": "e4", "excluded": ["a"]},
    {"user": "bob", "actions": [A], "surprise": 1},
    {"user": "", "actions": [A]},
    {"user": "bob", "actions": [{"id": str(k)} for k in range(51)]},
    {"user": "bob", "actions": [{"id": "a", "features": [{"x": 10**400}]}]},
    b"no json",
    b"",
    b'{"user": "\xff"}',
    b'{"user": "bob", "actions": [' + b" " * 3000 + b"]}",
]
PERSONALIZER: list[Any] = [
    {"actions": [{"id": "a", "features": []}], "eventId": "e1", "contextFeatures": [{"user": {"id": "ann"}}]},
    {"actions": [{"id": "a", "features": []}], "eventId": "e1", "contextFeatures": [{"user": {"id": "bob"}}]},
    {
        "actions": [{"id": "a", "features": [{"x": 1}]}, {"id": "b"}],
        "eventId": "e2",
        "excludedActions": ["a"],
    },
    {"actions": [], "eventId": "e3"},
    {"actions": [{"id": "a"}], "eventId": "e4", "surprise": True},
    {"actions": [{"id": "a"}, {"id": "a"}], "eventId": "e5"},
    b"[",
]
SLOTS = {
    "actions": [{"id": name, "features": [{"x": name}]} for name in "abc"],
    "slots": [{"id": f"place {k}", "baselineAction": "abc"[k]} for k in range(2)],
    "contextFeatures": [{"user": {"id": "ann"}}],
    "eventId": "page/1",
    "deferActivation": True,
}
SLOT_REWARD = {"reward": [{"slotId": "place 1", "value": 0.5}, {"slotId": "place 0", "value": 0}]}
REWARDS: list[Any] = [
    {"value": 1},
    {"value": 1},  # again
    {"value": 2},
    {"value": "1"},
    {"value": 1, "value ": 1},
    b'{"value": 1, "value": 0}',
    {"value": 0.5, "rewardId": "r1"},
    {},
    b"",
    b"[]",
]
IN_PATHS = [
    "e1",
    "e2",
    "unknown",
    "page%2F1",
    "a%00b",
    "%ff",
    "%2E",
    "",
    ".",
    "e1/",
    "x" * 300,
    "page/1",
    "e2/more",
]
CALLS = [
    *[("/v1/rank", body) for body in NATIVE],
    *[("/personalizer/v1.0/rank", body) for body in PERSONALIZER],
    *[("/personalizer/rank?api-version=2022-09-01-preview", body) for body in PERSONALIZER],
    ("/personalizer/rank", PERSONALIZER[0]),
    ("/personalizer/rank?api-version=1", PERSONALIZER[0]),
    *[("/personalizer/v1.0/multislot/rank", body) for body in (SLOTS, SLOTS, {**SLOTS, "slots": []}, b"{")],
    *[("/v1/events/e1/reward", body) for body in REWARDS],
    *[("/personalizer/v1.1-preview.3/events/e2/reward", body) for body in REWARDS],
    *[
        (f"{prefix}/events/{event}/{what}", {"value": 1} if what == "reward" else b"")
        for prefix in ("/v1", "/personalizer/v1.0")
        for event in IN_PATHS
        for what in ("activate", "reward", "rewards")
    ],
    *[
        (f"/personalizer/v1.0/multislot/events/{event}/{what}", SLOT_REWARD if what == "reward" else b"")
        for event in ("page%2F1", "page/1", "e1", "")
        for what in ("activate", "reward")
    ],
    ("/personalizer/events/e1/reward", {"value": 1}),
    ("/personalizer/events/e1/reward?api-version=2022-09-01-preview", {"value": 1}),
    ("/personalizer/v1.0/multislot/events/page%2F1/reward", {"reward": [{"slotId": "none", "value": 1}]}),
]


def _answers(path: Path, direct: bool) -> list[tuple[int, dict[str, str], bytes]]:
    settings = Settings(store=str(path), config=Config(exploration=0.0), max_body=2_000)
    app = make_app(settings, SqliteStore(settings.store))
    assert app.direct
    if not direct:
        app.direct = {}
    with TestClient(app, base_url="http://127.0.0.1") as client:
        found = []
        for url, body in CALLS:
            content = body if isinstance(body, bytes) else json.dumps(body).encode()
            answer = client.post(url, content=content, headers={"content-type": "application/json"})
            found.append((answer.status_code, dict(answer.headers), answer.content))
        return found


def test_the_guard_answers_as_the_routes_do(tmp_path: Path) -> None:
    straight, routed = _answers(tmp_path / "a.db", True), _answers(tmp_path / "b.db", False)
    for call, one, other in zip(CALLS, straight, routed, strict=True):
        assert one == other, call
    assert {status for status, _, _ in straight} == {200, 201, 204, 400, 404, 405, 409, 413, 422}


def test_a_failure_inside_is_told_in_the_same_shape(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings(store=str(tmp_path / "log.db"))
    app = make_app(settings, SqliteStore(settings.store))

    def broken(*_: Any) -> Any:
        raise RuntimeError("secret")

    with TestClient(app, base_url="http://127.0.0.1", raise_server_exceptions=False) as client:
        monkeypatch.setattr("coterie.service.core.bandit.Bandit.rank", broken)
        body = {"user": "ann", "actions": [A]}
        told = [client.post("/v1/rank", json=body)]
        app.direct = {}
        told.append(client.post("/v1/rank", json=body))
    for answer in told:
        assert answer.status_code == 500
        assert answer.json()["error"]["code"] == "internal_error"
        assert "secret" not in answer.text
    assert dict(told[0].headers) == dict(told[1].headers)
