"""Four estimates of a policy's mean reward per decision, each with an interval; `docs/evaluate.md` has the formulas.

The direct method has no valid interval of its own: only the residuals show how wrong its model is, and with
them it becomes the doubly robust estimate.
"""

from functools import reduce
from operator import add
from typing import Any, NamedTuple

from estimators.bandits import ips, snips

from coterie.evaluation.evidence import Evidence, Span
from coterie.evaluation.intervals import (
    Interval,
    clopper_pearson_interval,
    cressie_read,
    cressie_read_interval,
)

METHODS = ("ips", "snips", "dm", "dr")
TITLES = {"ips": "IPS", "snips": "SNIPS", "dm": "direct method", "dr": "doubly robust"}
ALPHA = 0.05


class Estimate(NamedTuple):
    """An estimate and its interval."""

    value: float
    low: float
    high: float


class Sums(NamedTuple):
    """The sums that Cressie–Read needs of some records; sums of windows add up to those of the whole."""

    rewards: Any
    residuals: Any


def sums(evidence: Evidence) -> Sums:
    """Return the sums of all records."""
    kept = _kept(evidence)
    weights = evidence.weights / kept
    return Sums(
        cressie_read(weights, evidence.rewards, evidence.largest / kept, evidence.span),
        cressie_read(weights, evidence.residuals, evidence.largest / kept, _residual_span(evidence.span)),
    )


def estimate(
    evidence: Evidence, alpha: float = ALPHA, windows: list[Sums] | None = None
) -> dict[str, Estimate]:
    """Return each estimate with its interval of level 1 − alpha; `windows` are the sums of its parts, if known."""
    span = evidence.span
    made = Sums(*(reduce(add, part) for part in zip(*windows, strict=True))) if windows else sums(evidence)
    direct = float(evidence.direct.mean())
    double = float(evidence.terms.mean())
    by_weights = clopper_pearson_interval(evidence.weights, evidence.rewards, evidence.largest, span, alpha)
    largest = evidence.largest / _kept(evidence)
    # The unobserved share could have any reward between the least and the largest.
    unseen = evidence.lost * span.size
    by_rewards = cressie_read_interval(made.rewards, largest, span, alpha).wider(unseen, span)
    left = cressie_read_interval(made.residuals, largest, _residual_span(span), alpha)
    by_residuals = Interval(direct + left.low, direct + left.high).wider(unseen, span)
    shown = {
        "ips": (_by_library(ips.Estimator(), evidence), by_weights),
        "snips": (_by_library(snips.Estimator(), evidence), by_rewards),
        "dm": (direct, by_residuals),
        "dr": (double, by_residuals),
    }
    return {name: Estimate(value, *interval.around(value)) for name, (value, interval) in shown.items()}


def _by_library(estimator: Any, evidence: Evidence) -> float:
    for weight, reward in zip(evidence.weights.tolist(), evidence.rewards.tolist(), strict=True):
        estimator.add_example(1.0, reward, weight)
    value = estimator.get()
    return 0.0 if value is None else float(value)


def _kept(evidence: Evidence) -> float:
    """Return the observed share of the policy, which is the expected mean of its weights."""
    return max(1 - evidence.lost, 1e-9)


def _residual_span(span: Span) -> Span:
    """Return the range of residuals; predictions are within the range of rewards."""
    return Span(-span.size, span.size)
