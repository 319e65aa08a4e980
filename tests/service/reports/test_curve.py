"""Averages over time, by hand and by law."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.data.logs.records import ShownAction
from coterie.service.core.events import Event
from coterie.service.core.statistics import MINUTE, ArmSums, Minute, Statistics
from coterie.service.reports import curve
from tests.service.helpers import START


def event(probability: float, baseline: bool, choices: int = 2) -> Event:
    return Event("e", 0, 0, ShownAction("a"), 0, "rewarded", probability, choices, baseline, agrees=False)


def test_averages_by_hand() -> None:
    """The policy is worth 1, the baseline 0.5 where the policy would not choose it.

    56 times the policy's choice (p = 0.95, payoff 1), 24 times the policy's choice that is the baseline too, 40
    times the baseline by chance (p = 0.05, payoff 0.5). Baseline: weights 24 · 1/0.95 = 25.26 and 40 · 20 = 800, so
    (25.26 · 1 + 800 · 0.5) / 825.26 = 0.5153, worth 825.26² / (24/0.95² + 40 · 400) = 42.5 decisions. Uniform:
    weights 80/1.9 = 42.11 and 400; (42.11 · 1 + 400 · 0.5) / 442.11 = 0.5476.
    """
    statistics = Statistics()
    for k in range(80):
        statistics.learned(START, event(0.95, k < 24), 1.0, 1)
    for _ in range(40):
        statistics.learned(START, event(0.05, True), 0.5, 3)
    found = curve.point(statistics.total)
    assert found.payoff == pytest.approx((80 + 20) / 120)
    assert found.baseline == pytest.approx(0.5153, abs=1e-4)
    assert found.baseline_worth == pytest.approx(42.5, abs=0.01)
    assert found.uniform == pytest.approx(0.5476, abs=1e-4)
    assert found.share_rate == pytest.approx(80 / 200)


def test_an_estimate_from_too_few_decisions_is_not_shown() -> None:
    statistics = Statistics()
    for _ in range(curve.ENOUGH - 1):
        statistics.learned(START, event(0.05, True), 1.0, 1)
    found = curve.point(statistics.total)
    assert found.payoff == 1.0
    assert found.baseline is None


def minutes(*worth: int) -> list[Minute]:
    """Return minutes with so many baseline decisions of weight 1 and payoff 1 each."""
    found = []
    for k, n in enumerate(worth):
        statistics = Statistics()
        for _ in range(n):
            statistics.learned(START + k * MINUTE, event(1.0, True, choices=1), 1.0, 1)
        found.append(statistics.minutes[0])
    return found


def test_a_point_looks_back_until_it_has_enough() -> None:
    rows = minutes(20, 20, 40)
    found = curve.curve(rows, START + 2 * MINUTE, 60)
    assert [point.baseline_worth for point in found] == [20, 40, 40]
    assert [point.baseline for point in found] == [None, 1.0, 1.0]
    assert [point.learned for point in found] == [20, 20, 40]


@given(st.integers(1, 10_080), st.lists(st.integers(0, 10_079), max_size=50, unique=True))
def test_a_curve_is_short_and_complete(span: int, ago: list[int]) -> None:
    now = START + 17
    rows = [Minute(now - now % MINUTE - k * MINUTE, ArmSums(decisions=1)) for k in sorted(ago, reverse=True)]
    found = curve.curve(rows, now, span)
    assert len(found) <= curve.POINTS
    assert sum(point.decisions for point in found) >= sum(k < span - span // curve.POINTS - 1 for k in ago)
    assert [point.start for point in found] == sorted(point.start for point in found)
