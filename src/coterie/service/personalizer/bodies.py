"""The bodies of Personalizer's API. Fields that its contract allows to be null or absent may be so here too."""

from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta, Struct

from coterie.service.core.answers import Candidate
from coterie.service.http.bodies import ActionBody, Features, decode_body
from coterie.service.http.compatible import Refusal
from coterie.service.ids import LONGEST, Name, readable

EventName = Annotated[str, Meta(min_length=1, max_length=LONGEST)]  # checked later, with its own message
T = TypeVar("T")


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
    try:
        return decode_body(body, kind)
    except msgspec.ValidationError as error:
        _, _, place = str(error).partition(" - at ")
        raise Refusal(400, code, readable(error), place.strip("`$.") or None) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Refusal(400, code, f"the body is not JSON: {error}") from error
    except ValueError as error:
        raise Refusal(400, code, str(error)) from error
