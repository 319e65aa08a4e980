"""Averages over time: what was decided and earned, and what the baseline or a uniform choice would have earned."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from msgspec import Struct

from coterie.service.core.statistics import MINUTE, Minute
from coterie.service.trial.intervals import Interval, WeightedSums, interval, unweighted

POINTS = 120  # of a curve, at most
ENOUGH = 30  # decisions that an estimate must be worth to be shown
BESIDE = ("holdback", "challenger")  # the arms of a trial besides the champion's


class Point(Struct, frozen=True, rename="camel"):
    """The averages of a stretch of time; None where they are not known."""

    start: int
    decisions: int
    learned: int
    earned: float
    payoff: float | None
    baseline: float | None
    uniform: float | None
    baseline_worth: float  # how many decisions the estimate is worth
    uniform_worth: float
    share_rate: float | None
    payoff_interval: Interval | None
    baseline_interval: Interval | None
    uniform_interval: Interval | None
    baseline_blind: int  # payoffs of choices that left the baseline no chance; with any, it is unknown
    uniform_blind: int
    agreement: float | None  # how often the best guess is the baseline's choice
    would_earn: float | None  # while the baseline is shown to all: what the best guess would have earned
    would_earn_interval: Interval | None
    entropy: float | None  # of the choices' probabilities, bits
    holdback: float | None  # what users in the holdback earned, and in the challenger's arm
    holdback_interval: Interval | None
    holdback_learned: int
    challenger: float | None
    challenger_interval: Interval | None
    challenger_learned: int


SUMS = [name for name in Minute.__struct_fields__ if name != "start"]


def total(start: int, rows: Iterable[Minute]) -> Minute:
    """Return the sums of several minutes."""
    sums = Minute(start)
    for row in rows:
        for name in SUMS:
            setattr(sums, name, getattr(sums, name) + getattr(row, name))
    return sums


def point(sums: Minute, around: Minute | None = None) -> Point:
    """Return averages; those of the baseline and of a uniform choice by self-normalised inverse propensity.

    `around` holds the sums these two are estimated from, if not from `sums`.
    """
    around = around or sums
    payoffs = unweighted(sums.learned, sums.earned, sums.earned_squares)
    would = _would_earn(sums)
    rest: dict[str, Any] = {}
    for name in ("baseline", "uniform"):
        found = _estimate(around, name)
        rest |= {name: found.value, f"{name}_interval": found.interval, f"{name}_worth": found.worth}
        rest[f"{name}_blind"] = getattr(around, f"{name}_blind")
    for arm in BESIDE:
        rest |= _arm(sums, arm)
    return Point(
        start=sums.start,
        decisions=sums.decisions,
        learned=sums.learned,
        earned=sums.earned,
        payoff=_ratio(sums.earned, sums.learned),
        payoff_interval=interval(payoffs, _least(sums.losses)) if sums.summed == sums.learned else None,
        share_rate=_ratio(sums.updates - sums.in_all_arms("learned"), sums.updates),
        agreement=_ratio(sums.agreed, sums.judged),
        would_earn=would.value,
        would_earn_interval=would.interval,
        entropy=_ratio(sums.entropy, sums.varied),
        **rest,
    )


def _arm(sums: Minute, arm: str) -> dict[str, Any]:
    names = [f"{arm}_{part}" for part in ("learned", "earned", "squares", "losses")]
    learned, earned, squares, losses = (getattr(sums, name) for name in names)
    return {
        arm: _ratio(earned, learned),
        f"{arm}_interval": interval(unweighted(learned, earned, squares), _least(losses)),
        f"{arm}_learned": learned,
    }


class Estimate(NamedTuple):
    """What another choice would have earned; None where it cannot be estimated."""

    value: float | None
    interval: Interval | None
    worth: float


def _estimate(sums: Minute, name: str) -> Estimate:
    """Return what the baseline or a uniform choice would have earned.

    Unknown if any choice left it no chance, if it rests on too few decisions, or if the interval is wider than half
    of the possible range.
    """
    weight, squares, earned, products, payoffs, blind = (
        getattr(sums, f"{name}_{part}")
        for part in ("weight", "squares", "earned", "products", "payoffs", "blind")
    )
    worth = 0.0 if blind else _worth(weight, squares)
    if blind or sums.summed != sums.learned or worth < ENOUGH:
        return Estimate(None, None, worth)
    least = _least(sums.losses)
    found = interval(WeightedSums(sums.learned, weight, squares, earned, products, payoffs), least)
    return Estimate(earned / weight if _is_narrow(found, least) else None, found, worth)


def _would_earn(sums: Minute) -> Estimate:
    """Return what the best guess would have earned while the baseline was shown to all.

    It is known where the two were the same. Of the other decisions only the range of payoffs is known, and the
    interval is widened by it. Unknown under the same conditions as other estimates, except that choices without
    chance do not matter: here all are such choices.
    """
    n, earned = sums.shadowed_agreed, sums.shadowed_earned
    if n == 0 or sums.shadowed < ENOUGH:
        return Estimate(None, None, n)
    least = _least(sums.losses)
    found = interval(WeightedSums(sums.shadowed, n, n, earned, earned, sums.shadowed_squares), least)
    return Estimate(earned / n if n >= ENOUGH and _is_narrow(found, least) else None, found, n)


def _is_narrow(found: Interval | None, least: float) -> bool:
    """Return whether an interval is at most half as wide as the possible range."""
    return found is not None and found.high - found.low <= (1 - least) / 2


def _least(losses: int) -> float:
    """Return the least possible payoff: 0 if none was below."""
    return -1.0 if losses else 0.0


def curve(minutes: Sequence[Minute], now: int, span: int) -> list[Point]:
    """Return the last `span` minutes in at most POINTS stretches; empty stretches are left out.

    What the baseline and a uniform choice would have earned is estimated from the few decisions by chance, so each
    point looks back until it has enough of them.
    """
    width = MINUTE * max(1, -(-span // POINTS))
    begin = now - now % width - (-(-span * MINUTE // width) - 1) * width
    stretches: dict[int, list[Minute]] = {}
    for row in minutes:
        if row.start >= begin:
            stretches.setdefault(row.start - row.start % width, []).append(row)
    sums = [total(start, rows) for start, rows in sorted(stretches.items())]
    return [point(own, _looking_back(sums[: k + 1])) for k, own in enumerate(sums)]


def _looking_back(sums: Sequence[Minute]) -> Minute:
    around = sums[-1]
    for row in reversed(sums[:-1]):
        baseline = _worth(around.baseline_weight, around.baseline_squares)
        if min(baseline, _worth(around.uniform_weight, around.uniform_squares)) >= ENOUGH:
            break
        around = total(row.start, [around, row])
    return around


def _worth(weight: float, squares: float) -> float:
    """Return how many decisions of weight 1 the weights are worth (Kish's effective sample size)."""
    return weight * weight / squares if squares > 0 else 0.0


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole > 0 else None
