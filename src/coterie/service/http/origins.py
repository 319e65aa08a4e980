"""Pages of other sites that may call with a key: those of the setting `origins`, by CORS. None by default.

A browser asks before such a call (a preflight), and shows an answer to the page only if its headers allow it.
"""

import re
from collections.abc import Sequence
from typing import Any

from litestar.types import ASGIApp, Receive, Send

from coterie.errors import ParameterError
from coterie.service.http.access import PAGE_OF, TRUSTED

Pairs = list[tuple[bytes, bytes]]

_ORIGIN = re.compile(r"https?://[a-z0-9.-]+(:[0-9]{1,5})?|https?://\[[0-9a-f:.]+\](:[0-9]{1,5})?")
_NAMES = re.compile(rb"[A-Za-z0-9!#$%&'*+.^_`|~, -]{0,4096}")
# What a page may read of an answer, besides its body.
READABLE = (
    b"location, retry-after, x-coterie-activation, x-coterie-decisions, x-coterie-policy, x-coterie-reward"
)
READABLE += b", x-ms-error-code"


def read_origins(given: Sequence[str]) -> frozenset[bytes]:
    """Return the origins of the settings; raises ParameterError if one is not an origin."""
    for origin in given:
        if not _ORIGIN.fullmatch(origin.lower()):
            expected = "expected scheme, host and port, such as 'https://shop.example', without a path"
            raise ParameterError(f"origins has {origin!r}, {expected}")
    return frozenset(origin.lower().encode() for origin in given)


def for_pages(app: ASGIApp, given: Sequence[str]) -> ASGIApp:
    """Return the application, which also answers pages of these origins."""
    origins = read_origins(given)
    if not origins:
        return app

    async def answer(scope: Any, receive: Receive, send: Send) -> None:
        origin = _origin(scope)
        if origin.lower() not in origins:
            await app(scope, receive, send)
            return
        scope[PAGE_OF] = origin
        readable = [(b"access-control-allow-origin", origin), (b"vary", b"origin")]
        asked = _preflight(scope)
        if asked is not None:
            await send({"type": "http.response.start", "status": 204, "headers": [*readable, *asked]})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
            return
        readable.append((b"access-control-expose-headers", READABLE))

        async def shown(message: Any) -> None:
            # Without a key a page sees nothing but that it needs one.
            if message["type"] == "http.response.start" and (scope.get(TRUSTED) or message["status"] == 401):
                message["headers"] = [*message.get("headers", ()), *readable]
            await send(message)

        await app(scope, receive, shown)

    return answer


def _origin(scope: Any) -> bytes:
    """Return the origin of the page that sent a request; empty if none is named, or several are.

    Some proxies drop `Origin`; then `Referer` has the page's address. A page can set neither of them.
    """
    found = {b"origin": b"", b"referer": b""}
    for name, value in scope.get("headers", ()):
        if name in found:
            found[name] = value if not found[name] else b"several"
    return found[b"origin"] or b"/".join(found[b"referer"].split(b"/", 3)[:3])


def _preflight(scope: Any) -> Pairs | None:
    """Return the headers that answer a preflight; None for any other request."""
    asked = dict(scope["headers"])
    if scope["method"] != "OPTIONS" or b"access-control-request-method" not in asked:
        return None
    names = asked.get(b"access-control-request-headers", b"")
    return [
        (b"access-control-allow-methods", b"DELETE, GET, HEAD, POST, PUT"),
        (b"access-control-allow-headers", names if _NAMES.fullmatch(names) else b""),
        (b"access-control-max-age", b"600"),
    ]
