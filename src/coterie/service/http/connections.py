"""Limits below HTTP, before any key: how many connections are open, and how long a request may take to arrive.

A connection that sends its headers or body too slowly, or does not read its answer, is closed. A connection beyond
`max-connections` is answered 503 and closed. Both are counted, and reaching the limit is logged. Endless headers are
ended before they fill the memory: the guard checks `max-headers` only when the headers are complete.
"""

import asyncio
import resource
from functools import partial
from typing import Any, Literal, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from coterie.service.http.error_answers import closing_answer
from coterie.service.http.metrics import Metrics
from coterie.service.logs import log
from coterie.service.settings import Settings

OTHER_FILES = 64  # descriptors for the store, the log and libraries
CHUNK = 262_144  # bytes that one read may return, possibly with the end of the request before

Waiting = Literal["headers", "body", "reading"]  # what the service waits for


class Connections:
    """What all connections share: the limits, and how many are open."""

    def __init__(self, settings: Settings, metrics: Metrics) -> None:
        self.settings = settings
        self.metrics = metrics
        self.most = settings.max_connections
        self.open = 0
        self._full = False
        metrics.connections = lambda: self.open

    def protocol(self) -> type[asyncio.Protocol]:
        """Return a factory of protocols; uvicorn calls it like a class."""
        return cast(type[asyncio.Protocol], partial(Connection, self))

    def refuse(self) -> None:
        """Count a refused connection; only the first in a row is logged."""
        self.metrics.refused.inc()
        if not self._full:
            self._full = True
            log.warning(f"{self.open} connections are open (max-connections); new ones are answered 503")

    def left(self) -> None:
        """Count a connection that ended."""
        self.open -= 1
        if self._full and self.open < self.most * 0.9:
            self._full = False
            log.warning(f"{self.open} connections are open, new ones are accepted again")


class Connection(HttpToolsProtocol):
    """One connection, with a timer while a request arrives or an answer is not read."""

    def __init__(self, connections: Connections, **more: Any) -> None:
        super().__init__(**more)
        self._shared = connections
        self._counted = False
        self._waiting: Waiting | None = None
        self._timed: Waiting | None = None  # what the timer is for
        self._timer: asyncio.TimerHandle | None = None
        self._headers: int | None = None  # bytes of headers that have begun and not ended

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accept a connection, or refuse it if there are too many."""
        if self._shared.open >= self._shared.most:
            self._shared.refuse()
            refusal = closing_answer(503, "too_many_connections", "too many connections; try again later")
            transport.write(refusal)
            transport.close()
            self.transport = transport
            return
        self._counted = True
        self._shared.open += 1
        super().connection_made(transport)
        self._waiting = "headers"
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timer, and count the connection as closed."""
        self._waiting = None
        self._watch()
        if self._counted:
            self._counted = False
            self._shared.left()
            super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if not self._counted:
            return
        super().data_received(data)
        if self._headers is not None:
            self._headers += len(data)
            most = self._shared.settings.max_headers
            if self._headers > most + CHUNK and not self.transport.is_closing():
                message = f"the address and the headers have more than {most} bytes (max-headers)"
                self.transport.write(closing_answer(431, "headers_too_large", message, retry=False))
                self.transport.close()
        self._watch()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._waiting, self._headers = "headers", 0

    def on_headers_complete(self) -> None:
        self._headers = None
        super().on_headers_complete()
        # If it waits behind another request, it is the service that does not read on.
        self._waiting = None if self.pipeline else "body"

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._waiting = None

    def on_response_complete(self) -> None:
        """Continue with a request that waited behind another one."""
        super().on_response_complete()
        if not self.pipeline and not self.cycle.response_complete and self.cycle.more_body:
            self._waiting = "body"
            self._watch()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._waiting = "reading"
        self._watch()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._waiting == "reading":
            self._waiting = None
            self._watch()

    def timeout_keep_alive_handler(self) -> None:
        """Close an idle connection, at once if its last answer was not read."""
        super().timeout_keep_alive_handler()
        if self.transport.get_write_buffer_size():
            self.transport.abort()

    def _watch(self) -> None:
        """Set the timer for what the service waits for now. A request that arrived whole needs none."""
        what = self._waiting
        if what == self._timed:
            return
        self._timed = what
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if what is not None:
            settings = self._shared.settings
            seconds = settings.headers_within if what == "headers" else settings.body_within
            self._timer = self.loop.call_later(seconds, self._give_up, what)

    def _give_up(self, what: Waiting) -> None:
        self._timer = self._timed = None
        answering = self.cycle is not None and not self.cycle.response_complete
        if what == "headers" and answering:  # the answer to the request before is still being made
            self._watch()
            return
        self._shared.metrics.cut_off.labels(what).inc()
        if what == "headers" or (what == "body" and not self.cycle.response_started):
            self.transport.write(closing_answer(408, "too_slow", f"the {what} did not arrive in time"))
            self.transport.close()
        else:
            self.transport.abort()


def make_room_for(connections: int) -> int:
    """Raise the limit of open files for this many connections, and return how many are possible."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + OTHER_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        if soft < wanted:
            possible = max(1, soft - OTHER_FILES)
            log.warning(
                f"max-connections is {connections}, but this process may open {soft} files: at most {possible} "
                "connections are accepted; raise the limit (ulimit -n)"
            )
            return possible
    return connections
