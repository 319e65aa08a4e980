"""LinUCB, shared and alone, by bound and by draw."""

import math
from typing import Any

import numpy as np
import pytest

from coterie import LinUCB
from coterie.errors import ParameterError
from coterie.policies.base.batch import Batch
from tests.naive import NaiveLinUCB
from tests.playing import agree, run_equals_one_by_one
from tests.worlds import visits

kinds = pytest.mark.parametrize("one_hot", [False, True], ids=["vectors", "items"])
both = pytest.mark.parametrize("shared", [False, True], ids=["multiple", "single"])
scoring = pytest.mark.parametrize("thompson", [False, True], ids=["bound", "draw"])


def make(one_hot: bool, **given: Any) -> LinUCB:
    return LinUCB(one_hot=True, **given) if one_hot else LinUCB(n_features=4, **given)


@kinds
@both
@scoring
def test_linucb_equals_its_twin_choice_for_choice(one_hot: bool, shared: bool, thompson: bool) -> None:
    for seed, alpha in ((1, 0.0), (2, 0.1), (3, 1.0)):
        policy = make(one_hot, alpha=alpha, shared=shared, thompson=thompson, seed=seed)
        twin = NaiveLinUCB(4, alpha, shared, thompson, seed, one_hot)
        agree(policy, twin, visits(300, one_hot=one_hot, seed=seed))


@kinds
@both
@scoring
def test_the_compiled_loop_gives_what_one_by_one_gives(one_hot: bool, shared: bool, thompson: bool) -> None:
    run_equals_one_by_one(
        lambda: make(one_hot, alpha=0.3, shared=shared, thompson=thompson, seed=7), one_hot, seed=4
    )


def test_the_bonus_has_its_square_root() -> None:
    """One payoff of 1 for x = (1, 0): M = diag(2, 1), w = (1/2, 0), and t = 2 in the next round.

    Candidates (1, 0) and (0, 1) have spreads √(1/2) and 1, so scores 1/2 + α√(log 3)/√2 and α√(log 3).
    """
    policy = LinUCB(n_features=2, alpha=0.5)
    policy.learn("ann", [1, 0], 1.0)
    decision = policy.decide("ann", np.eye(2))
    scale = 0.5 * math.sqrt(math.log(3))
    assert decision.score == pytest.approx([0.5 + scale / math.sqrt(2), scale])
    assert decision.width == pytest.approx([scale * math.sqrt(0.5), scale])


@kinds
def test_users_do_not_share_an_identity_matrix(one_hot: bool) -> None:
    """A famous mistake: one np.eye for all users, updated in place."""
    policy = make(one_hot)
    visit = next(visits(1, one_hot=one_hot, seed=0))
    before = policy.decide("bob", visit.contexts)
    for _ in range(10):
        policy.learn("ann", visit.contexts[0], 1.0)
    policy.learned = 0  # so that the clock is the same
    after = policy.decide("bob", visit.contexts)
    assert after.score.tolist() == before.score.tolist()
    policy.add("carl")
    assert policy.decide("carl", visit.contexts).score.tolist() == before.score.tolist()


@kinds
def test_chances_are_those_of_draws_from_the_posterior(one_hot: bool) -> None:
    """Of 100,000 draws of scores with mean w·x and covariance scale²·xᵀM⁻¹x'."""
    policy = make(one_hot, alpha=0.7, thompson=True, seed=11)
    rounds = list(visits(30, one_hot=one_hot, seed=5, n_users=1))
    for visit in rounds:
        policy.learn(0, visit.contexts[0], visit.payoffs[0])
    contexts = [f"item {i}" for i in range(4)] if one_hot else rounds[0].contexts
    vectors = np.eye(4) if one_hot else np.array(rounds[0].vectors)
    M = np.eye(4) + sum(np.outer(v.vectors[0], v.vectors[0]) for v in rounds)
    b = sum((v.payoffs[0] * v.vectors[0] for v in rounds), np.zeros(4))
    scale = 0.7 * math.sqrt(math.log(32))
    mean, cov = vectors @ np.linalg.inv(M) @ b, scale**2 * vectors @ np.linalg.inv(M) @ vectors.T
    scores = np.random.default_rng(1).multivariate_normal(mean, cov, size=100_000, method="eigh")
    shares = np.bincount(np.argmax(scores, axis=1), minlength=len(mean)) / 100_000
    assert policy.decide(0, contexts).probability == pytest.approx(shares, abs=0.01 if one_hot else 0.13)


def test_an_item_listed_twice_counts_once() -> None:
    policy = LinUCB(one_hot=True, alpha=1.0, thompson=True)
    policy.learn("ann", "jazz", 1.0)
    twice = policy.decide("ann", ["jazz", "new", "jazz", "new", "news"]).probability
    once = policy.decide("ann", ["jazz", "new", "news"]).probability
    assert twice.tolist() == [once[0], once[1], 0.0, 0.0, once[2]]


@kinds
@both
def test_a_bad_round_in_a_batch_is_named_and_nothing_is_learned(one_hot: bool, shared: bool) -> None:
    policy = make(one_hot, shared=shared)
    items: Any = ["a", "b"] if one_hot else np.eye(4)[:2]
    payoffs = np.array([[0.5, 0.5], [2.0, 2.0]])
    with pytest.raises(ValueError, match=r"payoff is 2\.0"):
        policy.run(Batch(["ann", "bob"], np.array([[0, 1], [0, 1]]), items, payoffs))
    assert policy.learned == 0
    assert list(policy.users) == []


def test_batches_that_no_loop_can_take_are_played_one_by_one() -> None:
    policy = LinUCB(one_hot=True, alpha=lambda t: 0.1)
    batch = Batch(["ann"], np.array([[0, 1]]), ["a", "b"], np.array([[0.5, 0.1]]))
    assert policy.run(batch).kept.tolist() == [True]
    twice = Batch(["ann"], np.array([[0, 1]]), ["a", "a"], np.array([[0.5, 0.1]]))
    assert LinUCB(one_hot=True).run(twice).choice.tolist() == [0]
    empty = Batch([], np.zeros((0, 2), dtype=np.int64), ["a", "b"], np.zeros((0, 2)))
    assert LinUCB(one_hot=True).run(empty).choice.tolist() == []


def test_dropping_a_user_frees_the_row_and_leaves_the_others_alone() -> None:
    policy = LinUCB(n_features=4)
    rounds = list(visits(60, one_hot=False, seed=3, n_users=4))
    for visit in rounds:
        policy.learn(visit.user, visit.contexts[0], visit.payoffs[0])
    before = {user: policy.decide(user, rounds[0].contexts).score.tolist() for user in (0, 2, 3)}
    policy.drop(1)
    for user, score in before.items():
        assert policy.decide(user, rounds[0].contexts).score.tolist() == score
    assert policy.decide(1, rounds[0].contexts).estimate.tolist() == [0.0] * 4


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"shared": 1}, "shared is 1, expected True or False"),
        ({"thompson": "yes"}, "thompson is 'yes', expected True or False"),
        ({"seed": -1}, "seed is -1, expected an integer of at least 0"),
        ({"alpha": -0.1}, "alpha is -0.1, expected a finite number of at least 0"),
    ],
)
def test_bad_parameters_are_named(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        LinUCB(n_features=4, **given)
