"""The native API: users first, and every answer says what became of the request."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, TypeVar

import msgspec
from litestar import Request, Response, delete, get, post, put
from litestar.datastructures import State
from litestar.params import RawBody
from litestar.types import Scope
from msgspec import UNSET, Meta, Struct, UnsetType

from coterie.errors import ContextError
from coterie.models.features import check_readable
from coterie.service.coordination.answers import Partial, Ranking, new_event_id, ranking_of
from coterie.service.coordination.coordinator import Coordinator
from coterie.service.core.events import Outcome
from coterie.service.core.question import Action, Question
from coterie.service.core.reasons import Contribution, contributions, rows_of
from coterie.service.http.access import ADMIN, DECIDE, READ
from coterie.service.http.duplicate_names import check_names
from coterie.service.http.limits import check_actions, check_features, check_numbers, check_shape
from coterie.service.ids import ActionName, Id, PathId, check_action_ids, decode_id, readable
from coterie.service.problems import Problem
from coterie.service.settings import Challenger, Config, Settings, Share
from coterie.service.trial.assignment import normal

Features = list[dict[str, Any]]


class ActionBody(Action, frozen=True, forbid_unknown_fields=True, omit_defaults=True, rename="camel"):
    """One thing that could be shown; without features it is known by its id."""

    id: ActionName
    features: Features | None = None


class RankBody(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, rename="camel"):
    """What to decide, and for whom."""

    user: Id
    actions: Annotated[list[ActionBody], Meta(min_length=1, max_length=1000)]
    context: Features = []
    excluded: list[str] = []
    event_id: Id | None = None
    defer_activation: bool = False


class RewardBody(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, rename="camel"):
    """What it was worth."""

    value: Annotated[float, Meta(ge=-1, le=1)]
    reward_id: Id | None = None  # tells a retry from a second reward when rewards are summed


class RewardAnswer(Struct, frozen=True, rename="camel"):
    """What became of a reward."""

    event_id: str
    outcome: Outcome


class ActivateAnswer(Struct, frozen=True, rename="camel"):
    """What became of an activation."""

    event_id: str
    outcome: Annotated[str, Meta(description="activated or unknown_event")]


class Reason(Struct, frozen=True, rename="camel"):
    """Why an action got its place: its estimate, and either what that consists of or what the users alike say."""

    id: str
    estimate: float
    width: float
    score: float
    neighbours: int | UnsetType = UNSET
    neighbours_estimate: float | UnsetType = UNSET
    neighbours_width: float | UnsetType = UNSET
    population: float | UnsetType = UNSET  # what anything pays on average
    action: float | UnsetType = UNSET  # what this action adds for everybody
    context: float | UnsetType = UNSET  # … in this context
    user: float | UnsetType = UNSET  # … for this user


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
    partial: Partial | UnsetType = UNSET
    arm: str | UnsetType = UNSET  # in a trial: champion, holdback or challenger


class ShardsBody(Struct, frozen=True, forbid_unknown_fields=True):
    """How many shards share the users."""

    shards: Annotated[int, Meta(ge=1, le=4096)]


class UserAnswer(Struct, frozen=True, rename="camel"):
    """What is known of a user."""

    id: str
    first_seen: int
    last_seen: int
    decisions: int
    learned: int
    earned: float


_trial: list[Any] = [("holdback", Share, 0.0), ("challenger", Challenger | None, None)]
ConfigBody: Any = msgspec.defstruct(  # the same fields, named as JSON has them
    "ConfigBody",
    [
        (
            f.name,
            f.type,
            f.default if f.default_factory is msgspec.NODEFAULT else msgspec.field(default_factory=dict),
        )
        for f in msgspec.structs.fields(Config)
        if f.default is not UNSET
    ]
    + _trial,
    rename="camel",
    forbid_unknown_fields=True,
    frozen=True,
)


# Which operation takes which body. Bodies are decoded here rather than by Litestar, whose way of calling a
# handler would take "1" for 1 and needs twice the time.
BODIES: dict[str, type[Struct]] = {
    "rank": RankBody,
    "what_if": RankBody,
    "reward": RewardBody,
    "change_configuration": ConfigBody,
    "rebalance": ShardsBody,
}
_decoders: dict[Any, msgspec.json.Decoder[Any]] = {
    kind: msgspec.json.Decoder(kind) for kind in BODIES.values()
}
T = TypeVar("T")


def read(body: bytes, kind: type[T]) -> T:
    """Decode a body, or say what is wrong with it and where."""
    try:
        found = _decoders[kind].decode(body) if kind in _decoders else msgspec.json.decode(body, type=kind)
        check_names(body, found)
        check_numbers(body)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise Problem(400, "invalid_request", f"the body cannot be read: {readable(error)}") from error
    return found


def read_counts(body: bytes, kind: type[T]) -> T:
    """Decode a body that holds counts. JSON has one kind of number: 5.0 is a count too."""
    try:
        values = msgspec.json.decode(body, type=dict[str, Any])
        check_names(body)
        whole = {k: int(v) if isinstance(v, float) and v.is_integer() else v for k, v in values.items()}
        return msgspec.convert(whole, kind)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise Problem(400, "invalid_request", f"the body cannot be read: {error}") from error


def question_in(body: bytes, coordinator: Coordinator) -> Question:
    """Return what the body of a rank asks."""
    check_shape(coordinator.settings, body)
    data = read(body, RankBody)
    event = data.event_id or new_event_id()
    return question_of(
        data.user,
        data.actions,
        data.context,
        data.excluded,
        event,
        data.defer_activation,
        coordinator.settings,
    )


def question_of(
    user: str,
    actions: Sequence[Action],
    context: Features,
    excluded: Sequence[str],
    event: str,
    deferred: bool,
    settings: Settings,
) -> Question:
    """Check sizes and return what is to be decided."""
    check_actions(settings, actions, excluded)
    work = sum(check_features(settings, context, actions))
    check_groups([context, *(action.features for action in actions if action.features)])
    check_action_ids(actions)
    if len({action.id for action in actions}) != len(actions):
        raise Problem(422, "same_action_twice", "two actions have the same id")
    return Question(event, user, actions, context, frozenset(excluded), deferred, work=work)


def check_groups(groups: Sequence[Sequence[Mapping[str, Any]]]) -> None:
    """Raise if features cannot be read, and say which."""
    try:
        check_readable(groups)
    except ContextError as error:
        raise Problem(422, "invalid_features", str(error)) from error


@post("/v1/rank", opt=DECIDE, status_code=201, operation_id="rank")
async def rank(request: Request[Any, Any, Any]) -> Ranking:
    """Choose one of several actions for a user."""
    return await decide(await request.body(), request.app.state.coordinator, request.scope)


async def decide(body: bytes, coordinator: Coordinator, scope: Any) -> Ranking:
    """Answer a rank; the guard calls this without Litestar, whose way here costs as much as the decision."""
    question = question_in(body, coordinator)
    scope["coterie.event"] = question.event
    return ranking_of(await coordinator.rank(question))


@post("/v1/events/{event_id:str}/reward", opt=DECIDE, status_code=200, operation_id="reward")
async def reward(event_id: PathId, body: RawBody, state: State, scope: Scope) -> RewardAnswer:
    """Say what a decision was worth; answered after it was learned and is durable."""
    data = read(body, RewardBody)
    coordinator: Coordinator = state.coordinator
    event = decode_id(event_id)
    outcome = await coordinator.reward(event, data.value, data.reward_id)
    state.metrics.rewarded(outcome)
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
    event = coordinator.event(decode_id(event_id))
    return explanation(await coordinator.decision(event), coordinator, event.state, event.value)


@post("/v1/what-if", opt=READ, status_code=200, operation_id="what_if")
async def what_if(body: RawBody, state: State) -> EventAnswer:
    """Explain what would be decided now; nothing is recorded."""
    coordinator: Coordinator = state.coordinator
    question = question_in(body, coordinator)
    record = await coordinator.what_if(question)
    return explanation(record, coordinator, "imagined", 0.0, question.user)


@get("/v1/users/{user_id:str}", opt=READ, operation_id="show_user")
async def show_user(user_id: PathId, state: State) -> UserAnswer:
    """Show what is known of a user."""
    coordinator: Coordinator = state.coordinator
    name = decode_id(user_id)
    number = coordinator.bandit.names.get(name)
    user = coordinator.bandit.users.get(number) if number is not None else None
    if user is None:
        raise Problem(404, "unknown_user", f"user {name!r} is not known")
    return UserAnswer(name, user.first, user.last, user.decisions, user.learned, user.earned)


@delete("/v1/users/{user_id:str}", opt=ADMIN, status_code=204, operation_id="forget_user")
async def forget_user(user_id: PathId, state: State) -> None:
    """Forget a user, in the model at once and in the log."""
    coordinator: Coordinator = state.coordinator
    name = decode_id(user_id)
    if not await coordinator.forget(name):
        raise Problem(404, "unknown_user", f"user {name!r} is not known")


@get("/v1/configuration", opt=READ, operation_id="show_configuration")
async def show_configuration(state: State) -> Response[Any]:
    """Show the rules decisions are made by."""
    return _config(state.coordinator.bandit.config)


@put("/v1/configuration", opt=ADMIN, operation_id="change_configuration")
async def change_configuration(body: RawBody, state: State) -> Response[Any]:
    """Change the rules from here on. Another policy first learns what the log holds, then takes over."""
    data = read_counts(body, ConfigBody)
    sent = msgspec.structs.asdict(data)
    await state.coordinator.configure(Config(**(sent | normal(data.holdback, data.challenger))))
    return _config(state.coordinator.bandit.config)


@put("/v1/shards", opt=ADMIN, operation_id="rebalance")
async def rebalance(body: RawBody, state: State) -> ShardsBody:
    """Share the users among so many shards; decisions and rewards go on meanwhile. Answered when all have moved."""
    data = read_counts(body, ShardsBody)
    await state.coordinator.rebalance(data.shards)
    return data


def _config(config: Config) -> Response[Any]:
    told = {name: value for name, value in msgspec.structs.asdict(config).items() if value is not UNSET}
    return Response(ConfigBody(**told), media_type="application/json")


def explanation(
    record: Any, coordinator: Coordinator, state: str, reward: float, user: str | None = None
) -> EventAnswer:
    """Return a decision with its reasons."""
    answer = ranking_of(record)
    rows = rows_of(record)
    open_to = [k for k in range(len(record.actions)) if k not in record.excluded]
    reasons: list[Reason] | UnsetType = UNSET
    if rows is not None:
        reasons = [_reason(record.actions[k], row) for k, row in zip(open_to, rows, strict=True)]
    largest = contributions(record)
    return EventAnswer(
        event_id=answer.event_id,
        user=user if user is not None else coordinator.bandit.ids.get(record.user),
        at=record.at,
        state=state,
        reward=reward,
        chosen=record.actions[record.choice],
        best=record.actions[record.best],
        baseline=record.actions[record.baseline],
        shown=record.shown or "best",
        probability=record.probability,
        ranking=answer.ranking,
        reasons=reasons,
        contributions=UNSET if largest is None else largest,
        partial=UNSET if answer.partial is None else answer.partial,
        arm=record.arm or UNSET,
    )


def _reason(name: str, row: dict[str, float]) -> Reason:
    told: dict[str, Any] = dict(row)
    if "neighbours" not in row:
        return Reason(name, score=row["estimate"] + row["width"], **told)
    told["neighbours"] = int(row["neighbours"])
    return Reason(name, score=row["neighbours_estimate"] + row["neighbours_width"], **told)


ROUTES: list[Any] = [
    rank,
    reward,
    activate,
    explain,
    what_if,
    show_user,
    forget_user,
    show_configuration,
    change_configuration,
    rebalance,
]
