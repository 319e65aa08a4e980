"""Averages over time: what was decided and earned, and what the baseline or a uniform choice would have earned."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from msgspec import Struct

from coterie.service.core.statistics import MINUTE, ArmSums, Minute, OtherSums, add_to
from coterie.service.trial.intervals import Interval, WeightedSums, interval, unweighted

POINTS = 120  # of a curve, at most
ENOUGH = 30  # decisions that an estimate must be worth to be shown


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


def total(start: int, rows: Iterable[Minute]) -> Minute:
    """Return the sums of several minutes."""
    sums = Minute(start)
    for row in rows:
        add_to(sums, row)
    return sums


def point(sums: Minute, around: Minute | None = None) -> Point:
    """Return averages; those of the baseline and of a uniform choice by self-normalised inverse propensity.

    `around` holds the sums these two are estimated from, if not from `sums`.
    """
    around, own = around or sums, sums.champion
    would = _would_earn(sums)
    rest: dict[str, Any] = {}
    for name in ("baseline", "uniform"):
        others = getattr(around, name)
        found = _estimate(around.champion, others)
        rest |= {name: found.value, f"{name}_interval": found.interval, f"{name}_worth": found.worth}
        rest[f"{name}_blind"] = others.blind
    for name, arm in (("payoff", own), ("holdback", sums.holdback), ("challenger", sums.challenger)):
        payoffs = unweighted(arm.learned, arm.earned, arm.squares)
        rest |= {name: _ratio(arm.earned, arm.learned), f"{name}_interval": interval(payoffs, _least(arm))}
    return Point(
        start=sums.start,
        decisions=own.decisions,
        learned=own.learned,
        earned=own.earned,
        holdback_learned=sums.holdback.learned,
        challenger_learned=sums.challenger.learned,
        share_rate=_ratio(sums.updates - sums.learned, sums.updates),
        agreement=_ratio(sums.agreed, own.decisions),
        would_earn=would.value,
        would_earn_interval=would.interval,
        entropy=_ratio(sums.entropy, sums.varied),
        **rest,
    )


class Estimate(NamedTuple):
    """What another choice would have earned; None where it cannot be estimated."""

    value: float | None
    interval: Interval | None
    worth: float


def _estimate(own: ArmSums, other: OtherSums) -> Estimate:
    """Return what the baseline or a uniform choice would have earned.

    Unknown if any choice left it no chance, if it rests on too few decisions, or if the interval is wider than half
    of the possible range.
    """
    worth = 0.0 if other.blind else _worth(other)
    if other.blind or worth < ENOUGH:
        return Estimate(None, None, worth)
    least = _least(own)
    sums = WeightedSums(own.learned, other.weight, other.squares, other.earned, other.products, other.payoffs)
    found = interval(sums, least)
    return Estimate(other.earned / other.weight if _is_narrow(found, least) else None, found, worth)


def _would_earn(sums: Minute) -> Estimate:
    """Return what the best guess would have earned while the baseline was shown to all.

    It is known where the two were the same. Of the other decisions only the range of payoffs is known, and the
    interval is widened by it. Unknown under the same conditions as other estimates, except that choices without
    chance do not matter: here all are such choices.
    """
    own = sums.shadowed
    n, earned = own.learned, own.earned
    if n == 0 or own.decisions < ENOUGH:
        return Estimate(None, None, n)
    least = _least(sums.champion)
    found = interval(WeightedSums(own.decisions, n, n, earned, earned, own.squares), least)
    return Estimate(earned / n if n >= ENOUGH and _is_narrow(found, least) else None, found, n)


def _is_narrow(found: Interval | None, least: float) -> bool:
    """Return whether an interval is at most half as wide as the possible range."""
    return found is not None and found.high - found.low <= (1 - least) / 2


def _least(sums: ArmSums) -> float:
    """Return the least possible payoff: 0 if none was below."""
    return -1.0 if sums.losses else 0.0


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
        if min(_worth(around.baseline), _worth(around.uniform)) >= ENOUGH:
            break
        around = total(row.start, [around, row])
    return around


def _worth(sums: OtherSums) -> float:
    """Return how many decisions of weight 1 the weights are worth (Kish's effective sample size)."""
    return sums.weight * sums.weight / sums.squares if sums.squares > 0 else 0.0


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole > 0 else None
