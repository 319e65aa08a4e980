"""LOCB, by hand and against its twin; the contract suite compares their choices, too."""

import math

import numpy as np
import pytest

from coterie import LOCB
from coterie.errors import FileError, ParameterError
from tests.twins.locb import twin_of

X = [1.0]


def test_one_payoff_by_hand() -> None:
    """Ann is the seed of a cluster of everybody: A = 2, b = 1, and a payoff with the one at the start, T = 2.

    In round 2 a stranger's bound is β/2 with β = √(log(1 + 2) + 4·log 2 + log 2) + 1; the own estimate is 0.
    """
    policy = LOCB(n_features=1)
    policy.learn("ann", X, 1.0)
    told = policy.explain("eve", [X])
    beta = math.sqrt(math.log(3) + 4 * math.log(2) + math.log(2)) + 1
    assert (told.near_estimate[0], told.near_width[0]) == pytest.approx((0.5, beta / 2))
    assert told.estimate[0] == 0
    assert policy.neighbours("eve", X) == ["ann", "eve"]


def test_users_who_differ_leave_each_others_clusters() -> None:
    """After n payoffs of 1 and of -1 profiles are 2n/(n+1) apart: for n = 3 less than 2·f(3), for n = 4 more."""
    policy = LOCB(n_features=1)
    for n in range(1, 5):
        policy.learn("ann", X, 1.0)
        policy.learn("bob", X, -1.0)
        together = 2 * n / (n + 1) <= 2 * math.sqrt((1 + math.log(1 + n)) / (1 + n))
        assert together == (n < 4)
        assert (set(policy.neighbours("bob", X)) == {"ann", "bob"}) == together
    assert policy.explain("bob", [X]).near_estimate[0] == pytest.approx(-4 / 5)


def test_a_cluster_is_final_once_its_seed_is_known() -> None:
    """With gamma = 4 a seed without payoffs is final: f(0) = 1. So nobody ever leaves."""
    policy = LOCB(n_features=1, gamma=4.0)
    for _ in range(20):
        policy.learn("ann", X, 1.0)
        policy.learn("bob", X, -1.0)
    assert set(policy.neighbours("bob", X)) == {"ann", "bob"}


def test_choices_are_those_of_the_twin_if_users_leave_and_join() -> None:
    rng = np.random.default_rng(3)
    policy = LOCB(n_features=2, n_seeds=3)
    twin = twin_of(policy, 2)
    moved = 0
    for _ in range(250):
        user = int(rng.integers(6))
        shown = rng.normal(size=(3, 2))
        shown /= np.linalg.norm(shown, axis=1, keepdims=True)
        k = policy.choose(user, shown)
        assert k == twin.choose(user, list(shown))
        payoff = float(np.clip(shown[k, 0] * (1 if user % 2 else -1), -1, 1))
        before = {s: set(out) for s, out in twin.outside.items()}
        policy.learn(user, shown[k], payoff)
        twin.learn(user, shown[k], payoff)
        moved += sum(twin.outside[s] != out for s, out in before.items())
        found = {
            s: {one for one in twin.users if s in policy._left[policy._roster.row(one)]} for s in twin.outside
        }
        assert found == twin.outside
    assert moved > 5


def test_nothing_of_a_dropped_seed_remains_but_what_its_cluster_learned() -> None:
    policy = LOCB(n_features=1, n_seeds=1)
    policy.learn("ann", X, 1.0)
    before = policy.explain("eve", [X]).near_estimate[0]
    policy.drop("ann")
    assert policy.explain("eve", [X]).near_estimate[0] == before
    assert b"ann" not in b"".join(tensor.tobytes() for tensor in policy.tensors().values())
    policy.learn(None, X, 1.0)
    assert policy.explain("eve", [X]).near_estimate[0] == pytest.approx(2 / 3)
    assert list(policy.users) == []


def test_bad_parameters_and_files_are_named() -> None:
    with pytest.raises(ParameterError, match="n_seeds is 0"):
        LOCB(n_features=2, n_seeds=0)
    policy = LOCB(n_features=1)
    policy.learn("ann", X, 1.0)
    tensors = policy.tensors()
    for name, value, said in (
        ("seeds", np.array([4]), "a seed that is not a known user"),
        ("user_times", np.array([-1]), "smaller than 0|contradict each other"),
        ("cluster_times", np.array([0]), "learned less than its users"),
        ("cluster_gram", np.array([[0.5]]), "contradict each other"),
        ("cluster_gram", np.array([[-3.0]]), "contradict each other"),
        ("left", np.zeros((2, 1), dtype=np.uint8), "left"),
    ):
        with pytest.raises(FileError, match=said):
            LOCB(n_features=1).restore({**tensors, name: value})


def test_a_file_whose_cluster_lacks_what_its_user_learned_is_refused() -> None:
    """If it were taken, the user could leave with more than the cluster has: a matrix with eigenvalues below 0."""
    policy, other = LOCB(n_features=1), LOCB(n_features=1)
    policy.learn("ann", X, 1.0)
    other.learn("ann", [0.5], 1.0)
    lesser = {name: value for name, value in other.tensors().items() if name.startswith("cluster_")}
    with pytest.raises(FileError, match="learned less than its users"):
        LOCB(n_features=1).restore({**policy.tensors(), **lesser})
