"""Confidence intervals that are valid for small samples, on top of `vw-estimators`.

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

from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np

from coterie.arrays import Floats
from coterie.errors import MissingExtraError
from coterie.evaluation.evidence import Span

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
