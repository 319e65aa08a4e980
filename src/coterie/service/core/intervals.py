"""How far an average may be off: an interval that holds the true one in about 19 of 20 cases, few payoffs or many.

It is the "plus four" interval (Agresti and Coull, 1998) for any payoffs and weights. Two payoffs of the least value
and two of the largest are put to those that came, with the weight that one of them has on average; around the mean of
all lie 1.96 standard errors. So three clicks of three are not taken for certainty, and with many payoffs the four
vanish. Payoffs lie in [−1, 1], or in [0, 1] as long as none was below 0.

What the baseline or a uniform choice would have earned is seen through weights 1/propensity, which are 1 on average.
If they sum up to less than the number of payoffs, a part of what the other would have shown was not seen yet; of that
part nothing is known but its range, and the interval is stretched by it.
"""

import math
from typing import NamedTuple

from msgspec import Struct

Z = 1.959964  # of a normal distribution: 95 %
ADDED = 2  # payoffs at either end


class Interval(Struct, frozen=True):
    """A range that holds the true average in about 19 of 20 cases."""

    low: float
    high: float


class Sums(NamedTuple):
    """Payoffs y with weights w, as sums."""

    n: int
    weight: float  # Σ w
    squares: float  # Σ w²
    earned: float  # Σ w y
    products: float  # Σ w² y
    payoffs: float  # Σ w² y²


def interval(sums: Sums, least: float) -> Interval | None:
    """Return the interval of an average payoff; payoffs lie in [least, 1].

    >>> interval(Sums(3, 3, 3, 3, 3, 3), 0).low.__round__(2)  # three clicks of three
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
