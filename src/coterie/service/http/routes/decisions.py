"""Rank, reward and activate; why a decision was made, and what would be decided now."""

from typing import Annotated, Any

from litestar import get, post
from litestar.datastructures import State
from litestar.params import RawBody
from litestar.types import Scope
from msgspec import UNSET, Meta, Struct, UnsetType

from coterie.data.logs.interactions import SHARED
from coterie.data.logs.rules import PartName, PartValue
from coterie.service.coordination.coordinator import Coordinator
from coterie.service.core.answers import Ranking, ranking_of
from coterie.service.core.events import Outcome
from coterie.service.core.question import Question, hash_sent
from coterie.service.core.reasons import Contribution, contributions, rows_of
from coterie.service.http.access import DECIDE, READ
from coterie.service.http.bodies import Features, PricedAction, checked, read
from coterie.service.http.limits import check_shape
from coterie.service.ids import Id, PathId, decode_id

Part = float | UnsetType


class RankBody(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, rename="camel"):
    """What to decide, and for whom."""

    actions: Annotated[list[PricedAction], Meta(min_length=1, max_length=10_000)]
    user: Id | None = None  # None for a visitor who is not known
    context: Features = []
    excluded: list[str] = []
    event_id: Id | None = None
    defer_activation: bool = False


class RewardBody(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, rename="camel"):
    """What a decision was worth."""

    # Without it, `payoff` in the configuration says what the parts are worth.
    value: Annotated[float, Meta(ge=-1, le=1)] | None = None
    parts: Annotated[dict[PartName, PartValue], Meta(max_length=16)] = {}
    reward_id: Id | None = None  # distinguishes a retry from a second reward if several count
    cost: Annotated[float, Meta(ge=0, le=1e12)] | None = None  # of the decision, in place of its action's


class RewardAnswer(Struct, frozen=True, rename="camel"):
    """The outcome of a reward."""

    event_id: str
    outcome: Outcome


class ActivateAnswer(Struct, frozen=True, rename="camel"):
    """The outcome of an activation."""

    event_id: str
    outcome: Annotated[str, Meta(description="activated or unknown_event")]


class Reason(Struct, frozen=True, rename="camel"):
    """Why an action got its place: its estimate, and either the parts of it or the neighbours' estimates."""

    id: str
    estimate: float
    width: float
    score: float
    neighbours: int | UnsetType = UNSET
    neighbours_estimate: Part = UNSET
    neighbours_width: Part = UNSET
    population: Part = UNSET  # the average payoff of all actions
    action: Part = UNSET  # what this action adds for all users,
    context: Part = UNSET  # what it adds in this context,
    user: Part = UNSET  # and for this user


class EventAnswer(Struct, frozen=True, rename="camel"):
    """One decision explained."""

    event_id: str
    user: str | None
    at: int
    state: str
    reward: float
    chosen: str
    best: str
    baseline: str
    shown: str
    probability: float
    ranking: list[Any]
    reasons: list[Reason] | UnsetType = UNSET
    contributions: list[Contribution] | UnsetType = UNSET  # the largest parts of the chosen action's estimate
    capped: list[str] | UnsetType = UNSET  # left out because they reached a frequency cap
    all_capped: bool | UnsetType = UNSET  # every action did, so the baseline was shown
    unaffordable: list[str] | UnsetType = UNSET  # left out because they cost more than is left of the budget
    cost: float | UnsetType = UNSET  # of the choice, where actions have one
    price: float | UnsetType = UNSET  # of cost, in payoffs, that the choice was made with
    arm: str | UnsetType = UNSET  # in a trial: champion, holdback or challenger


BODIES: dict[str, type[Struct]] = {"rank": RankBody, "what_if": RankBody, "reward": RewardBody}


def question_in(body: bytes, coordinator: Coordinator) -> Question:
    """Return the question in the body of a rank."""
    settings = coordinator.settings
    check_shape(settings, body)
    data = read(body, RankBody)
    costs = tuple([action.cost for action in data.actions])
    question = Question(
        event=data.event_id or "",
        user=SHARED if data.user is None else data.user,
        actions=data.actions,
        context=data.context,
        excluded=frozenset(data.excluded),
        deferred=data.defer_activation,
        costs=costs if any(costs) else (),
        sent=hash_sent(body),
    )
    return checked(question, settings)


@post("/v1/rank", opt=DECIDE, status_code=201, operation_id="rank")
async def rank(body: RawBody, state: State, scope: Scope) -> Ranking:
    """Choose one of several actions for a user."""
    coordinator: Coordinator = state.coordinator
    question = question_in(body, coordinator)
    scope["coterie.event"] = question.event  # type: ignore[typeddict-unknown-key]
    return ranking_of(await coordinator.rank(question))


@post("/v1/events/{event_id:str}/reward", opt=DECIDE, status_code=200, operation_id="reward")
async def reward(event_id: PathId, body: RawBody, state: State, scope: Scope) -> RewardAnswer:
    """Say what a decision was worth; answered when it is learned and durable."""
    data = read(body, RewardBody)
    coordinator: Coordinator = state.coordinator
    event = decode_id(event_id)
    outcome = await coordinator.reward(event, data.value, data.reward_id, data.parts, data.cost)
    state.metrics.rewards.labels(outcome).inc()
    scope["coterie.outcome"] = outcome  # type: ignore[typeddict-unknown-key]
    return RewardAnswer(event, outcome)


@post("/v1/events/{event_id:str}/activate", opt=DECIDE, status_code=200, operation_id="activate")
async def activate(event_id: PathId, state: State) -> ActivateAnswer:
    """Say that a deferred decision was shown."""
    coordinator: Coordinator = state.coordinator
    event = decode_id(event_id)
    known = await coordinator.activate(event)
    return ActivateAnswer(event, "activated" if known else "unknown_event")


@get("/v1/events/{event_id:str}", opt=READ, operation_id="explain")
async def explain(event_id: PathId, state: State) -> EventAnswer:
    """Explain a decision: the scores, widths and neighbourhood sizes it was made with."""
    coordinator: Coordinator = state.coordinator
    event = await coordinator.event(decode_id(event_id))
    value = event.payoff(coordinator.bandit.config.aggregation) if event.open else event.value
    return explanation(await coordinator.decision(event), coordinator, event.state, value)


@post("/v1/what-if", opt=READ, status_code=200, operation_id="what_if")
async def what_if(body: RawBody, state: State) -> EventAnswer:
    """Explain what would be decided now; nothing is recorded."""
    coordinator: Coordinator = state.coordinator
    question = question_in(body, coordinator)
    record = await coordinator.what_if(question)
    return explanation(record, coordinator, "imagined", 0.0, question.user)


def explanation(
    record: Any, coordinator: Coordinator, state: str, reward: float, user: str | None = None
) -> EventAnswer:
    """Return a decision with its reasons."""
    answer = ranking_of(record)
    rows = rows_of(record)
    reasons: list[Reason] | UnsetType = UNSET
    if rows is not None:
        reasons = [_reason(record.actions[k], row) for k, row in zip(record.open_to, rows, strict=True)]
    largest = contributions(record)
    return EventAnswer(
        event_id=answer.event_id,
        user=user if user is not None else coordinator.bandit.ids.get(record.user),
        at=record.at,
        state=state,
        reward=reward,
        chosen=record.action.id,
        best=record.actions[record.best],
        baseline=record.actions[record.baseline],
        shown=record.shown or "best",
        probability=record.probability,
        ranking=answer.ranking,
        reasons=reasons,
        contributions=UNSET if largest is None else largest,
        capped=answer.capped or UNSET,
        all_capped=answer.all_capped or UNSET,
        unaffordable=answer.unaffordable or UNSET,
        cost=UNSET if record.costs is None else record.cost,
        price=UNSET if record.costs is None else record.price,
        arm=record.arm or UNSET,
    )


def _reason(name: str, row: dict[str, float]) -> Reason:
    told: dict[str, Any] = dict(row)
    if "neighbours" not in row:
        return Reason(name, score=row["estimate"] + row["width"], **told)
    told["neighbours"] = int(row["neighbours"])
    return Reason(name, score=row["neighbours_estimate"] + row["neighbours_width"], **told)


ROUTES: list[Any] = [rank, reward, activate, explain, what_if]
