"""The configuration that decisions are made by."""

from typing import Annotated, Any

import msgspec
from litestar import Response, get, put
from litestar.datastructures import State
from litestar.params import RawBody
from msgspec import UNSET, Meta, Struct

from coterie.service.http.access import ADMIN, READ
from coterie.service.http.bodies import read_counts
from coterie.service.settings import Budget, Cap, Challenger, Config, Share
from coterie.service.trial.lift import SMALLEST_LIFT

_fields: list[Any] = [
    (f.name, f.type, msgspec.field(default_factory=dict) if f.default is msgspec.NODEFAULT else f.default)
    for f in msgspec.structs.fields(Config)
    if f.default is not UNSET
]
# What a configuration has only where it is set; these values are for "not set".
ABSENT: dict[str, Any] = {"holdback": 0.0, "challenger": None, "ignored": "", "smallest_lift": SMALLEST_LIFT}
ABSENT["caps"] = ()
ABSENT["budget"] = None
_fields += [("holdback", Share, ABSENT["holdback"]), ("challenger", Challenger | None, ABSENT["challenger"])]
_fields += [("ignored", Annotated[str, Meta(max_length=64)], ABSENT["ignored"])]
_fields += [("smallest_lift", Annotated[float, Meta(gt=0, le=1)], ABSENT["smallest_lift"])]
_fields += [("caps", Annotated[tuple[Cap, ...], Meta(max_length=1000)], ABSENT["caps"])]
_fields += [("budget", Budget | None, ABSENT["budget"])]
# The same fields with names in camel case.
ConfigBody: Any = msgspec.defstruct(
    "ConfigBody", _fields, rename="camel", forbid_unknown_fields=True, frozen=True
)


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
    await state.coordinator.configure(Config(**sent))
    return _config(state.coordinator.bandit.config)


def _config(config: Config) -> Response[Any]:
    every = msgspec.structs.asdict(config)
    known = ConfigBody.__struct_fields__  # not those that only logs of earlier versions have
    told = {name: value for name, value in every.items() if value is not UNSET and name in known}
    return Response(ConfigBody(**told), media_type="application/json")


ROUTES: list[Any] = [show_configuration, change_configuration]
BODIES: dict[str, type[Struct]] = {"change_configuration": ConfigBody}
