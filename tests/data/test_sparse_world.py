"""The sparse world: few features matter, clusters are real, and payoffs are what it says."""

import math
from typing import Any

import numpy as np
import pytest

from coterie.data import SparseWorld, make_world
from coterie.errors import ContextError, ParameterError


def test_users_of_a_cluster_have_one_sparse_model_and_clusters_have_different_ones() -> None:
    world = SparseWorld(n_features=300, n_users=20, clusters_per_family=4)
    context = next(world.rounds(1)).contexts[0]
    models = {user: world.truth(user) for user in world.users()}
    assert world.n_clusters(context) == 4
    for user in world.users():
        assert np.count_nonzero(models[user]) == 5
        assert np.linalg.norm(models[user]) == pytest.approx(1 - 4 * 0.005)
        near = world.neighbours(user, context)
        assert len(near) == 5
        assert near == [j for j in world.users() if np.array_equal(models[j], models[user])]
        for j in near:
            assert world.expected(j, [context]) == world.expected(user, [context])


def test_contexts_are_normal_directions_of_length_one() -> None:
    """A feature of a uniform direction has the mean 0 and the variance 1/d."""
    world = SparseWorld(n_features=50, n_candidates=10)
    contexts = np.concatenate([sent.contexts for sent in world.rounds(400)])
    assert np.linalg.norm(contexts, axis=1) == pytest.approx(1.0)
    assert contexts.mean() == pytest.approx(0.0, abs=0.002)
    assert contexts.var(axis=0) == pytest.approx(np.full(50, 1 / 50), rel=0.15)


def test_noise_has_the_mean_0_and_the_deviation_asked_for() -> None:
    world = SparseWorld(n_features=50, noise=0.05)
    noise = np.concatenate([sent.payoffs - sent.expected for sent in world.rounds(1_000)])
    assert noise.mean() == pytest.approx(0.0, abs=0.002)
    assert noise.std() == pytest.approx(0.05, rel=0.02)
    assert np.abs(noise).max() <= 4 * 0.05 + 1e-12


def test_payoffs_stay_within_the_papers_limits() -> None:
    world = SparseWorld(n_features=1, sparsity=1, clusters_per_family=1, noise=0.2)
    paid = np.concatenate([sent.payoffs for sent in world.rounds(500)])
    assert np.abs(paid).max() <= 1
    assert np.abs(paid).max() > 0.5


def test_what_a_round_expects_is_what_the_world_tells() -> None:
    world = SparseWorld(n_features=40, turnover=100.0)
    for sent in world.rounds(20):
        assert np.array_equal(sent.expected, world.expected(sent.user, sent.contexts))
        assert sent.expected == pytest.approx(sent.contexts @ world.truth(sent.user), abs=1e-15)


def test_a_world_is_made_again_from_its_parameters() -> None:
    world = SparseWorld(n_features=30, sparsity=2, popularity="zipf", seed=3)
    again = make_world(world.parameters())
    for one, other in zip(world.rounds(10, seed=4), again.rounds(10, seed=4), strict=True):
        assert one.user == other.user
        assert np.array_equal(one.contexts, other.contexts)
        assert np.array_equal(one.payoffs, other.payoffs)


@pytest.mark.parametrize(
    ("made", "message"),
    [
        ({"n_features": 0}, "n_features is 0, expected a whole number of at least 1"),
        ({"sparsity": 0}, "sparsity is 0, expected a whole number of at least 1"),
        ({"n_features": 4}, "sparsity is 5 and n_features is 4; expected at most as many"),
        ({"n_users": 3}, "clusters_per_family is 4 and n_users is 3; expected at most as many"),
        ({"noise": 0.25}, "noise is 0.25, expected a number from 0 to below 0.25"),
        ({"noise": -0.1}, "noise is -0.1"),
        ({"noise": math.nan}, "noise is nan"),
        ({"popularity": "odd"}, "popularity is 'odd', expected one of: even, zipf"),
        ({"turnover": -1}, "turnover is -1, expected"),
        ({"seed": -1}, "seed is -1, expected a whole number of at least 0"),
    ],
)
def test_bad_parameters_are_named(made: dict[str, Any], message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        SparseWorld(**made)


def test_contexts_of_another_length_are_refused() -> None:
    with pytest.raises(ContextError, match=r"shape \(1, 3\), this world's have \(candidates, 2000\)"):
        SparseWorld().expected(0, [[0.0, 0.0, 1.0]])
