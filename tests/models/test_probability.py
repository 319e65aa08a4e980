"""The probability of being best, against SciPy's integrals and against draws; choices by probabilities."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ndtr

from coterie.models.probability import (
    draw_from,
    first_best,
    pick,
    probability_of_best,
    probability_of_best_together,
    uniform_at,
)
from tests.twins import probability as twin


def test_two_scores_by_hand() -> None:
    """N(0.1, 0.3²) beats N(0, 0.4²) with probability Φ(0.1 / 0.5) = 0.5793."""
    found = probability_of_best(np.array([0.1, 0.0]), np.array([0.3, 0.4]))
    assert found == pytest.approx([0.57926, 0.42074], abs=1e-5)


def test_probabilities_are_those_of_the_integral() -> None:
    rng = np.random.default_rng(1)
    for n in (2, 3, 6):
        for near in (0.0, 0.1, 1.0, 3.0):
            mean = near * rng.normal(size=n)
            sd = np.exp(rng.normal(size=n) * rng.choice([0, 0.5, 2]))
            assert probability_of_best(mean, sd) == pytest.approx(
                twin.probability_of_best(mean, sd), abs=1e-7
            )


def test_a_score_without_spread_is_a_number() -> None:
    """N(1, 1) and N(1.5, 1) are both below 2 with probability Φ(1)·Φ(0.5) = 0.5818; of two 2s the first counts."""
    found = probability_of_best(np.array([1.0, 2.0, 2.0, 1.5]), np.array([1.0, 0.0, 0.0, 1.0]))
    assert found[1:3] == pytest.approx([0.58176, 0.0], abs=1e-5)
    assert found.sum() == pytest.approx(1)
    assert probability_of_best(np.array([1.0, 2.0, 2.0]), np.zeros(3)).tolist() == [0.0, 1.0, 0.0]
    far = probability_of_best(np.array([-100.0, 0.0]), np.array([1.0, 0.0]))
    assert far.tolist() == [0.0, 1.0]  # certain, so that nothing is drawn


@pytest.mark.parametrize("unit", [1e-30, 1e-9, 1e9])
def test_a_spread_counts_in_units_of_the_widest(unit: float) -> None:
    """Payoffs in other units have the same probabilities; 1e-10 of the widest spread is none."""
    mean, sd = np.array([0.1, 0.0, 0.2]), np.array([0.3, 0.4, 1e-11])
    found = probability_of_best(unit * mean, unit * sd)
    assert found == pytest.approx(probability_of_best(mean, sd), abs=1e-9)
    assert found[2] == pytest.approx(ndtr(0.1 / 0.3) * ndtr(0.2 / 0.4), abs=1e-6)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.floats(-3, 3), st.floats(0, 2)), min_size=1, max_size=12),
    st.floats(-100, 100),
    st.floats(0.01, 100),
)
def test_shift_unit_and_order_do_not_matter(
    scores: list[tuple[float, float]], shift: float, unit: float
) -> None:
    mean, sd = np.array(scores).T.round(3)
    found = probability_of_best(mean, sd)
    assert found.sum() == pytest.approx(1)
    assert (found >= 0).all()
    assert probability_of_best(unit * mean + shift, unit * sd) == pytest.approx(found, abs=1e-5)
    if len(set(mean.tolist())) == len(mean) or (sd > 0).all():  # ties of numbers are won by the first
        assert probability_of_best(mean[::-1].copy(), sd[::-1].copy())[::-1] == pytest.approx(found, abs=1e-6)


def test_correlated_scores_have_the_shares_of_stated_draws() -> None:
    rng = np.random.default_rng(2)
    x = rng.normal(size=(6, 3))
    mean, covariance = rng.normal(size=6) * 0.5, x @ x.T / 3
    found = probability_of_best_together(mean, covariance, 7)
    assert found == pytest.approx(twin.chances(mean, covariance, 7), abs=1e-12)
    assert found.tolist() == probability_of_best_together(mean, covariance, 7).tolist()
    assert found.tolist() != probability_of_best_together(mean, covariance, 8).tolist()
    scores = rng.multivariate_normal(mean, covariance, size=100_000)
    shares = np.bincount(np.argmax(scores, axis=1), minlength=6) / 100_000
    over_seeds = np.mean(
        [probability_of_best_together(mean, covariance, seed) for seed in range(100)], axis=0
    )
    assert over_seeds == pytest.approx(shares, abs=0.015)


def test_scores_without_correlation_are_exact() -> None:
    mean, sd = np.array([0.3, 0.0, 0.1]), np.array([0.2, 0.5, 0.0])
    found = probability_of_best_together(mean, np.diag(sd**2), 1)
    assert found == pytest.approx(probability_of_best(mean, sd))


def test_of_equal_directions_the_first_counts() -> None:
    found = probability_of_best_together(np.array([1.0, 1.0]), np.full((2, 2), 0.5), 1)
    assert found.tolist() == [1.0, 0.0]


def test_a_point_falls_on_the_candidate_that_takes_it_up() -> None:
    chances = np.array([0.5, 0.0, 0.25, 0.25])
    assert [pick(chances, point) for point in (0.0, 0.49, 0.5, 0.8, 0.999)] == [0, 0, 2, 3, 3]
    assert pick(np.array([0.7, 0.3 - 1e-12, 0.0]), 1 - 1e-16) == 1  # never one that has no chance


def test_a_certain_choice_draws_nothing() -> None:
    rng = np.random.default_rng(3)
    assert [draw_from(np.array([0.0, 1.0]), rng) for _ in range(5)] == [1] * 5
    assert rng.random() == np.random.default_rng(3).random()


def test_the_first_of_the_best_is_chosen() -> None:
    assert first_best(np.array([0.1, 0.5, 0.5 + 1e-10, 0.2])) == 1


def test_numbers_without_a_stream_are_uniform() -> None:
    found = np.array([uniform_at(seed, a, b) for seed in range(5) for a in range(20) for b in range(20)])
    assert len(set(found.tolist())) == len(found)
    assert found[7] == twin.uniform_at(0, 0, 7)
    counts, _ = np.histogram(found, bins=10, range=(0, 1))
    assert (abs(counts - 200) < 5 * np.sqrt(200)).all()
