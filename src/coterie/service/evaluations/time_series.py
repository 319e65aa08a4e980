"""Estimates over time, in the intervals of Personalizer's API.

With intervals of five minutes, a point is the estimate from the beginning of the evaluation to the end of its
interval ("Expanding"); with longer ones it is the estimate of its own interval ("Rolling"). Intervals without a
decision have no point.
"""

from functools import reduce
from itertools import accumulate, groupby
from operator import add
from typing import Any, NamedTuple

import numpy as np

from coterie.arrays import Floats
from coterie.evaluation.estimates import doubly_robust, residual_sums
from coterie.evaluation.evidence import Evidence
from coterie.service.evaluations.jobs import EXPANDING, ROLLING

POINTS = 100  # of a series that are kept: evenly spread if expanding, the newest if rolling


class IntervalSums(NamedTuple):
    """The sums of the decisions of an interval of five minutes, or of some of them."""

    interval: int  # its number since 1970, or that of the last one
    n: int
    direct: float
    double: float
    residuals: Any


def time_series(evidence: Evidence, seconds: Floats, alpha: float) -> dict[str, list[list[float]]]:
    """Return for each interval, in minutes, points of end (milliseconds), value, low and high.

    `seconds` are the times of the decisions.
    """
    number = (np.maximum.accumulate(seconds) // (60 * EXPANDING)).astype(int)  # the clock may jump back
    starts = np.flatnonzero(np.diff(number, prepend=number[0] - 1)).tolist()
    parts = [
        _part(int(number[first]), evidence.part(first, last))
        for first, last in zip(starts, [*starts[1:], len(number)], strict=True)
    ]

    def point(part: IntervalSums, minutes: int) -> list[float]:
        end = (part.interval * EXPANDING // minutes + 1) * minutes * 60_000
        found = doubly_robust(part.direct / part.n, part.double / part.n, part.residuals, evidence, alpha)
        return [end, *found]

    grown = list(accumulate(parts, _together))
    kept = np.unique(np.linspace(0, len(grown) - 1, min(POINTS, len(grown))).round().astype(int))
    found = {str(EXPANDING): [point(grown[k], EXPANDING) for k in kept]}
    for minutes in ROLLING:
        found[str(minutes)] = [point(part, minutes) for part in _rolling(parts, minutes)[-POINTS:]]
    return found


def _part(interval: int, evidence: Evidence) -> IntervalSums:
    direct, double = float(evidence.direct.sum()), float(evidence.terms.sum())
    return IntervalSums(interval, evidence.n, direct, double, residual_sums(evidence))


def _rolling(parts: list[IntervalSums], minutes: int) -> list[IntervalSums]:
    groups = groupby(parts, lambda part: part.interval * EXPANDING // minutes)
    return [reduce(_together, group) for _, group in groups]


def _together(earlier: IntervalSums, later: IntervalSums) -> IntervalSums:
    return IntervalSums(later.interval, *map(add, earlier[1:], later[1:]))
