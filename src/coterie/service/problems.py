"""What can go wrong with a request: a status, a code for programs and a message for people."""

from coterie.errors import CoterieError


class Problem(CoterieError):  # noqa: N818 (what HTTP calls it)
    """An answer that is an error: `{"error": {"code": …, "message": …}}` with a status."""

    def __init__(self, status: int, code: str, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.retry_after = retry_after  # seconds


def body_of(code: str, message: str) -> dict[str, dict[str, str]]:
    """Return the one error shape."""
    return {"error": {"code": code, "message": message}}
