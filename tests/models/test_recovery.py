"""Sparse recovery: by hand, against exhaustive search, and against the appendix line by line."""

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import coterie
from coterie import sparse_recovery
from coterie.errors import ContextError, ParameterError
from coterie.models.users.recovery import Method, RowProducts, expansion, largest, recover
from tests.naive import exhaustive_search, objective, two_stage

METHODS: list[Method] = ["cosamp", "subspace-pursuit"]


def planted(
    rng: np.random.Generator, rows: int, d: int, s: int, noise: float = 0.0
) -> tuple[NDArray[np.float64], NDArray[np.float64], list[int]]:
    """Normal rows, and payoffs of a model with `s` nonzeros between 1 and 2 in size."""
    support = rng.choice(d, s, replace=False)
    u = np.zeros(d)
    u[support] = rng.choice([-1, 1], s) * rng.uniform(1, 2, s)
    X = rng.standard_normal((rows, d))
    return X, X @ u + noise * rng.standard_normal(rows), sorted(support.tolist())


def test_one_of_three_features_by_hand() -> None:
    """Xᵀy = (18, 9, 3) and the diagonal of XᵀX + I is (19, 19, 3).

    Alone, the features gain (Xᵀy)²/(XᵀX + 1): 18²/19 = 17.05, 81/19 = 4.26 and 9/3 = 3, so the first is best, with
    w = 18/19. From nothing, the slopes are Xᵀy itself and ℓ = 2s = 2 brings in the first two features.
    """
    X = [[3.0, 0.0, 1.0], [0.0, 3.0, 1.0], [3.0, 3.0, 0.0]]
    assert sparse_recovery(X, [3.0, 0.0, 3.0], s=1) == pytest.approx([18 / 19, 0.0, 0.0])


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("seed", range(20))
def test_planted_supports_are_found_like_by_exhaustive_search(seed: int, method: Method) -> None:
    rng = np.random.default_rng(seed)
    d, s = int(rng.integers(8, 13)), int(rng.integers(1, 4))
    X, y, support = planted(rng, rows=40, d=d, s=s, noise=0.1)
    w = sparse_recovery(X, y, s, method=method)
    assert np.flatnonzero(w).tolist() == support
    assert w == pytest.approx(exhaustive_search(X, y, s), abs=1e-12)


@pytest.mark.parametrize("method", METHODS)
def test_five_of_two_thousand_features_are_found_in_150_rows(method: Method) -> None:
    for seed in range(5):
        X, y, support = planted(np.random.default_rng(seed), rows=150, d=2000, s=5, noise=0.2)
        assert np.flatnonzero(sparse_recovery(X, y, 5, method=method)).tolist() == support


small_matrices = st.tuples(
    st.integers(1, 8),  # rows
    st.integers(2, 7),  # features
    st.integers(0, 10_000),  # seed
    st.sampled_from([1, 2, 1000]),  # numbers between -n and n: few of them make many ties
)


@settings(max_examples=300, deadline=None)
@given(small_matrices, st.integers(1, 4), st.sampled_from(METHODS), st.booleans())
@example((4, 2, 1866, 1), 2, "cosamp", True)  # nothing to be learned but rounding
def test_every_search_equals_the_appendix_line_by_line(
    shape: tuple[int, int, int, int], s: int, method: Method, warm: bool
) -> None:
    rows, d, seed, size = shape
    s = min(s, d)
    rng = np.random.default_rng(seed)
    X, y = rng.integers(-size, size + 1, (rows, d)) / size, rng.integers(-size, size + 1, rows) / size
    start = rng.choice(d, s, replace=False).tolist() if warm else []
    w = sparse_recovery(X, y, s, method=method, start=start)
    twin = two_stage(X, y, s, expansion(method, s), start)
    assert w == pytest.approx(twin, abs=1e-10)
    assert np.flatnonzero(w).tolist() == np.flatnonzero(twin).tolist()


@settings(max_examples=200, deadline=None)
@given(small_matrices, st.integers(1, 4), st.sampled_from(METHODS))
def test_a_search_never_ends_worse_than_it_began(
    shape: tuple[int, int, int, int], s: int, method: Method
) -> None:
    rows, d, seed, size = shape
    s = min(s, d)
    rng = np.random.default_rng(seed)
    X, y = rng.integers(-size, size + 1, (rows, d)) / size, rng.integers(-size, size + 1, rows) / size
    start = rng.choice(d, s, replace=False)
    w = sparse_recovery(X, y, s, method=method, start=start)
    assert np.count_nonzero(w) <= s
    before = np.zeros(d)
    chosen = X[:, start]
    before[start] = np.linalg.inv(np.eye(s) + chosen.T @ chosen) @ chosen.T @ y
    assert objective(X, y, w) <= objective(X, y, before) + 1e-9


class CountedRows:
    """Rows that count the steps: each asks once for the columns of the support."""

    def __init__(self, X: NDArray[np.float64], y: NDArray[np.float64]) -> None:
        self.rows = RowProducts(X, y)
        self.total, self.pull, self.block = self.rows.total, self.rows.pull, self.rows.block
        self.steps = 0

    def columns(self, features: NDArray[np.int64]) -> NDArray[np.float64]:
        self.steps += 1
        return self.rows.columns(features)


def test_a_warm_start_at_the_answer_takes_one_step() -> None:
    X, y, support = planted(np.random.default_rng(0), rows=100, d=300, s=4)
    cold, warm = CountedRows(X, y), CountedRows(X, y)
    recover(cold, 4, 8, np.array([], dtype=np.int64))
    recover(warm, 4, 8, np.array(support))
    assert warm.steps == 1 < cold.steps


@pytest.mark.parametrize("method", METHODS)
def test_payoffs_of_zero_leave_the_support_empty(method: Method) -> None:
    X = np.random.default_rng(0).standard_normal((6, 4))
    assert not sparse_recovery(X, np.zeros(6), 2, method=method).any()
    assert not sparse_recovery(X, np.zeros(6), 2, method=method, start=[1, 3]).any()
    assert not sparse_recovery(np.zeros((0, 4)), [], 2, method=method).any()


def test_among_equal_features_the_first_listed_are_taken() -> None:
    assert largest(np.array([1.0, 2.0, 2.0 + 1e-14, 2.0]), 2, 1e-12).tolist() == [1, 2]
    assert largest(np.array([3.0, 2.0, 2.0 + 1e-14, 4.0]), 3, 1e-12).tolist() == [0, 1, 3]
    assert largest(np.array([1e-13, 0.0, 5.0]), 3, 1e-12).tolist() == [2]
    assert np.flatnonzero(sparse_recovery(np.ones((2, 4)), [1.0, 1.0], 2)).tolist() == [0, 1]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"s": 0}, "s is 0, expected a whole number of at least 1"),
        ({"s": 4}, "s is 4, expected at most the number of features, 3"),
        ({"s": True}, "s is True, expected a whole number of at least 1"),
        ({"method": "lasso"}, "method is 'lasso', expected 'cosamp' or 'subspace-pursuit'"),
        ({"start": [0, 1, 2]}, r"start is \[0, 1, 2\], expected at most 2 features between 0 and 2"),
        ({"start": [3]}, r"start is \[3\], expected at most 2 features between 0 and 2"),
        ({"start": [-1]}, r"start is \[-1\]"),
        ({"start": "first"}, "start is 'first', expected features as whole numbers"),
    ],
)
def test_bad_parameters_are_named(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        sparse_recovery(np.eye(3), np.ones(3), **{"s": 2, **given})


@pytest.mark.parametrize(
    ("X", "y", "message"),
    [
        (
            np.eye(3),
            np.ones(2),
            r"X has shape \(3, 3\) and y \(2,\), expected \(rows, features\) and \(rows,\)",
        ),
        (np.ones(3), np.ones(3), r"X has shape \(3,\)"),
        (np.full((2, 2), np.nan), np.ones(2), "X or y holds NaN or infinity"),
        (np.eye(2), [0.0, np.inf], "X or y holds NaN or infinity"),
        ([["a"]], [1.0], "X and y must be numbers"),
    ],
)
def test_bad_rows_are_named(X: Any, y: Any, message: str) -> None:
    with pytest.raises(ContextError, match=message):
        sparse_recovery(X, y, 1)


def test_it_is_found_where_one_looks_for_it() -> None:
    assert coterie.sparse_recovery is sparse_recovery
