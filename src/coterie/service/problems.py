"""Errors of requests: a status, a code for programs and a message for people."""

from coterie.errors import CoterieError, FileError
from coterie.service.logs import log
from coterie.service.store_errors import StoreError


class Problem(CoterieError):  # noqa: N818 (what HTTP calls it)
    """An answer that is an error: `{"error": {"code": …, "message": …}}` with a status."""

    def __init__(self, status: int, code: str, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.retry_after = retry_after  # seconds


def problem_of(error: Exception) -> Problem:
    """Return the answer to an error that came from below the routes."""
    if isinstance(error, Problem):
        return error
    if isinstance(error, FileError | StoreError):
        log.error(f"the store cannot be read: {error}")
        said = error.said if isinstance(error, StoreError) else "the log of the service says why"
        return Problem(503, "store_failed", f"the store cannot be read: {said}")
    if isinstance(error, CoterieError):
        return Problem(422, "not_possible", str(error))
    log.exception("a request failed", exc_info=error)
    return Problem(500, "internal_error", "something went wrong inside; the log of the service says what")


def retry_header(problem: Problem) -> dict[str, str]:
    """Return the header that says when to try again, if the problem has a time."""
    if problem.retry_after is None:
        return {}
    return {"Retry-After": str(max(1, round(problem.retry_after)))}


def body_of(code: str, message: str) -> dict[str, dict[str, str]]:
    """Return the body of every error."""
    return {"error": {"code": code, "message": message}}
