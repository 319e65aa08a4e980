"""The interval of a lift holds it, because it takes payoffs of one user together."""

import doctest
import math
from typing import Any

import numpy as np
import pytest

from coterie.service.trial import lift
from coterie.service.trial.lift import Sums, difference
from tests.service.trial import looking
from tests.service.trial.looking import first_named, looks


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
        found = difference(a, b, 0.05)
        assert found is not None
        held += found.one_look.low <= rates[0] - rates[1] <= found.one_look.high
        assert found.interval.low <= found.one_look.low <= found.one_look.high <= found.interval.high
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
    assert difference(one, Sums(), 0.05) is None
    assert lift.arm_interval(Sums(), 0.0) is None
    found = difference(one, Sums(10, 10, 0.0, 10.0, 0.0, 0.0), 0.05)
    assert found is not None
    assert found.one_look.low > 0
    assert (found.relative, found.relative_interval) == (None, None)


def test_an_interval_for_all_looks_by_hand() -> None:
    """Two arms of 100 users with one payoff each, 60 and 40 clicks.

    With one artificial click and one other added, the means are 61/102 and 41/102, and each squared standard error
    is 61·41/102³·102/101 = 0.002380. The smallest difference that matters is 0.5·41/102 = 0.2010, so r is
    0.2010²/0.004760 = 8.486, 25 times that, and 625 times that. z = 3.172 solves the equation: 0.6·exp(4.500)/3.080 +
    0.2·exp(5.007)/14.60 + 0.2·exp(5.030)/72.84 = 17.5 + 2.0 + 0.4 = 20. Student's t widens it by 1.972/1.960.
    """
    found = difference(Sums(100, 100, 60, 100, 60, 60), Sums(100, 100, 40, 100, 40, 40), 0.5)
    assert found is not None
    assert found.value == pytest.approx(0.2)
    assert found.interval.high - found.interval.low == pytest.approx(
        2 * 3.172 * 0.0690 * 1.972 / 1.960, rel=1e-3
    )
    assert found.needed == pytest.approx(0.004760 * (4.05 / 0.2010) ** 2, rel=1e-3)
    assert found.interval.low < 0 < found.one_look.low  # seen at one look, not yet for all looks


def test_looking_often_names_no_winner_where_there_is_none() -> None:
    rng = np.random.default_rng(5)
    trials = [looks(rng, 300, (0.2, 0.2), 100) for _ in range(60)]
    assert sum(first_named(one, 0.2) is not None for one in trials) <= 3
    assert sum(first_named(one, 0.2, once=True) is not None for one in trials) >= 5


@pytest.mark.slow
def test_a_thousand_trials_of_a_thousand_looks() -> None:
    """At most 5 % ever name a winner that does not exist; an interval for one look names one in many of them."""
    found = looking.without_difference(trials=1000)
    assert max(found["always"].values()) <= 0.05
    assert found["once"] > 0.2


@pytest.mark.slow
def test_a_lift_of_five_percent_is_named_in_time() -> None:
    """The median time is at most 1.6 times that of a fixed look with power 80 %."""
    found = looking.with_difference(trials=60)
    assert found["ratio"] <= 1.6


@pytest.mark.slow
def test_a_guardrail_whose_bound_is_the_truth_is_hardly_ever_broken() -> None:
    """At most 5 % of 1,000 loops, each looked at 1,000 times, whatever the values are like."""
    assert max(looking.at_bound(loops=1000).values()) <= 0.05


def test_the_docstrings_examples_run() -> None:
    assert doctest.testmod(lift).failed == 0


def test_a_guardrail_that_is_really_exceeded_breaks_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Within three times the users of a single look that is planned before."""
    monkeypatch.setattr(looking, "RATES", (0.06,))
    [row] = looking.beyond_bound(20)
    assert looking.BOUND == 0.02
    assert row["fixed"] < row["half"] <= row["most"] < 4 * row["fixed"]
    assert row["half"] < 3 * row["fixed"]
