"""The outermost layer: keys, sizes, rates, headers, metrics and one log line. Plain ASGI, for speed."""

import ipaddress
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import msgspec

from coterie.service import personalizer_errors
from coterie.service.ids import in_order
from coterie.service.keys import Keyring
from coterie.service.limits import Rate
from coterie.service.metrics import Metrics
from coterie.service.problems import Problem, body_of, problem_of
from coterie.service.settings import Settings
from coterie.service.telemetry import Spans

if TYPE_CHECKING:
    from litestar.types import ASGIApp, Message, Receive, Send

OPEN = frozenset({"/healthz", "/readyz"})
HEADERS = [
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-frame-options", b"DENY"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
]
POLICY = (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'")

log = logging.getLogger("coterie.service")


ANSWER = [(b"content-type", b"application/json"), *HEADERS, POLICY]

Direct = Callable[[bytes, Any], Awaitable[bytes]]


class Guard:
    """Lets in what may come in.

    `direct` names the calls, as method and path, that are answered here, by a function from body and scope to
    the body of a 201: the same function that the application's route calls, without the way there.
    """

    def __init__(
        self,
        app: "ASGIApp",
        settings: Settings,
        keyring: Keyring,
        metrics: Metrics,
        direct: Mapping[tuple[str, str], Direct] | None = None,
        spans: Spans | None = None,
    ) -> None:
        self.app = app
        self.settings = settings
        self.keyring = keyring
        self.metrics = metrics
        self.rate = Rate(settings.rate)
        self.public = set(OPEN)  # paths that need no key: the page's own files may be added
        self.direct = dict(direct or {})
        self.spans = spans

    async def __call__(self, scope: Any, receive: "Receive", send: "Send") -> None:
        """Check a request, pass it on, and watch the answer."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        scope["path"] = in_order(scope)
        start = time.perf_counter()
        began = time.time_ns() if self.spans is not None else 0
        status = 0  # until an answer begins
        body_read = 0
        most = self.settings.max_body

        async def counted() -> Any:
            nonlocal body_read
            message = await receive()
            if message["type"] == "http.request":
                body_read += len(message.get("body", b""))
                if body_read > most:
                    raise _too_large(most)
            return message

        async def watched(message: "Message") -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = list(message.get("headers", []))
                own = {name.lower() for name, _ in headers}
                headers += [pair for pair in (*HEADERS, POLICY) if pair[0] not in own]
                message["headers"] = headers
            await send(message)

        try:
            self._check(scope)
            direct = self.direct.get((scope["method"], scope["path"]))
            if direct is None:
                await self.app(scope, counted, watched)
            else:
                content = await direct(await read_body(counted), scope)
                status = 201
                length = (b"content-length", b"%d" % len(content))
                await send({"type": "http.response.start", "status": 201, "headers": [*ANSWER, length]})
                await send({"type": "http.response.body", "body": content, "more_body": False})
        except Exception as error:
            if status:  # too late to say so
                raise
            await answer(error, watched, scope["path"])
        finally:
            seconds = time.perf_counter() - start
            route = route_of(scope["path"])
            status = status or 500
            self.metrics.answered(route, status, seconds)
            if self.spans is not None:
                self.spans.answered(scope, route, status, began, event_of(scope))
            if self.settings.access_log:
                log.info(
                    "request",
                    extra={
                        "fields": {
                            "method": scope["method"],
                            "route": route,
                            "status": status,
                            "ms": round(seconds * 1000, 3),
                            "event": event_of(scope),
                        }
                    },
                )

    def _check(self, scope: Any) -> None:
        headers = {name: value for name, value in scope["headers"] if name in WANTED}
        length = headers.get(b"content-length", b"0")
        if length.isdigit() and int(length) > self.settings.max_body:
            raise _too_large(self.settings.max_body)
        client = scope.get("client")
        who = client[0] if client else ""
        if self.keyring:
            if scope["path"] not in self.public:
                who = self._who(headers, needed(scope["method"], scope["path"]))
        elif not _local(headers.get(b"host", b"")):
            # A page of another site that had its name point here is still another site.
            raise Problem(403, "wrong_host", "without a key this service answers only to loopback names")
        self.rate.check(who)

    def _who(self, headers: dict[bytes, bytes], scope: str) -> str:
        given = headers.get(b"ocp-apim-subscription-key") or headers.get(b"x-api-key")
        if given is None:
            kind, _, rest = headers.get(b"authorization", b"").partition(b" ")
            given = rest.strip() if kind.lower() == b"bearer" else None
        row = self.keyring.find(given.decode("latin-1")) if given else None
        if row is None:
            raise Problem(401, "no_key", "a key is needed, as `Authorization: Bearer …` or `X-API-Key: …`")
        if scope not in row.scopes:
            raise Problem(403, "wrong_scope", f"this key may {', '.join(row.scopes)}; the call needs {scope}")
        return f"key {row.name}"


WANTED = frozenset({b"content-length", b"host", b"authorization", b"x-api-key", b"ocp-apim-subscription-key"})


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


def needed(method: str, path: str) -> str:
    """Return the scope that a call needs."""
    if method in ("GET", "HEAD", "OPTIONS") or path.endswith("/what-if"):
        return "read"
    decides = path.endswith(("/rank", "/reward", "/activate"))
    return "decide" if method == "POST" and decides else "admin"


def route_of(path: str) -> str:
    """Return a path without its ids, so that metrics stay few."""
    if path == "/v1/rank":
        return path
    parts = path.split("/")
    for k in range(1, len(parts) - 1):
        if parts[k] in ("events", "users", "items", "evaluations"):
            parts[k + 1] = "{id}"
    return "/".join(parts) if len(parts) < 8 and all(p in KNOWN for p in parts) else "other"


# The words of our own paths; anything else is somebody's guess, and must not become a label.
KNOWN = {
    "", "v1", "rank", "events", "{id}", "reward", "activate", "users", "items", "what-if", "configuration",
    "statistics", "healthz", "readyz", "metrics", "openapi.json", "personalizer", "v1.0", "multislot",
    "configurations", "service", "policy", "applyFromEvaluation", "evaluations", "model", "properties", "logs",
    "status", "decisions", "resemblance", "split", "shards",
}  # fmt: skip


def event_of(scope: Any) -> str | None:
    """Return the event that a request is about: told by its route, or named in its path."""
    if "coterie.event" in scope:
        return str(scope["coterie.event"])
    _, found, rest = scope["path"].partition("/events/")
    return unquote(rest.split("/")[0]) if found else None


@lru_cache(maxsize=256)
def _local(host: bytes) -> bool:
    name = (
        host.decode("latin-1").rsplit(":", 1)[0]
        if not host.startswith(b"[")
        else host[1:].split(b"]")[0].decode("latin-1")
    )
    if name in ("localhost", "testserver.local", ""):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def _too_large(most: int) -> Problem:
    return Problem(413, "body_too_large", f"the body has more than {most} bytes (max-body)")


async def answer(error: Exception, send: "Send", path: str = "") -> None:
    """Send the one error shape, or Personalizer's on its paths."""
    more: list[tuple[bytes, bytes]] = []
    if personalizer_errors.is_compatible(path):
        status, more, body = personalizer_errors.raw(path, error)
    else:
        problem = problem_of(error)
        status = problem.status
        body = msgspec.json.encode(body_of(problem.code, problem.message))
        if problem.retry_after is not None:
            more.append((b"retry-after", str(max(1, round(problem.retry_after))).encode()))
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode()), *more]
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})
