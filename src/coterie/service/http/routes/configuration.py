"""The configuration that decisions are made by."""

from typing import Any, Union, get_args

import msgspec
from litestar import Response, get, put
from litestar.datastructures import State
from litestar.params import RawBody
from msgspec import NODEFAULT, UNSET, Struct, UnsetType

from coterie.data.logs.rules import Config
from coterie.service.http.access import ADMIN, READ
from coterie.service.http.bodies import read_counts
from coterie.service.trial.lift import SMALLEST_LIFT

# What a configuration has only where it is set; these values are for "not set".
ABSENT: dict[str, Any] = {"holdback": 0.0, "challenger": None, "ignored": "", "smallest_lift": SMALLEST_LIFT}
ABSENT |= {"caps": (), "budget": None, "payoff": {}, "guardrails": ()}


def _field(info: msgspec.structs.FieldInfo) -> tuple[str, Any, Any]:
    """Return a field of the configuration, which has a value where it is not set."""
    if info.default is not UNSET:
        default = info.default
        return info.name, info.type, msgspec.field(default_factory=dict) if default is NODEFAULT else default
    absent = ABSENT[info.name]
    kinds = tuple(kind for kind in get_args(info.type) if kind is not UnsetType)
    return info.name, Union[(*kinds, None) if absent is None else kinds], absent  # noqa: UP007


_fields = [
    _field(info)
    for info in msgspec.structs.fields(Config)
    if info.default is not UNSET or info.name in ABSENT  # the others are only in logs of earlier versions
]
# The same fields with names in camel case.
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
    sent = msgspec.structs.asdict(data)
    sent |= {name: UNSET for name, absent in ABSENT.items() if sent[name] == absent}
    if data.challenger is not None and not data.challenger.share:
        sent["challenger"] = UNSET
    before = state.coordinator.bandit.guards.starts()
    await state.coordinator.configure(Config(**sent))
    bandit = state.coordinator.bandit
    return _config(bandit.config, AGAIN if bandit.guards.starts() != before else None)


def _config(config: Config, note: str | None = None) -> Response[Any]:
    every = msgspec.structs.asdict(config)
    known = ConfigBody.__struct_fields__  # not those that only logs of earlier versions have
    told = {name: value for name, value in every.items() if value is not UNSET and name in known}
    answer = ConfigBody(**told) if note is None else {**msgspec.to_builtins(ConfigBody(**told)), "note": note}
    return Response(answer, media_type="application/json")


ROUTES: list[Any] = [show_configuration, change_configuration]
BODIES: dict[str, type[Struct]] = {"change_configuration": ConfigBody}
