"""The bodies of Personalizer's API. Fields that its contract allows to be null or absent may be so here too.

Azure read names in any case, and left out those that it did not know. So do we; the service's log names what was left
out, once.
"""

from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta, Struct
from msgspec import inspect as types

from coterie.service.core.answers import Candidate
from coterie.service.evaluations.jobs import milliseconds
from coterie.service.http.bodies import ActionBody, Features, decode_body
from coterie.service.http.compatible import Refusal
from coterie.service.http.duplicate_names import check_names
from coterie.service.http.limits import check_numbers
from coterie.service.ids import LONGEST, Name, readable
from coterie.service.logs import log

EventName = Annotated[str, Meta(max_length=LONGEST)]  # empty is none; checked later, with its own message
MARK = b"\xef\xbb\xbf"  # with which some clients begin a text in UTF-8
NAMED = 100  # unknown names that the log has; more would fill it
T = TypeVar("T")
_left_out: set[str] = set()


class RankIn(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, rename="camel"):
    """A rank request. The first action that is not excluded is the baseline."""

    actions: Annotated[list[ActionBody], Meta(min_length=1)]
    context_features: Features | None = None
    excluded_actions: list[str] | None = None
    event_id: EventName | None = None
    defer_activation: bool | None = None


class RankOut(Struct, frozen=True, rename="camel"):
    """The answer to a rank."""

    ranking: list[Candidate]
    event_id: str
    reward_action_id: str


class RewardIn(Struct, frozen=True, forbid_unknown_fields=True):
    """A reward."""

    value: Annotated[float, Meta(ge=-1, le=1)]


class SlotIn(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, rename="camel"):
    """A slot: a place on a page."""

    id: Name
    baseline_action: Name
    features: Features | None = None
    position_features: Features | None = None  # an earlier name of the same field; both may be sent
    excluded_actions: list[str] | None = None

    def every_feature(self) -> Features:
        """Return the slot's features."""
        return [*(self.features or ()), *(self.position_features or ())]


class SlotsIn(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, rename="camel"):
    """A rank request for several slots."""

    actions: Annotated[list[ActionBody], Meta(min_length=1)]
    slots: Annotated[list[SlotIn], Meta(min_length=1)]
    context_features: Features | None = None
    event_id: EventName | None = None
    defer_activation: bool | None = None


class SlotOut(Struct, frozen=True, rename="camel"):
    """The action to show in a slot."""

    id: str
    reward_action_id: str


class SlotsOut(Struct, frozen=True, rename="camel"):
    """The answer to a rank of several slots."""

    slots: list[SlotOut]
    event_id: str


class SlotRewardIn(Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """A reward for one slot."""

    slot_id: Name
    value: Annotated[float, Meta(ge=-1, le=1)]


class SlotRewardsIn(Struct, frozen=True, forbid_unknown_fields=True):
    """Rewards for some of the slots."""

    reward: Annotated[list[SlotRewardIn], Meta(min_length=1, max_length=1000)]


def read(body: bytes, kind: type[T], code: str) -> T:
    """Decode a body, or refuse it with the contract's code and the place of the mistake."""
    body = body.removeprefix(MARK)
    try:
        try:
            return decode_body(body, kind)
        except msgspec.ValidationError:
            check_names(body)
            check_numbers(body)
            return msgspec.convert(_fitted(msgspec.json.decode(body), types.type_info(kind)), kind)
    except msgspec.ValidationError as error:
        _, _, place = str(error).partition(" - at ")
        raise Refusal(400, code, readable(error), place.strip("`$.") or None) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Refusal(400, code, f"the body is not JSON: {error}") from error
    except ValueError as error:
        raise Refusal(400, code, str(error)) from error


def read_time(text: str, field: str, code: str) -> int:
    """Return the milliseconds of a time, or refuse it by the name of its field."""
    try:
        return milliseconds(text, field)
    except ValueError as error:
        raise Refusal(400, code, str(error), field) from error


def _fitted(value: Any, kind: types.Type) -> Any:
    """Return JSON with the names and words of a type: in its case, without unknown names, 7.0 as a count."""
    if isinstance(kind, types.UnionType):
        kind = next(one for one in kind.types if not isinstance(one, types.NoneType))
    if isinstance(kind, types.StructType) and isinstance(value, dict):
        fields = {field.encode_name.lower(): field for field in kind.fields}
        unknown = {name for name in value if name.lower() not in fields} - _left_out
        for name in list(unknown)[: NAMED - len(_left_out)]:
            _left_out.add(name)
            log.warning(f"a Personalizer request has the unknown field {name[:80]!r}, which is left out")
        found = [(fields[name.lower()], one) for name, one in value.items() if name.lower() in fields]
        return {field.encode_name: _fitted(one, field.type) for field, one in found}
    if isinstance(kind, types.ListType) and isinstance(value, list):
        return [_fitted(one, kind.item_type) for one in value]
    if isinstance(kind, types.IntType) and isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(kind, types.LiteralType) and isinstance(value, str):
        return next((word for word in kind.values if str(word).lower() == value.lower()), value)
    return value
