"""The port is open during a start: probes say how far it is, and everything else is answered 503 until then."""

import asyncio
import gc
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from litestar.testing import TestClient

from coterie.data.logs.records import Batch
from coterie.errors import FileError
from coterie.service.log.sqlite_store import SqliteStore
from coterie.service.serve import make_app
from coterie.service.store_errors import LostError
from tests.service.helpers import ask as question
from tests.service.helpers import served, settings_of, with_coordinator
from tests.service.http.wires import HEALTH, Wire, ask, running
from tests.service.process import service

RECORDS = 8


class HeldStore(SqliteStore):  # type: ignore[misc]
    """A store that stops a replay after its first batch, until it is released."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.reached, self.release = threading.Event(), threading.Event()
        self.damaged = False

    def read(self, first: int = 0) -> Iterator[Batch]:
        for number, batch in enumerate(super().read(first)):
            if number == 1:
                self.reached.set()
                self.release.wait()
                if self.damaged:
                    raise FileError("the log is damaged at record 1")
            yield batch


@pytest.fixture
def held(tmp_path: Path) -> HeldStore:
    """Return a store with a log of several batches and no snapshot."""

    async def fill(coordinator: Any) -> None:
        for number in range(RECORDS):
            await coordinator.rank(question(f"e{number}"))
        coordinator.snapshot = None
        coordinator.sequencer.snapshot = _no_snapshot

    with_coordinator(settings_of(tmp_path / "log.db"), fill)
    return HeldStore(str(tmp_path / "log.db"))


async def _no_snapshot(alone: bool = False) -> None:
    """Leave the next start the whole log to read."""


def request(method: str, path: str, body: Any = None) -> bytes:
    content = b"" if body is None else json.dumps(body).encode()
    head = f"{method} {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {len(content)}\r\n\r\n".encode() + content


def told(answer: bytes) -> tuple[int, bytes, Any]:
    """Return status, headers in small letters, and body of an answer."""
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), head.lower(), json.loads(body)


RANK = request("POST", "/v1/rank", {"user": "ann", "actions": [{"id": "a"}, {"id": "b"}]})
COMPATIBLE = {"contextFeatures": [], "actions": [{"id": "a", "features": []}]}


async def until_ready(wire: Wire) -> None:
    while True:
        status, _, body = told(await ask(wire, request("GET", "/readyz")))
        if status == 200:
            assert body["status"] == "ready"
            assert body["behind"] < 60
            return
        assert body["status"] == "starting"
        await asyncio.sleep(0.01)


def test_probes_are_answered_during_a_start_and_everything_else_is_told_to_come_again(
    tmp_path: Path, held: HeldStore
) -> None:
    async def go() -> None:
        async with running(tmp_path, held, listen_first=True) as (connect, _):
            await asyncio.to_thread(held.reached.wait)
            wire = await connect()
            assert told(await ask(wire, HEALTH))[::2] == (200, {"status": "alive"})
            status, _, body = told(await ask(wire, request("GET", "/readyz")))
            assert status == 503
            assert body["status"] == "starting"
            assert 0 < body["replayed"] < body["records"]
            for refused in (
                RANK,
                request("POST", "/v1/events/e1/reward", {"value": 1}),
                request("GET", "/v1/statistics"),
                request("GET", "/"),
            ):
                status, head, body = told(await ask(wire, refused))
                assert (status, body["error"]["code"]) == (503, "starting")
                assert "records of the log are read; try again" in body["error"]["message"]
                assert b"retry-after: 1" in head
            status, head, body = told(await ask(wire, request("POST", "/personalizer/v1.0/rank", COMPATIBLE)))
            assert status == 503
            assert b"retry-after: 1" in head
            held.release.set()
            await until_ready(wire)
            assert told(await ask(wire, RANK))[0] == 201
            wire[1].close()

    asyncio.run(go())


def test_a_stop_during_a_start_does_not_wait_for_the_whole_log(tmp_path: Path, held: HeldStore) -> None:
    async def go() -> None:
        async with running(tmp_path, held, listen_first=True) as (_, connections):
            await asyncio.to_thread(held.reached.wait)
            coordinator = connections.metrics.coordinator
            progress = coordinator.availability.progress
            threading.Thread(target=_release_once_stopped, args=(held, progress)).start()
        assert progress.read < progress.of
        assert coordinator.saved
        assert coordinator.failure is None

    asyncio.run(go())


def _release_once_stopped(held: HeldStore, progress: Any) -> None:
    while not progress.stopped:
        held.release.wait(0.01)
    held.release.set()


def test_a_start_that_fails_while_requests_come_in_gives_up_with_its_reason(
    tmp_path: Path, held: HeldStore
) -> None:
    async def go() -> None:
        async with running(tmp_path, held, listen_first=True) as (connect, connections):
            await asyncio.to_thread(held.reached.wait)
            coordinator = connections.metrics.coordinator
            gave_up = asyncio.Event()
            coordinator.availability.give_up = gave_up.set
            held.damaged = True
            held.release.set()
            await gave_up.wait()
            assert str(coordinator.failure) == "the log is damaged at record 1"
            wire = await connect()
            assert told(await ask(wire, request("GET", "/readyz")))[0] == 503
            wire[1].close()

    asyncio.run(go())


@pytest.mark.parametrize("read", ["keys", "listed", "evaluation_sums"])
def test_a_start_goes_on_when_the_store_could_not_be_read_for_a_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read: str
) -> None:
    usual = getattr(SqliteStore, read)
    failed: list[bool] = []

    def reading(store: SqliteStore) -> Any:
        if not failed:
            failed.append(True)
            raise LostError("the connection to the database is lost")
        return usual(store)

    settings = settings_of(tmp_path / "log.db")
    store = SqliteStore(settings.store)
    monkeypatch.setattr(SqliteStore, read, reading)
    with TestClient(make_app(settings, store), base_url="http://127.0.0.1") as client:
        assert client.get("/readyz").status_code == 200
    assert failed


def test_a_service_whose_log_cannot_be_read_ends_with_one_line(tmp_path: Path) -> None:
    path = tmp_path / "log.db"

    async def fill(coordinator: Any) -> None:
        await coordinator.rank(question("e1"))

    with_coordinator(settings_of(path), fill)
    store = SqliteStore(str(path))
    store._write.execute("DELETE FROM head")
    store._write.commit()
    store.close()
    with pytest.raises(RuntimeError, match=r"error: .*does not know where its log ends"):
        service("--store", str(path)).__enter__()


def test_the_memory_of_a_service_that_ended_can_be_collected(tmp_path: Path) -> None:
    with served(tmp_path / "log.db"):
        assert gc.get_freeze_count() > 0
    assert gc.get_freeze_count() == 0
