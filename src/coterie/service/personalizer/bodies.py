"""The bodies of the contract. What the contract lets be null or absent may be null or absent here."""

from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta, Struct

from coterie.service.core.question import Action
from coterie.service.http.duplicate_names import check_names
from coterie.service.http.limits import check_numbers
from coterie.service.ids import LONGEST, ActionName, Name, readable
from coterie.service.personalizer.errors import Refusal

EventName = Annotated[str, Meta(min_length=1, max_length=LONGEST)]  # checked with a message of its own
Features = list[dict[str, Any]]
T = TypeVar("T")


class ActionIn(Action, frozen=True, forbid_unknown_fields=True, omit_defaults=True, rename="camel"):
    """An action; without features it is known by its id."""

    id: ActionName
    features: Features | None = None


class RankIn(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, rename="camel"):
    """A rank request. The first action that is not excluded is the baseline."""

    actions: Annotated[list[ActionIn], Meta(min_length=1)]
    context_features: Features | None = None
    excluded_actions: list[str] | None = None
    event_id: EventName | None = None
    defer_activation: bool | None = None


class RankedOut(Struct, frozen=True):
    """An action as ranked."""

    id: str
    probability: float


class RankOut(Struct, frozen=True, rename="camel"):
    """The answer to a rank."""

    ranking: list[RankedOut]
    event_id: str
    reward_action_id: str


class RewardIn(Struct, frozen=True, forbid_unknown_fields=True):
    """A reward."""

    value: Annotated[float, Meta(ge=-1, le=1)]


class SlotIn(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, rename="camel"):
    """A place on the page."""

    id: Name
    baseline_action: Name
    features: Features | None = None
    excluded_actions: list[str] | None = None


class SlotsIn(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, rename="camel"):
    """A rank request for several places."""

    actions: Annotated[list[ActionIn], Meta(min_length=1)]
    slots: Annotated[list[SlotIn], Meta(min_length=1)]
    context_features: Features | None = None
    event_id: EventName | None = None
    defer_activation: bool | None = None


class SlotOut(Struct, frozen=True, rename="camel"):
    """What to show in a place."""

    id: str
    reward_action_id: str


class SlotsOut(Struct, frozen=True, rename="camel"):
    """The answer to a rank of several places."""

    slots: list[SlotOut]
    event_id: str


class SlotRewardIn(Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """A reward for one place."""

    slot_id: Name
    value: Annotated[float, Meta(ge=-1, le=1)]


class SlotRewardsIn(Struct, frozen=True, forbid_unknown_fields=True):
    """Rewards for some of the places."""

    reward: Annotated[list[SlotRewardIn], Meta(min_length=1, max_length=1000)]


def read(body: bytes, kind: type[T], code: str) -> T:
    """Return a body, or refuse it with the contract's code and the place of the mistake."""
    try:
        found = msgspec.json.decode(body, type=kind)
        check_names(body, found)
        check_numbers(body)
    except msgspec.ValidationError as error:
        _, _, place = str(error).partition(" - at ")
        raise Refusal(400, code, readable(error), place.strip("`$.") or None) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Refusal(400, code, f"the body is not JSON: {error}") from error
    except ValueError as error:
        raise Refusal(400, code, str(error)) from error
    return found
