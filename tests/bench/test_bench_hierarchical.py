"""The benchmark of Hierarchical: its rounds, what it counts, and what its rows say. No time is tested."""

import numpy as np
import pytest

from coterie import Hierarchical
from coterie.bench.rounds import FEATURES, ITEMS, RandomVisits, name
from coterie.bench.suites.hierarchical import PART, Plain, against_cab, against_vw, seconds_by_part
from coterie.bench.suites.hierarchical_growth import (
    Slowest,
    call_one_by_one,
    fill,
    growth,
    resident,
    seconds_of_a_round,
    slowest_calls,
    slowest_newcomer,
    slowest_rows,
    users_of,
)


def silent(_: str) -> None:
    """Tell nobody."""


def test_a_crowd_clicks_more_on_what_its_users_like() -> None:
    crowd = RandomVisits(seed=3)
    batch = crowd.batch(np.zeros(4000, dtype=np.int64), 2)
    assert (batch.items.shape, batch.candidates.shape) == ((ITEMS, FEATURES), (4000, 2))
    assert set(batch.users) == {name(0)} == {"user-0000000"}
    liked = batch.items[batch.candidates] @ crowd.tastes[0] > 0
    assert batch.payoffs[liked].mean() > batch.payoffs[~liked].mean() + 0.05


def test_the_limit_is_on_the_mean_of_the_whole_run() -> None:
    """Ten parts each: ours take 2 s, then 1 s nine times; CAB's 10 s each. 11 / 100, 2 / 10 and 1 / 10."""
    whole, first, last = against_cab([2.0] + [1.0] * 9, [10.0] * 10, limited=True)
    assert (whole.ratio, whole.limit, whole.holds) == (0.11, "<= 0.1", False)
    assert whole.value == pytest.approx(1e6 * 11 / (10 * PART))
    assert (first.ratio, last.ratio) == (0.2, 0.1)
    assert first.limit is last.limit is None
    assert next(against_cab([1.0], [2.0], limited=False)).limit is None


def test_speed_is_compared_with_the_package_and_told_of_our_loop() -> None:
    package, loop = against_vw(2.0, 30.0, 5.0, 1000, limited=True)
    assert (package.value, package.ratio, package.holds) == (500.0, 15.0, True)
    assert (loop.ratio, loop.limit) == (2.5, None)
    assert "33 rounds/s" in package.against


def test_every_user_joins_with_one_payoff_and_rounds_are_timed_with_a_trial() -> None:
    crowd, policy = RandomVisits(), Hierarchical(n_features=FEATURES)
    fill(policy, crowd, 150, silent)
    assert (len(policy.users), policy.learned) == (150, 150)
    assert seconds_of_a_round(policy, crowd) > 0
    assert len(policy.users) == 150
    population = users_of(policy)
    assert population.model.place[population.positions.TRIAL]


def test_single_calls_go_through_the_ends_of_three_passes() -> None:
    crowd, policy = RandomVisits(), Hierarchical(n_features=FEATURES)
    fill(policy, crowd, 40, silent)
    found = slowest_calls(policy, crowd, silent, calls=60)
    assert min(found) > 0
    assert policy.learned > 40
    learned = policy.learned
    call_one_by_one(policy, crowd, 5)
    assert policy.learned == learned + 5


def test_newcomers_are_timed() -> None:
    policy = Hierarchical(n_features=RandomVisits().items.shape[1])
    assert slowest_newcomer(policy, RandomVisits(), 40) > 0
    assert len(policy.users) == 40


def test_growth_is_an_exponent_and_a_slow_call_breaks_its_limit() -> None:
    *sizes, exponent = growth((1_000, 100_000), [1.0, 10.0], limited=True)
    assert [row.ratio for row in sizes] == [1.0, 10.0]
    assert exponent.ratio == pytest.approx(0.5)
    assert exponent.holds is False
    choose, learn = slowest_rows(Slowest(0.001, 0.006), "9 users")
    assert (choose.ratio, choose.holds) == (1.0, True)
    assert (learn.value, learn.holds) == (6.0, False)
    assert resident() > 0


def test_the_package_plays_the_same_rounds() -> None:
    pytest.importorskip("vowpalwabbit")
    batch = RandomVisits().batch(np.arange(6), 3)
    assert Plain(batch).seconds(batch) > 0
    assert len(seconds_by_part(Hierarchical(n_features=FEATURES), [batch, batch])) == 2
