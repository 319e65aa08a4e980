"""Connections to a service in this process, byte by byte."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import uvicorn

from coterie.service.http.connections import Connections
from coterie.service.listening import listen
from coterie.service.log.sqlite_store import SqliteStore
from coterie.service.log.store import Store
from coterie.service.serve import make_app
from coterie.service.settings import Settings

HEALTH = b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n"
Wire = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@asynccontextmanager
async def running(
    path: Path, store: Store | None = None, listen_first: bool = False, **more: Any
) -> AsyncIterator[tuple[Callable[..., Awaitable[Wire]], Connections]]:
    """Serve in this process, and yield what connects to it, from another address of this machine if one is named."""
    settings = Settings(store=str(path / "log.db"), **more)
    app: Any = make_app(settings, store or SqliteStore(settings.store), listen_first=listen_first)
    connections = Connections(settings, app.metrics)
    config = uvicorn.Config(
        app,
        http=connections.protocol(),
        log_config=None,
        ws="none",
        lifespan="on",
    )
    server = uvicorn.Server(config)
    sockets = listen("127.0.0.1", 0)
    port = sockets[0].getsockname()[1]
    task = asyncio.create_task(server.serve(sockets))
    while not server.started:
        assert not task.done(), task.result()
        await asyncio.sleep(0.01)

    def connect(source: str = "127.0.0.1") -> Awaitable[Wire]:
        return asyncio.open_connection("127.0.0.1", port, local_addr=(source, 0))

    try:
        yield connect, connections
    finally:
        server.should_exit = True
        await task


async def answer(wire: Wire) -> bytes:
    """Return one answer with its body."""
    head = await wire[0].readuntil(b"\r\n\r\n")
    length = next(
        int(line[16:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")
    )
    return head + await wire[0].readexactly(length)


async def ask(wire: Wire, request: bytes = HEALTH) -> bytes:
    wire[1].write(request)
    return await answer(wire)
