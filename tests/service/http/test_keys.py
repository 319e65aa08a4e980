"""Keys made and dropped while the service runs take effect, and dropping the last one opens nothing."""

import time
from collections.abc import Callable
from pathlib import Path

import httpx
import psycopg
import pytest
from typer.testing import CliRunner

from coterie.cli.app import app
from coterie.service.http.keys import Keyring, new_key
from tests.service import postgres
from tests.service.process import Process, service

run = CliRunner()
BODY = {"user": "ann", "actions": [{"id": "a"}]}


def _new(name: str, store: str, *scopes: str) -> str:
    given = [word for scope in scopes for word in ("--scope", scope)]
    made = run.invoke(app, ["keys", "new", name, "--store", store, *given])
    assert made.exit_code == 0, made.output
    return made.stdout.strip().splitlines()[-1]


def _soon(check: Callable[[], bool]) -> bool:
    end = time.monotonic() + 300
    while time.monotonic() < end:
        if check():
            return True
        time.sleep(0.1)
    return False


def _status(running: Process, key: str | None, path: str = "/v1/rank") -> int:
    headers = {} if key is None else {"x-api-key": key}
    return httpx.post(running.url + path, json=BODY, headers=headers).status_code


def _check(store: str) -> None:
    with service("--store", store) as running:
        assert _status(running, None) == 201  # no key yet: loopback may do everything
        first = _new("first", store, "decide")
        assert _soon(lambda: _status(running, None) == 401)
        assert _status(running, first) == 201
        assert _status(running, first, "/v1/what-if") == 403
        second = _new("second", store, "decide", "read")
        assert _soon(lambda: _status(running, second) == 201)
        listed = run.invoke(app, ["keys", "list", "--store", store]).output
        assert "first" in listed
        assert "second" in listed
        assert run.invoke(app, ["keys", "drop", "first", "--store", store]).exit_code == 0
        assert _soon(lambda: _status(running, first) == 401)
        assert _status(running, second) == 201
        assert run.invoke(app, ["keys", "drop", "second", "--store", store]).exit_code == 0
        assert _soon(lambda: _status(running, second) == 401)
        assert _status(running, None) == 401
        assert running.stop()[0] == 0
    with service("--store", store) as running:  # a start without keys is one for loopback
        assert _status(running, None) == 201


@pytest.mark.slow
def test_keys_change_beside_a_running_service(tmp_path: Path) -> None:
    _check(str(tmp_path / "log.db"))


@pytest.mark.slow
def test_keys_change_beside_a_running_service_on_postgresql() -> None:
    with postgres.server() as url:
        _check(url)
        with psycopg.connect(url) as connection:
            assert connection.execute("SELECT count(*) FROM coterie_keys").fetchone() == (0,)


def test_a_ring_that_was_emptied_still_wants_a_key() -> None:
    key, row = new_key("app", ["decide"])
    ring = Keyring([])
    assert not ring
    ring.renew([row])
    assert ring
    assert ring.find(key) == row
    ring.renew([])
    assert ring
    assert ring.find(key) is None
    fixed = Keyring([row])
    fixed.renew([])
    assert fixed.find(key) == row
