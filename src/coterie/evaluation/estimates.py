"""Four estimates of a policy's mean reward per decision, each with an interval; `docs/evaluate.md` has the formulas.

The direct method has no valid interval of its own: only the residuals show how wrong its model is, and with
them it becomes the doubly robust estimate.

The intervals are valid for small samples, on top of `vw-estimators`.

**Clopper–Pearson**, for IPS. With rewards scaled to [0, 1] and no weight above W, the terms w·r/W lie in [0,
1], and no such terms have a larger variance than Bernoulli ones. So the lower end of their mean's
Clopper–Pearson interval, times W, is a lower bound of the value, and the same for w·(1 − r) gives the upper
bound. Both also hold for clipped weights, which make each side smaller. (The library's own class uses n/W
trials instead of n, and the largest weight seen as W: its intervals are too narrow if the weights sum to more
than n.)

**Cressie–Read** (Karampatziakis, Langford, Mineiro 2020), for SNIPS and the doubly robust estimate: all
distributions of (w, r) whose weights average 1 and that fit the log, with one more record that has the largest
possible weight. If all weights are near 1, that record has no effect, so another one with weight 1 and the
worst reward is added on each side; without it the interval of 0 rewards in 20 would be a single point.
"""

import math
from functools import reduce
from importlib.util import find_spec
from operator import add
from typing import Any, NamedTuple

import numpy as np
from estimators.bandits import ips, snips
from scipy.special import ndtri, stdtrit

from coterie.arrays import Floats
from coterie.errors import MissingExtraError
from coterie.evaluation.evidence import Evidence, Span
from coterie.models.always_valid import always_for

if find_spec("estimators") is None:
    raise MissingExtraError("off-policy evaluation needs vw-estimators: pip install 'coterie[experiments]'")

from estimators.bandits import cressieread
from estimators.math import clopper_pearson

ABOVE_ONE = 1 + 1e-6  # the library requires a largest possible weight above 1


class Interval(NamedTuple):
    """A confidence interval."""

    low: float
    high: float

    def around(self, value: float) -> "Interval":
        """Return the interval, extended to contain an estimate."""
        return Interval(min(self.low, value), max(self.high, value))

    def wider(self, by: float, span: Span) -> "Interval":
        """Return the interval, wider by `by` on both sides, within the possible rewards."""
        return Interval(max(span.low, self.low - by), min(span.high, self.high + by))


def clopper_pearson_interval(
    weights: Floats, rewards: Floats, largest: float, span: Span, alpha: float
) -> Interval:
    """Return the interval of an IPS estimate."""
    top = max(largest, float(weights.max(initial=0.0)))
    if top <= 0:
        return Interval(span.low, span.high)
    scaled = (rewards - span.low) / span.size
    low, rest = (
        top * float(clopper_pearson(min(float(weights @ part) / top, len(weights)), len(weights), alpha)[0])
        for part in (scaled, 1 - scaled)
    )
    return Interval(span.low + span.size * min(low, 1.0), span.high - span.size * min(rest, 1.0))


def cressie_read(weights: Floats, values: Floats, largest: float, span: Span) -> Any:
    """Return the library's interval object with the records added; such objects can be summed."""
    made = cressieread.Interval(0, max(largest, ABOVE_ONE), span.low, span.high)
    for weight, value in zip(weights.tolist(), np.clip(values, span.low, span.high).tolist(), strict=True):
        made.add_example(1.0, value, weight)
    return made


def cressie_read_interval(made: Any, largest: float, span: Span, alpha: float) -> Interval:
    """Return the interval of a weighted mean from the result of `cressie_read`."""
    ends = []
    for side, worst in enumerate((span.low, span.high)):
        more = cressieread.Interval(0, max(largest, ABOVE_ONE), span.low, span.high)
        more.add_example(1.0, worst, 1.0)
        ends.append(float((made + more).get(alpha)[side]))
    return Interval(*ends)


METHODS = ("ips", "snips", "dm", "dr")
TITLES = {"ips": "IPS", "snips": "SNIPS", "dm": "direct method", "dr": "doubly robust"}
ALPHA = 0.05


class Estimate(NamedTuple):
    """An estimate and its interval."""

    value: float
    low: float
    high: float


class EstimateSums(NamedTuple):
    """The sums that Cressie–Read needs of some records; sums of windows add up to those of the whole."""

    rewards: Any
    residuals: Any


def sums(evidence: Evidence) -> EstimateSums:
    """Return the sums of all records."""
    weights = evidence.weights / _kept(evidence)
    return EstimateSums(
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
    evidence: Evidence, alpha: float = ALPHA, windows: list[EstimateSums] | None = None
) -> dict[str, Estimate]:
    """Return each estimate with its interval of level 1 − alpha; `windows` are the sums of its parts, if known."""
    if evidence.always:
        return _for_all_looks(evidence, alpha)
    span = evidence.span
    made = (
        EstimateSums(*(reduce(add, part) for part in zip(*windows, strict=True)))
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
