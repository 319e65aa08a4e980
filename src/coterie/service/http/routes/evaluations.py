"""The native routes of evaluations: make, list, read, delete and apply."""

import asyncio
from typing import Annotated, Any

from litestar import delete, get, post, put
from litestar.datastructures import State
from litestar.params import RawBody
from msgspec import UNSET, Meta, Struct, UnsetType

from coterie.service.coordination.coordinator import Coordinator
from coterie.service.evaluations.job_queue import MOST_POLICIES, Evaluations
from coterie.service.evaluations.jobs import LATEST, EvaluatedPolicy, Job
from coterie.service.evaluations.search import policies_of
from coterie.service.http.access import ADMIN, READ
from coterie.service.http.bodies import read, read_counts
from coterie.service.ids import Name, PathId, decode_id

Moment = Annotated[int, Meta(ge=0, le=LATEST)]


class PolicyBody(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A policy to evaluate: its name here, and the policy as in the configuration."""

    name: Name
    policy: str
    parameters: dict[str, Any] = {}


class EvaluationBody(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What to evaluate: the whole log, or from start to end, in milliseconds since 1970."""

    name: Name | None = None
    start: Moment = 0
    end: Moment | None = None
    policies: Annotated[list[PolicyBody], Meta(max_length=MOST_POLICIES)] = []
    search: bool = False  # also try some policies near the one in force


class ApplyBody(Struct, frozen=True, forbid_unknown_fields=True):
    """Which of the evaluated policies to apply."""

    policy: Name


class EvaluationAnswer(Struct, frozen=True, rename="camel"):
    """An evaluation, with the result if it is done and not part of a list."""

    id: str
    name: str
    start: int
    end: int
    created: int
    status: Annotated[str, Meta(description="waiting, running, done, failed or timeout")]
    automatic: bool
    policies: list[PolicyBody]
    error: str | None = None
    verdict: str | None = None
    applied: str | None = None
    result: dict[str, Any] | UnsetType = UNSET


class EvaluationsAnswer(Struct, frozen=True):
    """All evaluations, the newest first."""

    evaluations: list[EvaluationAnswer]


COPIED = ("id", "name", "start", "end", "created", "status", "automatic", "error", "applied")
BODIES: dict[str, type[Struct]] = {"make_evaluation": EvaluationBody, "apply_evaluation": ApplyBody}


def told(job: Job, whole: bool = True) -> EvaluationAnswer:
    """Return an evaluation as it is answered."""
    result = job.result
    return EvaluationAnswer(
        **{name: getattr(job, name) for name in COPIED},
        policies=[PolicyBody(one.name, one.policy, one.parameters) for one in job.policies],
        verdict=None if result is None else result.get("verdict"),
        result=result if whole and result is not None else UNSET,
    )


@get("/v1/evaluations", opt=READ, operation_id="list_evaluations")
async def list_evaluations(state: State) -> EvaluationsAnswer:
    """List the evaluations, the newest first, without their results."""
    evaluations: Evaluations = await state.evaluations.look()
    return EvaluationsAnswer([told(job, whole=False) for job in evaluations.every("evaluation")])


@put("/v1/evaluations/{evaluation_id:str}", opt=ADMIN, status_code=201, operation_id="make_evaluation")
async def make_evaluation(evaluation_id: PathId, body: RawBody, state: State) -> EvaluationAnswer:
    """Start an evaluation of what other policies would have earned; answered before it is done."""
    name = decode_id(evaluation_id)
    data = read_counts(body, EvaluationBody)
    coordinator: Coordinator = state.coordinator
    job = Job(
        id=name,
        kind="evaluation",
        name=data.name or name,
        start=data.start,
        end=coordinator.clock() + 1 if data.end is None else data.end,
        created=coordinator.clock(),
        policies=await asyncio.to_thread(
            policies_of,
            [EvaluatedPolicy(one.name, one.policy, one.parameters) for one in data.policies],
            data.search,
            coordinator.bandit.config,
            coordinator.engine,
        ),
    )
    return told(await state.evaluations.make(job))


@get("/v1/evaluations/{evaluation_id:str}", opt=READ, operation_id="show_evaluation")
async def show_evaluation(evaluation_id: PathId, state: State) -> EvaluationAnswer:
    """Show an evaluation, with its result if it is done."""
    return told((await state.evaluations.look()).find("evaluation", decode_id(evaluation_id)))


@delete("/v1/evaluations/{evaluation_id:str}", opt=ADMIN, status_code=204, operation_id="delete_evaluation")
async def delete_evaluation(evaluation_id: PathId, state: State) -> None:
    """Delete an evaluation, and end it if it runs."""
    await state.evaluations.delete("evaluation", decode_id(evaluation_id))


@post(
    "/v1/evaluations/{evaluation_id:str}/apply", opt=ADMIN, status_code=200, operation_id="apply_evaluation"
)
async def apply_evaluation(evaluation_id: PathId, body: RawBody, state: State) -> EvaluationAnswer:
    """Apply one of the evaluated policies; it first learns the log."""
    name = decode_id(evaluation_id)
    data = read(body, ApplyBody)
    return told(await state.evaluations.apply(name, data.policy), whole=False)


ROUTES: list[Any] = [list_evaluations, make_evaluation, show_evaluation, delete_evaluation, apply_evaluation]
