"""A proxy that loses, delays and repeats requests, in a thread of its own."""

import asyncio
import threading
from collections import deque
from typing import Any
from urllib.parse import urlsplit

# What happens to a request: it passes; it is lost on its way there, or its answer on the way back, or in the middle
# of it; it is held until the client gives up, before or after the service got it, or its answer comes byte by byte
# and never ends; it arrives twice; another server says that it is busy, or answers no JSON, or JSON of its own.
FAULTS = (
    "pass", "lost", "answer lost", "cut", "held", "answer held", "trickle", "twice", "busy", "garbage", "foreign",
)  # fmt: skip


class Proxy:
    """Forwards requests to a service; each request has the next of `faults`, or passes."""

    def __init__(self, url: str) -> None:
        self.host, self.port = urlsplit(url).hostname, urlsplit(url).port
        self.faults: deque[str] = deque()
        self.always: str | None = None  # the fault of every request
        self.seen: list[tuple[str, bytes]] = []  # the first line and the body of each request
        self.url = ""
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> "Proxy":
        self._thread.start()
        assert self._ready.wait(60)
        return self

    def __exit__(self, *error: object) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join(60)

    def _run(self) -> None:
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        self._over = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        self._ready.set()
        await self._over.wait()
        server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task: Any = asyncio.current_task()
        self._tasks.add(task)
        try:
            await self._handle(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one request, and close the connection."""
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(
            (int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")), 0
        )
        body = await reader.readexactly(length)
        self.seen.append((head.split(b"\r\n")[0].decode(), body))
        fault = self.always or (self.faults.popleft() if self.faults else "pass")
        if fault == "lost":
            return
        if fault == "held":
            await self._over.wait()
        if fault in ("busy", "garbage", "foreign", "trickle"):
            first = b"503 Service Unavailable" if fault == "busy" else b"200 OK"
            said = b"null" if fault == "foreign" else b"<no>"
            length = 10**6 if fault == "trickle" else 4
            writer.write(
                b"HTTP/1.1 %b\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%b" % (first, length, said)
            )
            await writer.drain()
            while fault == "trickle":
                writer.write(b" ")
                await writer.drain()
                await asyncio.sleep(0.02)
            return
        answer = b""
        for _ in range(2 if fault == "twice" else 1):
            answer = await self._forward(head, body)
        if fault == "answer held":
            await self._over.wait()
        if fault != "answer lost":
            writer.write(answer[: len(answer) // 2] if fault == "cut" else answer)
            await writer.drain()

    async def _forward(self, head: bytes, body: bytes) -> bytes:
        reader, writer = await asyncio.open_connection(self.host, self.port)
        lines = [
            line for line in head.split(b"\r\n") if not line.lower().startswith((b"connection:", b"host:"))
        ]
        lines = [line for line in lines if line]
        host = b"host: %b:%d" % (str(self.host).encode(), self.port or 80)
        writer.write(b"\r\n".join([*lines, host, b"connection: close", b"", b""]) + body)
        await writer.drain()
        answer = await reader.read()
        writer.close()
        return answer
