"""The routes of users, items and statistics, and that all routes are documented."""

from pathlib import Path

import pytest
from litestar.testing import TestClient

from coterie.data.logs.rules import Config
from coterie.service.coordination.sequencer import Sequencer
from coterie.service.log.sqlite_store import SqliteStore
from coterie.service.serve import make_app
from coterie.service.settings import Settings


def test_a_user_whose_id_cannot_stand_in_a_path_can_be_forgotten(tmp_path: Path) -> None:
    chosen = Settings(store=str(tmp_path / "log.db"), config=Config())
    with TestClient(make_app(chosen, SqliteStore(chosen.store)), base_url="http://127.0.0.1") as client:
        body = {"contextFeatures": [{"user": {"id": "a/b"}}], "actions": [{"id": "x"}]}
        client.post("/personalizer/v1.0/rank", json=body)
        assert client.get("/v1/users").json()["users"][0]["id"] == "a/b"
        assert client.delete("/v1/users", params={"id": "a/b"}).status_code == 204
        assert client.get("/v1/users").json() == {"users": [], "total": 0}
        assert client.delete("/v1/users", params={"id": "a/b"}).status_code == 404
        assert client.get("/v1/split", params={"item": "never"}).json()["error"]["code"] == "unknown_item"
        assert client.get("/v1/statistics", params={"minutes": 0}).status_code == 400


def test_every_route_is_documented(tmp_path: Path) -> None:
    chosen = Settings(store=str(tmp_path / "log.db"))
    text = (Path(__file__).parents[3] / "docs" / "service.md").read_text()
    with TestClient(make_app(chosen, SqliteStore(chosen.store)), base_url="http://127.0.0.1") as client:
        for path, methods in client.get("/openapi.json").json()["paths"].items():
            for method in methods:
                known = f"{method.upper()} {path}`" in text or f"`{path}`" in text
                assert known, f"docs/service.md does not mention {method.upper()} {path}"


def test_head_is_answered_where_get_is_with_the_same_headers_and_no_body(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Sequencer, "behind", 0.0)  # which `/readyz` says, with as many digits as it has
    chosen = Settings(store=str(tmp_path / "log.db"))
    with TestClient(make_app(chosen, SqliteStore(chosen.store)), base_url="http://127.0.0.1") as client:
        for path in (
            "/",
            "/healthz",
            "/readyz",
            "/v1/configuration",
            "/v1/users",
            "/openapi.json",
            "/v1/users/none",
        ):
            got, head = client.get(path), client.head(path)
            assert (head.status_code, head.content) == (got.status_code, b"")
            assert head.headers == got.headers
        assert client.head("/v1/rank").status_code == 405
        assert client.head("/nowhere").status_code == 404


def test_items_are_counted_with_every_policy(tmp_path: Path) -> None:
    for policy in ("hierarchical", "cab"):
        chosen = Settings(store=str(tmp_path / f"{policy}.db"), config=Config(policy=policy))
        with TestClient(make_app(chosen, SqliteStore(chosen.store)), base_url="http://127.0.0.1") as client:
            client.post("/v1/rank", json={"user": "ann", "actions": [{"id": "a"}]})
            client.post("/v1/rank", json={"user": "ann", "actions": [{"id": "b"}]})
            assert client.get("/v1/statistics").json()["items"] == 2, policy
            assert client.get("/v1/items").json()["total"] == 2, policy
