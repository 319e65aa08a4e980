"""`/logs/interactions` and `/logs/observations`: decisions of clients with their own model, and their rewards.

Both accept the batches of the reinforcement learning client library (see event_batch), or text with one JSON object
per line: decisions as in dsjson (`EventId`, `a`, `p`, `c`), and rewards as `{"EventId": …, "v": 0.5}`. As JSON, such
objects may also be a list, or that text a string.
"""

import asyncio
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import msgspec
from litestar import Response, post
from litestar.datastructures import State
from litestar.params import RawBody

from coterie.service.coordination.client_decisions import Decided
from coterie.service.coordination.coordinator import Coordinator
from coterie.service.core.events import Outcome
from coterie.service.core.question import Action, Question
from coterie.service.http.access import BYTES, DECIDE, JSON
from coterie.service.http.bodies import Features, checked
from coterie.service.http.compatible import Refusal, every_form
from coterie.service.http.limits import check_shape
from coterie.service.ids import LONGEST, RULE, is_id
from coterie.service.personalizer import event_batch
from coterie.service.personalizer.slots import slots_of
from coterie.service.personalizer.user import find_user

TAKES = {**DECIDE, "body": (*BYTES, *JSON)}
CODE = "InvalidRequest"
ROUNDING = 1e-3  # tolerance for the sum of probabilities in 32 bits


class Observed(NamedTuple):
    """A reward of a decision, or its activation."""

    event: str
    slot: str | int | None
    value: float | None
    activates: bool


@post(every_form("/logs/interactions"), opt=TAKES, status_code=204)
async def log_interactions(body: RawBody, state: State) -> Response[None]:
    """Store decisions that a client made itself: all, or none if one is invalid."""
    coordinator: Coordinator = state.coordinator
    with _refused("interaction"):
        found = await asyncio.to_thread(lambda: [*_interactions(body, coordinator)])
    new = await coordinator.keep_decisions(found)
    told = f"new={new}, known={len(found) - new}"
    return Response(None, status_code=204, headers={"x-coterie-decisions": told})


@post(every_form("/logs/observations"), opt=TAKES, status_code=204)
async def log_observations(body: RawBody, state: State) -> Response[None]:
    """Store rewards and activations of decisions."""
    coordinator: Coordinator = state.coordinator
    with _refused("observation"):
        found = await asyncio.to_thread(lambda: [*_observations(body, coordinator)])
    outcomes: Counter[Outcome | str] = Counter()
    for one in found:
        event = await _event_in(coordinator, one)
        if one.activates:
            outcomes["activated" if await coordinator.activate(event) else "unknown_event"] += 1
        if one.value is not None:
            outcome = await coordinator.reward(event, one.value)
            state.metrics.rewards.labels(outcome).inc()
            outcomes[outcome] += 1
    told = ", ".join(f"{name}={count}" for name, count in outcomes.items())
    return Response(None, status_code=204, headers={"x-coterie-reward": told})


@contextmanager
def _refused(what: str) -> Iterator[None]:
    try:
        yield
    except Refusal:
        raise
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, msgspec.MsgspecError) as error:
        name = f"{type(error).__name__} " if isinstance(error, KeyError | AttributeError) else ""
        message = f"the body holds no {what} that can be read: {name}{error}"
        raise Refusal(400, CODE, message, "body") from error


def _lines(body: bytes, coordinator: Coordinator) -> Iterator[dict[str, Any]]:
    parts = [line for line in _text(body).split(b"\n") if line.strip()]
    if not parts:
        raise ValueError("it is empty")
    if len(parts) > event_batch.MOST:
        raise ValueError(f"it has {len(parts)} lines, expected at most {event_batch.MOST}")
    for number, part in enumerate(parts, 1):
        check_shape(coordinator.settings, part)
        try:
            yield msgspec.json.decode(part, type=dict[str, Any])
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise ValueError(
                f"line {number} is no JSON object ({error}); expected one per line, or a batch of the client library"
            ) from error


def _text(body: bytes) -> bytes:
    """Return a body of JSON, a list or a string, as text with one object per line."""
    first = body.lstrip()[:1]
    if first == b'"':
        return msgspec.json.decode(body, type=str).encode()
    if first == b"[":
        return b"\n".join(map(msgspec.json.encode, msgspec.json.decode(body, type=list[Any])))
    return body


def _events(body: bytes, kind: int, name: str) -> Iterator[event_batch.Sent]:
    """Yield the events of a batch, which must have this kind of payload."""
    for sent in event_batch.read_batch(body):
        if sent.kind != kind:
            raise ValueError(f"event {sent.id[:80]!r} has payload type {sent.kind}, expected {kind} ({name})")
        yield sent


def _interactions(body: bytes, coordinator: Coordinator) -> Iterator[Decided]:
    if not event_batch.is_batch(body):
        for line in _lines(body, coordinator):
            deferred = line.get("DeferredAction")
            yield _decided(line["EventId"], line["a"], line["p"], line["c"], deferred, coordinator)
        return
    for sent in _events(body, event_batch.CB, "CB"):
        table = sent.table
        check_shape(coordinator.settings, table.content(2))
        context = msgspec.json.decode(table.content(2), type=dict[str, Any])
        order, chances = table.numbers(1, "Q"), table.numbers(3, "f")
        yield _decided(sent.id, order, chances, context, table.number(0, "?"), coordinator)


def _decided(
    event: Any,
    order: Sequence[Any],
    chances: Sequence[Any],
    context: Mapping[str, Any],
    deferred: Any,
    coordinator: Coordinator,
) -> Decided:
    """Return a decision; `order` has the numbers of the context's actions, from 1, the shown one first."""
    _check_event(event)
    shared = dict(context)
    listed = shared.pop("_multi")
    names = [str(part.get("_tag") or part.get("i", {}).get("id") or k) for k, part in enumerate(listed, 1)]
    if any(len(name) > LONGEST for name in names):
        raise ValueError(f"event {event!r} has an action id of more than {LONGEST} characters")
    if sorted(set(order)) != sorted(order) or not set(order) <= set(range(1, len(names) + 1)) or not order:
        raise ValueError(f"event {event!r}: a names actions other than the {len(names)} of c, or one twice")
    likely = [float(chance) for chance in chances]
    if len(likely) != len(order) or not all(0 <= chance <= 1 for chance in likely):
        raise ValueError(f"event {event!r}: p is not one probability for each action of a")
    if likely[0] <= 0 or not math.isclose(sum(likely), 1.0, abs_tol=ROUNDING):
        raise ValueError(f"event {event!r}: probabilities p do not add up to 1, or the shown action has 0")
    user, (around,) = find_user([shared], coordinator.settings.user_path)
    actions = [Action(name, _features(part)) for name, part in zip(names, listed, strict=True)]
    parts = [{key: part} for key, part in around.items() if not key.startswith("_")]
    open_to = {k - 1 for k in order}
    excluded = [name for k, name in enumerate(names) if k not in open_to]
    asked = Question(event, user, actions, parts, frozenset(excluded), bool(deferred))
    question = checked(asked, coordinator.settings)
    total = sum(likely)
    return Decided(question, [k - 1 for k in order], [chance / total for chance in likely])


def _check_event(event: Any) -> None:
    if not isinstance(event, str) or not is_id(event):
        raise ValueError(f"its event id is {str(event)[:80]!r}, {RULE}")


def _features(action: Mapping[str, Any]) -> Features | None:
    own = action.get("j")
    if own is not None:
        return own if isinstance(own, list) else [own]
    return [{key: part} for key, part in action.items() if not key.startswith("_") and key != "i"] or None


def _observations(body: bytes, coordinator: Coordinator) -> Iterator[Observed]:
    if not event_batch.is_batch(body):
        for line in _lines(body, coordinator):
            yield _checked(line["EventId"], line.get("Index"), line.get("v"), line.get("ActionTaken") is True)
        return
    for sent in _events(body, event_batch.OUTCOME, "Outcome"):
        yield _outcome(sent)


def _outcome(sent: event_batch.Sent) -> Observed:
    table = sent.table
    value: Any = None
    kind, index_kind = table.number(0, "B"), table.number(2, "B")
    if kind == event_batch.NUMERIC and (holder := table.table(1)) is not None:
        value = holder.number(0, "f")
    elif kind == event_batch.LITERAL:
        value = msgspec.json.decode(table.content(1))
    index: str | int | None = None
    if index_kind == event_batch.NUMERIC and (holder := table.table(3)) is not None:
        index = holder.number(0, "i")
    elif index_kind == event_batch.LITERAL:
        index = table.content(3).decode()
    return _checked(sent.id, index, value, table.number(4, "?"))


def _checked(event: Any, slot: Any, value: Any, activates: bool) -> Observed:
    _check_event(event)
    if value is None and not activates:
        raise ValueError(f"event {event!r} has neither a reward v nor ActionTaken")
    number = isinstance(value, int | float) and not isinstance(value, bool) and -1 <= value <= 1
    if value is not None and not number:
        given = str(value)[:80]
        raise ValueError(f"the reward of event {event!r} is {given!r}, expected a number from -1 to 1")
    return Observed(event, slot, None if value is None else float(value), activates)


async def _event_in(coordinator: Coordinator, one: Observed) -> str:
    """Return the event's id: that of the slot, if a slot is named by its id or number."""
    if one.slot is not None:
        for k, known in enumerate(await slots_of(coordinator, one.event)):
            if one.slot in (known.slot, k):
                return known.id
    return one.event


ROUTES: list[Any] = [log_interactions, log_observations]
