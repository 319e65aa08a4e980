"""Who gets in: every route with every scope, pages of other sites, names of hosts, and who is counted."""

import asyncio
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import uvicorn
from litestar import Litestar, get
from litestar.testing import TestClient
from uvicorn.server import ServerState

from coterie.service.http.access import is_loopback, open_paths
from coterie.service.http.connections import Connection, Connections
from coterie.service.http.keys import SCOPES, new_key
from coterie.service.log.sqlite_store import SqliteStore
from coterie.service.serve import make_app
from coterie.service.settings import Settings
from tests.service.http.test_http import ACTIONS, client_of

DOCS = Path(__file__).parents[3] / "docs"
WORDS = ("what-if", "%2Fv1%2Frank")  # ids that look like paths
VERSION = "api-version=2022-09-01-preview"
COMPATIBLE = {  # the needed scope of what is neither read with GET nor administration
    "POST /rank": "decide",
    "POST /events/{}/reward": "decide",
    "POST /events/{}/activate": "decide",
    "POST /multislot/rank": "decide",
    "POST /multislot/events/{}/reward": "decide",
    "POST /multislot/events/{}/activate": "decide",
    "POST /logs/interactions": "decide",
    "POST /logs/observations": "decide",
}


@cache
def documented() -> dict[str, str]:
    """Return the scopes as the table of routes in the docs has them, by method and path."""
    found = {}
    for line in (DOCS / "service.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        if len(cells) != 5 or cells[2] not in (*SCOPES, "none"):
            continue
        for name in re.findall(r"`([^`]+)`", cells[1]):
            method, _, path = name.rpartition(" ")
            found[f"{method or 'GET'} {re.sub(r'{[a-z_]+}', '{}', path)}"] = cells[2]
    return found


def expected(method: str, path: str) -> str:
    """Return what a call should need, from the docs or from the contract."""
    plain = re.sub(r"{[^}]+}", "{}", path)
    if path.startswith("/personalizer"):
        rest = re.sub(r"^/personalizer(/v1\.[^/]+)?", "", plain)
        return COMPATIBLE.get(f"{method} {rest}", "read" if method == "GET" else "admin")
    if path.startswith("/page/") or path == "/":
        return "none"
    if path == "/openapi.json" or path.startswith("/schema"):
        return "read"
    return documented()[f"{method} {plain}"]


def routes(app: Litestar) -> Iterator[tuple[str, str]]:
    """Yield every method and path of the application."""
    for route in app.routes:
        for method in route.methods:
            if method != "OPTIONS":
                yield method, route.path


def test_every_route_with_every_scope(tmp_path: Path) -> None:
    """A wrong scope gets 403, the right one anything else; no id in a path changes which scope is needed."""
    settings = Settings(store=str(tmp_path / "log.db"))
    keys = {scope: new_key(scope, [scope]) for scope in SCOPES}
    store = SqliteStore(settings.store)
    for _, row in keys.values():
        store.save_key(row)
    app = make_app(settings, store)
    calls = sorted(routes(app.app))  # type: ignore[arg-type]
    assert len(calls) > 60
    with TestClient(app, base_url="http://127.0.0.1") as client:
        for method, path in calls:
            needed = expected(method, path)
            for word in WORDS if "{" in path and "preview" not in path else WORDS[:1]:
                url = re.sub(r"{[^}]+}", word, path) + f"?{VERSION}"
                for scope, (key, _) in keys.items():
                    answer = client.request(method, url, headers={"x-api-key": key})
                    refused = "the call needs" in answer.text
                    assert refused == (needed not in (scope, "none")), (method, url, scope, answer.text)
                    assert (answer.status_code == 403) == refused or "evaluations" in answer.text
                bare = client.request(method, url)
                assert (bare.status_code == 401) == (needed != "none"), (method, url)


def test_a_key_that_may_read_cannot_delete_a_user_called_what_if(tmp_path: Path) -> None:
    read, row = new_key("reader", ["read"])
    admin, other = new_key("boss", ["admin", "decide", "read"])
    with client_of(tmp_path, [row, other]) as client:
        boss = {"x-api-key": admin}
        client.post("/v1/rank", json={"user": "what-if", "actions": ACTIONS}, headers=boss)
        assert client.delete("/v1/users/what-if", headers={"x-api-key": read}).status_code == 403
        assert client.get("/v1/users/what-if", headers=boss).status_code == 200


def test_a_route_that_names_no_scope_stops_the_start() -> None:
    @get("/forgotten")
    async def forgotten() -> None:
        """Answer anybody."""

    with pytest.raises(TypeError, match="route /forgotten names no scope"):
        open_paths(Litestar([forgotten], openapi_config=None))


RANK = {"user": "ann", "actions": ACTIONS}
JSON = {"content-type": "application/json"}
FOREIGN = [
    {"origin": "https://evil.example"},
    {"origin": "null"},
    {"origin": "http://127.0.0.1:9999"},  # another service of the same machine
    {"origin": "http://127.0.0.1.evil.example"},
    {"sec-fetch-site": "cross-site"},
    {"sec-fetch-site": "same-site"},
    {"sec-fetch-site": "none", "origin": "https://evil.example"},
    {"sec-fetch-site": "cross-site", "origin": "http://127.0.0.1"},
]
CHANGES: list[tuple[str, str, Any]] = [
    ("POST", "/v1/rank", RANK),
    ("POST", "/v1/events/e/reward", {"value": 1}),
    ("POST", "/v1/events/e/activate", None),
    ("PUT", "/v1/configuration", {"wait": 1}),
    ("DELETE", "/v1/users/ann", None),
    ("DELETE", "/v1/users?id=ann", None),
    ("POST", "/personalizer/v1.0/rank", {"actions": ACTIONS}),
    ("POST", "/personalizer/v1.0/events/e/reward", {"value": 1}),
    ("DELETE", "/personalizer/v1.0/model", None),
]


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient[Any]]:
    with client_of(tmp_path_factory.mktemp("access")) as made:
        yield made


def _position(client: TestClient[Any]) -> int:
    return int(client.get("/v1/statistics").json()["logRecords"])


@pytest.mark.parametrize("headers", FOREIGN, ids=str)
def test_a_page_of_another_site_changes_nothing(client: TestClient[Any], headers: dict[str, str]) -> None:
    before = _position(client)
    for method, path, body in CHANGES:
        answer = client.request(method, path, json=body, headers=headers)
        assert answer.status_code == 403, (method, path)
        assert "a page of another site" in answer.json()["error"]["message"]
    assert _position(client) == before


@pytest.mark.parametrize(
    "kind", [None, "text/plain", "application/x-www-form-urlencoded", "multipart/form-data"]
)
def test_a_body_that_is_not_declared_as_json_changes_nothing(
    client: TestClient[Any], kind: str | None
) -> None:
    """A form, or a fetch without CORS, can send no other kinds."""
    before = _position(client)
    for path in ("/v1/rank", "/personalizer/v1.0/rank", "/v1/events/e/reward", "/v1/what-if"):
        headers = {} if kind is None else {"content-type": kind}
        for content in (
            b'{"user":"a","actions":[{"id":"b"}]}',
            iter([b"{}"]),
        ):  # with a length, and in chunks
            answer = client.post(path, content=content, headers=headers)
            assert answer.status_code == 415, path
            assert "expected Content-Type: application/json" in answer.json()["error"]["message"]
    assert _position(client) == before


def test_what_is_sent_from_here_is_taken(client: TestClient[Any]) -> None:
    own: list[dict[str, str]] = [
        {"origin": "http://127.0.0.1", "sec-fetch-site": "same-origin"},
        {"origin": "http://127.0.0.1"},
        {"sec-fetch-site": "none"},
        {"content-type": "application/json; charset=utf-8"},
        # A proxy that changes the host: the browser knows better.
        {"origin": "https://coterie.example", "sec-fetch-site": "same-origin"},
    ]
    for headers in own:
        assert client.post("/v1/rank", json=RANK, headers=headers).status_code == 201
    # Reading is harmless: no answer can be read by another site.
    assert client.get("/v1/statistics", headers={"origin": "https://evil.example"}).status_code == 200
    model = client.get("/personalizer/v1.0/model").content
    put = client.put("/personalizer/v1.0/model", content=model, headers={"content-type": "text/plain"})
    assert put.status_code == 415
    put = client.put(
        "/personalizer/v1.0/model", content=model, headers={"content-type": "application/octet-stream"}
    )
    assert put.status_code == 204


@pytest.mark.parametrize(
    "host",
    ["localhost", "LocalHost:8080", "127.0.0.1", "127.0.0.1:80", "127.9.9.9:1", "[::1]", "[::1]:8080"],
)
def test_names_of_this_machine_are_answered(client: TestClient[Any], host: str) -> None:
    assert client.get("/v1/configuration", headers={"host": host}).status_code == 200


@pytest.mark.parametrize(
    "host",
    [
        "",
        "testserver.local",
        "testserver.local:8080",
        "[::1].evil.com",
        "[::1].evil.com:80",
        "[::1",
        "::1",
        "evil.com",
        "localhost.evil.com",
        "evil.com:80:localhost",
        "localhost:80@evil.com",
        "127.0.0.1.evil.com",
        "127.0.0.1 evil.com",
        "127.0.0.1:80x",
        "[::1%25evil.com]",
        "10.0.0.1",
        "0.0.0.0",
        "[127.0.0.1]x",
        "localhost, evil.com",
    ],
)
def test_all_other_names_are_refused(client: TestClient[Any], host: str) -> None:
    answer = client.get("/v1/configuration", headers={"host": host})
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "wrong_host")
    assert not is_loopback(host.encode())


def test_a_request_without_a_host_or_with_two_is_refused(client: TestClient[Any]) -> None:
    for hosts in ([], [b"127.0.0.1", b"evil.com"], [b"evil.com", b"127.0.0.1"]):
        assert _raw(client.app, "/v1/configuration", [(b"host", host) for host in hosts]) == 403
    assert _raw(client.app, "/v1/configuration", [(b"host", b"127.0.0.1")]) == 200


def _raw(app: Any, path: str, headers: list[tuple[bytes, bytes]]) -> int:
    """Return the status of a GET whose headers no client would send so."""
    told: list[int] = []

    async def send(message: Any) -> None:
        told.append(message.get("status", 0))

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    scope = {
        "type": "http",
        "method": "GET",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": headers,
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
        "scheme": "http",
        "root_path": "",
        "http_version": "1.0",
        "state": {},
    }
    asyncio.run(app(scope, receive, send))
    return told[0]


def test_wrong_keys_are_counted_and_probes_are_not(tmp_path: Path) -> None:
    key, row = new_key("app", ["read"])
    with client_of(tmp_path, [row], rate=0.001) as client:  # one at once, the next after a quarter of an hour
        for path in ("/healthz", "/readyz"):
            for _ in range(3):
                assert client.get(path).status_code == 200
        wrong = [client.get("/v1/configuration", headers={"x-api-key": f"no-{k}"}) for k in range(3)]
        assert [answer.status_code for answer in wrong] == [401, 429, 429]
        right = [client.get("/v1/configuration", headers={"x-api-key": key}) for _ in range(2)]
        assert [answer.status_code for answer in right] == [200, 429]  # a key has a rate of its own


def test_a_wrong_scope_and_a_wrong_host_are_counted(tmp_path: Path) -> None:
    key, row = new_key("app", ["decide"])
    (tmp_path / "keys").mkdir()
    with client_of(tmp_path / "keys", [row], rate=0.001) as client:
        answers = [client.get("/v1/configuration", headers={"x-api-key": key}) for _ in range(2)]
        assert [answer.status_code for answer in answers] == [403, 429]
    with client_of(tmp_path, rate=0.001) as client:
        answers = [client.get("/v1/configuration", headers={"host": "evil.com"}) for _ in range(2)]
        assert [answer.status_code for answer in answers] == [403, 429]


@pytest.mark.parametrize("path", ["/v1/configuration", "/healthz", "/personalizer/v1.0/status", "/"])
def test_large_headers_are_refused(client: TestClient[Any], path: str) -> None:
    assert client.get(path, headers={"x-small": "a" * 10_000}).status_code == 200
    for headers in ({"x-large": "a" * 100_000}, {f"x-{k}": "a" * 1_000 for k in range(100)}):
        answer = client.get(path, headers=headers)
        assert answer.status_code == 431
        assert "expected at most 16384 (max-headers)" in answer.json()["error"]["message"]
    assert client.get(f"{path}?{'a' * 20_000}").status_code == 431


class Wire(asyncio.Transport):
    """A transport that keeps what is written to it."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.closed = False

    def write(self, data: Any) -> None:
        self.written += data

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed

    def set_protocol(self, protocol: Any) -> None: ...
    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...


async def _silent(scope: Any, receive: Any, send: Any) -> None:
    """An application that never answers."""


def _connected(loop: asyncio.AbstractEventLoop) -> tuple[Connection, Wire]:
    config = uvicorn.Config(_silent, log_config=None, ws="none")
    config.load()
    connections = Connections(Settings(), cast(Any, SimpleNamespace()))
    made = Connection(connections, config=config, server_state=ServerState(), app_state={}, _loop=loop)
    wire = Wire()
    made.connection_made(wire)
    return made, wire


@pytest.mark.parametrize("sent", [b"a" * 10_000, b"x-a: " + b"b" * 9_000 + b"\r\n"])
def test_headers_that_never_end_are_ended(sent: bytes) -> None:
    """Whether it is one header or many: after a few hundred kilobytes the connection is closed, with the reason."""

    async def work() -> int:
        made, wire = _connected(asyncio.get_running_loop())
        made.data_received(b"GET / HTTP/1.1\r\nhost: 127.0.0.1\r\nx-long: ")
        for k in range(1_000):
            made.data_received(sent)
            if wire.closed:
                assert b"431 Request Header Fields Too Large" in wire.written
                assert b"(max-headers)" in wire.written
                return k * len(sent)
        return 1 << 30

    assert 16_384 < asyncio.run(work()) < 500_000


def test_a_long_body_is_not_taken_for_headers() -> None:
    async def work() -> bool:
        made, wire = _connected(asyncio.get_running_loop())
        made.data_received(b"POST / HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 900000\r\n\r\n")
        for _ in range(90):
            made.data_received(b"a" * 10_000)
        return wire.closed  # before the application is asked

    assert not asyncio.run(work())
