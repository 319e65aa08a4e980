"""Tests whether a policy is ahead by more than chance explains.

A log is a sample. A policy's click-through rate on it comes from the records that the policy kept, so its error is
their sampling error; the spread over runs only shows the effect of the drawn candidate lists, because all
runs use the same records.

Let y_t be the payoff of record t, and K_r the records that run r of R kept. The rate is the mean over the runs:

    Σ_t w_t·y_t   with   w_t = Σ_r [t ∈ K_r] / (R·|K_r|)

and the variance of it is Σ_t w_t²·(y_t − rate)². If two policies pay the same, m on average, their difference is the
sum of d_t = (w_t − w'_t)·(y_t − m). Records that both kept equally often cancel (a paired test). The
difference over √Σ d_t² is compared with Student's t. Its degrees of freedom are the number of records that carry the
difference, (Σ d²)²/Σ d⁴: if few records pay, there are few, and the test requires a larger difference.

In a world each run has its own rounds, the same for all policies. So runs are a sample, and the differences
between two policies' regrets in the same run are compared with Student's t, with one degree of freedom fewer than
runs. With two or three runs, the lead must be many times the spread.
"""

import math
from typing import NamedTuple

import numpy as np

from coterie.arrays import Floats, Ints

LEVEL = 0.01  # the largest share of comparisons of equal policies in which a winner is named
ROUNDED = 1e-12  # a relative spread this small is rounding
FEW = 30  # fewest kept records per run for a meaningful rate


class Kept(NamedTuple):
    """The records that one run kept."""

    records: Ints  # (kept,) each at most once
    payoffs: Floats  # (kept,)


class Rate(NamedTuple):
    """A policy's click-through rate on a log, and the records that it comes from."""

    value: float  # the mean over the runs that kept anything; NaN if none did
    records: Ints  # (records,) sorted, each once
    weights: Floats  # (records,) w_t: they sum to 1
    payoffs: Floats  # (records,)
    fewest: int  # kept records of the run that kept fewest

    @property
    def error(self) -> float:
        """The standard error of the rate; NaN where nothing was kept."""
        error = float(np.linalg.norm(self.weights * (self.payoffs - self.value)))
        return error if len(self.records) else math.nan


def rate(runs: list[Kept]) -> Rate:
    """Return the rate over all runs of one policy on one log."""
    some = [run for run in runs if len(run.records)]
    if not some:
        return Rate(math.nan, np.zeros(0, np.int64), np.zeros(0), np.zeros(0), 0)
    records = np.concatenate([run.records for run in some])
    weights = np.concatenate([np.full(len(run.records), 1 / len(run.records)) for run in some]) / len(some)
    found, first = np.unique(records, return_index=True)
    payoffs = np.concatenate([run.payoffs for run in some])[first]
    summed = _summed(records, weights)
    fewest = min(len(run.records) for run in runs)
    return Rate(float(summed @ payoffs), found, summed, payoffs, fewest)


def chance(first: Rate, second: Rate) -> float:
    """Return the share of logs in which the first would be ahead by this much or more, if both paid the same."""
    ahead = first.value - second.value
    if not ahead > 0:  # NaN too
        return 1.0
    n, m = len(first.records), len(second.records)
    same = (n * first.value + m * second.value) / (n + m)  # the common rate
    parts = [first.weights * (first.payoffs - same), second.weights * (same - second.payoffs)]
    apart = _summed(np.concatenate([first.records, second.records]), np.concatenate(parts))
    squares = apart * apart
    variance = float(squares.sum())
    from scipy.special import stdtr  # imported late: it is slow to import

    carriers = variance * variance / float(squares @ squares)
    return float(stdtr(carriers, -ahead / math.sqrt(variance)))


def chance_of_best(first: Rate, others: list[Rate], tried: int = 0) -> float:
    """Return an upper bound on the share of logs where some policy leads by this much, if all pay the same.

    Any policy could have come first, so its chance is counted for each (Bonferroni's bound). `tried` is the
    number of settings played, if only the best of several is among the others.
    """
    if not others:
        return 1.0
    return min(1.0, max(tried, 1 + len(others)) * max(chance(first, other) for other in others))


def chance_in_runs(first: list[float], others: list[list[float]], tried: int = 0) -> float:
    """Return an upper bound on the share of comparisons with such a lead, if all policies lose the same.

    `first` has the regret of each run, and `others` those of the other policies in the same runs; `tried` as above.
    """
    if not others or len(first) < 2:
        return 1.0
    worst = max(_chance_of_lead(np.subtract(other, first)) for other in others)
    return min(1.0, max(tried, 1 + len(others)) * worst)


def _chance_of_lead(ahead: Floats) -> float:
    """Return the share of samples with a mean this far above 0, if the true mean is 0."""
    n, mean, spread = len(ahead), float(ahead.mean()), float(ahead.std(ddof=1))
    if not mean > 0:
        return 1.0
    if spread <= ROUNDED * mean:
        return 0.5**n  # no spread to compare with: a sign test
    from scipy.special import stdtr

    return float(stdtr(n - 1, -mean / (spread / math.sqrt(n))))


def is_ahead_in_runs(first: list[float], others: list[list[float]], tried: int = 0) -> bool:
    """Return whether the first is ahead of all others by more than chance explains."""
    return chance_in_runs(first, others, tried) <= LEVEL


def is_ahead(first: Rate, others: list[Rate], tried: int = 0) -> bool:
    """Return whether the first is ahead of all others by more than chance explains."""
    enough = min(one.fewest for one in (first, *others)) >= FEW
    return enough and chance_of_best(first, others, tried) <= LEVEL


def _summed(records: Ints, parts: Floats) -> Floats:
    """Return the sum of each record's parts, in the order of the records."""
    found, place = np.unique(records, return_inverse=True)
    return np.bincount(place, parts, len(found)).astype(np.float64, copy=False)
