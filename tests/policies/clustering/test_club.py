"""CLUB against its twin, by hand, and against the mistakes that public code makes."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coterie import CLUB
from coterie.errors import FileError, ParameterError
from tests.naive import NaiveCLUB
from tests.playing import agree, run_equals_one_by_one
from tests.worlds import Visit, visits

kinds = pytest.mark.parametrize("one_hot", [False, True], ids=["vectors", "items"])
scoring = pytest.mark.parametrize("thompson", [False, True], ids=["bound", "draw"])
graphs = pytest.mark.parametrize("p", [None, 0.4, 1.0, 0.0], ids=["sparse", "fixed", "complete", "empty"])


def make(one_hot: bool, **given: Any) -> CLUB:
    return CLUB(one_hot=True, **given) if one_hot else CLUB(n_features=4, **given)


def both(one_hot: bool, users: int, **given: Any) -> tuple[CLUB, NaiveCLUB]:
    """A policy with its users, and the twin with the same edges."""
    policy = make(one_hot, **given)
    twin = NaiveCLUB(4, given["alpha"], given["alpha2"], given.get("thompson", False), one_hot)
    twin.edges_come = given.get("p") != 0
    for user in range(users):
        policy.add(user)
        twin.add(user, policy.edges())
    twin.rng = np.random.default_rng(given.get("seed", 0))
    return policy, twin


@kinds
@graphs
@scoring
def test_club_equals_its_twin_choice_for_choice(one_hot: bool, p: float | None, thompson: bool) -> None:
    settings = ((1, 0.1, 0.3), (2, 0.5, 0.1), (3, 0.0, 0.0), (4, 0.2, 0.6), (5, 0.3, 0.15))
    for seed, alpha, alpha2 in settings:
        given: dict[str, Any] = {"alpha": alpha, "alpha2": alpha2, "p": p, "thompson": thompson, "seed": seed}
        policy, twin = both(one_hot, 10, **given)
        sizes: set[int] = set()

        def each(t: int, visit: Visit, policy: Any = policy, twin: Any = twin, sizes: Any = sizes) -> None:
            if t % 40 == 39:  # users come and go; edges of the newcomer are drawn by the policy
                for model in (policy, twin):
                    model.drop((t // 40) % 10)
                policy.add((t // 40) % 10)
                twin.add((t // 40) % 10, policy.edges())
            assert set(policy.neighbours(visit.user, visit.contexts[0])) == twin.component(visit.user)
            assert policy.decide(visit.user, visit.contexts).members[0] == len(twin.component(visit.user))
            if t % 10 == 0:
                assert {frozenset(edge) for edge in policy.edges()} == twin.E
                assert policy.choose("stranger", visit.contexts) == twin.choose("stranger", visit.vectors)
                assert set(policy.neighbours("stranger", visit.contexts[0])) == {
                    "stranger",
                    *twin.strangers_company(),
                }
            sizes.add(len(twin.component(visit.user)))

        agree(policy, twin, visits(160, one_hot=one_hot, seed=seed, n_users=10, n_groups=3), each)
        assert p == 0.0 or alpha2 > 0.2 or len(sizes) > 1


@kinds
@graphs
@scoring
def test_the_compiled_loop_gives_what_one_by_one_gives(
    one_hot: bool, p: float | None, thompson: bool
) -> None:
    given: dict[str, Any] = {"p": p, "thompson": thompson, "seed": 7}
    run_equals_one_by_one(lambda: make(one_hot, alpha=0.3, alpha2=0.2, **given), one_hot, seed=4)


def test_an_edge_is_cut_by_the_payoff_by_hand() -> None:
    """Ann paid 1 three times: w = 3/4 and CB̃ = α₂·√((1 + log 4)/4) = 0.773·α₂.

    Bob is at 0 with CB̃ = α₂, and after a payoff of −1 at −1/2 with 0.920·α₂. At α₂ = 0.6 the first is too near for a
    cut, 0.75 < 1.06, and the second is not, 1.25 > 1.02.
    """
    policy = CLUB(one_hot=True, p=1, alpha2=0.6)
    policy.learn_many(["ann", "ann", "ann"], ["jazz"] * 3, [1, 1, 1])
    policy.add("bob")
    assert policy.neighbours("bob", "jazz") == ["ann", "bob"]
    policy.learn("bob", "jazz", -1)
    assert policy.neighbours("bob", "jazz") == ["bob"]


@kinds
@pytest.mark.parametrize("p", [None, 1.0], ids=["sparse", "complete"])
def test_pooled_statistics_are_never_stale(one_hot: bool, p: float | None) -> None:
    """After every round each component's model is what its members' histories give, summed anew."""
    policy, _ = both(one_hot, 12, alpha=0.1, alpha2=0.15, p=p)
    splits = set()
    for visit in visits(250, one_hot=one_hot, seed=9, n_users=12, n_groups=3):
        policy.learn(visit.user, visit.contexts[0], visit.payoffs[0])
        items = policy.user_rows.numbers(visit.contexts)
        for row in range(12):
            fresh = policy.user_rows.sibling()
            pool = fresh.take()
            fresh.pool_all(pool, policy.user_rows, policy.graph.component_rows(row))
            kept = policy.graph.pools.view(policy.graph.component(row), items)
            for mine, summed in zip(kept, fresh.view(pool, items), strict=True):
                assert mine == pytest.approx(summed, abs=1e-9)
        everybody = policy.user_rows.sibling()
        everybody.pool_all(everybody.take(), policy.user_rows, np.arange(12))
        for mine, summed in zip(policy.graph.everybody.view(0, items), everybody.view(0, items), strict=True):
            assert mine == pytest.approx(summed, abs=1e-9)
        splits.add(len({policy.graph.component(row) for row in range(12)}))
    assert len(splits) > 3


@kinds
@graphs
def test_cut_edges_never_come_back(one_hot: bool, p: float | None) -> None:
    policy, _ = both(one_hot, 12, alpha=0.1, alpha2=0.1, p=p)
    before = {frozenset(edge) for edge in policy.edges()}
    lost = 0
    for visit in visits(200, one_hot=one_hot, seed=5, n_users=12, n_groups=3):
        policy.learn(visit.user, visit.contexts[0], visit.payoffs[0])
        now = {frozenset(edge) for edge in policy.edges()}
        assert now <= before
        lost += len(before) - len(now)
        before = now
    assert lost > 10 or p == 0.0


def test_the_edge_test_reads_both_users_by_hand() -> None:
    """Ann is paid 1 for jazz, n times, and bob -1: w = ±n/(1+n), CB̃ = α₂·√((1+log(1+n))/(1+n)) each.

    With α₂ = 0.6 and n = 1 the distance 1 is under 2·0.6·√((1+log 2)/2) = 1.1; with n = 2 it is 4/3, over
    2·0.6·√((1+log 3)/3) = 1.004. Reading one user twice gives a distance of 0, and no cut ever.
    """
    policy = CLUB(one_hot=True, alpha2=0.6, p=1.0)
    policy.learn("ann", "jazz", 1.0)
    policy.learn("bob", "jazz", -1.0)
    assert 2 * 0.6 * math.sqrt((1 + math.log(2)) / 2) > 1
    assert policy.neighbours("ann", "jazz") == ["ann", "bob"]
    assert policy.decide("ann", ["jazz"]).near_estimate[0] == 0.0
    policy.learn("ann", "jazz", 1.0)
    radius = 0.6 * math.sqrt((1 + math.log(2)) / 2) + 0.6 * math.sqrt((1 + math.log(3)) / 3)
    assert radius < 2 / 3 + 1 / 2
    assert policy.neighbours("ann", "jazz") == ["ann"]
    assert policy.decide("ann", ["jazz"]).near_estimate[0] == pytest.approx(2 / 3)
    assert policy.decide("bob", ["jazz"]).near_estimate[0] == pytest.approx(-1 / 2)


def test_components_have_more_than_one_member_on_items() -> None:
    """A famous mistake: a one-hot mode in which everybody is alone."""
    policy, _ = both(True, 20, alpha=0.1, alpha2=0.5)
    for visit in visits(400, one_hot=True, seed=3, n_users=20):
        policy.learn(visit.user, visit.contexts[0], visit.payoffs[0])
    sizes = [len(policy.neighbours(user, 0)) for user in range(20)]
    assert max(sizes) > 3


@kinds
def test_two_planted_groups_are_found(one_hot: bool) -> None:
    policy, _ = both(one_hot, 20, alpha=0.1, alpha2=0.7, p=1.0, seed=1)
    for visit in visits(3000, one_hot=one_hot, seed=8, n_users=20, noise=0.05):
        policy.learn(visit.user, visit.contexts[0], visit.payoffs[0])
    x: Any = 0 if one_hot else np.zeros(4)
    assert sorted(map(str, policy.neighbours(0, x))) == sorted(str(u) for u in range(0, 20, 2))
    assert sorted(map(str, policy.neighbours(1, x))) == sorted(str(u) for u in range(1, 20, 2))


def test_newcomers_get_edges_at_the_rate_of_the_rule() -> None:
    """With p = 0.1 the 2,000 users get 199,900 edges on average, with a standard deviation of 424."""
    policy = CLUB(one_hot=True, p=0.1, seed=5)
    for user in range(2000):
        policy.add(user)
    edges = policy.graph.edges()
    assert abs(len(edges) - 199_900) < 4 * 424
    degrees = np.bincount(edges.ravel())
    assert abs(degrees[:200].mean() - degrees[-200:].mean()) < 6
    rule = CLUB(one_hot=True, seed=5)
    for user in range(2000):
        rule.add(user)
    want = sum(min(1.0, 3 * math.log(n) / n) * (n - 1) for n in range(2, 2001))
    assert abs(len(rule.graph.edges()) - want) < 4 * math.sqrt(want)
    assert rule.graph.members(rule.graph.component(0)) == 2000


@kinds
@pytest.mark.parametrize("p", [None, 1.0], ids=["sparse", "complete"])
def test_a_dropped_user_leaves_the_pool_to_the_last_bit(one_hot: bool, p: float | None) -> None:
    """At alpha2 = 9 nobody is cut: after ann left, the pool is the sum of the others', bit for bit."""
    policy, _ = both(one_hot, 6, alpha=0.1, alpha2=9.0, p=p)
    rounds = list(visits(60, one_hot=one_hot, seed=2, n_users=6))
    for visit in rounds:
        policy.learn(visit.user, visit.contexts[0], visit.payoffs[0])
    policy.drop(3)
    items = policy.user_rows.numbers(rounds[0].contexts)
    for row in range(5):
        fresh = policy.user_rows.sibling()
        pool = fresh.take()
        together = policy.graph.component_rows(row)
        order = [r for r in (0, 1, 2, 4, 3) if r in together]  # the last user, 5, has row 3 now
        fresh.pool_all(pool, policy.user_rows, np.array(order))
        kept = policy.graph.pools.view(policy.graph.component(row), items)
        assert kept.estimate.tolist() == fresh.view(pool, items).estimate.tolist()
    assert 3 not in policy.users
    assert all(3 not in edge for edge in policy.edges())


def test_room_for_edges_is_used_again() -> None:
    policy = CLUB(one_hot=True, p=0.5, seed=1)
    for user in range(50):
        policy.add(user)
    room = len(policy.graph.rows.to)
    for user in range(50, 800):
        policy.drop(user - 50)
        policy.add(user)
    assert len(policy.graph.rows.to) <= 2 * room
    twin = NaiveCLUB(1, 0.1, 0.3)
    for name in policy.users:
        twin.add(name, policy.edges())
    assert set(policy.neighbours(799, "x")) == twin.component(799)


@graphs
def test_a_file_whose_components_do_not_follow_from_its_edges_is_refused(
    p: float | None, tmp_path: Path
) -> None:
    policy, _ = both(True, 8, alpha=0.1, alpha2=0.3, p=p)
    for visit in visits(150, one_hot=True, seed=2):
        policy.learn(visit.user, visit.contexts[0], visit.payoffs[0])
    good = policy.tensors()
    CLUB(one_hot=True, p=p).restore(good)
    assert len(set(good["component"].tolist())) > 1
    broken = dict(good)
    broken["component"] = np.zeros_like(good["component"])
    bad = [broken]
    for pairs in ([[0, 8]], [[0, -1]], [[0, 1], [1, 0]]):
        bad.append({**good, "edges": np.array(pairs), "tree": np.ones(len(pairs), dtype=np.uint8)})
    if len(good["tree"]):
        bad.append({**good, "tree": 1 - good["tree"]})
    for tensors in bad:
        with pytest.raises(FileError, match="contradict"):
            CLUB(one_hot=True, p=p).restore(tensors)


@pytest.mark.parametrize(("given", "message"), [
    ({"p": 1.5}, r"p is 1.5, expected a probability in \[0, 1\]"),
    ({"p": -0.1}, "p is -0.1, expected a finite number of at least 0"),
    ({"p": float("nan")}, "p is nan"),
    ({"alpha2": -1}, "alpha2 is -1, expected a finite number of at least 0"),
    ({"thompson": 1}, "thompson is 1, expected True or False"),
])  # fmt: skip
def test_bad_parameters_are_named(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        CLUB(n_features=4, **given)
