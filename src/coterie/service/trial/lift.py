"""The lift: how much more one arm earns than another, with an interval that treats payoffs of one user as dependent.

Users are assigned to arms, so a user with a hundred visits is one draw, not a hundred. The average of an arm is
Σ s / Σ n over its users, with n payoffs of sum s each, and its variance is Σ (s − mean·n)² / (Σ n)²: that of a ratio
(Cochran, Sampling Techniques, 1977, ch. 6). Few users are handled as `intervals` handles few payoffs: artificial
users with the least and with the largest possible payoffs are added, each with the average number of payoffs: two of
either kind for one arm, one of either kind in both arms for a difference (Agresti and Caffo, 2000).
"""

import math

from msgspec import Struct

from coterie.service.figures.intervals import ADDED, Interval
from coterie.service.trial.student_t import quantile


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
    salt: str = ""  # with which users are assigned; trials of earlier versions have none


class Difference(Struct, frozen=True, rename="camel"):
    """How much more one arm earns than another: per payoff, and relative to the other."""

    value: float
    interval: Interval
    relative: float | None  # None if the other may be 0
    relative_interval: Interval | None


class Moments(Struct, frozen=True):
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
    error = quantile(found.users - 1) * math.sqrt(found.variance)
    return Interval(max(least, found.mean - error), min(1.0, found.mean + error))


def difference(ours: Sums, theirs: Sums) -> Difference | None:
    """Return how much more `ours` earns than `theirs`; None while either has no payoffs.

    >>> ten = Sums(users=10, learned=10, earned=6, counts=10, products=6, squares=6)
    >>> difference(ten, ten).value
    0.0
    """
    if not (ours.users and theirs.users):
        return None
    least = -1.0 if ours.losses or theirs.losses else 0.0
    a, b = _moments(ours, least, 1), _moments(theirs, least, 1)
    value = ours.earned / ours.learned - theirs.earned / theirs.learned
    both = a.variance + b.variance
    freedom = both**2 / (a.variance**2 / (a.users - 1) + b.variance**2 / (b.users - 1))  # Welch, 1947
    t = quantile(freedom)
    error, centre, most = t * math.sqrt(both), a.mean - b.mean, 1 - least
    found = Interval(max(-most, centre - error), min(most, centre + error))
    ratio = _ratio(a, b, t)
    base = theirs.earned / theirs.learned
    return Difference(value, found, value / base if ratio is not None and base > 0 else None, ratio)


def _moments(sums: Sums, least: float, added: int) -> Moments:
    size = sums.learned / sums.users
    whole = sums.learned + 2 * added * size
    mean = (sums.earned + added * size * (least + 1)) / whole
    spread = sums.squares - 2 * mean * sums.products + mean * mean * sums.counts
    spread += added * size * size * ((least - mean) ** 2 + (1 - mean) ** 2)
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
