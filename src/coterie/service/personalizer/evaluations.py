"""Personalizer's evaluations and feature importances, as views of coterie's own.

The versions that stand in the path tell results in one form (`policyResults`), the last one in another (`content`).
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from litestar import Request, Response, delete, get, post, put
from litestar.datastructures import State
from litestar.params import FromPath, RawBody
from msgspec import Struct

from coterie.policies import POLICIES
from coterie.service.coordination.answers import new_event_id
from coterie.service.coordination.coordinator import Coordinator
from coterie.service.durations import format_duration
from coterie.service.evaluations.jobs import Candidate, Job, Kind, milliseconds, moment
from coterie.service.evaluations.routes import policies_of
from coterie.service.http.access import ADMIN, READ
from coterie.service.ids import RULE, decode_id, is_id
from coterie.service.personalizer.bodies import read
from coterie.service.personalizer.configuration import PolicyContract, parse_arguments, written
from coterie.service.personalizer.errors import PREFIX, Refusal
from coterie.service.personalizer.versions import every_form, in_path, names_version
from coterie.service.problems import Problem

BAD = "InvalidEvaluationContract"
ONLINE = "Online"
# The contract's names and sources of what every evaluation holds.
SOURCES = {"logged": ONLINE, "baseline": "Baseline", "uniform": "Random"}
BACK = {name: own for own, name in SOURCES.items()}
KINDS = {"current": "Custom", "custom": "Custom", "search": "OfflineExperimentation"}
FIRST = {
    "waiting": "pending",
    "running": "pending",
    "done": "completed",
    "failed": "failed",
    "timeout": "timeout",
}
LAST = {
    "waiting": "NotSubmitted",
    "running": "Running",
    "done": "Succeeded",
    "failed": "Failed",
    "timeout": "Timeout",
}
CODES = {
    "unknown_evaluation": (404, "EvaluationNotFound"),
    "evaluation_exists": (409, "EvaluationAlreadyExists"),
    "too_many_evaluations": (409, "OperationNotAllowed"),
    "same_policy_twice": (400, "DuplicateCustomPolicyNames"),
    "invalid_policy": (400, "InvalidPolicyContract"),
    "invalid_evaluation": (400, BAD),
    "not_evaluated": (409, "OperationNotAllowed"),
    "not_applicable": (403, "OperationNotAllowed"),
    "unknown_policy": (404, "LearningSettingsNotFound"),
}


class EvaluationContract(Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """What is to be evaluated; the field that lets it search for policies has two names."""

    name: str
    start_time: str
    end_time: str
    policies: list[PolicyContract] | None = None
    enable_offline_experimentation: bool | None = None
    enable_policy_optimization: bool | None = None


class ImportanceContract(Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Of which time the features' importance is asked."""

    name: str
    start_time: str
    end_time: str


class Reference(Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """A policy of an evaluation."""

    evaluation_id: str
    policy_name: str


@contextmanager
def contract_errors(missing: str = "EvaluationNotFound") -> Iterator[None]:
    """Say what is wrong with the contract's codes."""
    try:
        yield
    except Problem as error:
        if error.code not in CODES:
            raise
        status, code = CODES[error.code]
        raise Refusal(
            status, missing if error.code == "unknown_evaluation" else code, error.message
        ) from error


# Evaluations.


@get(in_path("/evaluations"), opt=READ)
async def list_all(state: State) -> list[dict[str, Any]]:
    """List the evaluations, without their results."""
    return [_first_form(job, False) for job in state.evaluations.every("evaluation")]


@get("/evaluations", opt=READ)
async def list_page(state: State, request: Request[Any, Any, Any]) -> dict[str, list[Any]]:
    """List the evaluations on one page, as the last version has it."""
    return {
        "value": _page([_last_form(job, False) for job in state.evaluations.every("evaluation")], request)
    }


@post(every_form("/evaluations"), opt=ADMIN, status_code=201)
async def create(body: RawBody, state: State, request: Request[Any, Any, Any]) -> Response[dict[str, Any]]:
    """Make an evaluation under an id that it gets."""
    job = await _make(new_event_id(), body, state)
    version = request.scope["path"].removeprefix(PREFIX).rpartition("/evaluations")[0]
    place = f"{PREFIX}{version}/evaluations/{job.id}"
    return Response(_form(job, request), status_code=201, headers={"location": place})


@put(every_form("/evaluations/{evaluation_id:str}"), opt=ADMIN)
async def create_named(
    evaluation_id: FromPath[str], body: RawBody, state: State, request: Request[Any, Any, Any]
) -> dict[str, Any]:
    """Make an evaluation under an id of the caller's."""
    return _form(await _make(decode_id(evaluation_id), body, state), request)


@get(every_form("/evaluations/{evaluation_id:str}"), opt=READ)
async def show(evaluation_id: FromPath[str], state: State, request: Request[Any, Any, Any]) -> dict[str, Any]:
    """Show an evaluation."""
    with contract_errors():
        return _form(state.evaluations.find("evaluation", decode_id(evaluation_id)), request)


@delete(every_form("/evaluations/{evaluation_id:str}"), opt=ADMIN, status_code=204)
async def remove(evaluation_id: FromPath[str], state: State) -> None:
    """Delete an evaluation."""
    with contract_errors():
        await state.evaluations.delete("evaluation", decode_id(evaluation_id))


@post(every_form("/configurations/applyFromEvaluation"), opt=ADMIN, status_code=204)
async def apply(body: RawBody, state: State) -> None:
    """Take over a policy of an evaluation; that what was shown goes on changes nothing."""
    sent = read(body, Reference, "BadRequest")
    with contract_errors():
        if sent.policy_name == ONLINE:
            state.evaluations.find("evaluation", sent.evaluation_id)
            return
        await state.evaluations.apply(sent.evaluation_id, BACK.get(sent.policy_name, sent.policy_name))


async def _make(name: str, body: bytes, state: State) -> Job:
    sent = read(body, EvaluationContract, BAD)
    coordinator: Coordinator = state.coordinator
    custom = [_candidate(one) for one in sent.policies or ()]
    search = bool(sent.enable_offline_experimentation or sent.enable_policy_optimization)
    policies = await asyncio.to_thread(
        policies_of, custom, search, coordinator.bandit.config, coordinator.shards
    )
    return await _kept("evaluation", name, sent, state, policies)


async def _kept(
    kind: Kind, name: str, sent: EvaluationContract | ImportanceContract, state: State, policies: Any = ()
) -> Job:
    coordinator: Coordinator = state.coordinator
    if not is_id(name):
        raise Refusal(400, BAD, f"the id is {name[:80]!r}, {RULE}", "id")
    start, end = _time(sent.start_time, "startTime"), _time(sent.end_time, "endTime")
    first = await asyncio.to_thread(coordinator.oldest)
    if first is None or end <= first or start > coordinator.clock():
        message = f"the log has no decision from {sent.start_time} to {sent.end_time}"
        raise Refusal(400, "NoLogsExistInDateRange", message, "startTime")
    job = Job(name, kind, sent.name[:256] or name, start, end, coordinator.clock(), policies)
    with contract_errors():
        made: Job = await state.evaluations.make(job)
    return made


def _time(text: str, field: str) -> int:
    try:
        return max(0, milliseconds(text, field))
    except ValueError as error:
        raise Refusal(400, BAD, str(error), field) from error


def _candidate(sent: PolicyContract) -> Candidate:
    """Return a policy: its name is one of coterie's, or the arguments say which with --policy."""
    if not sent.name or len(sent.name) > 256:
        raise Refusal(400, "InvalidPolicyContract", "a policy's name has 1 to 256 characters", "policies")
    try:
        parameters = parse_arguments(sent.arguments)
    except Refusal as error:
        raise Refusal(
            400, "InvalidPolicyContract", f"policy {sent.name!r}: {error.message}", "policies"
        ) from error
    policy = parameters.pop("policy", sent.name)
    if policy not in POLICIES:
        message = (
            f"{sent.name!r} names no policy of coterie; expected one of {', '.join(sorted(POLICIES))}, as the name "
            "or as the argument --policy"
        )
        raise Refusal(400, "InvalidPolicyContract", message, "policies")
    return Candidate(sent.name, str(policy), parameters)


# What is told.


def _form(job: Job, request: Request[Any, Any, Any]) -> dict[str, Any]:
    return _first_form(job) if names_version(request.scope["path"]) else _last_form(job)


def _shared(job: Job) -> dict[str, Any]:
    told: dict[str, Any] = {
        "id": job.id,
        "name": job.name,
        "startTime": moment(job.start),
        "endTime": moment(job.end),
        "creationTime": moment(job.created),
        "evaluationType": "Auto" if job.automatic else "Manual",
    }
    result = job.result or {}
    if result.get("clear_winner"):
        told["optimalPolicy"] = _name(result["policies"][0]["policy"])
    return told


def _name(own: str) -> str:
    return SOURCES.get(own, own)


def _result(
    job: Job, part: dict[str, Any], more: Callable[[dict[str, Any]], dict[str, Any]]
) -> dict[str, Any]:
    one = job.candidate(part["policy"])
    source = SOURCES[part["policy"]] if one is None else KINDS[one.source]
    arguments = "" if one is None else written({"policy": one.policy, **one.parameters})
    return {"name": _name(part["policy"]), "arguments": arguments, "policySource": source, **more(part)}


def _status(job: Job, words: dict[str, str], applied: str, retained: str) -> str:
    if job.automatic and job.status == "done":
        return retained if job.retained else applied
    return words[job.status]


def _first_form(job: Job, whole: bool = True) -> dict[str, Any]:
    told = _shared(job) | {
        "jobId": job.id,
        "status": _status(job, FIRST, "optimalPolicyApplied", "onlinePolicyRetained"),
    }
    if whole and job.result is not None:
        rows = job.result["policies"]
        told["policyResults"] = [_result(job, part, _sums) for part in rows]
        told["featureImportance"] = []
    return told


def _sums(part: dict[str, Any]) -> dict[str, Any]:
    windows = part["windows"]
    ends = [1000 * (one["at"] or 0) for one in windows]
    rows = [
        _sum(one, end, end - ends[max(k - 1, 0)])
        for k, (one, end) in enumerate(zip(windows, ends, strict=True))
    ]
    return {"summary": rows, "totalSummary": _sum(part, ends[-1], ends[-1] - ends[0])}


def _sum(part: dict[str, Any], end: float, length: float) -> dict[str, Any]:
    sums, estimate = part["sums"], part["dr"]
    return {
        "timeStamp": moment(end),
        "ipsEstimatorNumerator": sums["weighted"],
        "ipsEstimatorDenominator": sums["n"],
        "snipsEstimatorDenominator": sums["weights"],
        "aggregateTimeWindow": format_duration(length / 1000),
        "nonZeroProbability": sums["seen"],
        "sumOfSquares": sums["squares"],
        "confidenceInterval": (estimate["high"] - estimate["low"]) / 2,
        "averageReward": estimate["value"],
    }


def _last_form(job: Job, whole: bool = True) -> dict[str, Any]:
    status = _status(job, LAST, "OptimalPolicyApplied", "OnlinePolicyRetained")
    told = _shared(job) | {"status": status}
    result = job.result
    told["description"] = job.error or ("" if result is None else f"{result['verdict']}. {result['words']}")
    if whole and result is not None:
        rows = [_result(job, part, _series) for part in result["policies"]]
        told["content"] = {"startTime": told["startTime"], "endTime": told["endTime"], "value": rows}
    return told


def _series(part: dict[str, Any]) -> dict[str, Any]:
    def worth(estimate: dict[str, float]) -> dict[str, Any]:
        return {
            "expectedReward": estimate["value"],
            "confidenceInterval": [estimate["low"], estimate["high"]],
        }

    data = [{"timeStamp": moment(1000 * (one["at"] or 0)), **worth(one["dr"])} for one in part["windows"]]
    return {"slotId": "", "summary": worth(part["dr"]), "timeseries": {"data": data}}


def _page(rows: list[Any], request: Request[Any, Any, Any]) -> list[Any]:
    """Return the part of a list that `skip` and `top` ask for."""

    def count(name: str, default: int) -> int:
        text = request.query_params.get(name)
        if text is None:
            return default
        if not text.isdigit() or len(text) > 9:
            raise Refusal(400, "BadRequest", f"{name} is {text[:80]!r}, expected a count", name)
        return int(text)

    first = count("skip", 0)
    return rows[first : first + count("top", len(rows))]


# Feature importances.


@get(in_path("/featureImportances"), opt=READ)
async def list_importances(state: State) -> list[dict[str, Any]]:
    """List the feature importances, without their scores."""
    return [_importance(job, False) for job in state.evaluations.every("importance")]


@get("/featureImportances", opt=READ)
async def page_of_importances(state: State, request: Request[Any, Any, Any]) -> dict[str, list[Any]]:
    """List them on one page, as the last version has it."""
    return {
        "value": _page([_importance(job, False) for job in state.evaluations.every("importance")], request)
    }


@put(every_form("/featureImportances/{importance_id:str}"), opt=ADMIN)
async def create_importance(importance_id: FromPath[str], body: RawBody, state: State) -> dict[str, Any]:
    """Ask which features matter."""
    sent = read(body, ImportanceContract, BAD)
    return _importance(await _kept("importance", decode_id(importance_id), sent, state))


@get(every_form("/featureImportances/{importance_id:str}"), opt=READ)
async def show_importance(importance_id: FromPath[str], state: State) -> dict[str, Any]:
    """Show which features matter."""
    with contract_errors("ResourceNotFound"):
        return _importance(state.evaluations.find("importance", decode_id(importance_id)))


@delete(every_form("/featureImportances/{importance_id:str}"), opt=ADMIN, status_code=204)
async def remove_importance(importance_id: FromPath[str], state: State) -> None:
    """Delete a feature importance."""
    with contract_errors("ResourceNotFound"):
        await state.evaluations.delete("importance", decode_id(importance_id))


def _importance(job: Job, whole: bool = True) -> dict[str, Any]:
    told: dict[str, Any] = {
        "id": job.id,
        "name": job.name,
        "startTime": moment(job.start),
        "endTime": moment(job.end),
        "creationTime": moment(job.created),
        "status": LAST[job.status],
        "description": job.error or "",
    }
    if whole and job.result is not None:
        told["featureScores"] = [
            {"featureName": one["name"], "namespace": one["namespace"], "score": one["score"]}
            for one in job.result["features"]
        ]
    return told


ROUTES: list[Any] = [
    list_all,
    list_page,
    create,
    create_named,
    show,
    remove,
    apply,
    list_importances,
    page_of_importances,
    create_importance,
    show_importance,
    remove_importance,
]
