"""Who may call a route: each route names its scope, and pages of other sites may change nothing unless named.

A route has `opt=DECIDE`, `READ`, `ADMIN` or `OPEN`. The guard finds the key of a request and stores its scopes and
headers in the ASGI scope; `check_access` compares them with the options of the matched route. So no path is parsed
twice, and an id in a path cannot be mistaken for a word of the path.
"""

import ipaddress
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from litestar import Litestar

from coterie.service.http.keys import SCOPES
from coterie.service.problems import Problem

# The content types that a route takes. Pages of other sites cannot declare any of them without being asked first.
JSON, BYTES = ("application/json", "text/json"), ("application/octet-stream",)
DECIDE, READ, ADMIN = ({"scope": scope, "body": JSON} for scope in SCOPES)
FILE = {**ADMIN, "body": BYTES}  # takes a file
OPEN = {"scope": None, "body": JSON}  # needs no key
SCOPES_OF, HEADERS_OF = "coterie.scopes", "coterie.headers"  # where the guard stores them
CONNECTION = "coterie.connection"  # where a connection of `connections.py` stores itself
# The origin of the setting `origins` whose page sent the request, and whether the request also has a key.
PAGE_OF, TRUSTED = "coterie.page", "coterie.trusted"

# The headers that the checks read. One that was sent twice has both values, so it matches no expected value.
WANTED = frozenset(
    b"authorization content-encoding content-length content-type host ocp-apim-subscription-key origin "
    b"sec-fetch-site transfer-encoding x-api-key".split()
)


def wanted(headers: Iterable[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    """Return the headers that the checks read."""
    found: dict[bytes, bytes] = {}
    for name, value in headers:
        if name in WANTED:
            found[name] = value if name not in found else found[name] + b", " + value
    return found


def check_access(scope: Any, opt: Mapping[str, Any]) -> None:
    """Raise if a request may not call a route with these options."""
    needed, may = opt["scope"], scope[SCOPES_OF]
    if needed is not None and needed not in may:
        allowed = ", ".join(may) or "nothing"
        raise Problem(403, "wrong_scope", f"this key may {allowed}; the call needs {needed}")
    if scope["method"] not in ("GET", "HEAD"):
        if not scope.get(TRUSTED):
            check_site(scope[HEADERS_OF])
        check_declared(scope[HEADERS_OF], opt["body"])


def check_site(headers: Mapping[bytes, bytes]) -> None:
    """Raise if a browser says that a page of another site sent the request.

    A page cannot set `Sec-Fetch-Site`, so it can be trusted even if a proxy changes `Host`.
    """
    site = headers.get(b"sec-fetch-site", b"none")
    origin = headers.get(b"origin")
    if site == b"same-origin":
        return
    own = origin is None or origin.partition(b"://")[2].lower() == headers.get(b"host", b"").lower()
    if site != b"none" or not own:
        other = f"a page of another site ({_shown(origin or site)}), which may change nothing here"
        way_out = (
            "call the service from a server or from its own page, or name the origin in the setting origins"
        )
        raise Problem(403, "foreign_origin", f"the request comes from {other}; {way_out}")


def check_declared(headers: Mapping[bytes, bytes], kinds: Sequence[str]) -> None:
    """Raise if a body has another content type: forms of other sites can send only those."""
    if headers.get(b"content-length", b"0") == b"0" and b"transfer-encoding" not in headers:
        return
    given = headers.get(b"content-type", b"")
    if _kind(given) not in kinds:
        message = f"the body is declared as {_shown(given)}, expected Content-Type: {' or '.join(kinds)}"
        raise Problem(415, "wrong_content_type", message)
    coding = headers.get(b"content-encoding", b"identity")
    if coding.lower() not in (b"identity", b""):
        message = f"the body is encoded as {_shown(coding)}; send it as it is, without Content-Encoding"
        raise Problem(415, "wrong_content_encoding", message)


@lru_cache(maxsize=256)
def _kind(declared: bytes) -> str:
    """Return a content type without its parameters; all kinds of JSON are one."""
    kind = declared.partition(b";")[0].strip().lower().decode("latin-1")
    return re.sub(r"^application/[^/]+\+json$", "application/json", kind)


_HOST = re.compile(r"(localhost|[0-9.]+|\[[0-9a-f:.]+\])(?::[0-9]{1,5})?", re.IGNORECASE)


@lru_cache(maxsize=256)
def is_loopback(host: bytes) -> bool:
    """Return whether a Host header names this machine."""
    found = _HOST.fullmatch(host.decode("latin-1"))
    if found is None:
        return False
    name = found[1].lower()
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name.strip("[]")).is_loopback
    except ValueError:
        return False


def open_paths(app: Litestar) -> set[str]:
    """Return the paths that need no key; raise if a route names no scope."""
    found: set[str] = set()
    for route in app.routes:
        for handler in route.route_handlers:  # type: ignore[union-attr]
            if handler.http_methods == {"OPTIONS"}:  # Litestar's own
                continue
            if "scope" not in handler.opt:
                raise TypeError(f"route {route.path} names no scope; give it opt=DECIDE, READ, ADMIN or OPEN")
            if handler.opt["scope"] is None:
                found.add(route.path)
    return found


def _shown(value: bytes) -> str:
    return repr(value[:80].decode("latin-1"))
