"""Truth against estimate: what is watched of a run equals what the world says."""

import numpy as np
import pytest

from coterie.data import DenseWorld, OneHotWorld
from coterie.errors import ParameterError
from coterie.theory import theory_alpha, watch


def test_settled_is_the_round_after_the_last_mistake() -> None:
    seen = watch(DenseWorld(n_users=4), n_rounds=5, measure_hardness=False)
    for same, settled in (([1, 0, 1, 1, 1], 3), ([1, 1, 1, 1, 1], 1), ([1, 1, 1, 1, 0], None)):
        given = type(seen)(**{**vars(seen), "same": np.array(same, dtype=bool)})
        assert given.settled == settled


def test_neighbourhoods_become_the_true_ones_where_payoffs_have_no_noise() -> None:
    """Without noise ‖w - u‖_M ≤ ‖u‖ = 1, so α = 1 is enough; γ/4 = 0.25, about twenty visits to each user."""
    world = DenseWorld(n_users=6, n_features=2, n_families=1, gap=1.0, noise=0.0, n_candidates=3)
    seen = watch(world, n_rounds=600, alpha=lambda t: 1.0)
    assert seen.settled is not None
    assert seen.settled < 400
    assert seen.recall.min() == 1.0  # the truth is within bounds, so nobody who belongs is ever left out
    assert (seen.updated[-100:] == seen.size[-100:]).all()  # by then all are sure
    bounds = seen.bounds()
    assert bounds is not None
    assert seen.regret.sum() <= bounds[1].total <= bounds[0].total


def test_first_round_finds_everybody() -> None:
    """Nobody has learned, so all are neighbours: precision is |N|/n, recall 1."""
    seen = watch(OneHotWorld(n_users=10, n_items=6, n_families=2, n_candidates=3), n_rounds=1)
    assert seen.precision[0] == seen.size[0] / 10
    assert seen.recall[0] == 1
    assert seen.sizes_bound is None


def test_sizes_follow_the_number_of_clusters() -> None:
    """Even clusters of one family: |N| is n/m, so Σ 1/|N| is exactly T·m/n."""
    world = OneHotWorld(n_users=12, clusters_per_family=3, gap=0.2)
    seen = watch(world, n_rounds=50)
    assert seen.clusters == 3
    assert seen.inverse_sizes[-1] == pytest.approx(50 * 3 / 12)
    assert seen.sizes_bound is not None
    assert seen.inverse_sizes[-1] <= seen.sizes_bound
    assert seen.summary()["hardness"] == [50, 50, "exact"]


def test_bounds_are_withheld_where_alpha_is_too_small_for_them() -> None:
    assert watch(DenseWorld(n_users=4), n_rounds=5, alpha=0.1).bounds() is None


def test_theory_alpha_grows_and_knows_the_noise() -> None:
    quiet, loud = (theory_alpha(DenseWorld(noise=noise)) for noise in (0.0, 0.3))
    assert callable(quiet)
    assert callable(loud)
    assert quiet(1) == quiet(1000) == 1.0
    assert 1 < loud(1) < loud(1000)
    clicks = theory_alpha(OneHotWorld())
    assert callable(clicks)
    assert clicks(10) > 1


def test_worlds_whose_users_leave_are_refused() -> None:
    with pytest.raises(ParameterError, match=r"turnover is 0\.1"):
        watch(OneHotWorld(turnover=0.1), n_rounds=5)
    with pytest.raises(ParameterError, match=r"drift is 0\.1"):
        watch(OneHotWorld(drift=0.1), n_rounds=5)
