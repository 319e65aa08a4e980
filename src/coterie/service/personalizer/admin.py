"""Personalizer's administration: configurations, model, logs and status."""

import asyncio
import tempfile
from email.utils import formatdate
from typing import Any

import msgspec
from litestar import Request, Response, delete, get, put
from litestar.datastructures import State
from litestar.params import RawBody

from coterie.data.logs.records import Observe, Rank, flatten
from coterie.errors import FileError
from coterie.service.coordination.coordinator import Coordinator
from coterie.service.evaluations.jobs import moment
from coterie.service.files.model_file import export_model
from coterie.service.http.access import ADMIN, FILE, READ
from coterie.service.http.compatible import Refusal, every_form
from coterie.service.personalizer import configuration
from coterie.service.personalizer.bodies import read
from coterie.service.personalizer.configuration import PolicyContract, ServiceConfiguration
from coterie.service.personalizer.learning_settings import MAPPED
from coterie.service.threads import in_thread


@get(every_form("/configurations/service"), opt=READ)
async def show_service(state: State) -> ServiceConfiguration:
    """Show the configuration."""
    return configuration.show(state.coordinator)


@put(every_form("/configurations/service"), opt=ADMIN)
async def change_service(body: RawBody, state: State) -> ServiceConfiguration:
    """Change the configuration; the model stays."""
    sent = read(body, ServiceConfiguration, configuration.BAD)
    await configuration.change(state.coordinator, sent)
    return configuration.show(state.coordinator)


@get(every_form("/configurations/policy"), opt=READ)
async def show_policy(state: State) -> PolicyContract:
    """Show the policy."""
    return await _policy(state.coordinator)


@put(every_form("/configurations/policy"), opt=ADMIN)
async def change_policy(body: RawBody, state: State) -> Response[PolicyContract]:
    """Change the policy; the new one first learns the log. Of Vowpal Wabbit's arguments some have a counterpart."""
    sent = read(body, PolicyContract, "InvalidPolicyConfiguration")
    mapped = await configuration.change_policy(state.coordinator, sent)
    return Response(await _policy(state.coordinator), headers={MAPPED: mapped})


@delete(every_form("/configurations/policy"), opt=ADMIN, status_code=200)
async def reset_policy(state: State) -> PolicyContract:
    """Go back to the policy of the settings."""
    coordinator: Coordinator = state.coordinator
    first = coordinator.settings.config
    new = msgspec.structs.replace(
        coordinator.bandit.config, policy=first.policy, parameters=first.parameters, ignored=first.ignored
    )
    await coordinator.configure(new, configuration.without_settings(coordinator))
    return await _policy(coordinator)


async def _policy(coordinator: Coordinator) -> PolicyContract:
    bandit = coordinator.bandit
    return await asyncio.to_thread(configuration.show_policy, bandit.config, bandit.contract)


@get(every_form("/model"), opt=READ)
async def show_model(state: State) -> Response[bytes]:
    """Return the model as a file."""
    coordinator: Coordinator = state.coordinator
    content = await coordinator.look(lambda: export_model(coordinator.bandit))
    headers = {
        "content-disposition": "attachment; filename=model.safetensors",
        "last-modified": formatdate(coordinator.bandit.now / 1000, usegmt=True),
    }
    return Response(content, media_type="application/octet-stream", headers=headers)


@put(every_form("/model"), opt=FILE, status_code=204)
async def replace_model(request: Request[Any, Any, Any], state: State) -> None:
    """Replace the model by that of a file, which is kept on the disk until all of it has come."""
    with tempfile.TemporaryFile(prefix="coterie-model-") as file:
        async for part in request.stream():
            await in_thread(file.write, part)
        file.seek(0)
        content = await in_thread(file.read)
    try:
        await state.coordinator.import_model(content)
    except FileError as error:
        raise Refusal(400, "InvalidModelImportFormat", str(error)) from error


@get(every_form("/model/properties"), opt=READ)
async def model_properties(state: State) -> dict[str, str]:
    """Return when the model was created and last changed."""
    coordinator: Coordinator = state.coordinator
    first = await asyncio.to_thread(coordinator.oldest)
    now = coordinator.bandit.now
    return {"creationTime": moment(now if first is None else first), "lastModifiedTime": moment(now)}


@delete(every_form("/model"), opt=ADMIN, status_code=204)
async def reset_model(state: State) -> None:
    """Empty the model; the log stays."""
    await state.coordinator.reset()


@get(every_form("/logs/properties"), opt=READ)
async def log_properties(state: State) -> dict[str, Any]:
    """Return the time span of the log; nothing if it has no decision."""
    coordinator: Coordinator = state.coordinator
    first = await asyncio.to_thread(_first_decision, coordinator)
    if first is None:
        return {}
    return {"dateRange": {"from": moment(first), "to": moment(coordinator.bandit.now)}}


def _first_decision(coordinator: Coordinator) -> int | None:
    """Return the time of the first decision in the log."""
    store = coordinator.store
    records = flatten(store.read(store.bounds()[0]))
    return next((record.at for _, record in records if isinstance(record, Rank | Observe)), None)


@delete(every_form("/logs"), opt=ADMIN, status_code=204)
async def delete_logs(state: State) -> None:
    """Keep what was learned as a snapshot, and delete the log before it."""
    await state.coordinator.delete_log()


@get(every_form("/status"), opt=READ)
async def status(state: State) -> dict[str, str]:
    """Say whether new work is accepted."""
    why = state.coordinator.refusing
    return {
        "service": "coterie",
        "apiStatus": "Valid" if why is None else "Mismatch",
        "apiStatusMessage": "New work is accepted." if why is None else f"No new work is accepted: {why}",
    }


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
]
