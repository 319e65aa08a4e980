"""CoLin: by hand, against Algorithm 1 with the whole matrix, and what its graph may be."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coterie.errors import ParameterError
from coterie.policies import CoLin, LinUCB
from tests.naive import NaiveCoLin
from tests.playing import agree
from tests.worlds import adjacency, make_world, random_graph


def test_two_friends_by_hand() -> None:
    """Ann and bob listen to each other as to themselves: W = [[1, 1], [1, 1]]/2, so both have one mixture.

    d = 1, λ = 1: z = (1, 1)/2 for both, zᵀz = 1/2. Ann pays 1: A = I + zzᵀ, A⁻¹z = z/(1 + 1/2), and bob expects
    zᵀA⁻¹z·1 = (1/2)/(3/2) = 1/3, as sure as ann: √(1/3).
    """
    policy = CoLin(n_features=1, alpha=0.5, graph=[("ann", "bob")])
    assert policy.explain("ann", [[1.0]]).width[0] == pytest.approx(0.5 * math.sqrt(0.5 * math.log(2)))
    assert policy.learn("ann", [1.0], 1.0) == 2
    for user in ("ann", "bob"):
        told = policy.explain(user, [[1.0]])
        assert told.estimate[0] == pytest.approx(1 / 3)
        assert told.width[0] == pytest.approx(0.5 * math.sqrt(math.log(3) / 3))
        assert told.members.tolist() == [2]


@pytest.mark.parametrize("one_hot", [False, True])
@pytest.mark.parametrize(
    ("seed", "alpha", "p", "weighted", "self_weight", "ridge"),
    [(1, 0.1, 0.1, False, 1.0, 1.0), (2, 0.7, 0.3, True, 0.4, 0.2), (3, 0.0, 0.05, True, 3.0, 2.5)],
)
def test_equal_to_the_whole_matrix(
    one_hot: bool, seed: int, alpha: float, p: float, weighted: bool, self_weight: float, ridge: float
) -> None:
    world = make_world(seed, n_users=8, d=4, n_items=7, n_clusters=3, one_hot=one_hot)
    edges = random_graph(np.random.default_rng(seed), world, p, weighted)
    nodes, weights = adjacency(world.users, edges)
    W = weights + self_weight * np.eye(8)
    W = W / W.sum(axis=0)
    kind: dict[str, Any] = {"one_hot": True} if one_hot else {"n_features": 4}
    policy = CoLin(alpha=alpha, graph=edges, self_weight=self_weight, ridge=ridge, **kind)
    agree(policy, NaiveCoLin(7 if one_hot else 4, alpha, ridge, nodes, W), world.visits(300, seed))


def test_without_a_graph_it_is_linucb() -> None:
    world = make_world(6, n_users=5, d=3, n_items=9, n_clusters=2, one_hot=False)
    mine, other = CoLin(n_features=3, alpha=0.4), LinUCB(n_features=3, alpha=0.4)
    rng = np.random.default_rng(6)
    for _ in range(200):
        user, contexts = world.users[rng.integers(5)], world.items[rng.permutation(9)[:4]]
        a, b = mine.explain(user, contexts), other.explain(user, contexts)
        assert a.score == pytest.approx(b.score, abs=1e-10)
        assert a.choice == b.choice
        for policy in (mine, other):
            policy.learn(user, contexts[a.choice], 0.5)


def test_one_hot_users_are_not_alone() -> None:
    policy = CoLin(one_hot=True, graph=[("ann", "bob"), ("bob", "cid")])
    policy.learn("ann", "jazz", 1.0)
    told = policy.explain("cid", ["jazz", "news"])
    assert told.members.tolist() == [3, 3]
    assert told.estimate[0] > 0 == told.estimate[1]


def test_a_newcomer_has_the_ridge_of_everybody() -> None:
    policy = CoLin(n_features=2, alpha=0.5, ridge=4.0)
    stranger = policy.explain("new", [[1.0, 0.0]]).width[0]
    policy.add("new")
    assert (
        policy.explain("new", [[1.0, 0.0]]).width[0]
        == stranger
        == pytest.approx(0.25 * math.sqrt(math.log(2)))
    )
    policy.learn("new", [1.0, 0.0], 1.0)
    assert policy.explain("new", [[1.0, 0.0]]).estimate[0] == pytest.approx(1 / 5)


def test_a_dropped_user_is_gone_and_the_others_keep_what_they_learned(tmp_path: Path) -> None:
    policy = CoLin(n_features=2, graph={"a": ["b"], "b": ["c"]})
    for user in "abc":
        policy.learn(user, [0.6, 0.8], 1.0)
    before = {user: policy.explain(user, np.eye(2)).score for user in "ac"}
    policy.drop("b")
    for user in "ac":
        assert policy.explain(user, np.eye(2)).score == pytest.approx(before[user], abs=1e-12)
    assert policy.graph == []
    policy.save(tmp_path / "model")
    assert b'"b"' not in (tmp_path / "model").read_bytes()
    loaded = CoLin.load(tmp_path / "model")
    assert loaded.parameters == policy.parameters
    policy.learn("a", [0.6, 0.8], 0.0)
    loaded.learn("a", [0.6, 0.8], 0.0)
    assert (loaded.explain("c", np.eye(2)).score == policy.explain("c", np.eye(2)).score).all()


def test_a_component_that_is_too_large_is_refused_before_it_is_built() -> None:
    ring = [(i, (i + 1) % 2000) for i in range(2000)]
    with pytest.raises(ParameterError, match=r"2000 nodes, which needs a matrix of 50000 × 50000 \(20 GB\)"):
        CoLin(n_features=25, graph=ring)
    pairs = [(2 * i, 2 * i + 1) for i in range(1000)]
    policy = CoLin(n_features=25, graph=pairs)
    assert len(policy.users) == 2000
    assert policy.learn(0, np.eye(25)[0], 1.0) == 2


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"self_weight": 0}, "self_weight is 0, expected a number above 0"),
        ({"ridge": 0.0}, "ridge is 0, expected a number above 0"),
        ({"ridge": -1}, "ridge is -1, expected a finite number"),
        ({"limit": 0}, "limit is 0, expected a whole number of at least 1"),
        (
            {"graph": [("a", "b")], "users": ["a", "c"]},
            "graph has 1 users that are not in users, such as 'b'",
        ),
    ],
)
def test_bad_parameters_are_named(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        CoLin(n_features=5, **given)
