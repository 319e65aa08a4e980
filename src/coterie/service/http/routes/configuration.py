"""The configuration that decisions are made by."""

from typing import Any

import msgspec
from litestar import Response, get, put
from litestar.datastructures import State
from litestar.params import RawBody
from msgspec import Struct

from coterie.data.logs.rules import Config
from coterie.service.http.access import ADMIN, READ
from coterie.service.http.bodies import read_counts

_field: Any = msgspec.field
_fields = [
    (one.name, one.type, _field(default=one.default, default_factory=one.default_factory))
    for one in msgspec.structs.fields(Config)
]
# The configuration, with names in camel case.
ConfigBody: Any = msgspec.defstruct(
    "ConfigBody", _fields, rename="camel", forbid_unknown_fields=True, frozen=True
)


AGAIN = "the guardrails start again: what they measured before no longer counts, and nothing is stopped"


@get("/v1/configuration", opt=READ, operation_id="show_configuration")
async def show_configuration(state: State) -> Response[Any]:
    """Show the configuration of decisions."""
    return _config(state.coordinator.bandit.config)


@put("/v1/configuration", opt=ADMIN, operation_id="change_configuration")
async def change_configuration(body: RawBody, state: State) -> Response[Any]:
    """Change the configuration. A new policy first learns the log, then takes over."""
    data = read_counts(body, ConfigBody)
    config = Config(**msgspec.structs.asdict(data))
    if config.challenger is not None and not config.challenger.share:
        config = msgspec.structs.replace(config, challenger=None)
    before = state.coordinator.bandit.guards.starts()
    await state.coordinator.configure(config)
    bandit = state.coordinator.bandit
    return _config(bandit.config, AGAIN if bandit.guards.starts() != before else None)


def _config(config: Config, note: str | None = None) -> Response[Any]:
    body = ConfigBody(**msgspec.structs.asdict(config))
    answer = body if note is None else {**msgspec.to_builtins(body), "note": note}
    return Response(answer, media_type="application/json")


ROUTES: list[Any] = [show_configuration, change_configuration]
BODIES: dict[str, type[Struct]] = {"change_configuration": ConfigBody}
