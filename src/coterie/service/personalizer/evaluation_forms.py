"""Evaluations and feature importances in two forms: `policyResults` of old versions, `content` of the last one."""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import groupby
from typing import Any, NamedTuple

from coterie.service.durations import format_duration
from coterie.service.evaluations.jobs import Job, moment
from coterie.service.http.compatible import names_version
from coterie.service.personalizer.aggregation import WHOLE, Aggregation
from coterie.service.personalizer.configuration import written

# The policies in every evaluation: Personalizer's names for them, and where it says that they come from.
ONLINE = "online"
ALWAYS = {
    "logged": (ONLINE, "Online"),
    "baseline": ("baseline1", "Baseline"),
    "uniform": ("baselineRand", "Random"),
}
BACK = {name: own for own, names in ALWAYS.items() for name in names}
KINDS = {"current": "Custom", "custom": "Custom", "search": "OfflineExperimentation"}
STATUS = {  # in the first form and in the last
    "waiting": ("pending", "NotSubmitted"),
    "running": ("pending", "Running"),
    "done": ("completed", "Succeeded"),
    "failed": ("failed", "Failed"),
    "timeout": ("timeout", "Timeout"),
    "applied": ("optimalPolicyApplied", "OptimalPolicyApplied"),
    "retained": ("onlinePolicyRetained", "OnlinePolicyRetained"),
}


class Forms(NamedTuple):
    """The two forms of a job: in the versions in the path, and in the last one. False leaves out the result."""

    first: Callable[[Job, bool], dict[str, Any]]
    last: Callable[[Job, bool], dict[str, Any]]

    def of(self, job: Job, path: str) -> dict[str, Any]:
        """Return a job with its result, in the form of the version that a path names."""
        return (self.first if names_version(path) else self.last)(job, True)


def _shared(job: Job) -> dict[str, Any]:
    return {
        "id": job.id,
        "name": job.name,
        "startTime": moment(job.start),
        "endTime": moment(job.end),
        "creationTime": moment(job.created),
    }


def _evaluation(job: Job) -> dict[str, Any]:
    return _shared(job) | {"evaluationType": "Auto" if job.automatic else "Manual"}


def _optimal(job: Job) -> str:
    """Return the policy that is clearly ahead of all others, or what was shown; nothing without a result."""
    if job.result is None:
        return ""
    return _name(job.result["policies"][0]["policy"]) if job.result.get("clear_winner") else ONLINE


def _name(own: str) -> str:
    return ALWAYS[own][0] if own in ALWAYS else own


def _result(
    job: Job, part: dict[str, Any], more: Callable[[dict[str, Any]], dict[str, Any]]
) -> dict[str, Any]:
    one = job.policy(part["policy"])
    source = ALWAYS[part["policy"]][1] if one is None else KINDS[one.source]
    arguments = "" if one is None else one.arguments or written({"policy": one.policy, **one.parameters})
    return {"name": _name(part["policy"]), "arguments": arguments, "policySource": source, **more(part)}


def _status(job: Job) -> tuple[str, str]:
    if job.automatic and job.status == "done":
        return STATUS["retained" if job.retained else "applied"]
    return STATUS[job.status]


def _first_form(job: Job, whole: bool = True) -> dict[str, Any]:
    result = job.result or {"policies": []}
    return _evaluation(job) | {
        "jobId": job.id,
        "status": _status(job)[0],
        "optimalPolicy": _optimal(job),
        "policyResults": [_result(job, part, partial(_sums, whole=whole)) for part in result["policies"]],
        "featureImportance": _groups(result.get("features", ())) if whole else [],
    }


def _groups(features: Sequence[dict[str, Any]]) -> list[list[str]]:
    """Return the names of features, the most important first; those with the same score are one group."""
    by_score = groupby(features, lambda one: one["score"])
    return [[f"{one['namespace']}.{one['name']}" for one in group] for _, group in by_score]


def _sums(part: dict[str, Any], whole: bool) -> dict[str, Any]:
    windows = part["windows"]
    ends = [1000 * (one["at"] or 0) for one in windows]
    total = {"totalSummary": _sum(part, ends[-1], ends[-1] - ends[0])}
    if not whole:
        return total
    starts = [ends[0], *ends]  # the first window has no length
    rows = [_sum(one, end, end - start) for one, start, end in zip(windows, starts, ends, strict=False)]
    return {"summary": rows, **total}


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


def last_form(job: Job, whole: bool = True, asked: Aggregation = WHOLE) -> dict[str, Any]:
    """Return an evaluation as the last version answers it, with the time series that was asked for."""
    told = _evaluation(job) | {"status": _status(job)[1]}
    result = job.result
    told["description"] = job.error or ("" if result is None else f"{result['verdict']}. {result['words']}")
    if result is not None:
        told["optimalPolicy"] = _optimal(job)
    if whole:
        parts = [] if result is None else result["policies"]
        rows = [_result(job, part, partial(_series, asked=asked)) for part in parts]
        told["content"] = {
            "startTime": told["startTime"] if asked.start is None else moment(asked.start),
            "endTime": told["endTime"] if asked.end is None else moment(asked.end),
            "intervalInMinutes": asked.minutes,
            "value": rows,
        }
    return told


def _series(part: dict[str, Any], asked: Aggregation) -> dict[str, Any]:
    def worth(value: float, low: float, high: float) -> dict[str, Any]:
        return {"expectedReward": value, "confidenceInterval": [low, high]}

    length = 60_000 * asked.minutes
    points = part["series"][str(asked.minutes)]
    data = [
        {"timeStamp": moment(end), **worth(*found)} for end, *found in points if asked.overlaps(end, length)
    ]
    return {"slotId": "", "summary": worth(*_ends(part["dr"])), "timeseries": {"data": data}}


def _ends(estimate: dict[str, float]) -> tuple[float, float, float]:
    return estimate["value"], estimate["low"], estimate["high"]


def importance_form(job: Job, whole: bool = True) -> dict[str, Any]:
    """Return a feature importance, which has one form in all versions."""
    told = _shared(job) | {"status": STATUS[job.status][1], "description": job.error or ""}
    if whole:
        told["featureScores"] = [
            {"featureName": one["name"], "namespace": one["namespace"], "score": one["score"]}
            for one in (job.result or {"features": []})["features"]
        ]
    return told


EVALUATION = Forms(_first_form, last_form)
IMPORTANCE = Forms(importance_form, importance_form)
