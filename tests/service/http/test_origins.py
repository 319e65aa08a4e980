"""Pages of other sites: none may call by default, and those of the setting `origins` may with a key."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from litestar.testing import TestClient

from coterie.errors import ParameterError
from coterie.service.http.keys import new_key
from coterie.service.http.origins import for_pages, read_origins
from coterie.service.log.sqlite_store import SqliteStore
from coterie.service.serve import make_app
from coterie.service.settings import Settings, read_settings

SHOP = "https://shop.example"
RANK = {"actions": [{"id": "a", "features": []}, {"id": "b", "features": []}], "eventId": "e"}
PATHS = ["/personalizer/v1.1-preview.3/rank", "/v1/rank"]
PAGE = {"origin": SHOP, "sec-fetch-site": "same-site"}


@contextmanager
def serving(folder: Path, origins: list[str], keyed: bool = True) -> Iterator[tuple[TestClient[Any], str]]:
    settings = Settings(store=str(folder / "log.db"), origins=origins)
    store = SqliteStore(settings.store)
    key, row = new_key("page", ["decide", "read"])
    if keyed:
        store.save_key(row)
    app: Any = for_pages(make_app(settings, store), settings.origins)
    with TestClient(app, base_url="http://127.0.0.1") as client:
        yield client, key


@pytest.mark.parametrize("path", PATHS)
def test_a_page_of_a_named_origin_may_call_with_a_key(tmp_path: Path, path: str) -> None:
    body = RANK | ({"user": "ann"} if path == "/v1/rank" else {})
    with serving(tmp_path, ["https://other.example", SHOP]) as (client, key):
        asked = {"access-control-request-method": "POST"}
        asked["access-control-request-headers"] = "content-type,ocp-apim-subscription-key,x-ms-useragent"
        preflight = client.options(path, headers=PAGE | asked)  # a browser sends no key with it
        assert (preflight.status_code, preflight.content) == (204, b"")
        assert preflight.headers["access-control-allow-origin"] == SHOP
        assert preflight.headers["access-control-allow-headers"] == asked["access-control-request-headers"]
        assert "POST" in preflight.headers["access-control-allow-methods"]
        answer = client.post(path, json=body, headers=PAGE | {"ocp-apim-subscription-key": key})
        assert answer.status_code == 201
        assert answer.headers["access-control-allow-origin"] == SHOP
        assert answer.headers["vary"] == "origin"
        reward = client.post(
            "/personalizer/v1.0/events/e/reward", json={"value": 1}, headers=PAGE | {"x-api-key": key}
        )
        assert reward.headers["x-coterie-reward"] == "applied"
        assert "x-coterie-reward" in reward.headers["access-control-expose-headers"]
        wrong = client.post(path, json=body, headers=PAGE | {"x-api-key": "wrong"})
        assert wrong.status_code == 401
        assert wrong.headers["access-control-allow-origin"] == SHOP  # so that the page can show the reason


def test_the_address_of_the_page_stands_for_an_origin_that_a_proxy_dropped(tmp_path: Path) -> None:
    """As in the recorded requests of a browser's tests."""
    with serving(tmp_path, ["http://localhost:9876"]) as (client, key):
        page = {"referer": "http://localhost:9876/", "sec-fetch-site": "same-site", "sec-fetch-mode": "cors"}
        answer = client.post(PATHS[0], json=RANK, headers=page | {"ocp-apim-subscription-key": key})
        assert answer.status_code == 201
        for wrong in (
            {"referer": "http://localhost:9876.evil.example/"},
            {"referer": "http://localhost:9999/http://localhost:9876/"},
            {"origin": "https://evil.example"},
        ):
            headers = page | wrong | {"ocp-apim-subscription-key": key}
            assert client.post(PATHS[0], json=RANK, headers=headers).status_code == 403


@pytest.mark.parametrize(
    ("origins", "origin"),
    [
        ([], SHOP),
        ([SHOP], "https://evil.example"),
        ([SHOP], "http://shop.example"),
        ([SHOP], "https://shop.example.evil.example"),
        ([SHOP], "https://shop.example:8443"),
        ([SHOP], "null"),
    ],
)
def test_every_other_page_is_refused(tmp_path: Path, origins: list[str], origin: str) -> None:
    page = {"origin": origin, "sec-fetch-site": "cross-site"}
    with serving(tmp_path, origins) as (client, key):
        for path in PATHS:
            body = RANK | ({"user": "ann"} if path == "/v1/rank" else {})
            answer = client.post(path, json=body, headers=page | {"x-api-key": key})
            assert answer.status_code == 403
            assert "the setting origins" in answer.text
            asked = page | {"access-control-request-method": "POST"}
            assert "access-control-allow-origin" not in client.options(path, headers=asked).headers
        shown = client.get("/v1/statistics", headers=page | {"x-api-key": key})
        assert "access-control-allow-origin" not in shown.headers


def test_a_page_may_do_nothing_where_there_is_no_key(tmp_path: Path) -> None:
    with serving(tmp_path, [SHOP], keyed=False) as (client, _):
        assert client.post(PATHS[0], json=RANK, headers=PAGE).status_code == 403
        assert client.post(PATHS[0], json=RANK).status_code == 201
        assert "access-control-allow-origin" not in client.get("/v1/statistics", headers=PAGE).headers


def test_headers_that_are_no_names_are_not_repeated(tmp_path: Path) -> None:
    with serving(tmp_path, [SHOP]) as (client, _):
        asked = {"access-control-request-method": "POST", "access-control-request-headers": 'a"<b>'}
        assert client.options(PATHS[0], headers=PAGE | asked).headers["access-control-allow-headers"] == ""


@pytest.mark.parametrize("origin", ["*", "null", "shop.example", "https://shop.example/", "ftp://a", ""])
def test_what_is_no_origin_stops_the_start(origin: str) -> None:
    with pytest.raises(ParameterError, match="expected scheme, host and port"):
        read_origins([SHOP, origin])


def test_origins_are_read_from_the_environment_and_from_flags() -> None:
    found = read_settings(environment={"COTERIE_ORIGINS": f"{SHOP}, http://localhost:9876"})
    assert found.origins == [SHOP, "http://localhost:9876"]
    assert read_origins(found.origins) == {SHOP.encode(), b"http://localhost:9876"}
    assert read_settings(environment={}).origins == []
    assert read_settings(environment={}, origins=SHOP).origins == [
        SHOP
    ]  # --settings origins=https://shop.example
