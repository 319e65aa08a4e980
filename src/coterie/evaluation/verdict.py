"""Tests whether a policy is ahead of all others by more than chance explains.

A winner is named if its lead over each other policy would be found in at most LEVEL / 2 of the samples in which the
two are equal. Two equal policies that are better than the rest are then told apart in at most LEVEL of the samples,
because either may have come first; more equal policies in fewer, because the winner must lead them all. There are
three kinds of samples.

**Runs of a world.** Each run has its own rounds, the same for all policies. If two policies are equal, then in each
run their regrets could be exchanged: each difference is as likely to have the other sign. So the chance is the
share of all 2ⁿ choices of signs whose sum is at least the one found (Fisher's randomisation test). It assumes no
distribution, and nine runs are the fewest that can show anything. More runs may be added until there is a winner:
with 2, 4, … times FIRST_RUNS the level is halved again and again, so all looks together stay below LEVEL.

**A log replayed.** A policy's click-through rate comes from the records that it kept. All runs use the same
records, so the spread over runs only shows the effect of the drawn lists. Let y_t be the payoff of record t, and
K_r the records that run r of R kept. The rate is the mean over the runs:

    Σ_t w_t·y_t   with   w_t = Σ_r [t ∈ K_r] / (R·|K_r|)

and the variance of it is Σ_t w_t²·(y_t − rate)². If two policies pay the same, m on average, their difference is
the sum of d_t = (w_t − w'_t)·(y_t − m). Records that both kept equally often cancel (a paired test).

**A log with propensities.** Two policies are compared record by record, by the difference d_t of their doubly
robust terms, in which common choices cancel. One more record is added: the worst possible one for the leader, with
the largest possible weight. It decides if the log rarely shows the leader's choices.

On logs the difference over its standard error is compared with Student's t. Its degrees of freedom are the number
of records that carry the difference, (Σ d²)²/Σ d⁴: if few records pay, there are few, and the test requires a
larger difference. If a growing log is looked at again and again, the chance is that of ever finding such a lead.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, Self, TypeVar

import numpy as np

from coterie.arrays import Floats, Ints
from coterie.models.always_valid import chance_always

LEVEL = 0.01  # the largest share of comparisons of equal policies in which a winner is named
FEW = 30  # the fewest records, kept or effective, for a statement about a policy
FIRST_RUNS = 10  # of a comparison; the next looks are after 20, 40, … runs
EXACT = 20  # runs up to which all choices of signs are tried; above it DRAWS of them
DRAWS = 400_000


class Sample(Protocol):
    """What is known of a policy's worth."""

    @property
    def is_enough(self) -> bool:
        """Whether anything may be said about the policy."""

    def chance_over(self, other: Any) -> float:
        """Return the share of samples in which this one would be ahead by this much or more, if both were equal."""


S = TypeVar("S", bound=Sample)


def chance_of_best(first: S, others: Sequence[S], n_hidden: int = 0) -> float:
    """Return an upper bound on the share of samples in which some policy leads by this much, if all are equal.

    `n_hidden` is how many settings were played beside those given, of which each was the best of several.
    """
    if not others:
        return 1.0
    return min(1.0, (2 + n_hidden) * max(first.chance_over(other) for other in others))


def is_ahead(first: S, others: Sequence[S], n_hidden: int = 0, level: float = LEVEL) -> bool:
    """Return whether the first is ahead of all others by more than chance explains."""
    enough = all(one.is_enough for one in (first, *others))
    return enough and chance_of_best(first, others, n_hidden) <= level


class RunRegrets(NamedTuple):
    """The regret of a policy in each run of a world."""

    regrets: Floats  # (runs,)

    @property
    def is_enough(self) -> bool:
        """Whether so many runs can show anything."""
        return can_show(len(self.regrets))

    def leads(self, other: Self) -> Floats:
        """Return how much less than the other this policy lost, run by run."""
        return other.regrets - self.regrets

    def chance_over(self, other: Self) -> float:
        """Return the share of all choices of signs whose sum of leads is at least the one found."""
        leads = self.leads(other)
        if not leads.sum() > 0:
            return 1.0
        sums = _sums_of_signs(leads)
        return float(np.mean(sums >= leads.sum() * (1 - 1e-9)))


def level_at(n_runs: int) -> float:
    """Return the level of a verdict after so many runs: LEVEL/2 below 20 runs, LEVEL/4 below 40, and so on."""
    looks = max(0, int(math.log2(max(n_runs, 1) / FIRST_RUNS)))
    return float(LEVEL / 2 ** (1 + looks))


def can_show(n_runs: int) -> bool:
    """Return whether so many runs can show a lead: if all signs agree, one of 2ⁿ choices is as good."""
    return bool(2 * 0.5**n_runs <= level_at(n_runs))


def _sums_of_signs(values: Floats) -> Floats:
    """Return the sum of the values for each choice of their signs, or for many random ones."""
    if len(values) > EXACT:
        rng = np.random.default_rng(0)
        sums = np.concatenate(
            [rng.choice([-1.0, 1.0], (DRAWS // 40, len(values))) @ values for _ in range(40)]
        )
        return np.append(sums, values.sum())
    sums = np.zeros(1)
    for value in values.tolist():
        sums = np.concatenate([sums + value, sums - value])
    return sums


class Kept(NamedTuple):
    """The records that one run kept."""

    records: Ints  # (kept,) each at most once
    payoffs: Floats  # (kept,)


class ClickRate(NamedTuple):
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

    @property
    def is_enough(self) -> bool:
        """Whether every run kept enough records."""
        return self.fewest >= FEW

    def chance_over(self, other: Self) -> float:
        """Return the share of logs in which this one would be ahead by this much or more, if both paid the same."""
        ahead = self.value - other.value
        if not ahead > 0:  # NaN too
            return 1.0
        n, m = len(self.records), len(other.records)
        same = (n * self.value + m * other.value) / (n + m)  # the common rate
        parts = [self.weights * (self.payoffs - same), other.weights * (same - other.payoffs)]
        return by_student(
            ahead, _summed(np.concatenate([self.records, other.records]), np.concatenate(parts))
        )


def rate(runs: list[Kept]) -> ClickRate:
    """Return the rate over all runs of one policy on one log."""
    some = [run for run in runs if len(run.records)]
    if not some:
        return ClickRate(math.nan, np.zeros(0, np.int64), np.zeros(0), np.zeros(0), 0)
    records = np.concatenate([run.records for run in some])
    weights = np.concatenate([np.full(len(run.records), 1 / len(run.records)) for run in some]) / len(some)
    found, first = np.unique(records, return_index=True)
    payoffs = np.concatenate([run.payoffs for run in some])[first]
    summed = _summed(records, weights)
    fewest = min(len(run.records) for run in runs)
    return ClickRate(float(summed @ payoffs), found, summed, payoffs, fewest)


def by_student(ahead: float, parts: Floats) -> float:
    """Return the chance of a sum `ahead` of 0, from the parts that carry it."""
    unit = float(np.abs(parts).max())
    if unit == 0:
        return 1.0  # all payoffs are equal: what is ahead is a rounding
    squares = (parts / unit) ** 2
    variance = float(squares.sum())
    from scipy.special import stdtr  # imported late: it is slow to import

    carriers = variance * variance / float(squares @ squares)
    return float(stdtr(carriers, -ahead / (unit * math.sqrt(variance))))


def for_all_looks(once: float, records: int) -> float:
    """Return the chance that a lead so rare in one look is ever found, while a log grows to so many records.

    >>> for_all_looks(0.01, 1000) > 0.05, for_all_looks(1e-6, 1000) < 1e-3
    (True, True)
    """
    from scipy.special import ndtri

    return chance_always(-float(ndtri(once)), records) if once < 0.5 else 1.0


def _summed(records: Ints, parts: Floats) -> Floats:
    """Return the sum of each record's parts, in the order of the records."""
    found, place = np.unique(records, return_inverse=True)
    return np.bincount(place, parts, len(found)).astype(np.float64, copy=False)
