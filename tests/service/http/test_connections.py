"""Connections have a number and requests a time to arrive in; both are told, counted and logged."""

import asyncio
import logging
import resource
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import generate_latest

from coterie.service.http.connections import OTHER_FILES, Connections, make_room_for
from tests.service.http.wires import HEALTH, answer, ask, running

JSON = b"content-type: application/json\r\n"


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
        async with running(tmp_path, headers_within=0.05, body_within=0.05) as (connect, connections):
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
        async with running(tmp_path, headers_within=0.02, body_within=0.02) as (connect, connections):
            coordinator = connections.metrics.coordinator
            wire = await connect()
            async with coordinator.sequencer.turns:  # nothing is decided meanwhile
                body = b'{"user": "ann", "actions": [{"id": "a"}]}'
                head = b"POST /v1/rank HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
                wire[1].write(head + b"content-length: %d\r\n\r\n" % len(body) + body)
                while not coordinator.sequencer.turns.waiting:
                    await asyncio.sleep(0.001)
                await asyncio.sleep(0.2)  # much longer than either limit
            assert (await answer(wire)).startswith(b"HTTP/1.1 201")
            wire[1].close()

    asyncio.run(go())


def test_one_connection_too_many_is_told_logged_and_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def go() -> None:
        async with running(tmp_path, max_connections=3) as (connect, connections):
            wires = [await connect() for _ in range(3)]
            for wire in wires:
                assert (await ask(wire)).startswith(b"HTTP/1.1 200")
            assert number(connections, "coterie_connections ") == 3
            for _ in range(2):
                more = await connect()
                told = await more[0].read()
                assert told.startswith(b"HTTP/1.1 503")
                assert b"too_many_connections" in told
                more[1].close()
            assert number(connections, "coterie_connections_refused_total") == 2
            assert (await ask(wires[0])).startswith(b"HTTP/1.1 200")  # those that are there go on
            wires[1][1].close()
            while connections.open == 3:
                await asyncio.sleep(0.001)
            again = await connect()
            assert (await ask(again)).startswith(b"HTTP/1.1 200")
            for wire in (*wires, again):
                wire[1].close()

    with caplog.at_level(logging.WARNING, "coterie.service"):
        logging.getLogger("coterie.service").propagate = True
        asyncio.run(go())
    said = [record.message for record in caplog.records]
    assert said == [
        "3 connections are open (max-connections); new ones are answered 503",
        "2 connections are open, new ones are accepted again",
    ]


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
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda _, pair: limits.append(pair))
    assert make_room_for(50) == 50
    assert limits == [(128, 256)]
    assert make_room_for(100) == 100
    assert limits[-1] == (100 + OTHER_FILES, 256)
    assert make_room_for(1000) == 256 - OTHER_FILES
    assert limits[-1] == (256, 256)
