"""DynUCB against its twin, by hand, and against the mistakes that public code makes."""

from typing import Any

import numpy as np
import pytest

from coterie import DynUCB
from coterie.errors import ParameterError
from tests.naive import NaiveDynUCB
from tests.playing import agree, run_equals_one_by_one
from tests.worlds import Visit, visits

kinds = pytest.mark.parametrize("one_hot", [False, True], ids=["vectors", "items"])
scoring = pytest.mark.parametrize("thompson", [False, True], ids=["bound", "draw"])


def make(one_hot: bool, **given: Any) -> DynUCB:
    return DynUCB(one_hot=True, **given) if one_hot else DynUCB(n_features=4, **given)


@kinds
@scoring
def test_dynucb_equals_its_twin_choice_for_choice(one_hot: bool, thompson: bool) -> None:
    for seed, alpha, k in ((1, 0.0, 2), (2, 0.1, 3), (3, 0.5, 5), (4, 0.2, 1), (5, 0.2, 4)):
        policy = make(one_hot, alpha=alpha, k=k, thompson=thompson, seed=seed)
        twin = NaiveDynUCB(4, k, alpha, seed, thompson, one_hot)

        def each(t: int, visit: Visit, policy: Any = policy, twin: Any = twin) -> None:
            if t == 120:  # a user leaves, another waits
                for model in (policy, twin):
                    model.drop(visit.user)
                    model.add("waiting")
            assert policy.decide(visit.user, visit.contexts).members[0] == twin.members(visit.user)
            home = twin.cluster.get(visit.user, twin.next)
            near = {user for user, cluster in twin.cluster.items() if cluster == home}
            assert set(policy.neighbours(visit.user, visit.contexts[0])) == near | {visit.user}

        agree(policy, twin, visits(250, one_hot=one_hot, seed=seed), each)


@kinds
@scoring
def test_the_compiled_loop_gives_what_one_by_one_gives(one_hot: bool, thompson: bool) -> None:
    run_equals_one_by_one(lambda: make(one_hot, k=3, alpha=0.3, thompson=thompson, seed=7), one_hot, seed=4)


@kinds
def test_cluster_statistics_are_never_stale(one_hot: bool) -> None:
    """After every round each cluster's model is what its present members' histories give, summed anew."""
    policy = make(one_hot, k=3, seed=2)
    moves = 0

    def home(user: Any) -> int:
        return policy._cluster_of(policy._roster.row(user))

    for visit in visits(200, one_hot=one_hot, seed=9):
        before = home(visit.user)
        known = visit.user in policy.users
        policy.learn(visit.user, visit.contexts[0], visit.payoffs[0])
        moves += known and home(visit.user) != before
        for cluster in range(3):
            fresh = policy.user_rows.sibling()
            row = fresh.take()
            members = [i for i, user in enumerate(policy.users) if home(user) == cluster]
            fresh.pool_all(row, policy.user_rows, np.array(members, dtype=np.int64))
            items = policy.user_rows.numbers(visit.contexts)
            for kept, summed in zip(policy.pools.view(cluster, items), fresh.view(row, items), strict=True):
                assert kept == pytest.approx(summed, abs=1e-9)
    assert moves > 5


def test_a_user_moves_to_the_nearest_cluster_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cluster 0 has ann, who was paid 1 three times for jazz: w̄ = 3/4. Cluster 1 is empty: w̄ = 0.

    Bob's first payoff for jazz is -1 and is added to his cluster as well. His w is -1/2. If he starts in
    cluster 0, its w̄ becomes 2/5, at 0.9 from him, and the empty cluster's 0 is nearer: he moves, and cluster
    0's w̄ is 3/4 again.
    """
    monkeypatch.setattr("coterie.policies.clustering.dynucb.newcomers_cluster", lambda *_: 0)
    policy = DynUCB(one_hot=True, k=2)
    for _ in range(3):
        policy.learn("ann", "jazz", 1.0)
    assert policy._cluster_of(0) == 0
    policy.learn("bob", "jazz", -1.0)
    assert policy._cluster_of(1) == 1
    assert policy.neighbours("bob", "jazz") == ["bob"]
    assert policy.decide("ann", ["jazz"]).near_estimate[0] == pytest.approx(3 / 4)
    assert policy.decide("bob", ["jazz"]).near_estimate[0] == pytest.approx(-1 / 2)


def test_clusters_have_more_than_one_member_on_items() -> None:
    """Another famous mistake: a one-hot mode in which everybody is alone."""
    policy = DynUCB(one_hot=True, k=2, seed=1)
    for visit in visits(300, one_hot=True, seed=3, n_users=10):
        k = policy.choose(visit.user, visit.contexts)
        policy.learn(visit.user, visit.contexts[k], visit.payoffs[k])
    assert policy.decide(0, ["item 0"]).members[0] > 1


@pytest.mark.parametrize(("given", "message"), [
    ({"k": 0}, "k is 0, expected a whole number of at least 1"),
    ({"k": 2.5}, "k is 2.5, expected a whole number of at least 1"),
])  # fmt: skip
def test_bad_parameters_are_named(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        DynUCB(n_features=4, **given)
