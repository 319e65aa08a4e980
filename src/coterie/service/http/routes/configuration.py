"""The configuration that decisions are made by."""

from typing import Annotated, Any

import msgspec
from litestar import Response, get, put
from litestar.datastructures import State
from litestar.params import RawBody
from msgspec import UNSET, Meta, Struct

from coterie.service.http.access import ADMIN, READ
from coterie.service.http.bodies import read_counts
from coterie.service.settings import (
    Budget,
    Cap,
    Challenger,
    Config,
    Guardrail,
    PartName,
    PartValue,
    Share,
)
from coterie.service.trial.lift import SMALLEST_LIFT

_fields: list[Any] = [
    (f.name, f.type, msgspec.field(default_factory=dict) if f.default is msgspec.NODEFAULT else f.default)
    for f in msgspec.structs.fields(Config)
    if f.default is not UNSET
]
# What a configuration has only where it is set; these values are for "not set".
ABSENT: dict[str, Any] = {"holdback": 0.0, "challenger": None, "ignored": "", "smallest_lift": SMALLEST_LIFT}
ABSENT |= {"caps": (), "budget": None, "payoff": {}, "guardrails": ()}
_fields += [("holdback", Share, ABSENT["holdback"]), ("challenger", Challenger | None, ABSENT["challenger"])]
_fields += [("ignored", Annotated[str, Meta(max_length=64)], ABSENT["ignored"])]
_fields += [("smallest_lift", Annotated[float, Meta(gt=0, le=1)], ABSENT["smallest_lift"])]
_fields += [("caps", Annotated[tuple[Cap, ...], Meta(max_length=1000)], ABSENT["caps"])]
_fields += [("budget", Budget | None, ABSENT["budget"])]
_fields += [("payoff", Annotated[dict[PartName, PartValue], Meta(max_length=64)], {})]
_fields += [("guardrails", Annotated[tuple[Guardrail, ...], Meta(max_length=16)], ABSENT["guardrails"])]
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
