"""The interval of a lift holds it, because it takes payoffs of one user together."""

import doctest
import math
from typing import Any

import numpy as np
import pytest

from coterie.service.trial import lift, student_t
from coterie.service.trial.lift import Sums, difference


def test_sums_by_hand() -> None:
    """Ann earned 1, 0 and 1, Bob 0: Σn² = 10, Σns = 6, Σs² = 4."""
    sums, ann = Sums(), (0, 0.0)
    for value in (1.0, 0.0, 1.0):
        sums.add(value, *ann)
        ann = (ann[0] + 1, ann[1] + value)
    sums.add(0.0, 0, 0.0)
    assert sums == Sums(2, 4, 2.0, 10.0, 6.0, 4.0)


def arm_of(rng: Any, users: int, average: float, alike: float, visits: float) -> Sums:
    """Return what users with click rates of their own earned."""
    sums = Sums()
    for rate in rng.beta(average * alike, (1 - average) * alike, users):
        n, s = 0, 0.0
        for value in rng.random(1 + rng.poisson(visits)) < rate:
            sums.add(float(value), n, s)
            n, s = n + 1, s + float(value)
    return sums


@pytest.mark.parametrize(
    ("ours", "theirs", "rates", "alike"),
    [
        (50, 5, (0.3, 0.1), 2.0),
        (100, 10, (0.5, 0.5), 2.0),
        (200, 20, (0.3, 0.1), 20.0),
        (500, 50, (0.5, 0.5), 1.0),
    ],
)
def test_the_interval_of_a_lift_holds_it(
    ours: int, theirs: int, rates: tuple[float, float], alike: float
) -> None:
    """A user has ten visits, and users differ. Taken for independent, payoffs give intervals that are too narrow."""
    rng = np.random.default_rng(11)
    held = fooled = related = known = 0
    for _ in range(120):
        a, b = (arm_of(rng, n, rate, alike, 9) for n, rate in zip((ours, theirs), rates, strict=True))
        found = difference(a, b)
        assert found is not None
        held += found.interval.low <= rates[0] - rates[1] <= found.interval.high
        error = 1.96 * math.sqrt(
            sum(s.earned / s.learned * (1 - s.earned / s.learned) / s.learned for s in (a, b))
        )
        fooled += abs(found.value - (rates[0] - rates[1])) <= error
        if found.relative_interval is not None:
            known += 1
            related += found.relative_interval.low <= rates[0] / rates[1] - 1 <= found.relative_interval.high
    assert held >= 0.92 * 120
    assert related >= 0.9 * known
    if alike <= 2:
        assert fooled < 0.85 * 120


def test_a_lift_is_unknown_without_payoffs_and_relative_to_nothing() -> None:
    one = Sums(10, 10, 6.0, 10.0, 6.0, 6.0)
    assert difference(one, Sums()) is None
    assert lift.arm_interval(Sums(), 0.0) is None
    found = difference(one, Sums(10, 10, 0.0, 10.0, 0.0, 0.0))
    assert found is not None
    assert found.interval.low > 0
    assert (found.relative, found.relative_interval) == (None, None)


def test_quantiles_of_students_t() -> None:
    for freedom, right in ((1, 12.706), (2, 4.303), (3, 3.182), (5, 2.571), (30, 2.042), (1e6, 1.960)):
        assert student_t.quantile(freedom) == pytest.approx(right, rel=0.01)


def test_the_docstrings_examples_run() -> None:
    assert doctest.testmod(lift).failed == 0
    assert doctest.testmod(student_t).failed == 0
