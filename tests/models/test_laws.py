"""Laws that hold whatever the numbers, for both representations of the user models."""

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from sklearn.linear_model import Ridge

from coterie import CAB, LinUCB
from coterie.models import Dense, Models, OneHot
from coterie.models.probability import first_best
from coterie.policies.base.decision import ranked

D = 4
Plays = list[tuple[int, int, float]]  # user, item, payoff

plays = st.lists(
    st.tuples(st.integers(0, 5), st.integers(0, D - 1), st.sampled_from([-1.0, -0.3, 0.0, 0.5, 1.0])),
    max_size=40,
)
alphas = st.sampled_from([0.0, 0.01, 0.1, 0.4])
gammas = st.sampled_from([0.0, 0.1, 0.5, 2.0])


def items_to_vectors(seed: int = 0) -> NDArray[np.float64]:
    x = np.random.default_rng(seed).normal(size=(D, D))
    vectors: NDArray[np.float64] = x / np.linalg.norm(x, axis=1, keepdims=True)
    return vectors


@settings(deadline=None, max_examples=60)
@given(plays, alphas, gammas)
def test_dense_models_on_basis_vectors_are_one_hot_models(rounds: Plays, alpha: float, gamma: float) -> None:
    dense = CAB(n_features=D, alpha=alpha, gamma=gamma)
    items = CAB(one_hot=True, alpha=alpha, gamma=gamma)
    basis = np.eye(D)
    for user, item, payoff in rounds:
        mine, theirs = dense.explain(user, basis), items.explain(user, list(range(D)))
        assert mine.members.tolist() == theirs.members.tolist()
        assert mine.score == pytest.approx(theirs.score, abs=1e-9)
        assert dense.learn(user, basis[item], payoff) == items.learn(user, item, payoff)
    assert set(dense.users) == set(items.users)


@settings(deadline=None, max_examples=40)
@given(plays, alphas, gammas, st.permutations(range(6)))
def test_permuting_users_permutes_answers(
    rounds: Plays, alpha: float, gamma: float, names: list[int]
) -> None:
    plain = CAB(n_features=D, alpha=alpha, gamma=gamma)
    renamed = CAB(n_features=D, alpha=alpha, gamma=gamma)
    x = items_to_vectors()
    for user, item, payoff in rounds:
        assert plain.learn(user, x[item], payoff) == renamed.learn(names[user], x[item], payoff)
    for user in range(6):
        assert plain.explain(user, x).score == pytest.approx(renamed.explain(names[user], x).score, abs=1e-9)
        near = {names[j] for j in plain.neighbours(user, x[0])}  # type: ignore[call-overload]
        assert near == set(renamed.neighbours(names[user], x[0]))


@settings(deadline=None, max_examples=40)
@given(plays)
def test_a_spread_never_grows(rounds: Plays) -> None:
    x = items_to_vectors()
    both: list[tuple[Models, Any]] = [(Dense(D), x), (OneHot(), list(range(D)))]
    for models, contexts in both:
        for user, item, payoff in rounds:
            before = {name: models.view(name, contexts).spread for name in range(6)}
            models.update(user, contexts[item], payoff)
            for name, spread in before.items():
                now = models.view(name, contexts).spread
                assert (now <= spread + 1e-12).all()
                assert name == user or (now == spread).all()


@settings(deadline=None, max_examples=40)
@given(plays, alphas, gammas)
def test_the_neighbourhood_is_symmetric_and_holds_the_user(rounds: Plays, alpha: float, gamma: float) -> None:
    policy = CAB(n_features=D, alpha=alpha, gamma=gamma)
    x = items_to_vectors()
    for user, item, payoff in rounds:
        policy.learn(user, x[item], payoff)
    near = {name: set(policy.neighbours(name, x[0])) for name in policy.users}
    for name, found in near.items():
        assert name in found
        assert all(name in near[other] for other in found)


@settings(deadline=None, max_examples=40)
@given(plays)
def test_the_models_are_ridge_regressions(rounds: Plays) -> None:
    policy = LinUCB(n_features=D, shared=False)
    x = items_to_vectors(1)
    for user, item, payoff in rounds:
        policy.learn(user, x[item], payoff)
    for user in {user for user, _, _ in rounds}:
        seen = np.array([x[item] for who, item, _ in rounds if who == user])
        paid = np.array([payoff for who, _, payoff in rounds if who == user])
        ridge = Ridge(alpha=1.0, fit_intercept=False).fit(seen, paid)
        told = policy.explain(user, x)
        assert told.estimate == pytest.approx(x @ ridge.coef_, abs=1e-9)
        inverse = np.linalg.inv(np.eye(D) + seen.T @ seen)
        bound = 0.1 * np.sqrt(np.einsum("kf,fg,kg->k", x, inverse, x) * math.log(2 + len(rounds)))
        assert told.width == pytest.approx(bound, abs=1e-9)  # the square root is there


def test_an_untrained_policy_takes_the_first_listed_of_equal_candidates() -> None:
    for policy in (CAB(n_features=D), CAB(one_hot=True), LinUCB(n_features=D, shared=True)):
        contexts: Any = [3, 1, 2] if policy.one_hot else np.eye(D)[[3, 1, 2]]
        assert policy.choose("anyone", contexts) == 0
        assert policy.rank("anyone", contexts) == [0, 1, 2]


@given(st.lists(st.sampled_from([0.0, 0.4e-9, 0.9e-9, 1.1e-9, 1.0, -1.0]), min_size=1, max_size=8))
def test_ranking_starts_with_the_choice_and_keeps_the_order_within_ties(scores: list[float]) -> None:
    score = np.array(scores)
    order = ranked(score)
    assert order[0] == first_best(score)
    assert sorted(order) == list(range(len(scores)))
    assert all(score[a] - score[b] > -1e-9 for a, b in pairwise(order))


def test_choices_within_a_billionth_are_tied() -> None:
    assert first_best(np.array([1.0, 1.0 + 0.9e-9])) == 0
    assert first_best(np.array([1.0, 1.0 + 1.1e-9])) == 1
    assert ranked(np.array([0.0, 1.0, 1.0 + 0.5e-9])) == [1, 2, 0]
