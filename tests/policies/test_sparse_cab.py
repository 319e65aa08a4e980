"""SparseCAB: by hand, and against the appendix transcribed line by line."""

import math
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from coterie import LinUCB, Policy, SparseCAB
from coterie.data import SparseWorld
from coterie.errors import ParameterError
from tests.naive import NaiveSparseCAB

Floats = NDArray[np.float64]


def test_two_users_two_rounds_by_hand() -> None:
    """α = 0.5, γ = 0, two features, one nonzero.

    Ann is new: both candidates score 0 + 0.5·√log 2·‖x‖, and she gets the first, e₁, and pays 1. Her history
    is one row, so Xᵀy = e₁: the support is {1}, w₁ = 1/(1 + 1), and M = 2 there. Round 2, t = 2: on (0.6, 0.8)
    her estimate is 0.6/2 and her spread 0.6·√(1/2): the second feature, not in her support, counts for nothing.
    """
    policy = SparseCAB(n_features=2, sparsity=1, alpha=0.5, gamma=0.0)
    assert policy.choose("ann", np.eye(2)) == 0
    assert policy.explain("ann", np.eye(2)).score == pytest.approx([0.5 * math.sqrt(math.log(2))] * 2)
    assert policy.learn("ann", [1.0, 0.0], 1.0) == 1
    scale = 0.5 * math.sqrt(math.log(3))
    told = policy.explain("ann", [[0.6, 0.8], [0.0, 1.0], [-1.0, 0.0]])
    assert told.estimate == pytest.approx([0.3, 0.0, -0.5])
    assert told.width == pytest.approx([scale * 0.6 * math.sqrt(0.5), 0.0, scale * math.sqrt(0.5)])
    assert told.choice == 0


def test_who_knows_nothing_explores_by_the_length_of_a_context() -> None:
    """Strangers, and users whose payoffs were all 0, have an empty support; a bound of 0 would make them sure."""
    policy = SparseCAB(n_features=3, sparsity=2, alpha=0.5)
    policy.learn("ann", [0.6, 0.0, 0.0], 0.0)
    contexts = [[0.3, 0.0, 0.0], [0.0, 0.6, 0.8]]
    for user in ("ann", "a stranger"):
        told = policy.explain(user, contexts)
        assert told.estimate.tolist() == [0.0, 0.0]
        assert told.width == pytest.approx(0.5 * math.sqrt(math.log(3)) * np.array([0.3, 1.0]))
        assert told.choice == 1


Visit = tuple[str, Floats, Floats]  # user, contexts, payoffs


def normal_world(rng: np.random.Generator, d: int, s: int) -> Iterator[Visit]:
    """Users in two clusters with sparse models, contexts in all directions."""
    models = np.zeros((2, d))
    for model in models:
        model[rng.choice(d, s, replace=False)] = rng.choice([-1, 1], s) / math.sqrt(s)
    while True:
        user = int(rng.integers(7))
        x = rng.standard_normal((4, d))
        x /= np.linalg.norm(x, axis=1, keepdims=True)
        yield f"user {user}", x, np.clip(x @ models[user % 2] + 0.05 * rng.standard_normal(4), -1, 1)


def item_world(rng: np.random.Generator, d: int, s: int) -> Iterator[Visit]:
    """Each context is one feature, each payoff a click: everything is tied with something."""
    while True:
        user, items = int(rng.integers(7)), rng.choice(d, 4, replace=False)
        yield (
            f"user {user}",
            np.eye(d)[items],
            (rng.random(4) < 0.1 + 0.5 * ((items + user) % 2)).astype(float),
        )


def flag_world(rng: np.random.Generator, d: int, s: int) -> Iterator[Visit]:
    """Few features are on, all alike, some never, and most payoffs are 0: ties and empty supports."""
    while True:
        user = int(rng.integers(7))
        x = (rng.random((4, d)) < 0.3) * rng.choice([-0.25, 0.25], (4, d))
        x[:, 0] = 0.0
        yield f"user {user}", x / max(1.0, math.sqrt(d) / 4), rng.choice([0.0, 0.0, 0.5, -0.5], 4)


WORLDS = {"normal": (normal_world, 25, 3), "items": (item_world, 12, 3), "flags": (flag_world, 10, 2)}
SETTINGS = [
    (*setting, method)
    for setting in product(WORLDS, (0.0, 0.05, 0.5), (0.0, 0.2, 2.0))
    for method in ("cosamp", "subspace-pursuit")
]


@pytest.mark.parametrize(("world", "alpha", "gamma", "method"), SETTINGS)
def test_every_choice_is_the_appendixs(
    world: str, alpha: float, gamma: float, method: Any, tmp_path: Path
) -> None:
    visits, d, s = WORLDS[world]
    rng = np.random.default_rng([7, len(world)])
    policy: SparseCAB = SparseCAB(n_features=d, sparsity=s, alpha=alpha, gamma=gamma, method=method)
    twin = NaiveSparseCAB(d, s, 2 * s if method == "cosamp" else s, alpha, gamma)
    for t, (user, contexts, payoffs) in zip(range(150), visits(rng, d, s), strict=False):
        if t == 20:
            policy.add("waiting")
            twin.add("waiting")
        if t in (60, 90) and user in policy.users:
            policy.drop(user)
            twin.drop(user)
        if t == 100:
            policy.save(tmp_path / "model")
            policy = SparseCAB.load(tmp_path / "model")
        choice = policy.choose(user, contexts)
        assert choice == twin.choose(user, list(contexts)), t
        assert set(policy.neighbours(user, contexts[choice])) == set(
            twin.neighbourhood(user, contexts[choice])
        )
        payoff = float(payoffs[choice])
        assert policy.learn(user, contexts[choice], payoff) == twin.learn(user, contexts[choice], payoff), t
    for name in twin.proxy:
        told = policy.explain(name, np.eye(d))
        assert told.estimate == pytest.approx(twin.w(name), abs=1e-9)
        assert told.width == pytest.approx([twin.cb(name, x) for x in np.eye(d)], abs=1e-9)


def test_in_a_sparse_world_it_regrets_less_than_half_of_what_linucb_regrets() -> None:
    """A small copy of the benchmark: 200 features, 3 of which matter; LinUCB at the better of two alphas."""
    world = SparseWorld(n_features=200, sparsity=3, n_users=4, clusters_per_family=2, n_candidates=10)

    def regret(policy: Policy) -> float:
        lost = 0.0
        for user, contexts, payoffs, expected, _, _ in world.rounds(500):
            k = policy.choose(user, contexts)
            policy.learn(user, contexts[k], float(payoffs[k]))
            lost += float(expected.max() - expected[k])
        return lost

    rival = min(regret(LinUCB(n_features=200, alpha=alpha)) for alpha in (0.01, 0.1))
    for method in ("cosamp", "subspace-pursuit"):
        assert regret(SparseCAB(n_features=200, sparsity=3, method=method)) < rival / 2


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"n_features": None}, "n_features is None, expected a number: SparseCAB takes feature vectors only"),
        ({"n_features": 0}, "n_features is 0, expected a whole number of at least 1"),
        ({"sparsity": 0}, "sparsity is 0, expected a whole number of at least 1"),
        ({"sparsity": 11}, "sparsity is 11, expected at most the number of features, 10"),
        ({"sparsity": 2.5}, "sparsity is 2.5, expected a whole number of at least 1"),
        ({"method": "lasso"}, "method is 'lasso', expected 'cosamp' or 'subspace-pursuit'"),
        ({"alpha": -1}, "alpha is -1, expected a finite number of at least 0"),
        ({"gamma": math.nan}, "gamma is nan, expected a finite number of at least 0"),
    ],
)
def test_bad_parameters_are_named(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        SparseCAB(**{"n_features": 10, **given})
