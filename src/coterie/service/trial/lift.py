"""The lift: how much more one arm earns than another, with an interval that treats payoffs of one user as dependent.

Users are assigned to arms, so a user with a hundred visits is one draw, not a hundred. The average of an arm is
Σ s / Σ n over its users, with n payoffs of sum s each, and its variance is Σ (s − mean·n)² / (Σ n)²: that of a ratio
(Cochran, Sampling Techniques, 1977, ch. 6). Few users are handled as `intervals` handles few payoffs: artificial
users with the least and with the largest possible payoffs are added, each with the average number of payoffs: two of
either kind for one arm, one of either kind in both arms for a difference (Agresti and Caffo, 2000).

**The interval of a difference holds for all looks together.** People look every hour, and stop when they see a
difference. With an interval for one look (± 1.96 standard errors) they would sooner or later see one that is not
there. Here the difference stays within ± z standard errors at all times together with probability 0.95, as the number
of users grows, where z solves (a normal mixture: Robbins, 1970; Waudby-Smith et al., 2024)

    Σ weight · exp(½ z² r/(1 + r)) / √(1 + r) = 1/0.05,   r = (times · smallest difference that matters)²/se²

`models/always_valid.py` solves it. A user who returns makes the sums of two looks more alike than new users would, so
the interval holds for them too.
"""

import math
from typing import NamedTuple

from msgspec import Struct

from coterie.models.always_valid import LEVEL, always, always_for
from coterie.service.trial.intervals import ADDED, Interval, Z

WATCHED = 4  # artificial users of either kind around a bound
NAMED = 4.05  # standard errors of the smallest difference, for a chance of 80 % to have named it by then


class Sums(Struct):
    """Sums over the users of an arm, who have n payoffs of sum s each."""

    users: int = 0
    learned: int = 0  # Σ n
    earned: float = 0.0  # Σ s
    counts: float = 0.0  # Σ n²
    products: float = 0.0  # Σ n s
    squares: float = 0.0  # Σ s²
    losses: int = 0  # payoffs below 0

    def add(self, value: float, n: int, s: float) -> None:
        """Add a payoff of a user who had n payoffs of sum s."""
        self.users += n == 0
        self.learned += 1
        self.earned += value
        self.counts += 2 * n + 1
        self.products += (n + 1) * (s + value) - n * s
        self.squares += (s + value) ** 2 - s * s
        self.losses += value < 0


class Trial(Struct, omit_defaults=True):
    """The current trial: when it began, and what each arm earned."""

    start: int  # the position of the record that began it
    at: int  # milliseconds
    arms: dict[str, Sums]
    salt: str  # with which users are assigned


class Difference(Struct, frozen=True, rename="camel"):
    """How much more one arm earns than another: per payoff, and relative to the other."""

    value: float
    interval: Interval  # holds for all looks together
    relative: float | None  # None if the other may be 0
    relative_interval: Interval | None
    one_look: Interval  # holds for one look, at a time that was chosen before
    matters: float  # the smallest difference that matters
    needed: float | None  # how many times the payoffs so far are needed to name it; None if it is unknown


class Moments(NamedTuple):
    """An average that includes the added users, its variance, and the number of users."""

    mean: float
    variance: float
    users: int


def average(sums: Sums) -> float | None:
    """Return the average payoff of an arm."""
    return sums.earned / sums.learned if sums.learned else None


def arm_interval(sums: Sums, least: float) -> Interval | None:
    """Return the interval of an arm's average."""
    if not sums.users:
        return None
    found = _moments(sums, least, ADDED)
    error = _student(found.users - 1) * math.sqrt(found.variance)
    return Interval(max(least, found.mean - error), min(1.0, found.mean + error))


def difference(ours: Sums, theirs: Sums, smallest_lift: float) -> Difference | None:
    """Return how much more `ours` earns than `theirs`; None while either has no payoffs.

    `smallest_lift` is the smallest difference that matters, relative to what `theirs` earns.

    >>> ten = Sums(users=10, learned=10, earned=6, counts=10, products=6, squares=6)
    >>> difference(ten, ten, smallest_lift=0.05).value
    0.0
    """
    if not (ours.users and theirs.users):
        return None
    least = -1.0 if ours.losses or theirs.losses else 0.0
    a, b = _moments(ours, least, 1), _moments(theirs, least, 1)
    both = a.variance + b.variance
    freedom = both**2 / (a.variance**2 / (a.users - 1) + b.variance**2 / (b.users - 1))  # Welch, 1947
    once = _student(freedom)
    matters = smallest_lift * abs(b.mean)
    wide = always(matters, both) * once / Z
    ratio = _ratio(a, b, wide)
    value, base = ours.earned / ours.learned - theirs.earned / theirs.learned, theirs.earned / theirs.learned
    return Difference(
        value,
        _around(a, b, wide, least),
        value / base if ratio is not None and base > 0 else None,
        ratio,
        _around(a, b, once, least),
        matters,
        both * (NAMED / matters) ** 2 if matters > 0 else None,
    )


def from_bound(sums: Sums, reach: float) -> tuple[float, float]:
    """Return the interval of an average minus a bound that holds for all looks together.

    `sums` are of values minus the bound. The range of values is not known, so the artificial users are `reach` above
    and below the bound, which is how far values have been: they widen the interval, and pull it towards the bound.

    >>> low, high = from_bound(Sums(users=400, learned=400, earned=40, counts=400, products=40, squares=40), 1.0)
    >>> round(low, 3), round(high, 3)
    (0.041, 0.155)
    """
    found = _moments(sums, -reach, WATCHED, reach)
    width = always_for(found.users) * _student(found.users - 1) / Z * math.sqrt(found.variance)
    return found.mean - width, found.mean + width


def _student(freedom: float) -> float:
    """Return the 97.5 % quantile of Student's t."""
    from scipy.special import stdtrit  # imported late: it is slow to import

    return float(stdtrit(freedom, 1 - LEVEL / 2))


def _around(a: Moments, b: Moments, width: float, least: float) -> Interval:
    """Return the interval of a − b of so many standard errors on each side, within what is possible."""
    error, centre, most = width * math.sqrt(a.variance + b.variance), a.mean - b.mean, 1 - least
    return Interval(max(-most, centre - error), min(most, centre + error))


def _moments(sums: Sums, least: float, added: int, most: float = 1.0) -> Moments:
    size = sums.learned / sums.users
    whole = sums.learned + 2 * added * size
    mean = (sums.earned + added * size * (least + most)) / whole
    spread = sums.squares - 2 * mean * sums.products + mean * mean * sums.counts
    spread += added * size * size * ((least - mean) ** 2 + (most - mean) ** 2)
    users = sums.users + 2 * added
    return Moments(mean, max(0.0, spread) / whole**2 * users / (users - 1), users)


def _ratio(a: Moments, b: Moments, t: float) -> Interval | None:
    """Return the interval of a / b − 1 (Fieller, 1954), or None if b may be 0."""
    lead = b.mean * b.mean - t * t * b.variance
    if b.mean <= 0 or lead <= 0:
        return None
    middle = a.mean * b.mean / lead
    last = (a.mean * a.mean - t * t * a.variance) / lead
    error = math.sqrt(max(0.0, middle * middle - last))
    return Interval(middle - error - 1, middle + error - 1)
