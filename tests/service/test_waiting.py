"""A database that is away at the start is waited for; one that will never take the service is not."""

import socket
import subprocess
import threading
import time
from contextlib import suppress
from pathlib import Path

import httpx
import psycopg
import pytest

from coterie.errors import FileError
from coterie.service import waiting
from coterie.service.log import postgres_store
from coterie.service.log.store import open_store
from coterie.service.store_errors import LostError
from tests.service import postgres
from tests.service.process import PATIENCE, Process, address_in

QUESTION = {"user": "ann", "actions": [{"id": "a"}, {"id": "b"}], "eventId": "e"}


def until(url: str, status: int, text: str) -> httpx.Response:
    """Wait for an answer of /readyz."""
    end = time.monotonic() + PATIENCE
    while True:
        with suppress(httpx.TransportError):
            found = httpx.get(f"{url}/readyz", timeout=PATIENCE)
            if found.status_code == status and text in found.text:
                return found
        assert time.monotonic() < end
        time.sleep(0.05)


def served(url: str) -> int:
    """Ask for a rank until no worker answers that it is still starting; return the status."""
    end = time.monotonic() + PATIENCE
    while True:
        found = httpx.post(f"{url}/v1/rank", json=QUESTION, timeout=PATIENCE)
        if found.status_code != 503 or time.monotonic() > end:
            return found.status_code
        time.sleep(0.05)


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_start_without_its_database_says_so_and_serves_when_it_comes(
    workers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with postgres.controlled() as server:
        server.stop()
        asked: list[tuple[int, str, str]] = []

        def watch(url: str) -> None:
            until(url, 503, "the database is away")
            for method, path in (("GET", "/healthz"), ("POST", "/v1/rank")):
                body = QUESTION if method == "POST" else None
                found = httpx.request(method, f"{url}{path}", json=body, timeout=PATIENCE)
                asked.append((found.status_code, found.headers["retry-after"], found.text))
            server.start()

        def address(said: Path, process: "subprocess.Popen[bytes]") -> str:
            url = address_in(said, process)
            watch(url)
            return url

        monkeypatch.setattr("tests.service.process.address_in", address)
        running = Process("--store", server.url, "--workers", workers)
        try:
            assert [status for status, _, _ in asked] == [200, 503]
            assert '"starting"' in asked[1][2]
            assert asked[1][1] == "1"
            assert served(running.url) == 201
            code, said = running.stop()
        finally:
            running.kill()
        assert code == 0, said
        assert "the start waits for the database" in said


def test_what_no_waiting_ends_is_raised_at_once() -> None:
    with postgres.server() as url:
        for wrong in (url.replace("coterie@", "nobody@"), url.replace("/postgres", "/nothing")):
            with pytest.raises(FileError, match="does not exist"):
                open_store(wrong, shared=True)
    with pytest.raises(LostError, match="cannot be opened"):
        open_store(url, shared=True)  # which has ended
    with pytest.raises(FileError, match="cannot be opened"):
        open_store(url)  # a tool does not wait


def test_errors_that_pass_are_told_from_others() -> None:
    comes_back = postgres_store._comes_back
    assert comes_back(psycopg.OperationalError("connection refused"))
    assert comes_back(psycopg.errors.TooManyConnections("too many clients"))
    assert comes_back(psycopg.errors.ReadOnlySqlTransaction("read-only"))
    assert not comes_back(psycopg.OperationalError('FATAL: role "nobody" does not exist'))
    assert not comes_back(psycopg.errors.InsufficientPrivilege("permission denied"))


def test_a_request_that_never_ends_does_not_stop_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "EVERY", 0.01)
    there = threading.Event()

    def open_() -> str:
        if there.is_set():
            return "open"
        raise LostError("away")

    with socket.create_server(("127.0.0.1", 0)) as listening:
        found: list[str] = []
        thread = threading.Thread(target=lambda: found.append(waiting.opened(open_, [listening])))
        thread.start()
        with socket.create_connection(listening.getsockname()) as slow:
            slow.sendall(b"POST /v1/rank HTTP/1.1\r\n")
            with socket.create_connection(listening.getsockname()) as strange:
                strange.sendall(b"nonsense\r\n\r\n")
                assert strange.recv(100) == b""
            url = "http://{}:{}".format(*listening.getsockname())
            assert httpx.get(f"{url}/healthz", timeout=PATIENCE).status_code == 200
            there.set()
            thread.join(PATIENCE)
        assert found == ["open"]
