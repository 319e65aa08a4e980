"""Personalizer's rank, reward and activate. The answer to a reward is empty; `x-coterie-reward` has the outcome."""

import asyncio
from collections.abc import Sequence
from typing import Any

from litestar import Response, Router, post
from litestar.datastructures import State
from litestar.params import FromPath, RawBody
from litestar.types import Scope

from coterie.service.coordination.coordinator import Coordinator
from coterie.service.core.answers import Candidate, ranking_of
from coterie.service.core.question import Question, hash_sent
from coterie.service.http.access import DECIDE
from coterie.service.http.bodies import checked
from coterie.service.http.compatible import PREFIX, Refusal, check_form, every_form
from coterie.service.http.limits import check_features, check_shape
from coterie.service.ids import RULE, decode_id, is_id
from coterie.service.personalizer import bodies
from coterie.service.personalizer.admin import ROUTES
from coterie.service.personalizer.bodies import read
from coterie.service.personalizer.evaluations import ROUTES as EVALUATIONS
from coterie.service.personalizer.interactions import ROUTES as LOGGING
from coterie.service.personalizer.slots import (
    check_slots,
    slot_event,
    slot_question,
    slots_in_memory,
    slots_of,
)
from coterie.service.personalizer.user import find_user
from coterie.service.problems import Problem

REWARD, ACTIVATION = "x-coterie-reward", "x-coterie-activation"


def checked_event(event: str, code: str) -> str:
    """Return an event id if it is valid; refuse it otherwise."""
    if not is_id(event):
        raise Refusal(400, code, f"eventId is {event[:80]!r}, {RULE}", "eventId")
    return event


def question_from(
    data: bodies.RankIn | bodies.SlotsIn, body: bytes, coordinator: Coordinator, excluded: list[str]
) -> Question:
    """Return the question to decide, for the user found in the context."""
    user, context = find_user(data.context_features or (), coordinator.settings.user_path)
    question = Question(
        event=checked_event(data.event_id, "InvalidRankRequest") if data.event_id else "",
        user=user,
        actions=data.actions,
        context=context,
        excluded=frozenset(excluded),
        deferred=bool(data.defer_activation),
        sent=hash_sent(body),
    )
    return checked(question, coordinator.settings)


@post(every_form("/rank"), opt=DECIDE, status_code=201)
async def rank(body: RawBody, state: State, scope: Scope) -> bodies.RankOut:
    """Choose one of several actions."""
    coordinator: Coordinator = state.coordinator
    check_shape(coordinator.settings, body)
    data = read(body, bodies.RankIn, "InvalidRankRequest")
    question = question_from(data, body, coordinator, data.excluded_actions or [])
    scope["coterie.event"] = question.event  # type: ignore[typeddict-unknown-key]

    slotted = not question.fresh and await coordinator.decided(slot_event(question.event, 0)) is not None

    def check() -> None:
        if slotted or slot_event(question.event, 0) in coordinator.bandit.events:
            raise _used(question.event)

    record = await coordinator.rank(question, check)
    answer = ranking_of(record)
    return bodies.RankOut(_around(answer.ranking, record.excluded), answer.event_id, answer.chosen)


def _around(ranking: list[Candidate], excluded: Sequence[int]) -> list[Candidate]:
    """Return a ranking with each excluded action at its place in the request, and the others around it.

    `ranking` has the excluded actions last, in the order of `excluded`, which are their places, ascending.
    """
    if not excluded:
        return ranking
    shown = ranking[: len(ranking) - len(excluded)]
    for place, candidate in zip(excluded, ranking[len(shown) :], strict=True):
        shown.insert(place, candidate)
    return shown


@post(every_form("/events/{event_id:str}/reward"), opt=DECIDE, status_code=204)
async def reward(event_id: FromPath[str], body: RawBody, state: State, scope: Scope) -> Response[None]:
    """Say what a decision was worth."""
    data = read(body, bodies.RewardIn, "InvalidRewardRequest")
    event = checked_event(decode_id(event_id), "InvalidRewardRequest")
    outcome = await state.coordinator.reward(event, data.value)
    state.metrics.rewards.labels(outcome).inc()
    scope["coterie.outcome"] = outcome  # type: ignore[typeddict-unknown-key]
    return Response(None, status_code=204, headers={REWARD: outcome})


@post(every_form("/events/{event_id:str}/activate"), opt=DECIDE, status_code=204)
async def activate(event_id: FromPath[str], state: State) -> Response[None]:
    """Say that a deferred decision was shown."""
    known = await state.coordinator.activate(checked_event(decode_id(event_id), "InvalidEventIdToActivate"))
    return Response(None, status_code=204, headers={ACTIVATION: "activated" if known else "unknown_event"})


@post(every_form("/multislot/rank"), opt=DECIDE, status_code=201)
async def rank_slots(body: RawBody, state: State, scope: Scope) -> bodies.SlotsOut:
    """Choose a different action for each of several slots."""
    coordinator: Coordinator = state.coordinator
    check_shape(coordinator.settings, body)
    data = read(body, bodies.SlotsIn, "InvalidRankRequest")
    question = question_from(data, body, coordinator, [])
    scope["coterie.event"] = question.event  # type: ignore[typeddict-unknown-key]
    check_slots(data, coordinator.settings)
    features = [slot.every_feature() for slot in data.slots]
    works = check_features(coordinator.settings, question.context, data.actions, features)
    event = question.event

    if not question.fresh:
        known = await slots_of(coordinator, event)
        if await coordinator.knows(event) or (known and len(known) != len(data.slots)):
            raise _used(event)

    def check() -> None:  # again, for requests that were decided meanwhile
        known = slots_in_memory(coordinator, event)
        if event in coordinator.bandit.events or (known and len(known) != len(data.slots)):
            raise _used(event)

    parts = enumerate(zip(data.slots, works, strict=True))
    questions = [slot_question(question, k, slot, work) for k, (slot, work) in parts]
    found = await coordinator.rank_slots(questions, check)
    chosen = [record.actions[record.choice] for record in found]
    slots = [bodies.SlotOut(slot.id, action) for slot, action in zip(data.slots, chosen, strict=True)]
    return bodies.SlotsOut(slots, event)


@post(every_form("/multislot/events/{event_id:str}/reward"), opt=DECIDE, status_code=204)
async def reward_slots(event_id: FromPath[str], body: RawBody, state: State) -> Response[None]:
    """Say what the decisions for some slots were worth; outcomes have the same order."""
    coordinator: Coordinator = state.coordinator
    data = read(body, bodies.SlotRewardsIn, "InvalidRewardRequest")
    event = checked_event(decode_id(event_id), "InvalidRewardRequest")
    known = {child.slot: child.id for child in await slots_of(coordinator, event)}

    async def outcome_of(part: bodies.SlotRewardIn) -> str:
        if part.slot_id not in known:
            return "unknown_slot" if known else "unknown_event"
        return await coordinator.reward(known[part.slot_id], part.value)

    # Together, so that they wait for one commit.
    outcomes = await asyncio.gather(*[outcome_of(part) for part in data.reward])
    for outcome in outcomes:
        state.metrics.rewards.labels(outcome).inc()
    return Response(None, status_code=204, headers={REWARD: ", ".join(outcomes)})


@post(every_form("/multislot/events/{event_id:str}/activate"), opt=DECIDE, status_code=204)
async def activate_slots(event_id: FromPath[str], state: State) -> Response[None]:
    """Say that the deferred decisions of all slots were shown."""
    coordinator: Coordinator = state.coordinator
    known = await slots_of(coordinator, checked_event(decode_id(event_id), "InvalidEventIdToActivate"))
    await asyncio.gather(*[coordinator.activate(child.id) for child in known])
    return Response(None, status_code=204, headers={ACTIVATION: "activated" if known else "unknown_event"})


def _used(event: str) -> Problem:
    message = f"event {event!r} was decided for another request; use a new event id"
    return Problem(409, "event_exists", message)


DECISIONS: list[Any] = [rank, reward, activate, rank_slots, reward_slots, activate_slots]
ROUTER = Router(
    path=PREFIX,
    route_handlers=[*DECISIONS, *LOGGING, *EVALUATIONS, *ROUTES],
    before_request=lambda request: check_form(request.scope),
    include_in_schema=False,
)
