"""Intervals hold what they promise, and what cannot be estimated is unknown."""

import doctest
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coterie.data.logs.rules import Config
from coterie.service.core.statistics import Statistics
from coterie.service.reports import curve
from coterie.service.trial import intervals
from coterie.service.trial.intervals import WeightedSums, interval, unweighted
from tests.service.helpers import START, ask, bandit, decide
from tests.service.http.test_http import client_of
from tests.service.reports.test_curve import event


def clicks(n: int, k: int) -> Any:
    """Return the interval of k clicks in n."""
    return interval(unweighted(n, k, k), 0)


def test_an_interval_by_hand() -> None:
    """7 clicks of 16 and the four: 9 of 20, so 0.45 ± 1.96 · √(0.45 · 0.55 / 20) = 0.45 ± 0.218."""
    found = clicks(16, 7)
    assert (found.low, found.high) == pytest.approx((0.232, 0.668), abs=1e-3)


@pytest.mark.parametrize(("n", "least"), [(5, 0.90), (10, 0.92), (30, 0.93), (100, 0.94), (300, 0.94)])
def test_the_interval_of_a_click_rate_holds_it_as_often_as_promised(n: int, least: float) -> None:
    """Exactly, over all numbers of clicks, for every rate from 1 to 99 %."""
    bounds = [clicks(n, k) for k in range(n + 1)]
    ways = [math.comb(n, k) for k in range(n + 1)]
    for p in np.linspace(0.01, 0.99, 99).tolist():
        held = sum(
            ways[k] * p**k * (1 - p) ** (n - k) for k in range(n + 1) if bounds[k].low <= p <= bounds[k].high
        )
        assert held >= least, p


def test_an_interval_lies_within_what_is_possible_and_shrinks() -> None:
    widths = []
    for n in (1, 10, 100, 1_000, 10_000):
        for k in (0, n):
            found = clicks(n, k)
            assert 0 <= found.low < found.high <= 1
        found = interval(unweighted(n, -n, n), -1)
        assert found is not None
        assert -1 <= found.low < found.high <= 1
        widths.append(clicks(n, n // 2).high - clicks(n, n // 2).low)
    assert widths == sorted(widths, reverse=True)
    assert widths[-1] < 0.02
    assert interval(WeightedSums(5, 0.0, 0.0, 0.0, 0.0, 0.0), 0) is None


@pytest.mark.parametrize(("actions", "exploration"), [(2, 0.1), (5, 0.02), (5, 0.1)])
def test_the_interval_of_the_baseline_holds_it(actions: int, exploration: float) -> None:
    """Half of the time the policy shows what the baseline would, which pays 0.8 there, and 0.2 where it would not.

    As long as chance has not shown the baseline where the policy would not, the estimate knows nothing of those 0.2:
    without the stretch for what was not seen the interval held 0.5 in none of 100 logs.
    """
    rng = np.random.default_rng(7)
    held = known = 0
    for n in [100] * 50 + [300] * 50 + [1_000] * 50:
        statistics = Statistics()
        for _ in range(n):
            same = rng.random() < 0.5
            choice = int(rng.integers(actions)) if rng.random() < exploration else 0
            chance = exploration / actions + (1 - exploration) * (choice == 0)
            baseline = choice == (0 if same else 1)
            pays = 0.8 if same and choice == 0 else 0.2 if baseline else 0.6
            statistics.learned(START, event(chance, baseline, actions), float(rng.random() < pays), 1)
        found = curve.point(statistics.total).baseline_interval
        if found is not None:
            known += 1
            held += found.low <= 0.5 <= found.high
    assert known > 20
    assert held >= 0.9 * known


def test_what_was_not_seen_of_the_baseline_is_not_told() -> None:
    """100 decisions that equal the baseline, 100 that do not, and none by chance where it would have differed."""
    statistics = Statistics()
    for k in range(200):
        statistics.learned(START, event(0.984, k % 2 == 0, 5), 1.0, 1)
    found = curve.point(statistics.total)
    assert found.baseline is None
    assert found.baseline_worth == pytest.approx(100)
    assert found.baseline_interval is not None
    assert found.baseline_interval.low < 0.51
    assert found.baseline_interval.high == 1.0


def test_apprentice_mode_knows_the_baseline_and_nothing_else() -> None:
    """The baseline pays 0.8 and the others 0.05: a uniform choice would earn 0.2, and nobody can know it."""
    made = bandit(mode="apprentice")
    rng = np.random.default_rng(1)
    for k in range(300):
        decide(made, ask(f"e{k}", f"user-{k % 9}", "abcde"))
        made.reward(f"e{k}", float(rng.random() < 0.8), START)
    found = curve.point(made.statistics.total)
    assert found.uniform is None
    assert found.uniform_interval is None
    assert (found.uniform_blind, found.uniform_worth) == (300, 0)
    assert found.baseline == found.payoff == pytest.approx(0.8, abs=0.05)
    assert found.baseline_blind == 0
    assert found.baseline_interval == found.payoff_interval
    assert found.payoff_interval is not None
    assert found.payoff_interval.low < 0.8 < found.payoff_interval.high


def test_a_service_that_never_explores_does_not_know_the_baseline() -> None:
    made = bandit(exploration=0.0)
    for k in range(200):
        shown = decide(made, ask(f"e{k}", "ann", "abc"[k % 3] + "abc"[: k % 3] + "abc"[k % 3 + 1 :]))
        made.reward(f"e{k}", float(shown.actions[shown.choice] == "a"), START)
    found = curve.point(made.statistics.total)
    assert found.payoff is not None
    assert found.payoff > 0.8
    assert (found.baseline, found.uniform) == (None, None)
    assert found.uniform_blind == 200
    assert 0 < found.baseline_blind < 200


def test_one_action_is_a_certain_choice_that_hides_nothing() -> None:
    made = bandit(exploration=0.0)
    for k in range(40):
        decide(made, ask(f"e{k}", "ann", "a"))
        made.reward(f"e{k}", 1.0, START)
    found = curve.point(made.statistics.total)
    assert (found.baseline, found.uniform) == (1.0, 1.0)


def test_the_statistics_are_told_with_their_intervals(tmp_path: Path) -> None:
    with client_of(tmp_path, config=Config(mode="apprentice")) as client:
        for k in range(40):
            actions = [{"id": "a"}, {"id": "b"}]
            client.post("/v1/rank", json={"user": "ann", "actions": actions, "eventId": f"e{k}"})
            client.post(f"/v1/events/e{k}/reward", json={"value": k % 2})
        total = client.get("/v1/statistics").json()["total"]
    assert total["payoff"] == total["baseline"] == 0.5
    low, high = total["payoffInterval"]["low"], total["payoffInterval"]["high"]
    assert (low, high) == pytest.approx((0.352, 0.648), abs=1e-3)
    assert total["baselineInterval"] == total["payoffInterval"]
    assert (total["uniform"], total["uniformInterval"], total["uniformBlind"]) == (None, None, 40)


def test_the_docstrings_examples_run() -> None:
    assert doctest.testmod(intervals).failed == 0
