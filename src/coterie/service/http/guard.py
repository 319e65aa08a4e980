"""The outermost layer, in plain ASGI for speed: keys, sizes, rates, headers, metrics and the access log."""

import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any, NamedTuple
from urllib.parse import unquote

from litestar.types import ASGIApp, Message, Receive, Send

from coterie.service.http.access import (
    CONNECTION,
    HEADERS_OF,
    PAGE_OF,
    SCOPES_OF,
    TRUSTED,
    check_access,
    is_loopback,
    wanted,
)
from coterie.service.http.compatible import IN_PATH, is_compatible
from coterie.service.http.connections import write_whole
from coterie.service.http.error_answers import send_error
from coterie.service.http.keys import SCOPES, Keyring
from coterie.service.http.limits import Rate
from coterie.service.http.metrics import Metrics
from coterie.service.http.telemetry import Spans
from coterie.service.ids import encoded_path
from coterie.service.log.store import KeyRow
from coterie.service.logs import log
from coterie.service.problems import Problem
from coterie.service.settings import Settings

PROBES = frozenset({"/healthz", "/readyz"})  # probes do not count against a client's rate
WATCHED = PROBES | {"/metrics"}  # what is answered during the start
HEADERS = [
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-frame-options", b"DENY"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
]
POLICY = (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'")
ANSWER = [(b"content-type", b"application/json"), *HEADERS, POLICY]
LINES = b"".join(b"%b: %b\r\n" % pair for pair in ANSWER)


Pair = tuple[bytes, bytes]


class Direct(NamedTuple):
    """A route that the guard calls itself. `answer` takes the body, the id in the path and the scope.

    It returns a body and more headers; a body of None is for an answer without content.
    """

    opt: Mapping[str, Any]
    status: int
    answer: Callable[[bytes, str, Any], Awaitable[tuple[bytes | None, list[Pair]]]]


class Guard:
    """Checks each request, then passes it to the application.

    `direct` holds routes by method and path, with `{id}` for an event's id: their functions are called here, without
    Litestar, which takes longer than a reward. `public` are the paths that need no key.
    """

    def __init__(
        self,
        app: ASGIApp,
        settings: Settings,
        keyring: Keyring,
        metrics: Metrics,
        public: Collection[str],
        direct: Mapping[tuple[str, str], Direct] | None = None,
        spans: Spans | None = None,
    ) -> None:
        self.app = app
        self.settings = settings
        self.keyring = keyring
        self.metrics = metrics
        self.rate = Rate(settings.rate)
        self.public = frozenset(public)
        self.direct = dict(direct or {})
        self.spans = spans

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        """Check a request, pass it on, and count the answer."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        if scope["method"] == "HEAD":  # what GET answers, without the body
            scope, send = {**scope, "method": "GET"}, without_body(send)
        scope["path"] = encoded_path(scope)
        start = time.perf_counter()
        began = time.time_ns() if self.spans is not None else 0
        watched = Watched(receive, send, self._most(scope))
        try:
            await self._answer(scope, watched)
        except Exception as error:
            if watched.status:  # the answer has begun, too late for an error
                raise
            await send_error(error, watched.send, scope["path"])
        finally:
            self._count(scope, watched.status or 500, time.perf_counter() - start, began)

    async def _answer(self, scope: Any, watched: "Watched") -> None:
        """Check a request, and let its route answer it."""
        self._check(scope, scope.get(CONNECTION))
        if scope["path"] not in WATCHED:
            self.metrics.coordinator.check_open()
        path, event = without_event(scope["path"])
        direct = self.direct.get((scope["method"], path))
        if direct is None:
            await self.app(scope, watched.receive, watched.send)
            return
        check_access(scope, direct.opt)
        content, more = await direct.answer(await read_body(watched.receive), event, scope)
        await watched.answer(direct.status, content, more)

    def _count(self, scope: Any, status: int, seconds: float, began: int) -> None:
        """Count an answer, and log it if that is wanted."""
        route, connection = route_of(scope["path"]), scope.get(CONNECTION)
        self.metrics.answered(route, status, seconds)
        if not self.keyring and connection is not None and status < 400:
            connection.trust()  # no key is needed, and the request was whole
        if self.spans is not None:
            self.spans.answered(scope, route, status, began, event_of(scope))
        if self.settings.access_log:
            told = {"method": scope["method"], "route": route, "status": status}
            told |= {"ms": round(seconds * 1000, 3), "event": event_of(scope)}
            log.info("request", extra={"fields": told})

    def _check(self, scope: Any, connection: Any) -> None:
        if connection is not None and connection.for_probes and scope["path"] not in PROBES:
            connection.refuse()
            raise Problem(503, "too_many_connections", "too many connections; try again later", 1)
        headers, open_to_all = wanted(scope["headers"]), scope["path"] in self.public
        key = self._key(headers) if self.keyring and not open_to_all else None
        client = scope.get("client")
        if scope["path"] not in PROBES:  # the rate is per key, or per address without a known key
            self.rate.check(f"key {key.name}" if key else client[0] if client else "")
        self._check_sizes(scope, headers)
        if not self.keyring:
            if not is_loopback(headers.get(b"host", b"")):
                # Against DNS rebinding: a site whose name resolves to this machine is still another site.
                raise Problem(403, "wrong_host", "without a key this service answers only to loopback names")
        elif key is None and not open_to_all:
            raise _no_key(headers, scope["path"])
        elif key is not None and connection is not None:
            connection.trust()
        scope[HEADERS_OF] = headers
        scope[SCOPES_OF] = key.scopes if key else () if self.keyring else SCOPES
        scope[TRUSTED] = key is not None and PAGE_OF in scope

    def _check_sizes(self, scope: Any, headers: Mapping[bytes, bytes]) -> None:
        size = len(scope.get("raw_path") or b"") + len(scope.get("query_string", b""))
        size += sum([len(name) + len(value) for name, value in scope["headers"]])
        if size > self.settings.max_headers:
            expected = f"expected at most {self.settings.max_headers} (max-headers)"
            raise Problem(
                431, "headers_too_large", f"the address and the headers have {size} bytes, {expected}"
            )
        length = headers.get(b"content-length", b"0")
        most = self._most(scope)
        if length.isdigit() and int(length) > most[0]:
            raise _too_large(*most)

    def _most(self, scope: Any) -> tuple[int, str]:
        """Return how many bytes a body may have, and which setting says so."""
        if scope["method"] == "PUT" and scope["path"].endswith("/model"):
            return self.settings.max_model, "max-model"
        return self.settings.max_body, "max-body"

    def _key(self, headers: Mapping[bytes, bytes]) -> KeyRow | None:
        given = _sent_key(headers)
        return self.keyring.find(given.decode("latin-1")) if given else None


class Watched:
    """The two ends of a request: counts the bytes of its body, and adds our headers to its answer."""

    __slots__ = ("_most", "_read", "_receive", "_send", "status")

    def __init__(self, receive: Receive, send: Send, most: tuple[int, str]) -> None:
        self._receive, self._send, self._most = receive, send, most
        self._read = 0  # bytes
        self.status = 0  # no answer has begun

    async def receive(self) -> Any:
        message = await self._receive()
        if message["type"] == "http.request":
            self._read += len(message.get("body", b""))
            if self._read > self._most[0]:
                raise _too_large(*self._most)
        return message

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = list(message.get("headers", []))
            own = {name.lower() for name, _ in headers}
            headers += [pair for pair in (*HEADERS, POLICY) if pair[0] not in own]
            message["headers"] = headers
        await self._send(message)

    async def answer(self, status: int, content: bytes | None, more: list[Pair]) -> None:
        """Send a whole answer of a direct route."""
        self.status = status
        if content is not None and not more and write_whole(self._send, status, LINES, content):
            return
        if content is None:
            headers = [*more, *HEADERS, POLICY]
        else:
            headers = [*ANSWER, (b"content-length", b"%d" % len(content)), *more]
        await self._send({"type": "http.response.start", "status": status, "headers": headers})
        await self._send({"type": "http.response.body", "body": content or b"", "more_body": False})


def _sent_key(headers: Mapping[bytes, bytes]) -> bytes | None:
    given = headers.get(b"ocp-apim-subscription-key") or headers.get(b"x-api-key")
    if given is None:
        kind, _, rest = headers.get(b"authorization", b"").partition(b" ")
        given = rest.strip() if kind.lower() == b"bearer" else None
    return given


def _no_key(headers: Mapping[bytes, bytes], path: str) -> Problem:
    if _sent_key(headers):
        return Problem(401, "no_key", "the key is not known here; `coterie keys list` names those that are")
    names = "`Authorization: Bearer …` or `X-API-Key: …`"
    sent = "`Ocp-Apim-Subscription-Key: …`" if is_compatible(path) else names
    return Problem(401, "no_key", f"a key is needed, as {sent}")


def without_body(send: Send) -> Send:
    """Return a `send` that leaves the body of an answer out."""

    async def sent(message: Message) -> None:
        if message["type"] == "http.response.body":
            message["body"] = b""
        await send(message)

    return sent


async def read_body(receive: Callable[[], Awaitable[Any]]) -> bytes:
    """Return the whole body of a request."""
    message = await receive()
    parts = [message.get("body", b"")]
    while message.get("more_body", False):
        message = await receive()
        parts.append(message.get("body", b""))
    if message["type"] != "http.request":
        raise Problem(400, "invalid_request", "the connection ended before the body did")
    return parts[0] if len(parts) == 1 else b"".join(parts)


def without_event(path: str) -> tuple[str, str]:
    """Return a path with `{id}` in the place of an event's id, and the id as it is in the path.

    >>> without_event("/v1/events/e%201/reward"), without_event("/v1/rank")
    (('/v1/events/{id}/reward', 'e%201'), ('/v1/rank', ''))
    """
    before, found, after = path.partition("/events/")
    if not found:
        return path, ""
    event, slash, rest = after.partition("/")
    return (f"{before}/events/{{id}}{slash}{rest}", event) if event else (path, "")


def route_of(path: str) -> str:
    """Return a path without its ids, to keep the number of metrics small."""
    if path == "/v1/rank":
        return path
    parts = path.split("/")
    for k in range(1, len(parts) - 1):
        if parts[k] in ("events", "users", "items", "evaluations", "featureImportances"):
            parts[k + 1] = "{id}"
    return "/".join(parts) if len(parts) < 8 and all(p in KNOWN for p in parts) else "other"


# The words of our own paths. Other words are sent by clients, and must not become labels.
KNOWN = {
    "", "v1", "rank", "events", "{id}", "reward", "activate", "users", "items", "what-if", "configuration",
    "statistics", "healthz", "readyz", "metrics", "openapi.json", "personalizer", *IN_PATH, "multislot",
    "configurations", "service", "policy", "applyFromEvaluation", "evaluations", "featureImportances", "apply",
    "model", "properties", "logs", "interactions", "observations",
    "status", "decisions", "resemblance", "split",
}  # fmt: skip


def event_of(scope: Any) -> str | None:
    """Return the event of a request: set by its route, or named in its path."""
    if "coterie.event" in scope:
        return str(scope["coterie.event"])
    _, found, rest = scope["path"].partition("/events/")
    return unquote(rest.split("/")[0]) if found else None


def _too_large(most: int, setting: str) -> Problem:
    return Problem(413, "body_too_large", f"the body has more than {most} bytes ({setting})")
