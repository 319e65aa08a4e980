"""The page at `/`: its files, which hold no secrets and need no key."""

from importlib.resources import files
from typing import Any

from litestar import Request, Response, get

from coterie.service.http.access import OPEN

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
FILES = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/page/style.css": ("style.css", "text/css; charset=utf-8"),
    **{
        f"/page/{name}.js": (f"{name}.js", "text/javascript; charset=utf-8")
        for name in (
            "app",
            "ask",
            "compare",
            "draw",
            "evaluation_form",
            "evaluations",
            "explain",
            "overview",
            "parts",
            "people",
        )
    },
    "/page/icon.svg": ("icon.svg", "image/svg+xml"),
}


@get(list(FILES), opt=OPEN, include_in_schema=False)
async def page(request: Request[Any, Any, Any]) -> Response[bytes]:
    """Return one of the page's files."""
    name, kind = FILES[request.url.path]
    content = files("coterie.service.http").joinpath("page", name).read_bytes()
    return Response(content, media_type=kind, headers={"content-security-policy": POLICY})


ROUTES: list[Any] = [page]
