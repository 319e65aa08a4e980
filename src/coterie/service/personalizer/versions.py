"""The published versions of the API: four are named in the path, the last one in the query.

The first clients call `/personalizer/v1.0/…`, the multi-slot quickstarts `/personalizer/v1.1-preview.1/…`, the
clients for JavaScript, .NET and Java `/personalizer/v1.1-preview.3/…`, and the last client for Python
`/personalizer/…?api-version=2022-09-01-preview`. All have the same routes.
"""

from typing import Any
from urllib.parse import parse_qs

from coterie.service.personalizer.errors import PREFIX, Refusal

IN_PATH = ("v1.0", "v1.1-preview.1", "v1.1-preview.2", "v1.1-preview.3")
IN_QUERY = "2022-09-01-preview"
_PREFIXES = tuple(f"{PREFIX}/{version}/" for version in IN_PATH)


def in_path(path: str) -> list[str]:
    """Return a path in the four forms with a version in it."""
    return [f"/{version}{path}" for version in IN_PATH]


def every_form(path: str) -> list[str]:
    """Return a path in all its forms."""
    return [*in_path(path), path]


def names_version(path: str) -> bool:
    """Return whether a whole path has a version."""
    return path.startswith(_PREFIXES)


def check_form(scope: Any) -> None:
    """Raise if a request has a version neither in the path nor in the query, as Personalizer does."""
    if names_version(scope["path"]):
        return
    given = parse_qs(scope["query_string"].decode("latin-1")).get("api-version", [None])[-1]
    if given != IN_QUERY:
        raise Refusal(400, "BadRequest", f"api-version is {given!r}, expected {IN_QUERY!r}", "api-version")
