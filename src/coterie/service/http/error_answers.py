"""Errors as answers, in one JSON shape or in Personalizer's: for Litestar, for plain ASGI and for a socket."""

from http import HTTPStatus
from typing import Any

import msgspec
from litestar import Request, Response
from litestar.exceptions import HTTPException, ValidationException
from litestar.types import Send

from coterie.service.http.compatible import is_compatible, translate
from coterie.service.problems import Problem, body_of, problem_of, retry_header

CODES = {400: "invalid_request", 404: "not_found", 405: "method_not_allowed"}


def error_answer(error: Exception, path: str) -> tuple[int, dict[str, str], dict[str, Any]]:
    """Return status, headers and body of the answer to a request on `path` that raised `error`."""
    more: dict[str, str] = {}
    if isinstance(error, HTTPException):  # Litestar's own: no such route, method or parameter
        more = dict(error.headers or {})
        error = _problem_of_litestar(error, is_compatible(path))
    elif isinstance(error, msgspec.MsgspecError):
        error = Problem(400, "invalid_request", str(error))
    if is_compatible(path):
        return translate(path, error)
    problem = problem_of(error)
    return problem.status, more | retry_header(problem), body_of(problem.code, problem.message)


def _problem_of_litestar(error: HTTPException, compatible: bool) -> Problem:
    message = error.detail
    if isinstance(error, ValidationException) and isinstance(error.extra, list):
        parts = [part for part in error.extra if isinstance(part, dict)]
        message = "; ".join(f"{part.get('key', 'body')}: {part.get('message')}" for part in parts) or message
    known = CODES if not compatible else {400: CODES[400]}
    return Problem(error.status_code, known.get(error.status_code, "error"), message)


def respond(request: Request[Any, Any, Any], error: Exception) -> Response[Any]:
    """Return the answer to an error in a route, for Litestar."""
    status, headers, body = error_answer(error, request.url.path)
    return Response(body, status_code=status, headers=headers, media_type="application/json")


async def send_error(error: Exception, send: Send, path: str) -> None:
    """Send the answer to an error before or outside of Litestar."""
    status, more, body = error_answer(error, path)
    content = msgspec.json.encode(body)
    headers = {"content-type": "application/json", "content-length": str(len(content)), **more}
    if status == 401:
        headers["www-authenticate"] = "Bearer"
    pairs = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": status, "headers": pairs})
    await send({"type": "http.response.body", "body": content, "more_body": False})


def closing_answer(status: int, code: str, message: str, retry: bool = True) -> bytes:
    """Return the bytes of an answer that ends its connection, for requests that never reach the application."""
    body = msgspec.json.encode(body_of(code, message))
    head = [
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase}",
        "content-type: application/json",
        f"content-length: {len(body)}",
        "connection: close",
        *(["retry-after: 1"] if retry else []),
    ]
    return "\r\n".join([*head, "", ""]).encode() + body
