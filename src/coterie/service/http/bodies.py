"""Bodies of requests, decoded strictly; and the features and actions in them, checked against the limits.

Bodies are not decoded by Litestar, which would accept "1" for 1 and take twice as long.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from coterie.errors import ContextError
from coterie.models.features import check_readable
from coterie.service.core.answers import new_event_id
from coterie.service.core.encoding import KnownActions, KnownFeatures
from coterie.service.core.question import Action, Question
from coterie.service.http.duplicate_names import check_names
from coterie.service.http.known_actions import ShortWay, short_way
from coterie.service.http.limits import check_actions, check_features, check_numbers
from coterie.service.ids import ActionName, check_action_ids, readable
from coterie.service.problems import Problem
from coterie.service.settings import Settings

Features = list[dict[str, Any]]
T = TypeVar("T")

_decoders: dict[Any, tuple[msgspec.json.Decoder[Any], ShortWay[Any] | None]] = {}


class ActionBody(Action, frozen=True, forbid_unknown_fields=True, omit_defaults=True, rename="camel"):
    """One thing that could be shown; without features it is known by its id."""

    id: ActionName
    features: Features | None = None


class PricedAction(ActionBody, frozen=True):
    """An action that may cost something."""

    cost: Annotated[float, Meta(ge=0, le=1e12)] = 0.0  # of showing it, in any unit: that of the budget


def decode_body(body: bytes, kind: type[T]) -> T:
    """Return a body as a `kind`; raises msgspec's errors, ValueError or RecursionError if it cannot be read."""
    if kind not in _decoders:
        _decoders[kind] = msgspec.json.Decoder(kind), short_way(kind)
    decoder, short = _decoders[kind]
    if short is not None:
        known: T | None = short.decode(body)
        if known is not None:
            return known
    found: T = decoder.decode(body)
    check_names(body, found)
    check_numbers(body)
    return found


def read(body: bytes, kind: type[T]) -> T:
    """Decode a body, or answer 400 with the reason and the place."""
    try:
        return decode_body(body, kind)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise Problem(400, "invalid_request", f"the body cannot be read: {readable(error)}") from error


def read_counts(body: bytes, kind: type[T]) -> T:
    """Decode a body that holds counts. JSON has one kind of number: 5.0 is a count too."""
    try:
        values = msgspec.json.decode(body, type=dict[str, Any])
        check_names(body)
        return msgspec.convert(_with_counts(values), kind)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise Problem(400, "invalid_request", f"the body cannot be read: {error}") from error


def _with_counts(value: Any) -> Any:
    """Return a value of JSON, at any depth with integers for numbers that are whole."""
    if isinstance(value, dict):
        return {name: _with_counts(one) for name, one in value.items()}
    if isinstance(value, list):
        return [*map(_with_counts, value)]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def checked(question: Question, settings: Settings) -> Question:
    """Return a question, checked: sizes, ids and features; without an event's id, it gets a new one."""
    actions, context = question.actions, question.context
    check_actions(settings, actions, question.excluded)
    work = sum(check_features(settings, context, actions))
    known = isinstance(actions, KnownActions)
    sent = [context] if known else [context, *[one.features for one in actions]]
    check_groups([one for one in sent if one and not isinstance(one, KnownFeatures)])
    if not known:
        check_ids(actions)
    fresh = not question.event
    event = new_event_id() if fresh else question.event
    return msgspec.structs.replace(question, event=event, work=work, fresh=fresh)


def check_ids(actions: Sequence[Action]) -> None:
    """Raise if an action's id cannot be one, or two actions have the same."""
    check_action_ids(actions)
    if len({action.id for action in actions}) != len(actions):
        raise Problem(422, "same_action_twice", "two actions have the same id")


def check_groups(groups: Sequence[Sequence[Mapping[str, Any]]]) -> None:
    """Raise if features cannot be read, and name them."""
    try:
        check_readable(groups)
    except ContextError as error:
        raise Problem(422, "invalid_features", str(error)) from error
