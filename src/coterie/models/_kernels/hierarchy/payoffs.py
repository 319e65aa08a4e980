"""The payoffs so far: their mean, squares and range, and how far a new one can be from them."""

import math

from coterie.arrays import Floats
from coterie.models._kernels.jit import jit

# Elements of `paid`: the mean, the sum of squares around it, the smallest and the largest payoff, and 1 if there was
# another one between them.
MEAN_, SQUARES_, LOW_, HIGH_, BETWEEN_ = range(5)

# One payoff that is far beyond all others, such as a fault of measurement, would hide them all. So it counts as one
# that at most doubles their variance. Payoffs that are large and real repeat, and so raise what counts.
ENOUGH = 32  # payoffs that show what is usual
REACH = 8.0  # standard deviations that always count
FEW, WIDER = (
    3.0,
    4.0,
)  # if so few payoffs make up the variance, one may be so many times farther away than they are


@jit
def count_payoff(paid: Floats, payoff: float, n: float) -> None:
    """Count payoff n (Welford)."""
    if n == 1.0:
        paid[MEAN_] = paid[LOW_] = paid[HIGH_] = payoff
    elif payoff < paid[LOW_] or payoff > paid[HIGH_]:
        paid[BETWEEN_] = 1.0 if paid[LOW_] < paid[HIGH_] else 0.0
        paid[LOW_], paid[HIGH_] = min(payoff, paid[LOW_]), max(payoff, paid[HIGH_])
    elif paid[LOW_] < payoff < paid[HIGH_]:
        paid[BETWEEN_] = 1.0
    off = payoff - paid[MEAN_]
    paid[MEAN_] += off / n
    paid[SQUARES_] += off * (payoff - paid[MEAN_])


@jit
def within_reach(paid: Floats, payoff: float, n: float) -> float:
    """Return what a payoff counts as, after n others."""
    mean, squares = float(paid[MEAN_]), float(paid[SQUARES_])
    if n < ENOUGH or not squares > 0.0:
        return payoff
    reach = max(REACH, math.sqrt(n)) * math.sqrt(squares / n)
    farthest = max(paid[HIGH_] - mean, mean - paid[LOW_])
    if squares < FEW * farthest * farthest:
        reach = max(reach, WIDER * farthest)
    return min(max(payoff, mean - reach), mean + reach)


@jit
def chance_of_larger(paid: Floats, estimate: float) -> tuple[float, float]:
    """Return the probability of the larger of two payoffs at this estimate, and its share of all payoffs.

    The probability is at least half of the share of the rarer one, because an estimate near 0 or 1 is uncertain.
    """
    wide = paid[HIGH_] - paid[LOW_]
    share = (paid[MEAN_] - paid[LOW_]) / wide
    least = 0.5 * min(share, 1.0 - share)
    return min(max((estimate - paid[LOW_]) / wide, least), 1.0 - least), share
