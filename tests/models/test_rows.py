"""Views of many rows and of their sums, rows that leave, and the format of COFIBA's files."""

from typing import Any

import numpy as np
import pytest

from coterie.errors import FileError
from coterie.models import Means, RidgeRows, Ridges, View
from coterie.models.rows.ridges import packing
from tests.worlds import unit_vectors


def trained(seed: int, n_rows: int, d: int, rounds: int) -> Ridges:
    rng = np.random.default_rng(seed)
    rows = Ridges(d)
    for _ in range(n_rows):
        rows.take()
    for x in unit_vectors(rng, rounds, d):
        rows.update(int(rng.integers(n_rows)), x[None], float(rng.uniform(-1, 1)))
    return rows


def same(mine: View, theirs: View) -> None:
    assert mine.estimate == pytest.approx(theirs.estimate)
    assert mine.spread == pytest.approx(theirs.spread)


def test_a_pool_is_the_ridge_regression_of_all_its_payoffs() -> None:
    rows = trained(2, 20, 4, 300)
    contexts = unit_vectors(np.random.default_rng(3), 5, 4)
    for size in (1, 4, 5, 12, 20):
        chosen = np.random.default_rng(size).permutation(20)[:size]
        inverse = np.linalg.inv(np.eye(4) + rows.rows.gram[chosen].sum(axis=0)[packing(4)])
        view = rows.pooled(chosen, contexts)
        assert view.estimate == pytest.approx(contexts @ inverse @ rows.rows.moment[chosen].sum(axis=0))
        assert view.spread == pytest.approx(np.sqrt(np.einsum("kf,fg,kg->k", contexts, inverse, contexts)))


def test_views_are_everybodys_own() -> None:
    rows = trained(4, 6, 3, 40)
    contexts = unit_vectors(np.random.default_rng(5), 4, 3)
    for chosen in (slice(6), np.array([4, 0])):
        found = rows.views(chosen, contexts)
        for k, row in enumerate(np.arange(6)[chosen]):
            same(View(found.estimate[k], found.spread[k]), rows.view(int(row), contexts))


def test_items_are_one_hot_vectors() -> None:
    rng = np.random.default_rng(6)
    vectors, items = Ridges(5), Means()
    every = items.learnable(range(5))
    for _ in range(7):
        assert vectors.take() == items.take()
    for _ in range(200):
        row, item, payoff = int(rng.integers(7)), int(rng.integers(5)), float(rng.uniform(-1, 1))
        vectors.update(row, np.eye(5)[[item]], payoff)
        items.update(row, every[[item]], payoff)
    vectors.keep(np.array([0, 1, 2, 4, 5, 6]))
    items.keep(np.array([0, 1, 2, 4, 5, 6]))
    pool = np.array([0, 2, 5])
    same(items.views(slice(6), every), vectors.views(slice(6), np.eye(5)))
    same(items.views(pool, every), vectors.views(pool, np.eye(5)))
    same(items.pooled(pool, every), vectors.pooled(pool, np.eye(5)))
    same(items.view(4, every), vectors.view(4, np.eye(5)))
    same(items.view(-1, every), vectors.view(-1, np.eye(5)))
    assert [items.times(row) for row in range(6)] == [vectors.times(row) for row in range(6)]
    assert items.take() == vectors.take() == 6
    same(items.view(6, every), vectors.view(6, np.eye(5)))


def test_rows_that_stay_are_those_that_learned_alone() -> None:
    rng = np.random.default_rng(4)
    told = [(int(rng.integers(5)), f"i{rng.integers(4)}", float(rng.random())) for _ in range(80)]

    def taught(n_rows: int, told: list[tuple[int, str, float]]) -> Means:
        rows = Means()
        for _ in range(n_rows):
            rows.take()
        for row, item, payoff in told:
            rows.update(row, rows.learnable([item]), payoff)
        return rows

    rows = taught(5, told)
    rows.keep(np.array([0, 1, 3, 4]))
    fresh = taught(4, [(row - (row > 2), item, payoff) for row, item, payoff in told if row != 2])
    names = ["i0", "i1", "i2", "i3", "stranger"]
    for chosen in (np.arange(4), np.array([0, 3])):
        mine, theirs = (r.views(chosen, r.numbers(names)) for r in (rows, fresh))
        assert np.array_equal(mine, theirs)
        mine, theirs = (r.pooled(chosen, r.numbers(names)) for r in (rows, fresh))
        assert np.array_equal(mine, theirs)


def test_a_file_whose_parts_contradict_each_other_is_refused() -> None:
    good = trained(7, 5, 3, 50).tensors("user", np.arange(5))
    for name in ("gram", "moment", "inverse", "weight"):
        tensors = {key: value.copy() for key, value in good.items()}
        tensors[f"user_{name}"][2] += 0.5
        with pytest.raises(FileError, match="contradict"):
            Ridges(3).restore("user", tensors, 5)
    items = Means()
    items.take()
    items.update(0, items.learnable(["a"]), 1.0)
    broken = items.tensors("user", np.arange(1)) | {"user_row": np.array([4])}
    with pytest.raises(FileError, match="contradict"):
        Means().restore("user", broken, 1)


@pytest.mark.parametrize("one_hot", [False, True])
def test_rows_come_back_from_a_file(one_hot: bool) -> None:
    rows: RidgeRows = Means() if one_hot else trained(8, 4, 3, 60)
    contexts: Any = ["a", "b", "c"] if one_hot else np.eye(3)
    if one_hot:
        for row in range(4):
            rows.take()
            rows.update(row, rows.learnable(contexts[row % 3 :]), 0.5)
    tensors = rows.tensors("user", np.arange(4))
    back = rows.sibling()
    back.rows = back.restore("user", tensors, 4)
    mine, theirs = (r.views(slice(4), r.numbers(contexts)) for r in (rows, back))
    assert np.array_equal(mine, theirs)
