"""Personalizer's administration: configurations, model, logs and status. Evaluations are not run here."""

import asyncio
from typing import Any

import msgspec
from litestar import Response, delete, get, post, put
from litestar.datastructures import State
from litestar.params import FromPath, RawBody

from coterie.errors import FileError
from coterie.service.core.coordinator import Desk
from coterie.service.exchange.model_file import export_model
from coterie.service.http.access import ADMIN, FILE, READ
from coterie.service.ids import named
from coterie.service.log.store import Store
from coterie.service.personalizer import configuration
from coterie.service.personalizer.bodies import read
from coterie.service.personalizer.configuration import PolicyContract, ServiceConfiguration, moment
from coterie.service.personalizer.errors import Refusal


def both(path: str) -> list[str]:
    """Return a path in both forms."""
    return [f"/v1.0{path}", path]


@get(both("/configurations/service"), opt=READ)
async def show_service(state: State) -> ServiceConfiguration:
    """Show the configuration."""
    return configuration.show(state.desk)


@put(both("/configurations/service"), opt=ADMIN)
async def change_service(body: RawBody, state: State) -> ServiceConfiguration:
    """Change the configuration; the model stays."""
    sent = read(body, ServiceConfiguration, configuration.BAD)
    await configuration.change(state.desk, sent)
    return configuration.show(state.desk)


@get(both("/configurations/policy"), opt=READ)
async def show_policy(state: State) -> PolicyContract:
    """Show the policy."""
    return configuration.show_policy(state.desk.engine.config)


@put(both("/configurations/policy"), opt=ADMIN)
async def change_policy(body: RawBody, state: State) -> PolicyContract:
    """Change the policy, once the new one has learned the log."""
    sent = read(body, PolicyContract, "InvalidPolicyConfiguration")
    await configuration.change_policy(state.desk, sent)
    return configuration.show_policy(state.desk.engine.config)


@delete(both("/configurations/policy"), opt=ADMIN, status_code=200)
async def reset_policy(state: State) -> PolicyContract:
    """Go back to the policy of the settings."""
    desk: Desk = state.desk
    first = desk.settings.config
    new = msgspec.structs.replace(desk.engine.config, policy=first.policy, parameters=first.parameters)
    await desk.configure(new)
    return configuration.show_policy(desk.engine.config)


@get(both("/model"), opt=READ)
async def show_model(state: State) -> Response[bytes]:
    """Return the model as a file."""
    desk: Desk = state.desk
    return Response(await desk.look(lambda: export_model(desk.engine)), media_type="application/octet-stream")


@put(both("/model"), opt=FILE, status_code=204)
async def replace_model(body: RawBody, state: State) -> None:
    """Replace the model by that of a file."""
    try:
        await state.desk.import_model(body)
    except FileError as error:
        raise Refusal(400, "InvalidModelImportFormat", str(error)) from error


@get(both("/model/properties"), opt=READ)
async def model_properties(state: State) -> dict[str, str]:
    """Say how old the model is."""
    desk: Desk = state.desk
    first = await asyncio.to_thread(oldest, desk.store)
    now = desk.engine.now
    return {"creationTime": moment(now if first is None else first), "lastModifiedTime": moment(now)}


@delete(both("/model"), opt=ADMIN, status_code=204)
async def reset_model(state: State) -> None:
    """Empty the model; the log stays."""
    await state.desk.reset()


@get(both("/logs/properties"), opt=READ)
async def log_properties(state: State) -> dict[str, Any]:
    """Say from when to when the log reaches."""
    desk: Desk = state.desk
    first = await asyncio.to_thread(oldest, desk.store)
    if first is None:
        return {"dateRange": None}
    return {"dateRange": {"from": moment(first), "to": moment(desk.engine.now)}}


@delete(both("/logs"), opt=ADMIN, status_code=204)
async def delete_logs(state: State) -> None:
    """Keep what was learned as a snapshot, and let the log before it go."""
    await state.desk.delete_log()


@get(both("/status"), opt=READ)
async def status(state: State) -> dict[str, str]:
    """Say whether new work is accepted."""
    why = state.desk.refusing
    return {
        "service": "coterie",
        "apiStatus": "Valid" if why is None else "Mismatch",
        "apiStatusMessage": "New work is accepted." if why is None else f"No new work is accepted: {why}",
    }


def oldest(store: Store) -> int | None:
    """Return the time of the oldest kept record, in milliseconds."""
    for batch in store.read(store.bounds()[0]):
        return batch.records()[0].at
    return None


# Left out: evaluations, applyFromEvaluation and feature importances. There are none, and none can be made.


@get(["/v1.0/evaluations", "/v1.0/featureImportances"], opt=READ)
async def none_made() -> list[Any]:
    """Return the evaluations: there are none."""
    return []


@get(["/evaluations", "/featureImportances"], opt=READ)
async def none_on_the_page() -> dict[str, list[Any]]:
    """Return the only page of evaluations, as the second form has it."""
    return {"value": []}


@get(both("/evaluations/{evaluation_id:str}"), opt=READ)
async def show_evaluation(evaluation_id: FromPath[str]) -> None:
    """Say that there is no such evaluation."""
    raise _not_found(named(evaluation_id))


@delete(both("/evaluations/{evaluation_id:str}"), opt=ADMIN, status_code=204)
async def delete_evaluation(evaluation_id: FromPath[str]) -> None:
    """Say that there is no such evaluation."""
    raise _not_found(named(evaluation_id))


@post(both("/configurations/applyFromEvaluation"), opt=ADMIN, status_code=204)
async def apply_evaluation() -> None:
    """Say that there is no such evaluation."""
    raise _not_found("named")


@put([*both("/evaluations/{evaluation_id:str}"), *both("/featureImportances/{evaluation_id:str}")], opt=ADMIN)
async def make_evaluation(evaluation_id: FromPath[str]) -> None:
    """Refuse: the service does not evaluate."""
    message = "coterie runs no evaluations inside the service; export the log and replay it offline"
    raise Refusal(403, "OperationNotAllowed", message)


@get(both("/featureImportances/{importance_id:str}"), opt=READ)
async def show_importance(importance_id: FromPath[str]) -> None:
    """Say that there is no such thing."""
    raise Refusal(404, "ResourceNotFound", f"feature importance {named(importance_id)!r} does not exist")


@delete(both("/featureImportances/{importance_id:str}"), opt=ADMIN, status_code=204)
async def delete_importance(importance_id: FromPath[str]) -> None:
    """Say that there is no such thing."""
    raise Refusal(404, "ResourceNotFound", f"feature importance {named(importance_id)!r} does not exist")


def _not_found(evaluation: str) -> Refusal:
    return Refusal(404, "EvaluationNotFound", f"evaluation {evaluation!r} does not exist")


ROUTES: list[Any] = [
    show_service,
    change_service,
    show_policy,
    change_policy,
    reset_policy,
    show_model,
    replace_model,
    model_properties,
    reset_model,
    log_properties,
    delete_logs,
    status,
    none_made,
    none_on_the_page,
    show_evaluation,
    delete_evaluation,
    apply_evaluation,
    make_evaluation,
    show_importance,
    delete_importance,
]
