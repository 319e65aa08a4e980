"""Limits below HTTP, before any key: how many connections are open, and how long a request may take to arrive.

A connection that sends its headers or body too slowly, or does not read its answer, is closed. At `max-connections`
a new connection takes the place of one that waits: first one that sent no request with a key, of the address that has
most of these, the oldest first; then an idle one. So a client with many silent connections closes its own.
If all connections are at work, a few more are accepted for probes; everything else is answered 503 and closed. All of
it is counted, and reaching the limit is logged. Endless headers are ended before they fill the memory: the guard
checks `max-headers` only when the headers are complete.
"""

import asyncio
import ipaddress
import math
import resource
import select
import socket
import time
from collections import deque
from collections.abc import Iterable
from functools import lru_cache, partial
from typing import Any, Literal, cast

import uvicorn
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from coterie.service.http.access import CONNECTION
from coterie.service.http.error_answers import closing_answer
from coterie.service.http.metrics import Metrics
from coterie.service.listening import BACKLOG
from coterie.service.logs import log
from coterie.service.settings import Settings

OTHER_FILES = 64  # descriptors for the store, the log and libraries
RESERVE = 16  # connections beyond max-connections, for one probe each
RESERVE_WITHIN = 1.0  # seconds for the headers of a probe there
TURNS = 1000  # of the event loop, in which connections are accepted that came before a stop
READ = 10  # turns in which what they have sent is read
IDLE = 75.0  # seconds that a connection may be idle: longer than proxies keep theirs, so that these close them first
PROBED = (
    15.0  # seconds in which something that balances the load has asked twice whether the service is ready
)
QUIET, DRAIN = (
    1.0,
    5.0,
)  # seconds without a request after which it has noticed a stop, and how long it may take
CHUNK = 262_144  # bytes that one read may return, possibly with the end of the request before

Waiting = Literal["headers", "body", "reading"]  # what the service waits for
Place = Literal["open", "reserve"]


class Connections:
    """What all connections share: the limits, who is there, and who has to go."""

    def __init__(self, settings: Settings, metrics: Metrics) -> None:
        self.settings = settings
        self.metrics = metrics
        self.most = settings.max_connections
        self.open = 0
        self.reserved = 0
        self._told = math.inf  # when a probe was first told that the service is about to stop
        self.draining = False  # whether the service is about to stop, and says so
        self._asked = 0.0  # when a request came last that is no probe
        self._probes: deque[float] = deque([-PROBED] * 2, maxlen=2)  # of a service that was ready
        self.strangers: dict[
            str, dict[Connection, None]
        ] = {}  # without a key yet, by address, the oldest first
        self.known: dict[Connection, None] = {}  # the others, the one that was used longest ago first
        self._full = False
        metrics.connections = lambda: self.open + self.reserved

    def came(self, path: str) -> None:
        """Note that a request came."""
        if path == "/readyz":
            if self.draining:
                self._told = min(self._told, time.monotonic())
            elif self.metrics.coordinator.refusing is None:
                self._probes.append(time.monotonic())
        elif path != "/healthz":
            self._asked = time.monotonic()

    async def drain(self) -> None:
        """Say that the service is not ready, and answer requests until those who ask for that send no more."""
        begun = time.monotonic()
        if self._probes[0] < begun - PROBED:
            return  # nobody does
        self.draining = self.metrics.coordinator.draining = True
        while (now := time.monotonic()) < begun + DRAIN and now < max(self._told, self._asked) + QUIET:
            await asyncio.sleep(0.02)

    def protocol(self) -> type[asyncio.Protocol]:
        """Return a factory of protocols; uvicorn calls it like a class."""
        return cast(type[asyncio.Protocol], partial(Connection, self))

    def enter(self, connection: "Connection", address: str) -> Place | None:
        """Return the place of a new connection, or None if it is refused."""
        mine = self.strangers.get(address, {})
        if len(mine) >= self.settings.max_per_address and not _close_one(mine):
            self.metrics.refused.inc()
            return None
        if self.open >= self.most and not self._make_room():
            if self.reserved >= RESERVE:
                self.refuse()
                return None
            self.reserved += 1
            return "reserve"
        self.open += 1
        self.strangers.setdefault(address, {})[connection] = None
        return "open"

    def _make_room(self) -> bool:
        """Close a connection that waits, and return whether there was one."""
        groups = sorted(self.strangers.values(), key=len, reverse=True)
        if not any(_close_one(group) for group in [*groups, self.known]):
            return False
        self._say("those that wait are closed for new ones")
        return True

    def trust(self, connection: "Connection", address: str) -> None:
        """Note that a connection sent a request with a key, or one that needed none."""
        self._forget(connection, address)
        self.known[connection] = None  # at the end: used just now

    def refuse(self) -> None:
        """Count a refused connection; only the first in a row is logged."""
        self.metrics.refused.inc()
        self._say("new ones are answered 503")

    def _say(self, what: str) -> None:
        if not self._full:
            self._full = True
            log.warning(f"{self.open} connections are open (max-connections); {what}")

    def leave(self, connection: "Connection", address: str, place: Place) -> None:
        """Count a connection that ended."""
        if place == "reserve":
            self.reserved -= 1
            return
        self.open -= 1
        self._forget(connection, address)
        if self._full and self.open < self.most * 0.9:
            self._full = False
            log.warning(f"{self.open} connections are open, new ones are accepted again")

    def _forget(self, connection: "Connection", address: str) -> None:
        self.known.pop(connection, None)
        mine = self.strangers.get(address)
        if mine is not None:
            mine.pop(connection, None)
            if not mine:
                del self.strangers[address]


def _close_one(group: Iterable["Connection"]) -> bool:
    """Close the first connection that can go, and return whether there was one."""
    found = next((one for one in group if one.can_go()), None)
    if found is not None:
        found.make_room()
    return found is not None


@lru_cache(maxsize=1024)
def one_client(host: str) -> str:
    """Return what connections of one client have in common: an IPv4 address, or the first half of an IPv6 address.

    >>> one_client("2001:db8:1:2:3:4:5:6"), one_client("::ffff:192.0.2.7"), one_client("192.0.2.7")
    ('2001:db8:1:2::', '192.0.2.7', '192.0.2.7')
    """
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv4Address):
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.IPv6Address(int(address) >> 64 << 64))


class Connection(HttpToolsProtocol):
    """One connection, with a timer while a request arrives or an answer is not read."""

    def __init__(self, connections: Connections, **more: Any) -> None:
        super().__init__(**more)
        self._shared = connections
        self._address = ""
        self._place: Place | None = None  # None before it is accepted, and once it has gone
        self._trusted = False
        self._waiting: Waiting | None = None
        self._timed: Waiting | None = None  # what the timer is for
        self._timer: asyncio.TimerHandle | None = None
        self._headers: int | None = None  # bytes of headers that have begun and not ended

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accept a connection, or refuse it if there are too many."""
        peer = transport.get_extra_info("peername")
        self._address = one_client(peer[0]) if isinstance(peer, tuple) else ""
        self._place = self._shared.enter(self, self._address)
        if self._place is None:
            refusal = closing_answer(503, "too_many_connections", "too many connections; try again later")
            transport.write(refusal)
            transport.close()
            self.transport = transport
            return
        super().connection_made(transport)
        self._waiting = "headers"
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timer, and count the connection as closed."""
        self._waiting = None
        self._watch()
        self._leave()
        if self.flow is not None:  # it was accepted
            super().connection_lost(exc)

    def _leave(self) -> None:
        if self._place is not None:
            self._shared.leave(self, self._address, self._place)
            self._place = None

    # What the guard asks and says.

    @property
    def for_probes(self) -> bool:
        """Whether it was accepted beyond max-connections, for a probe."""
        return self._place == "reserve"

    def refuse(self) -> None:
        """Count it as refused."""
        self._shared.refuse()

    def trust(self) -> None:
        """Note that a request of it may be answered: with a key, or where none is needed."""
        if self._place == "open":
            self._trusted = True
            self._shared.trust(self, self._address)

    # Making room.

    def can_go(self) -> bool:
        """Return whether it can be closed without breaking off an answer or, once it is trusted, a request."""
        answering = self.cycle is not None and not self.cycle.response_complete
        if self._trusted:
            return not answering and self._waiting is None
        return not answering or self._waiting in ("body", "reading")

    def make_room(self) -> None:
        """Close it, and count it as closed at once."""
        self._shared.metrics.cut_off.labels("room").inc()
        self._leave()
        self._cut_off(
            503, "too_many_connections", "too many connections, and this one waited; try again later"
        )

    def _cut_off(self, status: int, code: str, message: str) -> None:
        """Close it, with an answer if it waits for the rest of a request."""
        waiting, started = self._waiting, self.cycle is not None and self.cycle.response_started
        if waiting == "headers" or (waiting == "body" and not started):
            self.transport.write(closing_answer(status, code, message))
            self.transport.close()
        elif waiting is None:
            self.transport.close()
        else:
            self.transport.abort()

    def data_received(self, data: bytes) -> None:
        if self._place is None:
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
        self.scope[CONNECTION] = self  # type: ignore[literal-required]
        self._waiting, self._headers = "headers", 0

    def on_headers_complete(self) -> None:
        self._headers = None
        super().on_headers_complete()
        self._shared.came(self.scope["path"])
        if self._place == "reserve" or self._shared.draining:
            self.cycle.keep_alive = False
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
            if self._place == "reserve":
                seconds = min(seconds, RESERVE_WITHIN)
            self._timer = self.loop.call_later(seconds, self._give_up, what)

    def _give_up(self, what: Waiting) -> None:
        self._timer = self._timed = None
        answering = self.cycle is not None and not self.cycle.response_complete
        if what == "headers" and answering:  # the answer to the request before is still being made
            self._watch()
            return
        self._shared.metrics.cut_off.labels(what).inc()
        self._waiting = what
        self._cut_off(408, "too_slow", f"the {what} did not arrive in time")


def write_whole(send: Any, status: int, headers: bytes, body: bytes) -> bool:
    """Write an answer to a connection in one piece, which is a system call less; returns False if it must be sent.

    `headers` are lines that need no check. uvicorn's own way is left to requests that need more.
    """
    cycle = getattr(
        send, "__self__", None
    )  # unless something stands between, such as what a page's origin needs
    if not isinstance(cycle, RequestResponseCycle) or not cycle.keep_alive or cycle.access_log:
        return False
    if cycle.disconnected or cycle.response_started or cycle.flow.write_paused or cycle.default_headers:
        return False
    length = b"content-length: %d\r\n\r\n" % len(body)
    cycle.transport.write(b"".join((STATUS_LINE[status], headers, length, body)))
    cycle.response_started = cycle.response_complete = True
    cycle.waiting_for_100_continue = False
    cycle.message_event.set()
    cycle.on_response()
    return True


class Server(uvicorn.Server):
    """uvicorn's server, which at its stop also answers what has arrived and was not read yet."""

    def __init__(self, config: uvicorn.Config, connections: Connections) -> None:
        super().__init__(config)
        self._connections = connections

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept the connections that wait for it, take no more, and read what all have sent; then end."""
        await self._connections.drain()
        waiting = select.poll()
        for one in sockets or []:
            waiting.register(one, select.POLLIN)
        for _ in range(TURNS):
            if not waiting.poll(0):
                break
            await asyncio.sleep(0)
        for server in self.servers:
            server.close()
        for one in sockets or []:
            one.close()
        for _ in range(READ):
            await asyncio.sleep(0)
        await super().shutdown(sockets)


def make_room_for(connections: int) -> int:
    """Raise the limit of open files for this many connections, and return how many are possible."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    others = RESERVE + OTHER_FILES
    wanted = connections + others
    if (
        soft != resource.RLIM_INFINITY and soft < wanted + BACKLOG
    ):  # as many may be accepted before one is closed
        soft = wanted + BACKLOG if hard == resource.RLIM_INFINITY else min(wanted + BACKLOG, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        if soft < wanted:
            possible = max(1, soft - others)
            log.warning(
                f"max-connections is {connections}, but this process may open {soft} files: at most {possible} "
                "connections are accepted; raise the limit (ulimit -n)"
            )
            return possible
    return connections
