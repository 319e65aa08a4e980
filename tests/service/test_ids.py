"""Ids of any characters: in bodies, percent-encoded in paths, and what is refused is refused with the reason."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.service.ids import decode_id, encoded_path, is_id
from coterie.service.problems import Problem
from tests.service.process import service

ODD = [
    "a/b", "/", "//", "a/", "a\\b", "a?b=c", "a#b", "50%", "%2F", "%252F", "a b", " ", "é", "日本語", "\U0001f600",
    "x/rank", "x/reward", "events/y/reward", "...", "a+b&c;d=e", "<b>", "\u202e", "+", "a%00b", "~", "'\"",
]  # fmt: skip


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    folder: Path = tmp_path_factory.mktemp("ids")
    with service("--store", str(folder / "log.db")) as running, httpx.Client(base_url=running.url) as made:
        yield made


@pytest.mark.parametrize("name", ODD)
def test_an_id_of_any_characters_is_ranked_rewarded_explained_shown_and_forgotten(
    client: httpx.Client, name: str
) -> None:
    body = {"user": name, "actions": [{"id": name}], "eventId": name, "deferActivation": True}
    assert client.post("/v1/rank", json=body).json()["eventId"] == name
    path = quote(name, safe="")
    assert client.post(f"/v1/events/{path}/activate").json() == {"eventId": name, "outcome": "activated"}
    rewarded = client.post(f"/v1/events/{path}/reward", json={"value": 1})
    assert rewarded.json() == {"eventId": name, "outcome": "applied"}
    why = client.get(f"/v1/events/{path}").json()
    assert (why["eventId"], why["user"], why["chosen"]) == (name, name, name)
    assert client.get(f"/v1/users/{path}").json()["id"] == name
    assert client.delete(f"/v1/users/{path}").status_code == 204
    assert client.get(f"/v1/users/{path}").status_code == 404


@pytest.mark.parametrize("name", ["", ".", "..", "a\nb", "a\n", "\0", "\x1f", "\x7f", "\x85", "x" * 257])
def test_what_cannot_be_an_id_is_refused_with_the_reason(client: httpx.Client, name: str) -> None:
    for body in ({"user": name}, {"user": "ann", "eventId": name}):
        answer = client.post("/v1/rank", json={**body, "actions": [{"id": "a"}]})
        assert answer.status_code == 400
        told = answer.json()["error"]["message"]
        assert "neither '.' nor '..'" in told or "Expected `str` of length" in told
        assert "regex" not in told
    if name not in ("", ".", ".."):  # which never arrive
        answer = client.get(f"/v1/events/{quote(name, safe='')}")
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_id")
    compatible = {"actions": [{"id": "a", "features": []}], "eventId": name}
    answer = client.post("/personalizer/v1.0/rank", json=compatible)
    if name == "":  # none, for Personalizer's clients
        assert answer.status_code == 201
        return
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "InvalidRankRequest"


def test_an_id_that_is_not_utf8_is_refused(client: httpx.Client) -> None:
    answer = client.get("/v1/users/%FF")
    assert answer.status_code == 400
    assert "is not UTF-8" in answer.json()["error"]["message"]


def test_a_slot_cannot_be_taken_for_another_event(client: httpx.Client) -> None:
    actions = [{"id": name, "features": []} for name in "ab"]
    slots = [{"id": "top", "baselineAction": "a"}]
    body = {"actions": actions, "slots": slots, "eventId": "page"}
    assert client.post("/personalizer/v1.0/multislot/rank", json=body).status_code == 201
    plain = {"user": "ann", "actions": [{"id": "a"}], "eventId": "page/0"}
    assert client.post("/v1/rank", json=plain).status_code == 201
    assert client.get(f"/v1/events/{quote('page' + chr(31) + '0')}").json()["eventId"] == "page"


@given(st.text(min_size=1, max_size=40))
@settings(max_examples=300, deadline=None)
def test_a_path_gives_back_the_id_that_was_put_in(name: str) -> None:
    for encoded in (quote(name, safe=""), quote(name, safe="~").replace("%2", "%2").lower()):
        scope: dict[str, Any] = {
            "raw_path": f"/v1/events/{encoded}/reward?x=1".encode(),
            "path": "not looked at",
        }
        parts = encoded_path(scope).split("/")
        if encoded == encoded.lower() and name.lower() != name:
            continue  # that made another name of it
        assert parts[:3] + parts[4:] == ["", "v1", "events", "reward"]
        if is_id(name):
            assert decode_id(parts[3]) == name
        elif chr(31) not in name:
            with pytest.raises(Problem, match="the id in the path is"):
                decode_id(parts[3])
    bare = {"path": "/v1/users/50%"}  # a server that does not tell the raw path
    assert decode_id(encoded_path(bare).split("/")[3]) == "50%"
