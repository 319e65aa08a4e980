"""The loop: drop who left, add who joined, decide, learn, one row a round."""

import math
from collections.abc import Hashable
from typing import Any

import numpy as np

from coterie import CAB, LinUCB, Random
from coterie.data.rounds import Round
from coterie.experiments import open_world, play


def visit(user: Hashable, items: list[Hashable], payoffs: list[float], **changes: Any) -> Round:
    paid = np.array(payoffs)
    return Round(user, items, paid, paid, **changes)


def test_rows_say_what_happened_by_hand() -> None:
    """Nothing is known, so the first candidate is shown: it pays 0.5 where 1 was possible.

    Then ann's estimate of jazz is 0.5/2 = 0.25 with α = 0, which beats news' 0. On jazz |0 − 0.25| > 0 makes
    ann no neighbour of bob's, so his candidates are tied at 0 and the first is shown: news, on which ann and
    bob have the same estimate. With α = 0 both are sure, so bob's payoff teaches ann too.
    """
    rounds = [
        visit("ann", ["jazz", "news"], [0.5, 1.0]),
        visit("ann", ["news", "jazz"], [1.0, 0.5]),
        visit("bob", ["news", "jazz"], [1.0, 0.5]),
    ]
    rows = list(play(CAB(one_hot=True, alpha=0.0), rounds))
    assert [(row.user, row.item, row.choice) for row in rows] == [
        ("ann", "jazz", 0),
        ("ann", "jazz", 1),
        ("bob", "news", 0),
    ]
    assert [row.round for row in rows] == [0, 1, 2]
    assert [row.payoff for row in rows] == [0.5, 0.5, 1.0]
    assert [row.best - row.expected for row in rows] == [0.5, 0.5, 0.0]
    assert [row.neighbours for row in rows] == [1, 1, 2]
    assert [row.updated for row in rows] == [1, 1, 2]


def test_users_join_and_leave_before_the_visit() -> None:
    policy = LinUCB(one_hot=True)
    rounds = [
        visit("ann", ["jazz"], [1.0], joined=["bob", "ann"]),
        visit("eve", ["jazz"], [1.0], left=["ann", "never seen"]),
    ]
    steps = play(policy, rounds)
    next(steps)
    assert set(policy.users) == {"ann", "bob"}
    next(steps)
    assert set(policy.users) == {"bob", "eve"}


def test_a_payoff_that_nobody_knows_is_not_learned() -> None:
    policy = LinUCB(one_hot=True)
    [row] = play(policy, [visit("ann", ["jazz", "news"], [math.nan, 1.0])])
    assert math.isnan(row.payoff)
    assert math.isnan(row.best)
    assert row.updated == 0
    assert not policy.users


def test_rounds_are_counted_from_where_the_run_goes_on() -> None:
    [row] = play(Random(one_hot=True), [visit("ann", ["jazz"], [1.0])], start=7)
    assert row.round == 7


def test_items_with_features_have_no_name_and_users_become_text() -> None:
    world = open_world("dense")
    policy = CAB(n_features=world.n_features)
    row = next(play(policy, world.rounds(1, 0)))
    assert row.item is None
    assert isinstance(row.user, str)


def test_the_loop_asks_a_policy_once_a_round() -> None:
    """A random stream that were moved twice a round would tell."""
    world = open_world("music-and-news")
    policy, twin = Random(one_hot=True, seed=5), Random(one_hot=True, seed=5)
    rows = list(play(policy, world.rounds(20, 0)))
    assert [row.choice for row in rows] == [
        twin.choose(visit.user, visit.contexts) for visit in world.rounds(20, 0)
    ]
