"""R9: a graceful stop drains, syncs, snapshots and exits 0 within its limit."""

import asyncio
import signal
import socket
from collections.abc import Callable
from contextlib import ExitStack
from http.client import HTTPResponse
from pathlib import Path
from unittest.mock import Mock

import httpx
import pytest

from coterie.bench.service.loadtest import LoadPlan, LoadTally, lost, press, request_bytes
from coterie.service.coordination.coordinator import Coordinator
from coterie.service.http import connections as connections_module
from coterie.service.http.connections import Connections
from coterie.service.settings import Settings
from coterie.service.snapshots import snapshot
from coterie.service.snapshots.recovery import recover
from tests.service.helpers import ask, opened, settings_of, with_coordinator
from tests.service.process import PATIENCE, service


def test_a_stop_under_load_finishes_what_it_accepted(tmp_path: Path) -> None:
    path = tmp_path / "log.db"

    tally = LoadTally()

    async def go(url: str, stop: Callable[[], None]) -> None:
        plan = LoadPlan(seconds=3600, connections=8, users=20, actions=5, rewards=0.5)
        work = asyncio.create_task(press(url, plan, tally))
        while len(tally.decided) < 100:
            assert not work.done()
            await asyncio.sleep(0.01)
        stop()
        await work

    with service("--store", str(path), "--settings", "stop-within=100") as running:
        asyncio.run(go(running.url, running.process.terminate))
        assert running.process.wait(300) == 0, running.stop()[1]
    assert lost(path, tally) == (set(), set())
    with opened(path) as store:
        (position, state), *_ = store.snapshots()
        assert position == store.bounds()[1]
        restored = snapshot.restore(state, None, store.piece)
        assert snapshot.dump(restored) == snapshot.dump(recover(store, from_empty=True))


def answered(opened: socket.socket) -> int:
    """Read a whole answer, and return its status."""
    answer = HTTPResponse(opened)
    answer.begin()
    answer.read()
    return answer.status


def test_a_stop_answers_requests_that_have_arrived_and_were_not_read(tmp_path: Path) -> None:
    """A proxy gets a reset otherwise, and cannot know whether its request was done."""
    with service("--store", str(tmp_path / "log.db")) as running, ExitStack() as stack:
        host = running.url.removeprefix("http://")
        place = ("127.0.0.1", int(host.rpartition(":")[2]))

        def ask(opened: socket.socket, event: str) -> None:
            body = f'{{"eventId": "{event}", "actions": [{{"id": "a"}}, {{"id": "b"}}]}}'.encode()
            opened.sendall(request_bytes("POST", "/v1/rank", body, host, None))

        kept = stack.enter_context(socket.create_connection(place, PATIENCE))
        ask(kept, "first")
        assert answered(kept) == 201
        running.process.send_signal(signal.SIGSTOP)
        ask(kept, "second")
        new = [stack.enter_context(socket.create_connection(place, PATIENCE)) for _ in range(20)]
        for number, one in enumerate(new):
            ask(one, f"new {number}")
        running.process.terminate()
        running.process.send_signal(signal.SIGCONT)
        for one in (kept, *new):
            assert answered(one) == 201
        assert running.process.wait(PATIENCE) == 0


def test_strangers_are_not_served_without_a_key(tmp_path: Path) -> None:
    with (
        pytest.raises(RuntimeError, match="there is no key; make one"),
        service("--store", str(tmp_path / "log.db"), environment={"COTERIE_HOST": "0.0.0.0"}),
    ):
        pass


def test_what_nobody_waits_for_any_more_is_not_written(tmp_path: Path) -> None:
    """Else a stop would write, or try to, what clients have given up while the store was away."""

    async def live(coordinator: Coordinator) -> None:
        async with coordinator.sequencer._following:  # nothing is written meanwhile
            asked = [asyncio.create_task(coordinator.rank(ask(f"e{k}"))) for k in range(3)]
            for _ in range(20):
                await asyncio.sleep(0)
            asked[1].cancel()
            await asyncio.sleep(0)
        await asyncio.gather(*asked, return_exceptions=True)
        assert list(coordinator.bandit.events) == ["e0", "e2"]

    with_coordinator(settings_of(tmp_path / "log.db"), live)


def test_a_stop_says_first_that_it_is_not_ready_and_answers_until_the_balancer_has_noticed(
    tmp_path: Path,
) -> None:
    """A balancer sends requests until its next look; whoever closes before it has looked fails them."""
    question = {"actions": [{"id": "a"}, {"id": "b"}]}
    with (
        service("--store", str(tmp_path / "log.db")) as running,
        httpx.Client(base_url=running.url) as client,
    ):
        assert client.get("/readyz").status_code == 200  # the second time since it was ready
        running.process.terminate()
        while (said := httpx.get(f"{running.url}/readyz", timeout=PATIENCE)).status_code == 200:
            pass
        # HAProxy lets requests that it has sent end, and sends no others: disable-on-404 in deploy/haproxy.cfg.
        assert (said.status_code, said.json()["status"]) == (404, "stopping")
        # Also on a new connection; a connection that is kept open is closed with its answer.
        for asked in (
            client.post("/v1/rank", json=question),
            httpx.post(f"{running.url}/v1/rank", json=question),
        ):
            assert (asked.status_code, asked.headers["connection"]) == (201, "close")
        assert running.process.wait(PATIENCE) == 0


def test_a_stop_does_not_wait_where_nobody_balances(tmp_path: Path) -> None:
    async def go() -> None:
        connections = Connections(Settings(), Mock(coordinator=Mock(refusing=None)))
        connections.came("/readyz")
        connections.came("/v1/rank")
        await connections.drain()
        assert not connections.draining

    asyncio.run(go())


def test_a_stop_waits_until_the_balancer_has_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests may be late on a busy machine; that none has come says nothing before."""
    monkeypatch.setattr(connections_module, "QUIET", 0.0)
    monkeypatch.setattr(connections_module, "DRAIN", PATIENCE)

    async def go() -> None:
        connections = Connections(Settings(), Mock(coordinator=Mock(refusing=None)))
        for _ in range(2):
            connections.came("/readyz")
        draining = asyncio.create_task(connections.drain())
        await asyncio.wait([draining], timeout=0.2)
        assert connections.draining
        assert not draining.done()
        connections.came("/readyz")
        await draining

    asyncio.run(go())
