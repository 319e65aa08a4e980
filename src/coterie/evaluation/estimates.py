"""Four estimates of a policy's mean reward per decision, each with an interval; `docs/evaluate.md` has the formulas.

The direct method has no valid interval of its own: only the residuals show how wrong its model is, and with
them it becomes the doubly robust estimate.
"""

import math
from functools import reduce
from operator import add
from typing import Any, NamedTuple

import numpy as np
from estimators.bandits import ips, snips
from scipy.special import ndtri, stdtrit

from coterie.arrays import Floats
from coterie.evaluation.evidence import Evidence, Span
from coterie.evaluation.intervals import (
    Interval,
    clopper_pearson_interval,
    cressie_read,
    cressie_read_interval,
)
from coterie.models.always_valid import always_for

METHODS = ("ips", "snips", "dm", "dr")
TITLES = {"ips": "IPS", "snips": "SNIPS", "dm": "direct method", "dr": "doubly robust"}
ALPHA = 0.05


class Estimate(NamedTuple):
    """An estimate and its interval."""

    value: float
    low: float
    high: float


class WeightedSums(NamedTuple):
    """The sums that Cressie–Read needs of some records; sums of windows add up to those of the whole."""

    rewards: Any
    residuals: Any


def sums(evidence: Evidence) -> WeightedSums:
    """Return the sums of all records."""
    weights = evidence.weights / _kept(evidence)
    return WeightedSums(
        cressie_read(weights, evidence.rewards, _largest(evidence), evidence.span), residual_sums(evidence)
    )


def residual_sums(evidence: Evidence) -> Any:
    """Return the sums of the residuals alone, which the doubly robust estimate needs."""
    weights = evidence.weights / _kept(evidence)
    return cressie_read(weights, evidence.residuals, _largest(evidence), _residual_span(evidence.span))


def doubly_robust(
    direct: float, double: float, residuals: Any, evidence: Evidence, alpha: float = ALPHA
) -> Estimate:
    """Return the doubly robust estimate of some records from their means and the sums of their residuals.

    `direct` and `double` are the means of `evidence.direct` and `evidence.terms` over these records.
    """
    double = evidence.span.nearest(double)
    return Estimate(double, *_residual_interval(direct, residuals, evidence, alpha).around(double))


def estimate(
    evidence: Evidence, alpha: float = ALPHA, windows: list[WeightedSums] | None = None
) -> dict[str, Estimate]:
    """Return each estimate with its interval of level 1 − alpha; `windows` are the sums of its parts, if known."""
    if evidence.always:
        return _for_all_looks(evidence, alpha)
    span = evidence.span
    made = (
        WeightedSums(*(reduce(add, part) for part in zip(*windows, strict=True)))
        if windows
        else sums(evidence)
    )
    direct = float(evidence.direct.mean())
    double = float(evidence.terms.mean())
    by_weights = clopper_pearson_interval(evidence.weights, evidence.rewards, evidence.largest, span, alpha)
    by_rewards = cressie_read_interval(made.rewards, _largest(evidence), span, alpha)
    by_rewards = by_rewards.wider(_unseen(evidence), span)
    by_residuals = _residual_interval(direct, made.residuals, evidence, alpha)
    shown = {
        "ips": (_by_library(ips.Estimator(), evidence), by_weights),
        "snips": (_by_library(snips.Estimator(), evidence), by_rewards),
        "dm": (direct, by_residuals),
        "dr": (double, by_residuals),
    }
    inside = {name: (span.nearest(value), interval) for name, (value, interval) in shown.items()}
    return {name: Estimate(value, *interval.around(value)) for name, (value, interval) in inside.items()}


def _for_all_looks(evidence: Evidence, alpha: float) -> dict[str, Estimate]:
    """Return the estimates with intervals that hold for all looks at a growing log together.

    Given the past, each term is a draw whose mean is what the policy earns then, also if users return; so their mean
    has an interval for all looks. As for one look, records with the largest possible weight are added.
    """
    weights, rewards = evidence.weights, evidence.rewards
    kept = max(float(weights.mean()), 1e-9)
    normal = float((weights * rewards).mean()) / kept
    around = normal + weights * (rewards - normal) / kept
    found = {}
    for name, terms in zip(METHODS, (weights * rewards, around, evidence.terms, evidence.terms), strict=True):
        value = evidence.span.nearest(float((evidence.direct if name == "dm" else terms).mean()))
        found[name] = Estimate(value, *_always_interval(terms, evidence, alpha).around(value))
    return found


def _always_interval(terms: Floats, evidence: Evidence, alpha: float) -> Interval:
    span, mean = evidence.span, float(terms.mean())
    worst = _largest(evidence) * span.size
    if not math.isfinite(worst):
        return Interval(span.low, span.high)
    apart = np.append(terms - mean, [worst, -worst])
    squares = (apart / worst) ** 2
    carriers = float(squares.sum()) ** 2 / float(squares @ squares)
    wide = always_for(len(apart), alpha) * float(stdtrit(carriers, 1 - alpha / 2) / ndtri(1 - alpha / 2))
    error = wide * worst * math.sqrt(float(squares.sum())) / len(apart)
    return Interval(mean - error, mean + error).wider(_unseen(evidence), span)


def _residual_interval(direct: float, residuals: Any, evidence: Evidence, alpha: float) -> Interval:
    span = evidence.span
    left = cressie_read_interval(residuals, _largest(evidence), _residual_span(span), alpha)
    return Interval(direct + left.low, direct + left.high).wider(_unseen(evidence), span)


def _by_library(estimator: Any, evidence: Evidence) -> float:
    for weight, reward in zip(evidence.weights.tolist(), evidence.rewards.tolist(), strict=True):
        estimator.add_example(1.0, reward, weight)
    value = estimator.get()
    return 0.0 if value is None else float(value)


def _kept(evidence: Evidence) -> float:
    """Return the observed share of the policy, which is the expected mean of its weights."""
    return max(1 - evidence.lost, 1e-9)


def _largest(evidence: Evidence) -> float:
    return evidence.largest / _kept(evidence)


def _unseen(evidence: Evidence) -> float:
    """Return what the unobserved share could change: it could have any reward from the least to the largest."""
    return evidence.lost * evidence.span.size


def _residual_span(span: Span) -> Span:
    """Return the range of residuals; predictions are within the range of rewards."""
    return Span(-span.size, span.size)
