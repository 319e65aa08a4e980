"""The paper's guarantees: arithmetic by hand, refusals, and what a proof can be asked to show."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.errors import ParameterError
from coterie.theory import (
    confidence,
    corollary_1,
    hardness,
    hardness_bound,
    lemma_1,
    lemma_2,
    regret_bound,
    theorem_1,
    theorem_3,
)

RUN: dict[str, Any] = {"alpha": 2.0, "n_rounds": 100, "n_users": 4, "n_features": 3, "hardness": 10}
ORDERS: dict[str, Any] = {
    "n_rounds": 100,
    "n_users": 4,
    "n_features": 9,
    "n_candidates": 2,
    "clusters": 2.0,
    "gap": 0.5,
    "least_eigenvalue": 0.1,
    "delta": 0.1,
}


def test_confidence_by_hand() -> None:
    """d = 2, t = 3, n = 5, δ = 0.1, σ = 0.5, λ = S = L = 1.
    Printed: 0.5·√(2·log(4·50)) + 1; by the determinant: 0.5·√(2·log(1 + 3/2) + 2·log 50) + 1."""
    given_: dict[str, Any] = {"n_features": 2, "n_users": 5, "delta": 0.1, "noise": 0.5}
    assert confidence(3, **given_, form="printed") == pytest.approx(0.5 * math.sqrt(2 * math.log(200)) + 1)
    assert confidence(3, **given_) == pytest.approx(0.5 * math.sqrt(2 * math.log(2.5) + 2 * math.log(50)) + 1)


def test_confidence_away_from_the_defaults_by_hand() -> None:
    """λ = 4, L = 2, S = 3, d = 3, t = 6: t·L²/λ = 6; √λ·S = 6; √(3·log(7/0.2)) + 6 for σ = 1, n = 1."""
    found = confidence(
        6, n_features=3, n_users=1, delta=0.2, length=2, norm=3, ridge=4, noise=1, form="printed"
    )
    assert found == pytest.approx(math.sqrt(3 * math.log(7 / 0.2)) + 6)


@settings(max_examples=200, deadline=None)
@given(
    t=st.integers(1, 10**6),
    d=st.integers(2, 50),
    n=st.integers(1, 1000),
    delta=st.floats(1e-6, 0.999),
)
def test_printed_confidence_is_never_the_smaller(t: int, d: int, n: int, delta: float) -> None:
    shared: dict[str, Any] = {"n_features": d, "n_users": n, "delta": delta}
    assert confidence(t, **shared, form="printed") >= confidence(t, **shared) - 1e-12
    assert confidence(t + 1, **shared) >= confidence(t, **shared)


@settings(max_examples=300, deadline=None)
@given(seed=st.integers(0, 100_000), d=st.integers(1, 4))
def test_confidence_covers_the_truth_at_every_time(seed: int, d: int) -> None:
    """At δ = 1e-4 in all 300 draws, whatever contexts an adaptive choice picks."""
    rng = np.random.default_rng(seed)
    u = rng.standard_normal(d)
    u /= np.linalg.norm(u)
    M, b = np.eye(d), np.zeros(d)
    for t in range(1, 60):
        lists = rng.standard_normal((3, d))
        lists /= np.linalg.norm(lists, axis=1, keepdims=True)
        x = lists[np.argmax(lists @ np.linalg.solve(M, b))]
        M, b = M + np.outer(x, x), b + x * (u @ x + rng.choice([-0.5, 0.5]))
        miss = np.linalg.solve(M, b) - u
        assert math.sqrt(miss @ M @ miss) <= confidence(t, n_features=d, n_users=1, delta=1e-4, noise=0.5)


def test_theorem_1_by_hand() -> None:
    """9·2·(3·4·10) = 2160 and 18·√(3·log 100·4·50)."""
    found = theorem_1(**RUN, n_candidates=3, inverse_sizes=50)
    assert found.start == pytest.approx(2160)
    assert found.growth == pytest.approx(18 * math.sqrt(3 * math.log(100) * 200))
    assert found.total == found.start + found.growth


def test_proved_bound_by_hand() -> None:
    """2·(10 + 1) = 22 and 2·2·√(2·3·log(1 + 100/3)·4·50)."""
    found = regret_bound(**RUN, inverse_sizes=50)
    assert found.start == 22
    assert found.growth == pytest.approx(4 * math.sqrt(6 * math.log(1 + 100 / 3) * 200))


@settings(max_examples=300, deadline=None)
@given(
    alpha=st.floats(1, 50),
    n_rounds=st.integers(2, 10**6),
    n_users=st.integers(1, 1000),
    d=st.integers(1, 100),
    share=st.floats(0, 1),
    spread=st.floats(0, 1),
)
def test_theorem_1_is_never_below_the_proved_bound(
    alpha: float, n_rounds: int, n_users: int, d: int, share: float, spread: float
) -> None:
    """So Theorem 1 holds from T = 2 on, although two steps of its proof do not."""
    given_: dict[str, Any] = {
        "alpha": alpha,
        "n_rounds": n_rounds,
        "n_users": n_users,
        "n_features": d,
        "hardness": int(share * n_rounds),
        "inverse_sizes": n_rounds / n_users + spread * (n_rounds - n_rounds / n_users),
    }
    assert regret_bound(**given_).total <= theorem_1(**given_, n_candidates=1).total * (1 + 1e-12)


def test_lemma_2_by_hand() -> None:
    """2·100·5·3/10 + 12·log(log 100/0.1) = 300 + 12·log(46.0517)."""
    assert lemma_2(n_rounds=100, n_candidates=5, n_users=10, clusters=3, delta=0.1) == pytest.approx(
        300 + 12 * math.log(math.log(100) / 0.1)
    )


def test_lemma_2_needs_users_to_come_evenly() -> None:
    """100 users, 99 of them alike, and only the lonely one comes: Σ 1/|N| = T = 1,000, the printed bound is 91."""
    assert lemma_2(n_rounds=1000, n_candidates=1, n_users=100, clusters=2, delta=0.1) < 92 < 1000


def test_orders_by_hand() -> None:
    """c·n²·27/(0.05²)·log^2.5(100·4·9/0.1) and 9·√(100·2·2); sparse with s = 4: s^2.5 = 32 and √(4·9·400)."""
    found = corollary_1(**ORDERS)
    assert found.start == pytest.approx(2 * 16 * 27 / 0.05**2 * math.log(36_000) ** 2.5)
    assert found.growth == pytest.approx(180)
    sparse = theorem_3(**ORDERS, sparsity=4)
    assert sparse.start == pytest.approx(2 * 16 * 32 / 0.05**2 * math.log(9_000) ** 2.5)
    assert sparse.growth == pytest.approx(120)
    assert theorem_3(**ORDERS, sparsity=4, rank=1).growth == pytest.approx(40)


def test_lemma_1_with_one_feature_covers_the_hardness() -> None:
    """d = 1 and x = 1: after v visits M is 1 + v, so at η = 5 each user needs 5 visits; the bound is far above."""
    found = lemma_1(
        eta=5.0,
        least_eigenvalue=1.0,
        variance=0.0,
        n_candidates=1,
        n_rounds=10**6,
        n_users=2,
        n_features=1,
        delta=0.1,
    )
    users = np.random.default_rng(0).integers(2, size=200).tolist()
    assert hardness(users, [[[1.0]]] * 200, 5.0).value < found < 10**6


@pytest.mark.parametrize("d", [2, 3, 10])
def test_no_contexts_meet_the_condition_of_lemma_1(d: int) -> None:
    """Averaged over directions, Var((z·X)²) ≥ 2(d-1)/(d+2)·λ², five times what the condition allows."""
    rng = np.random.default_rng(d)
    X = rng.standard_normal((4000, d)) * rng.uniform(0.5, 1, d)
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    least = np.linalg.eigvalsh(X.T @ X / len(X))[0]
    z = rng.standard_normal((400, d))
    z /= np.linalg.norm(z, axis=1, keepdims=True)
    variances = ((X @ z.T) ** 2).var(axis=0)
    assert variances.mean() >= 0.9 * 2 * (d - 1) / (d + 2) * least**2
    assert variances.max() > 4 * least**2 / (8 * math.log(4))
    with pytest.raises(ParameterError, match=f"no contexts with n_features={d}"):
        lemma_1(
            eta=2.0,
            least_eigenvalue=0.9 / d,
            variance=0.0,
            n_candidates=1,
            n_rounds=100,
            n_users=2,
            n_features=d,
            delta=0.1,
        )


def test_proved_hardness_bound_covers_simulated_lists() -> None:
    """d = 2, two unit candidates: E[min (z·x)²] = 1/2 - 4/π²·... is estimated and halved; 40 runs, none above."""
    rng = np.random.default_rng(0)
    angles = rng.uniform(0, 2 * np.pi, (40, 3000, 2))
    floor = float((np.cos(angles[0]) ** 2).min(axis=1).mean()) * 0.9
    bound = hardness_bound(eta=5.0, floor=floor, n_rounds=3000, n_users=2, n_features=2, delta=0.05)
    assert bound < 3000
    for run in range(40):
        users = rng.integers(2, size=400).tolist()
        lists = [np.stack([np.cos(a), np.sin(a)], axis=1) for a in angles[run, :400]]
        assert hardness(users, lists, 5.0).upper <= bound


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: confidence(0, n_features=2, n_users=1, delta=0.1), "t is 0"),
        (lambda: confidence(1, n_features=2, n_users=1, delta=1.5), "delta is 1.5"),
        (lambda: confidence(1, n_features=2, n_users=1, delta=0.1, ridge=0), "ridge is 0"),
        (
            lambda: confidence(1, n_features=1, n_users=1, delta=0.1, form="printed"),
            "not proved for n_features=1",
        ),
        (lambda: theorem_1(**{**RUN, "alpha": 0.5}, n_candidates=1, inverse_sizes=50), "alpha is 0.5"),
        (lambda: theorem_1(**{**RUN, "hardness": 101}, n_candidates=1, inverse_sizes=50), "hardness is 101"),
        (lambda: theorem_1(**RUN, n_candidates=1, inverse_sizes=101), "inverse_sizes is 101"),
        (lambda: theorem_1(**RUN, n_candidates=1, inverse_sizes=20), "inverse_sizes is 20"),
        (
            lambda: theorem_1(**{**RUN, "n_rounds": 1, "hardness": 0}, n_candidates=1, inverse_sizes=1),
            "n_rounds is 1",
        ),
        (lambda: lemma_2(n_rounds=2, n_candidates=1, n_users=5, clusters=1, delta=0.1), "n_rounds is 2"),
        (lambda: lemma_2(n_rounds=9, n_candidates=1, n_users=5, clusters=6, delta=0.1), "clusters is 6"),
        (lambda: corollary_1(**{**ORDERS, "least_eigenvalue": 0.2}), "least_eigenvalue is 0.2"),
        (lambda: corollary_1(**{**ORDERS, "gap": 0}), "gap is 0"),
        (lambda: theorem_3(**ORDERS, sparsity=10), "sparsity is 10"),
        (
            lambda: hardness_bound(eta=2, floor=0.6, n_rounds=9, n_users=1, n_features=2, delta=0.1),
            "floor is 0.6",
        ),
        (
            lambda: lemma_1(
                eta=2,
                least_eigenvalue=0.5,
                variance=0.1,
                n_candidates=3,
                n_rounds=9,
                n_users=1,
                n_features=2,
                delta=0.1,
            ),
            "variance is 0.1",
        ),
    ],
)
def test_refuses_what_its_assumptions_exclude(call: Any, message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        call()
