"""What all of HTTP knows of Personalizer's API: its paths and versions, and the form of its errors.

Four versions are named in the path, the last one in the query. The first clients call `/personalizer/v1.0/…`, the
multi-slot quickstarts `/personalizer/v1.1-preview.1/…`, the clients for JavaScript, .NET and Java
`/personalizer/v1.1-preview.3/…`, and the last client for Python `/personalizer/…?api-version=2022-09-01-preview`.
All have the same routes. Errors have its JSON shape, its codes, and the header `x-ms-error-code`.
"""

from typing import Any
from urllib.parse import parse_qs

from coterie.errors import CoterieError
from coterie.service.problems import problem_of, retry_header

PREFIX = "/personalizer"
BY_STATUS = {
    401: "401",  # as Personalizer's gateway answers
    403: "OperationNotAllowed",
    404: "ResourceNotFound",
    405: "OperationNotAllowed",
    413: "PayloadSizeExceeded",
    429: "429",
    500: "InternalServerError",
    503: "InternalServerError",
}
BY_PATH = {
    "/rank": "InvalidRankRequest",
    "/reward": "InvalidRewardRequest",
    "/activate": "InvalidEventIdToActivate",
    "/configurations/policy": "InvalidPolicyConfiguration",
    "/configurations/service": "InvalidServiceConfiguration",
}


class Refusal(CoterieError):  # noqa: N818
    """An answer that is an error with one of the contract's codes."""

    def __init__(self, status: int, code: str, message: str, target: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.target = target


def is_compatible(path: str) -> bool:
    """Return whether a path belongs to the compatible API, whose errors have its form."""
    return path == PREFIX or path.startswith(PREFIX + "/")


def code_of(path: str, status: int) -> str:
    """Return the contract's code for a status on a path."""
    if status in BY_STATUS:
        return BY_STATUS[status]
    return next((code for end, code in BY_PATH.items() if path.endswith(end)), "BadRequest")


def body_of(code: str, message: str, target: str | None = None, inner: str | None = None) -> dict[str, Any]:
    """Return the contract's error shape."""
    error: dict[str, Any] = {"code": code, "message": message, "details": []}
    if target is not None:
        error["target"] = target
    if inner is not None:
        error["innerError"] = {"code": inner}
    return {"error": error}


def translate(path: str, error: Exception) -> tuple[int, dict[str, str], dict[str, Any]]:
    """Return status, headers and body in the contract's form."""
    if isinstance(error, Refusal):
        body = body_of(error.code, error.message, error.target)
        return error.status, {"x-ms-error-code": error.code}, body
    problem = problem_of(error)
    # The contract has no 422; it answers 400.
    status = 400 if problem.status == 422 else problem.status
    code = code_of(path, status)
    headers = {"x-ms-error-code": code, **retry_header(problem)}
    return status, headers, body_of(code, problem.message, inner=problem.code)


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
    query = parse_qs(scope["query_string"].decode("latin-1"))
    given = next((values[-1] for name, values in query.items() if name.lower() == "api-version"), None)
    if given != IN_QUERY:
        raise Refusal(400, "BadRequest", f"api-version is {given!r}, expected {IN_QUERY!r}", "api-version")
