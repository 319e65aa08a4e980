"""Intervals of an average that hold the true value in about 19 of 20 cases, for few payoffs and for many.

It is the "plus four" interval (Agresti and Coull, 1998) for any payoffs and weights. Two payoffs of the least value
and two of the largest are added to the data, each with the average weight; the interval is the mean of all ± 1.96
standard errors. So three clicks of three are not taken for certain, and with many payoffs the four do not matter.
Payoffs lie in [−1, 1], or in [0, 1] if none was below 0.

What the baseline or a uniform choice would have earned is estimated with weights 1/propensity, which are 1 on
average. If they sum to less than the number of payoffs, a part of what the other policy would have shown was not
observed yet. Of that part only the range of payoffs is known, and the interval is widened by it.
"""

import math
from typing import NamedTuple

from msgspec import Struct

Z = 1.959964  # of a normal distribution: 95 %
ADDED = 2  # payoffs of the least value, and as many of the largest


class Interval(Struct, frozen=True):
    """A range that holds the true average in about 19 of 20 cases."""

    low: float
    high: float


class WeightedSums(NamedTuple):
    """Sums over payoffs y with weights w."""

    n: int
    weight: float  # Σ w
    squares: float  # Σ w²
    earned: float  # Σ w y
    products: float  # Σ w² y
    payoffs: float  # Σ w² y²


def unweighted(n: int, earned: float, squares: float) -> WeightedSums:
    """Return the sums of n payoffs of weight 1: `earned` is Σ y, `squares` is Σ y²."""
    return WeightedSums(n, n, n, earned, earned, squares)


def interval(sums: WeightedSums, least: float) -> Interval | None:
    """Return the interval of the average payoff; payoffs lie in [least, 1].

    >>> interval(WeightedSums(3, 3, 3, 3, 3, 3), 0).low.__round__(2)  # three clicks of three
    0.38
    """
    if not sums.weight > 0:
        return None
    one = sums.squares / sums.weight  # the weight of a payoff, on average
    whole = sums.weight + 2 * ADDED * one
    mean = (sums.earned + ADDED * one * (least + 1)) / whole
    spread = sums.payoffs - 2 * mean * sums.products + mean * mean * sums.squares
    spread += ADDED * one * one * ((least - mean) ** 2 + (1 - mean) ** 2)
    error = Z * math.sqrt(max(0.0, spread)) / whole
    seen = min(1.0, sums.weight / sums.n)
    low, high = max(least, mean - error), min(1.0, mean + error)
    return Interval(seen * low + (1 - seen) * least, seen * high + (1 - seen))
