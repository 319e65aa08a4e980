"""The bank over vectors, against `np.linalg.inv`."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.errors import FileError
from coterie.models import Ridges
from coterie.models._kernels.rows.dispatch import squared_distance
from tests.worlds import unit_vectors

D = 3


def expected(histories: list[tuple[Any, float]], x: Any) -> tuple[Any, Any]:
    M = np.eye(D) + sum((np.outer(v, v) for v, _ in histories), np.zeros((D, D)))
    b = sum((y * v for v, y in histories), np.zeros(D))
    inverse = np.linalg.inv(M)
    return x @ inverse @ b, np.sqrt(np.einsum("kf,fg,kg->k", x, inverse, x))


def trained(n_rows: int, n_updates: int, seed: int) -> tuple[Ridges, list[list[tuple[Any, float]]]]:
    rng = np.random.default_rng(seed)
    bank = Ridges(D)
    histories: list[list[tuple[Any, float]]] = [[] for _ in range(n_rows)]
    for _ in range(n_rows):
        bank.take()
    for _ in range(n_updates):
        row, x, y = int(rng.integers(n_rows)), unit_vectors(rng, 1, D), float(rng.uniform(-1, 1))
        bank.update(row, x, y)
        histories[row].append((x[0], y))
    return bank, histories


def test_rows_are_ridge_regressions_and_row_minus_one_knows_nothing() -> None:
    bank, histories = trained(20, 300, seed=1)
    x = unit_vectors(np.random.default_rng(2), 6, D)
    for row, history in enumerate([*histories, []]):
        found = bank.view(row if row < 20 else -1, x)
        estimate, spread = expected(history, x)
        assert found.estimate == pytest.approx(estimate, abs=1e-12)
        assert found.spread == pytest.approx(spread, abs=1e-12)


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 1000), st.lists(st.tuples(st.integers(0, 5), st.booleans()), max_size=12))
def test_pooling_and_unpooling_equals_summing_anew(seed: int, moves: list[tuple[int, bool]]) -> None:
    bank, histories = trained(6, 40, seed)
    pools = bank.sibling()
    pool = pools.take()
    inside: list[int] = []
    for row, inwards in moves:
        if inwards and row not in inside:
            pools.pool(pool, bank, row)
            inside.append(row)
        elif not inwards and row in inside:
            pools.pool(pool, bank, row, -1)
            inside.remove(row)
    x = unit_vectors(np.random.default_rng(seed), 4, D)
    found = pools.view(pool, x)
    estimate, spread = expected([pair for row in inside for pair in histories[row]], x)
    assert found.estimate == pytest.approx(estimate, abs=1e-10)
    assert found.spread == pytest.approx(spread, abs=1e-10)
    if not inside:
        assert found.estimate.tolist() == [0.0] * 4


def test_distances_are_those_of_the_profiles() -> None:
    bank, histories = trained(5, 60, seed=4)
    profiles = [expected(history, np.eye(D))[0] for history in histories]
    for i in range(5):
        for j in range(5):
            want = float(np.sum((profiles[i] - profiles[j]) ** 2))
            assert squared_distance(bank.rows, i, bank.rows, j) == pytest.approx(want, abs=1e-12)


def test_inverses_do_not_drift_over_many_updates() -> None:
    """20,000 rank-one updates of one row stay within 1e-11 of a fresh factorisation, in relative terms."""
    rng = np.random.default_rng(5)
    bank = Ridges(D)
    bank.take()
    x, y = unit_vectors(rng, 20_000, D), rng.uniform(-1, 1, size=20_000)
    for t in range(20_000):
        bank.update(0, x[t : t + 1], y[t])
    inverse = np.linalg.inv(np.eye(D) + x.T @ x)
    packed = inverse[np.triu_indices(D)]
    assert bank.rows.inverse[0] == pytest.approx(packed, rel=1e-11, abs=1e-15)


def test_the_last_row_replaces_a_dropped_one_and_rows_given_back_come_clean() -> None:
    bank, _ = trained(4, 60, seed=6)
    x = unit_vectors(np.random.default_rng(7), 3, D)
    last = bank.view(3, x)
    bank.replace(1)
    assert bank.view(1, x).estimate.tolist() == last.estimate.tolist()
    assert not bank.rows.gram[3:].any()
    assert bank.take() == 3
    bank.update(3, x, 1.0)
    bank.release(3)
    assert bank.take() == 3
    assert bank.view(3, x).estimate.tolist() == [0.0] * 3


def test_saved_rows_come_back_bit_for_bit_and_damage_is_seen() -> None:
    bank, _ = trained(4, 60, seed=8)
    tensors = bank.tensors("user", np.array([2, 0]))
    again = Ridges(D)
    again.rows = again.restore("user", tensors, 2)
    x = unit_vectors(np.random.default_rng(9), 3, D)
    assert again.view(0, x).spread.tolist() == bank.view(2, x).spread.tolist()
    assert again.take() == 2
    for name in ("gram", "inverse", "weight", "moment"):
        broken = {key: tensor.copy() for key, tensor in tensors.items()}
        broken[f"user_{name}"][1, 0] += 0.1
        with pytest.raises(FileError, match="contradict each other"):
            again.restore("user", broken, 2)
