"""SCLUB against its twin, by hand, and against the mistakes that public code makes."""

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from coterie import SCLUB
from coterie.errors import FileError, ParameterError
from tests.naive import NaiveSCLUB
from tests.playing import agree
from tests.worlds import Visit, visits

kinds = pytest.mark.parametrize("one_hot", [False, True], ids=["vectors", "items"])


def make(one_hot: bool, **given: Any) -> SCLUB:
    return SCLUB(one_hot=True, **given) if one_hot else SCLUB(n_features=4, **given)


@kinds
def test_sclub_equals_its_twin_choice_for_choice(one_hot: bool) -> None:
    seen: set[int] = set()
    merges = 0
    for seed, alpha, theta, p in (
        (1, 0.1, 0.3, 0.7),
        (2, 0.5, 0.2, 0.3),
        (3, 0.0, 0.0, 0.2),
        (4, 0.2, 0.5, 5.0),
    ):
        policy = make(one_hot, alpha=alpha, alpha_theta=theta, alpha_p=p)
        twin = NaiveSCLUB(4, alpha, theta, p)
        for user in range(6):
            policy.add(user)
            twin.add(user)
        counts: list[int] = []

        def each(t: int, visit: Visit, policy: Any = policy, twin: Any = twin, counts: Any = counts) -> None:
            if t % 50 == 49:  # users come and go
                for model in (policy, twin):
                    model.drop((t // 50) % 6)
                    model.add(f"late {t}")
            assert set(policy.neighbours(visit.user, visit.contexts[0])) == twin.of(visit.user) | {visit.user}
            members = policy.decide(visit.user, visit.contexts).members[0]
            assert members == len(twin.of(visit.user) | {visit.user})
            counts.append(len(twin.clusters))

        agree(policy, twin, visits(200, one_hot=one_hot, seed=seed, n_users=8, n_groups=3), each)
        x: Any = 0 if one_hot else np.zeros(4)
        assert [sorted(map(str, policy.neighbours(min(c, key=str), x))) for c in twin.clusters] == [
            sorted(map(str, c)) for c in twin.clusters
        ]
        seen |= set(counts)
        merges += sum(b < a for a, b in pairwise(counts))
    assert len(seen) > 3
    assert merges > 5


@kinds
def test_cluster_statistics_are_never_stale(one_hot: bool) -> None:
    policy = make(one_hot, alpha_theta=0.3, alpha_p=0.5)
    splits = 0
    for visit in visits(250, one_hot=one_hot, seed=9, n_users=8, n_groups=3):
        policy.learn(visit.user, visit.contexts[0], visit.payoffs[0])
        items = policy.user_rows.numbers(visit.contexts)
        splits = max(splits, len(policy._clusters))
        for c, rows in policy._clusters.items():
            fresh = policy.user_rows.sibling()
            pool = fresh.take()
            fresh.pool_all(pool, policy.user_rows, np.array(sorted(rows)))
            for kept, summed in zip(policy.pools.view(c, items), fresh.view(pool, items), strict=True):
                assert kept == pytest.approx(summed, abs=1e-9)
            assert policy.pools.times(c) == sum(policy.user_rows.times(row) for row in rows)
    assert splits > 2


def test_a_user_leaves_and_comes_back_by_hand() -> None:
    """Ann is paid 1 for jazz four times, bob -1 once, with α_θ = 0.5 and frequencies ignored (α_p = 9).

    After bob's payoff, his w = -1/2 and the cluster's is 3/6. The distance 1 is over 0.5·(F(1) + F(5)) =
    0.5·(0.92 + 0.68) = 0.80: bob leaves, and the cluster is ann's again, w = 4/5.
    """
    policy = SCLUB(one_hot=True, alpha_theta=0.5, alpha_p=9.0)
    for _ in range(4):
        policy.learn("ann", "jazz", 1.0)
    policy.learn("bob", "jazz", -1.0)
    f = [math.sqrt((1 + math.log(1 + n)) / (1 + n)) for n in (1, 5)]
    assert 0.5 * sum(f) == pytest.approx(0.80, abs=0.005)
    assert policy.neighbours("bob", "jazz") == ["bob"]
    assert policy.decide("ann", ["jazz"]).near_estimate[0] == pytest.approx(4 / 5)
    assert policy.decide("stranger", ["jazz"]).members[0] == 2


def test_frequency_alone_splits_a_cluster() -> None:
    """All payoffs are 0, so profiles never differ; ann comes always and the other nine never."""
    policy = SCLUB(one_hot=True, alpha_theta=1.0, alpha_p=0.2)
    for user in ["ann", *range(9)]:
        policy.add(user)
    for _ in range(60):
        policy.learn("ann", "jazz", 0.0)
    assert policy.neighbours("ann", "jazz") == ["ann"]
    patient = SCLUB(one_hot=True, alpha_theta=1.0, alpha_p=9.0)
    for user in ["ann", *range(9)]:
        patient.add(user)
    for _ in range(60):
        patient.learn("ann", "jazz", 0.0)
    assert len(patient.neighbours("ann", "jazz")) == 10


@kinds
def test_two_planted_groups_are_found(one_hot: bool) -> None:
    policy = make(one_hot, alpha_theta=0.7, alpha_p=2.0)
    for visit in visits(3000, one_hot=one_hot, seed=8, n_users=20, noise=0.05):
        policy.learn(visit.user, visit.contexts[0], visit.payoffs[0])
    x: Any = 0 if one_hot else np.zeros(4)
    assert sorted(map(str, policy.neighbours(0, x))) == sorted(str(u) for u in range(0, 20, 2))
    assert sorted(map(str, policy.neighbours(1, x))) == sorted(str(u) for u in range(1, 20, 2))


def test_a_file_with_gaps_between_clusters_is_refused() -> None:
    policy = SCLUB(one_hot=True, alpha_theta=0.2)
    for visit in visits(100, one_hot=True, seed=1):
        policy.learn(visit.user, visit.contexts[0], visit.payoffs[0])
    tensors = policy.tensors()
    tensors["home"] = tensors["home"] + 1
    with pytest.raises(FileError, match="not numbered without gaps"):
        SCLUB(one_hot=True).restore(tensors)


@pytest.mark.parametrize(("given", "message"), [
    ({"alpha_theta": -1}, "alpha_theta is -1, expected a finite number of at least 0"),
    ({"alpha_p": math.nan}, "alpha_p is nan, expected a finite number of at least 0"),
])  # fmt: skip
def test_bad_parameters_are_named(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        SCLUB(n_features=4, **given)


def test_a_file_whose_clusters_have_learned_other_payoffs_is_refused() -> None:
    policy = SCLUB(n_features=4, alpha_theta=0.2)
    for visit in visits(100, one_hot=False, seed=1):
        policy.learn(visit.user, visit.contexts[0], visit.payoffs[0])
    tensors = policy.tensors()
    SCLUB(n_features=4, alpha_theta=0.2).restore(tensors)
    [name] = [name for name in tensors if name.startswith("cluster") and name.endswith("times")]
    tensors[name] = tensors[name] + 90
    with pytest.raises(FileError, match="learned other payoffs than their users"):
        SCLUB(n_features=4, alpha_theta=0.2).restore(tensors)
