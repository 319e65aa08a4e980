"""Tables of ridge regressions: caches follow facts, pools are sums, and items are one-hot vectors."""

import numpy as np
import pytest

from coterie.errors import FileError
from coterie.models.rows.tables import ItemTable, VectorTable, make_table
from tests.worlds import unit_vectors


def trained(seed: int, n_rows: int, d: int, rounds: int) -> VectorTable:
    rng = np.random.default_rng(seed)
    table = VectorTable(d)
    for _ in range(n_rows):
        table.grow()
    for x in unit_vectors(rng, rounds, d):
        table.update(int(rng.integers(n_rows)), x, float(rng.uniform(-1, 1)))
    return table


def test_inverses_and_weights_follow_their_facts() -> None:
    table = trained(1, 20, 4, 600)
    assert table.inverse == pytest.approx(np.linalg.inv(np.eye(4) + table.gram), abs=1e-12)
    assert table.weight == pytest.approx(np.einsum("nij,nj->ni", table.inverse, table.moment), abs=1e-12)


def test_a_pool_is_the_ridge_regression_of_all_its_payoffs() -> None:
    table = trained(2, 20, 4, 300)
    contexts = unit_vectors(np.random.default_rng(3), 5, 4)
    for size in (1, 4, 5, 12, 20):
        rows = np.random.default_rng(size).permutation(20)[:size]
        inverse = np.linalg.inv(np.eye(4) + table.gram[rows].sum(axis=0))
        view = table.pooled(rows, contexts)
        assert view.estimate == pytest.approx(contexts @ inverse @ table.moment[rows].sum(axis=0))
        assert view.spread == pytest.approx(np.sqrt(np.einsum("kf,fg,kg->k", contexts, inverse, contexts)))


def test_views_are_everybodys_own() -> None:
    table = trained(4, 6, 3, 40)
    contexts = unit_vectors(np.random.default_rng(5), 4, 3)
    for rows in (None, np.array([4, 0])):
        found = table.views(contexts, rows)
        for k, row in enumerate(range(6) if rows is None else rows):
            own = table.view(int(row), contexts)
            assert found.estimate[k] == pytest.approx(own.estimate)
            assert found.spread[k] == pytest.approx(own.spread)


def test_items_are_one_hot_vectors() -> None:
    rng = np.random.default_rng(6)
    vectors, items = VectorTable(5), ItemTable()
    for _ in range(7):
        assert vectors.grow() == items.grow()
    for _ in range(200):
        row, item, payoff = int(rng.integers(7)), int(rng.integers(5)), float(rng.uniform(-1, 1))
        vectors.update(row, np.eye(5)[item], payoff)
        items.update(row, item, payoff)
    for table in (vectors, items):
        table.delete(3)
    pool = np.array([0, 2, 5])
    for mine, theirs in [
        (items.views(range(5)), vectors.views(np.eye(5))),
        (items.views(range(5), pool), vectors.views(np.eye(5), pool)),
        (items.pooled(pool, range(5)), vectors.pooled(pool, np.eye(5))),
        (items.view(4, range(5)), vectors.view(4, np.eye(5))),
        (items.view(-1, range(5)), vectors.view(-1, np.eye(5))),
    ]:
        assert mine.estimate == pytest.approx(theirs.estimate)
        assert mine.spread == pytest.approx(theirs.spread)


def test_columns_of_items_are_never_stale() -> None:
    """After every change, what is kept of an item is what a table fed anew says; strangers leave nothing."""
    rng = np.random.default_rng(4)
    table, told = ItemTable(), list[tuple[int, str, float]]()
    for _ in range(5):
        table.grow()
    for t in range(80):
        row, item, payoff = int(rng.integers(table.n_rows)), f"i{rng.integers(4)}", float(rng.random())
        table.update(row, item, payoff)
        told.append((row, item, payoff))
        if t == 50:
            table.delete(2)
            told = [(r - (r > 2), i, y) for r, i, y in told if r != 2]
        fresh = ItemTable()
        for _ in range(table.n_rows):
            fresh.grow()
        for past in told:
            fresh.update(*past)
        items = ["i0", "i1", "i2", "i3", f"stranger{t}"]
        assert np.array_equal(table.views(items), fresh.views(items))
        assert np.array_equal(table.pooled(np.array([0, 3]), items), fresh.pooled(np.array([0, 3]), items))
    assert len(table._columns_of) <= 4


def test_a_file_whose_parts_contradict_each_other_is_refused() -> None:
    table = trained(7, 5, 3, 50)
    for name in ("gram", "moment", "inverse", "weight"):
        tensors = {key: value.copy() for key, value in table.tensors().items()}
        tensors[name][2] += 0.5
        with pytest.raises(FileError, match="contradict"):
            VectorTable(3).restore(tensors, 5)
    items = make_table(None, True)
    items.grow()
    items.update(0, "a", 1.0)
    broken = items.tensors() | {"pair_row": np.array([4])}
    with pytest.raises(FileError, match="contradict"):
        ItemTable().restore(broken, 1)
