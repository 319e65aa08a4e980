"""Connections have a number and requests a time to arrive in; both are told, counted and logged."""

import asyncio
import logging
import resource
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import generate_latest

from coterie.service.http.connections import OTHER_FILES, RESERVE, Connections, make_room_for
from tests.service.http.wires import HEALTH, answer, ask, running

JSON = b"content-type: application/json\r\n"
HALF = 0.5  # seconds for a request to arrive: a busy machine may write the first byte late


def number(connections: Connections, name: str) -> float:
    text = generate_latest(connections.metrics.registry).decode()
    return float(next(line for line in text.splitlines() if line.startswith(name)).split()[-1])


@pytest.mark.parametrize(
    ("sent", "waiting"),
    [
        (b"", "headers"),
        (b"POST /v1/rank HTTP/1.1\r\nhost: 127.0.0.1\r\nx: ", "headers"),
        (HEALTH + b"GET /heal", "headers"),
        (b"POST /v1/rank HTTP/1.1\r\nhost: 127.0.0.1\r\n" + JSON + b"content-length: 9\r\n\r\n{", "body"),
    ],
    ids=["nothing", "half the headers", "half of a second request", "half a body"],
)
def test_a_half_sent_request_is_told_and_closed(tmp_path: Path, sent: bytes, waiting: str) -> None:
    async def go() -> None:
        async with running(tmp_path, headers_within=HALF, body_within=HALF) as (connect, connections):
            wire = await connect()
            wire[1].write(sent)
            if sent.startswith(HEALTH):
                assert (await answer(wire)).startswith(b"HTTP/1.1 200")
            told = await wire[0].read()  # to the end
            assert told.startswith(b"HTTP/1.1 408"), told
            assert b'"too_slow"' in told
            assert number(connections, f'coterie_connections_cut_off_total{{waiting="{waiting}"}}') == 1
            wire[1].close()

    asyncio.run(go())


def test_a_whole_request_is_not_cut_off_however_long_its_answer_takes(tmp_path: Path) -> None:
    async def go() -> None:
        async with running(tmp_path, headers_within=HALF, body_within=HALF) as (connect, connections):
            coordinator = connections.metrics.coordinator
            wire = await connect()
            async with coordinator.sequencer.turns:  # nothing is decided meanwhile
                body = b'{"user": "ann", "actions": [{"id": "a"}]}'
                head = b"POST /v1/rank HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
                wire[1].write(head + b"content-length: %d\r\n\r\n" % len(body) + body)
                while not coordinator.sequencer.turns.waiting:
                    await asyncio.sleep(0.001)
                await asyncio.sleep(2 * HALF)  # much longer than either limit
            assert (await answer(wire)).startswith(b"HTTP/1.1 201")
            wire[1].close()

    asyncio.run(go())


def test_an_answer_that_is_written_in_one_piece_is_what_uvicorn_writes(tmp_path: Path) -> None:
    """uvicorn's own way is taken by HTTP/1.0, whose connection ends with the answer."""

    async def go() -> None:
        async with running(tmp_path) as (connect, _):
            found = []
            for version in (b"HTTP/1.1", b"HTTP/1.0"):
                wire = await connect()
                told = await ask(wire, rank().replace(b"HTTP/1.1", version))
                head, _, body = told.partition(b"\r\n\r\n")
                assert b"content-length: %d" % len(body) in head
                status, *headers = head.split(b"\r\n")
                assert status == b"HTTP/1.1 201 Created"
                found.append(sorted(line for line in headers if not line.startswith(b"content-length")))
                wire[1].close()
            assert found[1] == sorted([*found[0], b"connection: close"])

    asyncio.run(go())


def rank(key: str | None = None, length: int | None = None) -> bytes:
    """Return a rank, with a key if there is one; a `length` beyond its own makes it a half-sent one."""
    body = b'{"user": "ann", "actions": [{"id": "a"}]}'
    head = b"POST /v1/rank HTTP/1.1\r\nhost: 127.0.0.1\r\n" + JSON
    if key is not None:
        head += b"x-api-key: %s\r\n" % key.encode()
    return head + b"content-length: %d\r\n\r\n" % (length or len(body)) + body


def test_if_all_connections_are_at_work_one_more_is_told_logged_and_counted_and_probes_are_answered(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def go() -> None:
        async with running(tmp_path, max_connections=3) as (connect, connections):
            sequencer = connections.metrics.coordinator.sequencer
            async with sequencer.turns:  # nothing is decided meanwhile
                wires = [await connect() for _ in range(3)]
                for wire in wires:
                    wire[1].write(rank())
                while sequencer.turns.waiting < 3:
                    await asyncio.sleep(0.001)
                for _ in range(2):
                    more = await connect()
                    more[1].write(rank())
                    told = await more[0].read()  # to the end
                    assert told.startswith(b"HTTP/1.1 503")
                    assert b"too_many_connections" in told
                    more[1].close()
                assert number(connections, "coterie_connections_refused_total") == 2
                for _ in range(2 * RESERVE):  # one after the other
                    probe = await connect()
                    probe[1].write(HEALTH)
                    told = await probe[0].read()
                    assert told.startswith(b"HTTP/1.1 200")
                    assert b"connection: close" in told
                    probe[1].close()
                assert number(connections, "coterie_connections ") == 3
            for wire in wires:  # those that were there go on
                assert (await answer(wire)).startswith(b"HTTP/1.1 201")
                wire[1].close()
            while connections.open:
                await asyncio.sleep(0.001)
            again = await connect()
            assert (await ask(again)).startswith(b"HTTP/1.1 200")
            again[1].close()

    with caplog.at_level(logging.WARNING, "coterie.service"):
        logging.getLogger("coterie.service").propagate = True
        asyncio.run(go())
    said = [record.message for record in caplog.records]
    assert said == [
        "3 connections are open (max-connections); new ones are answered 503",
        "2 connections are open, new ones are accepted again",
    ]


KEY = "a-key-of-more-than-22-characters"
HALVES = {
    "nothing": b"",
    "half the headers": b"POST /v1/rank HTTP/1.1\r\nhost: 127.0.0.1\r\nx: ",
    "half a body": rank(length=9999),
    "half a body with a wrong key": rank("wrong", 9999),
}


@pytest.mark.parametrize("sent", HALVES.values(), ids=HALVES.keys())
@pytest.mark.parametrize("key", [None, KEY], ids=["without keys", "with a key"])
def test_many_silent_connections_of_one_address_lock_nobody_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str | None, sent: bytes
) -> None:
    """The timers are off: room is made by closing who waits, of the address that has most connections."""
    if key is not None:
        monkeypatch.setenv("COTERIE_KEY", key)
    slow: dict[str, Any] = {"headers_within": 9999.0, "body_within": 9999.0}

    async def go() -> None:
        async with running(tmp_path, max_connections=50, max_per_address=40, **slow) as (
            connect,
            connections,
        ):
            before = await connect("127.0.0.2")
            assert (await ask(before, rank(key))).startswith(b"HTTP/1.1 201")
            silent = []
            for _ in range(120):
                silent.append(await connect("127.0.0.3"))
                silent[-1][1].write(sent)
            for _ in range(20):  # and a few from a second one
                silent.append(await connect("127.0.0.4"))
                silent[-1][1].write(sent)
            assert connections.open <= 50
            for source in ("127.0.0.5", "127.0.0.3"):  # also beside those of the same address
                wire = await connect(source)
                assert (await ask(wire)).startswith(b"HTTP/1.1 200")
                assert (await ask(wire, rank(key))).startswith(b"HTTP/1.1 201")
                wire[1].close()
            assert (await ask(before, rank(key))).startswith(b"HTTP/1.1 201")  # it was not closed
            assert max(map(len, connections.strangers.values())) <= 40
            assert number(connections, 'coterie_connections_cut_off_total{waiting="room"}') >= 90
            assert number(connections, "coterie_connections_refused_total") == 0
            told = await silent[0][0].read()
            assert told.startswith((b"HTTP/1.1 503", b"HTTP/1.1 401"))
            for wire in (before, *silent):
                wire[1].close()

    asyncio.run(go())


def test_an_idle_connection_with_a_key_is_closed_only_if_no_other_one_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COTERIE_KEY", KEY)

    async def go() -> None:
        async with running(tmp_path, max_connections=3) as (connect, connections):
            wires = [await connect() for _ in range(3)]
            for wire in wires:
                assert (await ask(wire, rank(KEY))).startswith(b"HTTP/1.1 201")
            assert (await ask(wires[0], rank(KEY))).startswith(b"HTTP/1.1 201")  # used last
            first = await connect()  # takes the place of the one that was used longest ago
            assert await wires[1][0].read() == b""
            second = await connect()  # takes the place of the first, which is silent
            assert (await first[0].read()).startswith(b"HTTP/1.1 503")
            for wire in (wires[0], wires[2], second):
                assert (await ask(wire, rank(KEY))).startswith(b"HTTP/1.1 201")
            assert len(connections.known) == 3
            assert not connections.strangers
            for wire in (*wires, first, second):
                wire[1].close()

    asyncio.run(go())


def test_a_client_that_does_not_read_is_not_waited_for(tmp_path: Path) -> None:
    async def go() -> None:
        async with running(tmp_path, body_within=0.1) as (connect, connections):
            wire = await connect()
            reading: Any = wire[1].transport
            reading.pause_reading()
            ask_for = b"GET /openapi.json HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n"
            while not connections.open:
                await asyncio.sleep(0.001)
            wire[1].write(ask_for * 400)  # more than the buffers of the system hold
            while connections.open:
                await asyncio.sleep(0.01)
            assert number(connections, 'coterie_connections_cut_off_total{waiting="reading"}') == 1
            wire[1].transport.abort()

    asyncio.run(go())


def test_room_is_made_for_connections_as_far_as_the_system_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = [(128, 256)]
    monkeypatch.setattr("coterie.service.http.connections.BACKLOG", 0)
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda _, pair: limits.append(pair))
    assert make_room_for(40) == 40
    assert limits == [(128, 256)]
    assert make_room_for(100) == 100
    assert limits[-1] == (100 + RESERVE + OTHER_FILES, 256)
    assert make_room_for(1000) == 256 - RESERVE - OTHER_FILES
    assert limits[-1] == (256, 256)
