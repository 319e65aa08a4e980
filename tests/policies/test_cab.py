"""CAB: by hand, and against Algorithm 1 transcribed line by line."""

import math
from itertools import product
from typing import Any

import numpy as np
import pytest

from coterie import CAB, LinUCB
from coterie.errors import ParameterError
from tests.naive import CachedCAB, NaiveCAB
from tests.worlds import unit_vectors


def test_two_users_two_rounds_by_hand() -> None:
    """α = 0.5, γ = 0 (nobody shares), d = 2.

    Round 1, t = 1: ann sees e₁ and e₂ with M = I, w = 0; both score 0 + 0.5·√log 2, the first wins.
    She pays 1: M = diag(2, 1), b = (1, 0), so w = (1/2, 0), and on e₁ her spread is √(1/2).
    Round 2, t = 2, scale = 0.5·√log 3 = 0.5240735. Bob is new: estimate 0, spread 1 on both.
    On e₁: |0 − 1/2| ≤ 0.524·(1 + 0.7071) holds, so ann is his neighbour: members 2, estimate (0 + 1/2)/2 = 0.25,
    width 0.5240735·(1 + 0.7071068)/2 = 0.4473247. On e₂ she is too, with estimate 0 and spread 1.
    """
    policy = CAB(n_features=2, alpha=0.5, gamma=0.0)
    contexts = np.eye(2)
    first = policy.explain("ann", contexts)
    assert first.score == pytest.approx([0.5 * math.sqrt(math.log(2))] * 2)
    assert policy.choose("ann", contexts) == 0
    assert policy.learn("ann", contexts[0], 1.0) == 1

    second = policy.explain("bob", contexts)
    assert second.members.tolist() == [2, 2]
    assert second.near_estimate == pytest.approx([0.25, 0.0])
    assert second.near_width == pytest.approx([0.4473247, 0.5240735], abs=1e-7)
    assert second.score == pytest.approx([0.6973247, 0.5240735], abs=1e-7)
    assert policy.choose("bob", contexts) == 0
    assert set(policy.neighbours("bob", contexts[0])) == {"ann", "bob"}


def test_the_quarter_gap_rule_by_hand() -> None:
    """The bound on e₁ is 1/2 for both: bob has learned on e₂ alone. At γ = 2 a quarter of γ is 1/2 too: the bound is
    not below it, and ann learns alone. At γ = 2.1 it is below, and bob, whose estimate is equal, learns with her.
    """
    x = [1.0, 0.0]
    for gamma, updated, estimate in [(2.0, 1, 0.0), (2.1, 2, 0.5)]:
        policy = CAB(n_features=2, alpha=lambda t: 0.5, gamma=gamma)
        policy.learn("bob", [0.0, 1.0], 1.0)
        assert policy.learn("ann", x, 1.0) == updated
        assert policy.explain("bob", [x]).estimate[0] == pytest.approx(estimate)


def test_only_sure_neighbours_learn_together() -> None:
    """α(t) = 0.4, γ/4 = 0.3. Ann's two rounds on e₁ bring her spread to 1/√3, her bound to 0.23: sure.

    Her third payoff is for those within the bounds and sure themselves: bob has two rounds on e₁ with the same
    payoffs, carl only one (bound 0.283, sure too), dora none (bound 0.4, not sure), eve says the opposite.
    """
    policy = CAB(n_features=2, alpha=lambda t: 0.4, gamma=0.0)
    x = [1.0, 0.0]
    for user, payoff in [
        ("ann", 0.5),
        ("ann", 0.5),
        ("bob", 0.5),
        ("bob", 0.5),
        ("carl", 0.5),
        ("eve", -1.0),
    ]:
        policy.learn(user, x, payoff)
    policy.learn("eve", x, -1.0)
    policy.learn("dora", [0.0, 1.0], 1.0)
    policy.gamma = 1.2
    assert set(policy.neighbours("ann", x)) == {
        "ann",
        "bob",
        "carl",
        "dora",
    }  # eve: |1/3 + 2/3| > 0.23 + 0.23
    assert policy.learn("ann", x, 0.5) == 3
    estimates = {user: policy.explain(user, [x]).estimate[0] for user in policy.users}
    assert estimates == pytest.approx(
        {"ann": 1.5 / 4, "bob": 1.5 / 4, "carl": 1 / 3, "dora": 0, "eve": -2 / 3}
    )


def test_a_fresh_user_decides_with_the_updated_ones_only() -> None:
    policy = CAB(n_features=2, alpha=1.0)
    policy.add("idle")
    policy.learn("ann", [1.0, 0.0], 0.5)
    assert policy.explain("bob", np.eye(2)).members.tolist() == [2, 2]


SETTINGS = list(product([0.0, 0.02, 0.1, 0.5], [0.0, 0.2, 2.0]))


def play_both(policy: CAB, twin: NaiveCAB, one_hot: bool, seed: int, n_rounds: int = 120) -> int:
    """Play the same rounds with users joining and leaving; assert all choices equal, return users shared with."""
    rng = np.random.default_rng(seed)
    d = twin.d
    users: list[Any] = [("user", i) for i in range(6)]
    truth = {user: unit_vectors(np.random.default_rng(i % 2), 1, d)[0] for i, user in enumerate(users)}
    shared = 0
    for user in users[:3]:
        policy.add(user)
        twin.add(user)
    for t in range(n_rounds):
        if t % 25 == 24:
            leaver = next(user for user in users if user in twin.M)
            policy.drop(leaver)
            twin.drop(leaver)
            assert leaver not in policy.users
            users.append(("user", len(truth)))
            truth[users[-1]] = truth[users[0]]
            users.remove(leaver)
        user = users[int(rng.integers(len(users)))]
        if one_hot:
            items = rng.permutation(d)[:4].tolist()
            vectors = np.eye(d)[items]
            shown: Any = [f"item {i}" for i in items]
        else:
            shown = vectors = unit_vectors(rng, 4, d)
        mine, theirs = policy.explain(user, shown), twin.scores(user, vectors)
        assert mine.score == pytest.approx(theirs, abs=1e-9)
        k = policy.choose(user, shown)
        assert k == twin.choose(user, vectors), f"round {t}"
        assert set(policy.neighbours(user, shown[k])) == set(twin.neighbourhood(user, vectors[k]))
        payoff = float(np.clip(round(truth[user] @ vectors[k] + rng.normal() * 0.05, 1), -1, 1))
        updated = policy.learn(user, shown[k], payoff)
        assert updated == twin.learn(user, vectors[k], payoff), f"round {t}"
        shared += updated - 1
        assert set(policy.users) == set(twin.M)
    return shared


@pytest.mark.parametrize(("alpha", "gamma"), SETTINGS)
@pytest.mark.parametrize("one_hot", [False, True])
def test_every_choice_equals_the_transcription(alpha: float, gamma: float, one_hot: bool) -> None:
    kind: dict[str, Any] = {"one_hot": True} if one_hot else {"n_features": 5}
    policy = CAB(alpha=alpha, gamma=gamma, **kind)
    twin = CachedCAB(5, alpha, gamma)
    shared = play_both(policy, twin, one_hot, seed=7)
    if gamma == 0:
        assert shared == 0
    if (alpha, gamma) in [(0.02, 0.2), (0.02, 2.0), (0.1, 2.0)]:
        assert shared > 0  # the comparison did reach the shared updates


def test_every_choice_equals_the_transcription_over_a_long_run() -> None:
    policy = CAB(n_features=4, alpha=0.05, gamma=0.4)
    assert play_both(policy, CachedCAB(4, 0.05, 0.4), False, seed=3, n_rounds=1500) > 0


def test_alpha_may_be_a_function_of_t_that_is_the_whole_factor() -> None:
    number = CAB(n_features=3, alpha=0.3)
    function = CAB(n_features=3, alpha=lambda t: 0.3 * math.sqrt(math.log(1 + t)))
    rng = np.random.default_rng(0)
    for t in range(100):
        x, user = unit_vectors(rng, 5, 3), t % 4
        assert number.explain(user, x).score == pytest.approx(function.explain(user, x).score, abs=1e-12)
        k = number.choose(user, x)
        assert number.learn(user, x[k], 0.5) == function.learn(user, x[k], 0.5)


def test_an_alpha_that_turns_bad_changes_nothing() -> None:
    policy = CAB(n_features=2, alpha=lambda t: 1.0 if t < 3 else math.nan)
    policy.learn("ann", [1.0, 0.0], 1.0)
    policy.learn("ann", [1.0, 0.0], 1.0)
    with pytest.raises(ParameterError, match=r"alpha\(3\) is nan"):
        policy.learn("bob", [0.0, 1.0], 1.0)
    assert list(policy.users) == ["ann"]
    assert policy.learned == 2


@pytest.mark.parametrize("kind", [{"n_features": 4}, {"one_hot": True}])
def test_cab_with_one_user_is_linucb(kind: dict[str, Any]) -> None:
    cab, alone = CAB(alpha=0.3, **kind), LinUCB(alpha=0.3, shared=False, **kind)
    rng = np.random.default_rng(1)
    for _ in range(200):
        x: Any = rng.permutation(6)[:3].tolist() if "one_hot" in kind else unit_vectors(rng, 3, 4)
        k = cab.choose("me", x)
        assert k == alone.choose("me", x)
        payoff = float(rng.random() < 0.4)
        cab.learn("me", x[k], payoff)
        alone.learn("me", x[k], payoff)


def test_dropping_forgets_the_user_but_not_what_others_learned_from_them() -> None:
    policy = CAB(n_features=2, alpha=0.01, gamma=1.0)
    x = [1.0, 0.0]
    policy.learn("bob", [0.0, 1.0], 1.0)
    assert policy.learn("ann", x, 1.0) == 2  # both learn: bounds are 0.008, a quarter of γ is 0.25
    policy.drop("ann")
    assert list(policy.users) == ["bob"]
    assert policy.neighbours("bob", x) == ["bob"]
    assert policy.explain("bob", [x]).estimate[0] == pytest.approx(0.5)
    policy.learn("ann", [0.0, 1.0], 1.0)
    assert policy.explain("ann", [x]).estimate[0] == 0.0  # she comes back as a stranger


def test_explaining_prints_a_table_and_html() -> None:
    policy = CAB(one_hot=True, alpha=0.5)
    policy.learn("ann", "<b>jazz</b>", 1.0)
    decision = policy.explain("bob", ["news", "<b>jazz</b>"])
    assert "→" in str(decision)
    assert "user 'bob': candidate 1 of 2" in str(decision)
    assert "&lt;b&gt;jazz" in decision._repr_html_()
    assert "<b>" not in decision._repr_html_()
    assert decision.rows()[1]["chosen"]
    assert decision.rows()[1]["members"] == 2


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({}, "n_features is None and one_hot is False, expected exactly one kind of context"),
        ({"n_features": 3, "one_hot": True}, "expected exactly one kind of context"),
        ({"n_features": 0}, "n_features is 0, expected a whole number of at least 1"),
        ({"n_features": 2.5}, "n_features is 2.5, expected a whole number of at least 1"),
        ({"n_features": 3, "alpha": -0.1}, "alpha is -0.1, expected a finite number of at least 0"),
        ({"n_features": 3, "alpha": math.inf}, "alpha is inf"),
        ({"n_features": 3, "alpha": "0.1"}, "alpha is '0.1'"),
        ({"n_features": 3, "gamma": -1}, "gamma is -1, expected a finite number of at least 0"),
        ({"n_features": 3, "gamma": math.nan}, "gamma is nan"),
        ({"one_hot": "yes"}, "one_hot is 'yes', expected True or False"),
    ],
)
def test_bad_parameters_are_named(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        CAB(**parameters)
