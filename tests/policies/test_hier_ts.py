"""HierTS, by hand and against its twin; the contract suite compares their choices."""

from pathlib import Path

import numpy as np
import pytest

from coterie import HierTS
from coterie.errors import FileError, ParameterError
from coterie.models.files import pack_ids
from tests.twins.hier_ts import twin_of


def test_one_payoff_by_hand() -> None:
    """All deviations are 1. Ann is paid 1 for x = 1, so G = B = 1 and Λ = 2.

    Her evidence has precision 1 - 1/2 and shift 1/2, so the mean of all is N(1/3, 2/3). Her own estimate is
    (1/3 + 1)/2 = 2/3, with variance 1/2 + 2/3/4 = 2/3; a stranger's is 1/3, with variance 1 + 2/3.
    """
    policy = HierTS(n_features=1, mean_sd=1, user_sd=1, noise=1)
    policy.learn("ann", [1.0], 1.0)
    own, stranger = policy.explain("ann", [[1.0]]), policy.explain("eve", [[1.0]])
    assert (own.estimate[0], own.width[0] ** 2) == pytest.approx((2 / 3, 2 / 3))
    assert (stranger.estimate[0], stranger.width[0] ** 2) == pytest.approx((1 / 3, 5 / 3))


def test_estimates_are_those_of_one_regression_over_all_payoffs() -> None:
    rng = np.random.default_rng(1)
    policy = HierTS(n_features=3, mean_sd=0.7, user_sd=0.2, noise=0.4)
    twin = twin_of(policy, 3)
    for _ in range(60):
        user, x = int(rng.integers(5)), rng.normal(size=3)
        x, payoff = x / (np.linalg.norm(x) + 1), float(rng.random() < 0.5)
        policy.learn(user, x, payoff)
        twin.learn(user, x, payoff)
    shown = rng.normal(size=(4, 3)) / 4
    for who in (0, 4, "stranger"):
        mean, covariance = twin.posterior(who, list(shown))
        told = policy.explain(who, shown)
        assert told.estimate == pytest.approx(mean, abs=1e-9)
        assert told.width**2 == pytest.approx(np.diag(covariance), abs=1e-9)


def test_what_the_mean_learned_from_a_dropped_or_anonymous_user_stays() -> None:
    policy = HierTS(n_features=2)
    for _ in range(5):
        policy.learn("ann", [1.0, 0.0], 1.0)
        policy.learn(None, [1.0, 0.0], 1.0)
    before = policy.explain("eve", [[1.0, 0.0]]).estimate[0]
    policy.drop("ann")
    assert policy.explain("eve", [[1.0, 0.0]]).estimate[0] == before > 0.5
    assert policy.explain("ann", [[1.0, 0.0]]).estimate[0] == before
    assert list(policy.users) == []


def test_bad_parameters_and_files_are_named(tmp_path: Path) -> None:
    for name in ("mean_sd", "user_sd", "noise"):
        with pytest.raises(ParameterError, match=f"{name} is 0, expected a finite number of at least 0.001"):
            HierTS(n_features=2, **{name: 0})
    policy = HierTS(n_features=2)
    policy.learn("ann", [1.0, 0.0], 1.0)
    tensors = policy.tensors()
    with pytest.raises(FileError, match="a user who learned but is not known"):
        HierTS(n_features=2).restore({**tensors, "known": pack_ids(["bob"])})
    with pytest.raises(FileError, match="not positive definite"):
        HierTS(n_features=2).restore({**tensors, "precision": -np.eye(2)})
    with pytest.raises(FileError, match="products"):
        HierTS(n_features=2).restore({**tensors, "products": np.zeros((2, 2, 2))})
