"""A client of a service in this process."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from coterie import Client
from coterie.data.logs.rules import Config
from tests.service.helpers import served


class Inside(httpx.BaseTransport):
    """Hands requests to a service in this process; if it is `down`, there is no answer."""

    def __init__(self, service: Any) -> None:
        self.service, self.down = service, False

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        if self.down:
            raise httpx.ConnectError("the service is down")
        content, headers = request.read(), {"content-type": "application/json"}
        answer = self.service.request(
            request.method, request.url.raw_path.decode(), content=content, headers=headers
        )
        return httpx.Response(answer.status_code, content=answer.content)


@contextmanager
def inside(folder: Path, **config: Any) -> Iterator[tuple[Client, Inside]]:
    """Yield a client of a new service, and the way to it."""
    with served(folder / "log.db", Config(**config)) as (service, _):
        way = Inside(service)
        with Client("http://127.0.0.1", within=60.0, timeout=30.0, attempts=2, transport=way) as client:
            yield client, way
