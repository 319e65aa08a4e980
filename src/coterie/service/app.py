"""The application: routes over a coordinator, one error shape, inside the guard."""

import asyncio
import gc
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from inspect import signature
from typing import Any

import msgspec
from litestar import Litestar, Request, Response, Router, get
from litestar.connection import ASGIConnection
from litestar.datastructures import State
from litestar.handlers import BaseRouteHandler
from litestar.openapi import OpenAPIConfig
from msgspec import UNSET, Struct, UnsetType
from prometheus_client import generate_latest

from coterie import __version__
from coterie.service.coordination.coordinator import STOPPING, Coordinator
from coterie.service.coordination.sequencer import LEARNING, STARTING
from coterie.service.core.warm_up import warm_up
from coterie.service.demo import live
from coterie.service.evaluations.job_queue import Evaluations
from coterie.service.evaluations.schedule import LOOK_EVERY, optimise_if_due
from coterie.service.http.access import OPEN, READ, check_access, open_paths
from coterie.service.http.compatible import PREFIX, check_form
from coterie.service.http.error_answers import respond
from coterie.service.http.guard import Direct, Guard, Pair
from coterie.service.http.keys import Keyring
from coterie.service.http.metrics import Metrics
from coterie.service.http.openapi import document
from coterie.service.http.routes import configuration, decisions, items, page, statistics, users
from coterie.service.http.routes import evaluations as evaluation_routes
from coterie.service.http.telemetry import Spans
from coterie.service.personalizer import routes as personalizer
from coterie.service.repeating import repeat
from coterie.service.store_errors import PassingError
from coterie.service.threads import in_thread

KEYS_EVERY = 2.0  # seconds
NATIVE: tuple[Any, ...] = (decisions, users, configuration, evaluation_routes, statistics, items, page)


class Readiness(Struct, frozen=True, rename="camel"):
    """Whether new work is accepted: `ready`, or why not."""

    status: str
    replayed: int | UnsetType = UNSET  # during a start: how many records of the log are read,
    records: int | UnsetType = UNSET  # of how many after the newest snapshot
    damage: str | UnsetType = UNSET  # which records of the log cannot be read
    behind: float | UnsetType = UNSET  # seconds since the state was last known to be what the log says


@get("/healthz", opt=OPEN, operation_id="healthz")
async def healthz(state: State) -> Response[dict[str, str]]:
    """Say that the process is alive, and need not be restarted."""
    if state.coordinator.availability.ending:
        return Response({"status": f"ending: {state.coordinator.refusing}"}, status_code=503)
    return Response({"status": "alive"})


@get("/readyz", opt=OPEN, operation_id="readyz")
async def readyz(state: State) -> Response[Readiness]:
    """Say whether new work is accepted; during a start also how far it is."""
    coordinator: Coordinator = state.coordinator
    why = coordinator.not_ready
    if why == STARTING:
        progress = coordinator.availability.progress
        return Response(Readiness(why, progress.read, progress.of), status_code=503)
    found = Readiness(
        why or "ready",
        damage=coordinator.background.damage or UNSET,
        behind=round(coordinator.sequencer.behind, 3),
    )
    # With 404 HAProxy lets requests end that it has sent, with 503 it cuts them off (disable-on-404).
    return Response(found, status_code=404 if why in (STOPPING, LEARNING) else 503 if why else 200)


@get("/metrics", opt=READ, operation_id="metrics", media_type="text/plain; version=0.0.4; charset=utf-8")
async def metrics(state: State) -> bytes:
    """Return the metrics, as Prometheus reads them."""
    return generate_latest(state.metrics.registry)


@get("/openapi.json", opt=READ, include_in_schema=False)
async def openapi(request: Request[Any, Any, Any]) -> Response[bytes]:
    """Return the OpenAPI document."""
    state = request.app.state
    if "document" not in state:
        bodies = decisions.BODIES | configuration.BODIES | evaluation_routes.BODIES | users.BODIES
        state["document"] = document(request.app, bodies)
    return Response(state["document"], media_type="application/json")


def create_app(
    coordinator: Coordinator,
    keyring: Keyring,
    demo: bool = False,
    spans: Spans | None = None,
    listen_first: bool = False,
) -> Guard:
    """Return the ASGI application. It starts the coordinator at its start, and stops it at its end.

    With `listen_first`, requests come in while the log is still read; they are answered 503, and probes say how far
    it is. If the start fails, the coordinator keeps the error and gives up.
    """
    counted = Metrics(coordinator)
    evaluations = Evaluations(coordinator)
    tasks: list[asyncio.Task[None]] = []

    async def prepare() -> None:
        await coordinator.start()
        await asyncio.to_thread(warm_up, coordinator.bandit.config)
        gc.freeze()  # what the start made stays; collecting it would block the event loop for 0.1 s
        await coordinator.availability.begin(evaluations.start)
        follow = partial(_follow_keys, keyring, coordinator)
        tasks.append(asyncio.create_task(repeat(follow, KEYS_EVERY, "reading the keys")))
        optimise = partial(optimise_if_due, coordinator, evaluations)
        tasks.append(asyncio.create_task(repeat(optimise, LOOK_EVERY, "automatic optimisation")))
        if demo:
            tasks.append(asyncio.create_task(live(coordinator)))
        coordinator.preparing = False

    async def prepare_beside() -> None:
        try:
            await prepare()
        except Exception as error:
            coordinator.failure = error
            coordinator.availability.give_up()

    async def start(app: Litestar) -> None:
        coordinator.preparing = True
        if listen_first:
            tasks.append(asyncio.create_task(prepare_beside()))
        else:
            await prepare()

    async def stop(app: Litestar) -> None:
        coordinator.availability.progress.stop()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)  # a task may be reading the store
        await evaluations.stop()
        await coordinator.stop()
        if spans is not None:
            await asyncio.to_thread(spans.close)
        gc.unfreeze()  # a program may go on without the service, and its memory is given back

    app = Litestar(
        route_handlers=[
            *(route for module in NATIVE for route in module.ROUTES),
            personalizer.ROUTER,
            healthz,
            readyz,
            metrics,
            openapi,
        ],
        guards=[_may],
        state=State({"coordinator": coordinator, "metrics": counted, "evaluations": evaluations}),
        on_startup=[start],
        on_shutdown=[stop],
        exception_handlers={Exception: respond},
        openapi_config=OpenAPIConfig(
            title="coterie",
            version=__version__,
            render_plugins=[],
            # Litestar's own document, without the additions of /openapi.json.
            openapi_router=Router("/schema", route_handlers=[], opt=READ, include_in_schema=False),
        ),
        request_max_body_size=None,  # the guard counts
        debug=False,
        logging_config=None,
    )
    direct = _directly([decisions.rank, decisions.reward, decisions.activate], app.state)
    direct |= _directly(personalizer.DECISIONS, app.state, PREFIX, check_form)
    return Guard(app, coordinator.settings, keyring, counted, open_paths(app), direct, spans)


def _may(connection: ASGIConnection[Any, Any, Any, Any], handler: BaseRouteHandler) -> None:
    if connection.scope["method"] != "OPTIONS":  # type: ignore[typeddict-item]
        check_access(connection.scope, handler.opt)


async def _follow_keys(keyring: Keyring, coordinator: Coordinator) -> None:
    """Take over keys that `coterie keys` made or dropped."""
    with suppress(PassingError):  # the coordinator says so; the keys stay as they were
        keyring.renew(await in_thread(coordinator.store.keys))


def _directly(
    routes: Iterable[Any], state: State, prefix: str = "", check: Callable[[Any], None] = lambda scope: None
) -> dict[tuple[str, str], Direct]:
    """Return routes as the guard calls them, by method and path; `check` is called first, with the scope."""
    encode = msgspec.json.Encoder().encode

    def direct(route: Any) -> Direct:
        names = [name for name in signature(route.fn).parameters if name != "state"]

        async def answer(body: bytes, event: str, scope: Any) -> tuple[bytes | None, list[Pair]]:
            check(scope)
            given = {"body": body, "event_id": event, "scope": scope}
            found = await route.fn(state=state, **{name: given[name] for name in names})
            if not isinstance(found, Response):
                return encode(found), []
            return None, [(name.encode(), value.encode()) for name, value in found.headers.items()]

        return Direct(route.opt, route.status_code, answer)

    return {
        ("POST", prefix + path.replace("{event_id:str}", "{id}")): direct(route)
        for route in routes
        for path in sorted(route.paths)
    }
