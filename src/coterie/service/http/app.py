"""The application: routes over a coordinator, one error shape, inside the guard."""

import asyncio
import gc
import logging
from typing import Any

import msgspec
from litestar import Litestar, Request, Response, Router, get
from litestar.connection import ASGIConnection
from litestar.datastructures import State
from litestar.exceptions import HTTPException, ValidationException
from litestar.handlers import BaseRouteHandler
from litestar.openapi import OpenAPIConfig

from coterie import __version__
from coterie.errors import CoterieError
from coterie.service.coordination.coordinator import Coordinator
from coterie.service.core.warm_up import warm_up
from coterie.service.demo import live
from coterie.service.evaluations import routes as routes_evaluations
from coterie.service.evaluations.keeper import Evaluations
from coterie.service.evaluations.schedule import keep_optimising
from coterie.service.http import routes_native, routes_page
from coterie.service.http.access import OPEN, READ, check_access, open_paths
from coterie.service.http.guard import Direct, Guard
from coterie.service.http.keys import Keyring
from coterie.service.http.metrics import Metrics
from coterie.service.http.openapi import document
from coterie.service.http.telemetry import Spans
from coterie.service.log.errors import LostError
from coterie.service.personalizer import errors as personalizer_errors
from coterie.service.personalizer import routes as personalizer
from coterie.service.personalizer.versions import every_form
from coterie.service.problems import Problem, body_of, problem_of
from coterie.service.settings import Settings

KEYS_EVERY = 2.0  # seconds

log = logging.getLogger("coterie.service")


@get("/healthz", opt=OPEN, operation_id="healthz")
async def healthz() -> dict[str, str]:
    """Say that the process lives."""
    return {"status": "alive"}


@get("/readyz", opt=OPEN, operation_id="readyz")
async def readyz(state: State) -> Response[dict[str, str]]:
    """Say whether new work is accepted."""
    why = state.coordinator.refusing
    return Response({"status": "ready"} if why is None else {"status": why}, status_code=503 if why else 200)


@get("/metrics", opt=READ, operation_id="metrics", media_type="text/plain; version=0.0.4; charset=utf-8")
async def metrics(state: State) -> bytes:
    """Return the metrics, as Prometheus reads them."""
    return state.metrics.text()  # type: ignore[no-any-return]


@get("/openapi.json", opt=READ, include_in_schema=False)
async def openapi(request: Request[Any, Any, Any]) -> Response[bytes]:
    """Return the OpenAPI document."""
    state = request.app.state
    if "document" not in state:
        state["document"] = document(request.app, routes_native.BODIES | routes_evaluations.BODIES)
    return Response(state["document"], media_type="application/json")


def create_app(
    coordinator: Coordinator,
    settings: Settings,
    keyring: Keyring,
    demo: bool = False,
    spans: Spans | None = None,
) -> Guard:
    """Return the ASGI application. Starting it starts the coordinator, stopping it stops the coordinator."""
    numbers = Metrics(coordinator)
    evaluations = Evaluations(coordinator)
    beside: list[asyncio.Task[None]] = []

    async def start(app: Litestar) -> None:
        await coordinator.start()
        await asyncio.to_thread(warm_up, coordinator.bandit.config)
        gc.freeze()  # what a start made stays: looking through all of it again would hold the loop for 0.1 s
        await evaluations.start()
        beside.append(asyncio.create_task(_follow_keys(keyring, coordinator)))
        beside.append(asyncio.create_task(keep_optimising(coordinator, evaluations)))
        if demo:
            beside.append(asyncio.create_task(live(coordinator)))

    async def stop(app: Litestar) -> None:
        for task in beside:
            task.cancel()
        await asyncio.gather(*beside, return_exceptions=True)  # one may be reading the store
        await evaluations.stop()
        await coordinator.stop()
        if spans is not None:
            await asyncio.to_thread(spans.close)

    app = Litestar(
        route_handlers=[
            *routes_native.ROUTES,
            *routes_evaluations.ROUTES,
            personalizer.ROUTER,
            *routes_page.ROUTES,
            healthz,
            readyz,
            metrics,
            openapi,
        ],
        guards=[_may],
        state=State(
            {"coordinator": coordinator, "metrics": numbers, "settings": settings, "evaluations": evaluations}
        ),
        on_startup=[start],
        on_shutdown=[stop],
        exception_handlers={
            HTTPException: _http,
            msgspec.MsgspecError: _unreadable,
            Exception: _problem,
        },
        openapi_config=OpenAPIConfig(
            title="coterie",
            version=__version__,
            render_plugins=[],
            # Litestar's own document, without what /openapi.json adds to it.
            openapi_router=Router("/schema", route_handlers=[], opt=READ, include_in_schema=False),
        ),
        request_max_body_size=None,  # the guard has counted already
        debug=False,
        logging_config=None,
    )
    native, compatible = (_directly(routes, coordinator) for routes in (routes_native, personalizer))
    direct = {
        ("POST", "/v1/rank"): native,
        **{("POST", personalizer_errors.PREFIX + path): compatible for path in every_form("/rank")},
    }
    return Guard(app, settings, keyring, numbers, open_paths(app), direct, spans)


def _may(connection: ASGIConnection[Any, Any, Any, Any], handler: BaseRouteHandler) -> None:
    if connection.scope["method"] != "OPTIONS":  # type: ignore[typeddict-item]
        check_access(connection.scope, handler.opt)


async def _follow_keys(keyring: Keyring, coordinator: Coordinator) -> None:
    """Let keys that `coterie keys` made or dropped take effect."""
    while True:
        await asyncio.sleep(KEYS_EVERY)
        if coordinator.refusing == LostError.said:
            continue  # the coordinator connects again
        try:
            keyring.renew(await asyncio.to_thread(coordinator.store.keys))
        except LostError as error:
            coordinator.availability.fail(error)
        except CoterieError as error:  # the keys stay as they were
            log.error(f"the keys cannot be read: {error}")


def _directly(routes: Any, coordinator: Coordinator) -> Direct:
    encoder = msgspec.json.Encoder()

    async def answer(body: bytes, scope: Any) -> bytes:
        return encoder.encode(await routes.decide(body, coordinator, scope))

    return Direct(routes.rank.opt, answer)


def _answer(status: int, code: str, message: str, headers: dict[str, str] | None = None) -> Response[Any]:
    return Response(
        body_of(code, message), status_code=status, headers=headers, media_type="application/json"
    )


def _problem(request: Request[Any, Any, Any], error: Exception) -> Response[Any]:
    problem = problem_of(error)
    retry = None if problem.retry_after is None else {"Retry-After": str(max(1, round(problem.retry_after)))}
    return _answer(problem.status, problem.code, problem.message, retry)


def _unreadable(request: Request[Any, Any, Any], error: Exception) -> Response[Any]:
    return _answer(400, "invalid_request", str(error))


def _http(request: Request[Any, Any, Any], error: HTTPException) -> Response[Any]:
    codes = {
        400: "invalid_request",
        401: "no_key",
        404: "not_found",
        405: "method_not_allowed",
        413: "body_too_large",
    }
    message = error.detail
    if isinstance(error, ValidationException) and isinstance(error.extra, list):
        parts = [
            f"{part.get('key', 'body')}: {part.get('message')}"
            for part in error.extra
            if isinstance(part, dict)
        ]
        message = "; ".join(parts) or message
    if personalizer_errors.is_compatible(request.url.path):
        return personalizer_errors.answer(request.url.path, Problem(error.status_code, "error", message))
    return _answer(
        error.status_code, codes.get(error.status_code, "error"), message, dict(error.headers or {})
    )
