"""Wait for a database that does not answer at the start: probes are answered, other requests get a 503."""

import asyncio
import socket
import ssl
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from typing import TypeVar

import msgspec

from coterie.service.logs import log
from coterie.service.problems import body_of
from coterie.service.repeating import SAY_EVERY
from coterie.service.store_errors import PassingError

T = TypeVar("T")
EVERY = 1.0  # seconds between two tries
WITHIN = 5.0  # seconds in which a request must have come
MOST = 1 << 24  # bytes of a request that are read


def opened(open_: Callable[[], T], sockets: Sequence[socket.socket], tls: ssl.SSLContext | None = None) -> T:
    """Return what `open_` returns; while it raises PassingError, answer on the sockets, and try again, for ever."""
    try:
        return open_()
    except PassingError as error:
        return asyncio.run(_wait(open_, sockets, tls, error))


async def _wait(
    open_: Callable[[], T], sockets: Sequence[socket.socket], tls: ssl.SSLContext | None, error: PassingError
) -> T:
    said, when = "", 0.0
    # Copies, because a server closes its sockets at its end.
    servers = [await asyncio.start_server(_answer, sock=one.dup(), ssl=tls, limit=MOST) for one in sockets]
    try:
        while True:
            if str(error) != said or time.monotonic() > when + SAY_EVERY:
                said, when = str(error), time.monotonic()
                log.warning(f"the start waits for the database, and tries every {EVERY:g} s: {error}")
            await asyncio.sleep(EVERY)
            try:
                return await asyncio.to_thread(open_)
            except PassingError as again:
                error = again
    finally:
        for server in servers:
            server.close()


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    wrong = OSError, ValueError, LookupError, asyncio.IncompleteReadError, asyncio.LimitOverrunError
    with closing(writer), suppress(*wrong):  # TimeoutError is an OSError
        async with asyncio.timeout(WITHIN):
            head = await reader.readuntil(b"\r\n\r\n")
            _, found, length = head.lower().partition(b"\r\ncontent-length:")
            await reader.readexactly(min(MOST, int(length.partition(b"\r\n")[0])) if found else 0)
            writer.write(_told(head.split(b" ", 2)[1].partition(b"?")[0]))
            await writer.drain()


def _told(path: bytes) -> bytes:
    """Return the answer to a request: nobody may take the service for ready, or for one that hangs."""
    why = "the service is starting: it waits for its database; try again"
    status, content = b"503 Service Unavailable", msgspec.json.encode(body_of("starting", why))
    if path == b"/healthz":
        status, content = b"200 OK", b'{"status":"alive"}'
    elif path == b"/readyz":
        content = b'{"status":"starting: the database is away"}'
    return (
        b"HTTP/1.1 %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\nretry-after: 1\r\n"
        b"connection: close\r\n\r\n%b" % (status, len(content), content)
    )
