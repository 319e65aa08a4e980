"""Errors in Personalizer's form: its JSON shape, its codes, and the header `x-ms-error-code`."""

from typing import Any

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
