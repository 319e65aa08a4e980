"""Personalizer's routes of evaluations and feature importances, over the service's own evaluations."""

import asyncio
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlencode

from litestar import Request, Response, delete, get, post, put
from litestar.datastructures import State
from litestar.params import FromPath, RawBody
from msgspec import Struct

from coterie.data.logs.rules import Config
from coterie.errors import ParameterError
from coterie.policies import POLICIES
from coterie.policies.base.vowpal_options import is_installed
from coterie.service.coordination.coordinator import Coordinator
from coterie.service.core.answers import new_event_id
from coterie.service.evaluations.jobs import EvaluatedPolicy, Job, JobKind
from coterie.service.evaluations.search import policies_of
from coterie.service.evaluations.vowpal import NAME as VOWPAL
from coterie.service.http.access import ADMIN, READ
from coterie.service.http.compatible import IN_QUERY, PREFIX, Refusal, every_form, in_path, names_version
from coterie.service.ids import RULE, decode_id, is_id
from coterie.service.personalizer.aggregation import read_aggregation
from coterie.service.personalizer.bodies import read, read_time
from coterie.service.personalizer.configuration import PolicyContract, change_policy, parse_arguments
from coterie.service.personalizer.evaluation_forms import (
    BACK,
    EVALUATION,
    IMPORTANCE,
    Forms,
    importance_form,
    last_form,
)
from coterie.service.personalizer.learning_settings import MAPPED, read_settings
from coterie.service.problems import Problem

BAD = "InvalidEvaluationContract"
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


class ImportanceContract(Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """The time of which the features' importance is asked."""

    name: str
    start_time: str
    end_time: str


class EvaluationContract(ImportanceContract, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """What to evaluate; the field that also searches for policies has two names."""

    policies: list[PolicyContract] | None = None
    enable_offline_experimentation: bool | None = None
    enable_policy_optimization: bool | None = None


class Reference(Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """A policy of an evaluation."""

    evaluation_id: str
    policy_name: str


@contextmanager
def contract_errors(missing: str = "EvaluationNotFound") -> Iterator[None]:
    """Answer problems with the contract's codes; `missing` is that of a job that does not exist."""
    try:
        yield
    except Problem as error:
        if error.code not in CODES:
            raise
        status, code = CODES[error.code]
        code = missing if error.code == "unknown_evaluation" else code
        raise Refusal(status, code, error.message) from error


@post(every_form("/evaluations"), opt=ADMIN, status_code=201)
async def create(body: RawBody, state: State, request: Request[Any, Any, Any]) -> Response[dict[str, Any]]:
    """Make an evaluation with a new id."""
    job = await _make_evaluation(new_event_id(), body, state)
    version = request.scope["path"].removeprefix(PREFIX).rpartition("/evaluations")[0]
    place = f"{PREFIX}{version}/evaluations/{job.id}"
    return Response(EVALUATION.of(job, request.scope["path"]), status_code=201, headers={"location": place})


@put(every_form("/evaluations/{evaluation_id:str}"), opt=ADMIN)
async def create_named(
    evaluation_id: FromPath[str], body: RawBody, state: State, request: Request[Any, Any, Any]
) -> Response[Any]:
    """Make an evaluation with the caller's id; only the versions in the path answer what was made."""
    job = await _make_evaluation(decode_id(evaluation_id), body, state)
    path = request.scope["path"]
    return Response(EVALUATION.of(job, path)) if names_version(path) else Response(b"")


@post(every_form("/configurations/applyFromEvaluation"), opt=ADMIN, status_code=204)
async def apply(body: RawBody, state: State) -> Response[None]:
    """Apply a policy of an evaluation; applying `online`, which is what was shown, changes nothing."""
    sent = read(body, Reference, "BadRequest")
    name = BACK.get(sent.policy_name, sent.policy_name)
    with contract_errors():
        job: Job = (await state.evaluations.look()).find("evaluation", sent.evaluation_id)
        one = job.policy(name)
        if one is not None and one.arguments and job.status == "done":
            mapped = await change_policy(state.coordinator, PolicyContract(one.name, one.arguments))
            return Response(None, status_code=204, headers={MAPPED: mapped})
        if name != "logged":
            await state.evaluations.apply(sent.evaluation_id, name)
    return Response(None, status_code=204)


async def _make_evaluation(name: str, body: bytes, state: State) -> Job:
    sent = read(body, EvaluationContract, BAD)
    coordinator: Coordinator = state.coordinator
    config, engine = coordinator.bandit.config, coordinator.engine
    custom = [_candidate(one, config) for one in sent.policies or ()]
    search = bool(sent.enable_offline_experimentation or sent.enable_policy_optimization)
    policies = await asyncio.to_thread(policies_of, custom, search, config, engine)
    return await _make_job("evaluation", name, sent, state, policies)


async def _make_job(
    kind: JobKind, name: str, sent: ImportanceContract, state: State, policies: Any = ()
) -> Job:
    coordinator: Coordinator = state.coordinator
    if not is_id(name):
        raise Refusal(400, BAD, f"the id is {name[:80]!r}, {RULE}", "id")
    start, end = read_time(sent.start_time, "startTime", BAD), read_time(sent.end_time, "endTime", BAD)
    if end <= start:
        message = f"endTime is {sent.end_time!r}, which is not after startTime, {sent.start_time!r}"
        raise Refusal(400, BAD, message, "endTime")
    first = await asyncio.to_thread(coordinator.oldest)
    if first is None or end <= first or start > coordinator.clock():
        message = f"the log has no decision from {sent.start_time} to {sent.end_time}"
        raise Refusal(400, "NoLogsExistInDateRange", message, "startTime")
    job = Job(name, kind, sent.name[:256] or name, start, end, coordinator.clock(), policies)
    with contract_errors():
        made: Job = await state.evaluations.make(job)
    return made


def _candidate(sent: PolicyContract, config: Config) -> EvaluatedPolicy:
    """Return a policy to evaluate: coterie's name for it is its name, or the argument --policy.

    Vowpal Wabbit's arguments are for Vowpal Wabbit. Where it is not installed, the policy in force takes its place,
    with what has a counterpart.
    """
    if not sent.name or len(sent.name) > 256:
        raise Refusal(400, "InvalidPolicyContract", "a policy's name has 1 to 256 characters", "policies")
    if sent.name in BACK:
        message = f"{sent.name!r} is the name of a policy in every evaluation; give this one another name"
        raise Refusal(400, "DuplicateCustomPolicyNames", message, "policies")
    try:
        mapped = read_settings(sent.arguments)
        if mapped is not None and is_installed():
            return EvaluatedPolicy(sent.name, VOWPAL, {"arguments": sent.arguments}, arguments=sent.arguments)
        if mapped is not None:
            own, likely, ignored = dict(config.parameters), mapped.exploration, mapped.ignored
            return EvaluatedPolicy(sent.name, config.policy, own, "custom", sent.arguments, likely, ignored)
        parameters = parse_arguments(sent.arguments)
    except (ParameterError, Refusal) as error:
        message = f"policy {sent.name!r}: {error}"
        raise Refusal(400, "InvalidPolicyContract", message, "policies") from error
    policy = parameters.pop("policy", sent.name)
    if policy not in POLICIES:
        message = (
            f"{sent.name!r} names no policy of coterie; expected one of {', '.join(sorted(POLICIES))}, as the name "
            "or as the argument --policy"
        )
        raise Refusal(400, "InvalidPolicyContract", message, "policies")
    return EvaluatedPolicy(sent.name, str(policy), parameters)


@put(every_form("/featureImportances/{importance_id:str}"), opt=ADMIN)
async def create_importance(
    importance_id: FromPath[str], body: RawBody, state: State, request: Request[Any, Any, Any]
) -> Response[Any]:
    """Ask which features matter; only the versions in the path answer what was made."""
    sent = read(body, ImportanceContract, BAD)
    job = await _make_job("importance", decode_id(importance_id), sent, state)
    return Response(importance_form(job)) if names_version(request.scope["path"]) else Response(b"")


def _shared_routes(path: str, kind: JobKind, forms: Forms, missing: str) -> list[Any]:
    """Return the routes that evaluations and feature importances share: list, show and delete."""
    one = every_form(path + "/{job_id:str}")

    @get(in_path(path), opt=READ)
    async def list_all(state: State) -> list[dict[str, Any]]:
        """List all, without their results."""
        return [forms.first(job, False) for job in (await state.evaluations.look()).every(kind)]

    @get(path, opt=READ)
    async def list_page(state: State, request: Request[Any, Any, Any]) -> dict[str, Any]:
        """List them in pages, as the last version does."""
        return _page(
            [forms.last(job, False) for job in (await state.evaluations.look()).every(kind)], request
        )

    @get(one, opt=READ)
    async def show(job_id: FromPath[str], state: State, request: Request[Any, Any, Any]) -> dict[str, Any]:
        """Show one with its result."""
        path = request.scope["path"]
        with contract_errors(missing):
            job = (await state.evaluations.look()).find(kind, decode_id(job_id))
        if kind == "importance" or names_version(path):
            return forms.of(job, path)
        return last_form(job, asked=read_aggregation(request.query_params))

    @delete(one, opt=ADMIN, status_code=204)
    async def remove(job_id: FromPath[str], state: State) -> None:
        """Delete one."""
        with contract_errors(missing):
            await state.evaluations.delete(kind, decode_id(job_id))

    return [list_all, list_page, show, remove]


def _page(rows: list[Any], request: Request[Any, Any, Any]) -> dict[str, Any]:
    """Return what `filter`, `skip` and `top` ask for of a list, at most `maxpagesize`, and where the rest is."""
    wanted = request.query_params.get("filter")
    if wanted is not None:
        kind = re.fullmatch(r"(?:metadata=)?\s*evaluationType\s+eq\s+'(\w+)'", wanted.strip())
        if kind is None:
            message = f"filter is {wanted[:80]!r}, expected evaluationType eq 'Manual' or 'Auto'"
            raise Refusal(400, "BadRequest", message, "filter")
        rows = [row for row in rows if row.get("evaluationType", "").lower() == kind[1].lower()]

    def count(name: str, default: int) -> int:
        text = request.query_params.get(name)
        if text is None:
            return default
        if not text.isdigit() or len(text) > 9:
            raise Refusal(400, "BadRequest", f"{name} is {text[:80]!r}, expected a count", name)
        return int(text)

    first, top = count("skip", 0), count("top", len(rows))
    size = max(1, count("maxpagesize", max(1, len(rows))))
    page = rows[first : first + min(top, size)]
    left = min(top, len(rows) - first) - len(page)
    if left <= 0:
        return {"value": page}
    query = {"filter": wanted} if wanted is not None else {}
    query |= {"api-version": IN_QUERY, "top": left, "skip": first + len(page), "maxpagesize": size}
    return {"value": page, "nextLink": str(request.url.with_replacements(query=urlencode(query)))}


ROUTES: list[Any] = [
    create,
    create_named,
    apply,
    create_importance,
    *_shared_routes("/evaluations", "evaluation", EVALUATION, "EvaluationNotFound"),
    *_shared_routes("/featureImportances", "importance", IMPORTANCE, "ResourceNotFound"),
]
