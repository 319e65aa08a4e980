"""Sparse user models: the sums they keep, the records they share, the memory they hold, the files they read."""

import gc
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from coterie import SparseCAB
from coterie.errors import FileError
from coterie.models.files import Tensors
from coterie.models.users.history import History, KeptFeatures
from coterie.models.users.records import CHUNK, RecordStore
from coterie.models.users.recovery import RowProducts, recover
from coterie.models.users.sparse import Sparse
from tests.worlds import unit_vectors


def arrays_held(root: Any) -> Iterator[NDArray[Any]]:
    """Every array that can be reached from `root` without passing through a class or a module."""
    seen, waiting = {id(root)}, [root]
    while waiting:
        thing = waiting.pop()
        if isinstance(thing, np.ndarray):
            yield thing
        for other in gc.get_referents(thing):
            if id(other) not in seen and not isinstance(other, type | type(gc)):
                seen.add(id(other))
                waiting.append(other)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 1000), st.integers(2, 6), st.integers(4, 12))
def test_sums_that_were_kept_equal_sums_computed_afresh_to_the_last_bit(
    seed: int, n_columns: int, n_block: int
) -> None:
    """Two histories of the same records, asked for different features in different rounds, agree at the end."""
    rng = np.random.default_rng(seed)
    d, rounds = 15, 40
    X, y = unit_vectors(rng, rounds, d), rng.uniform(-1, 1, rounds)
    records = RecordStore(d)
    busy, idle = History(records, n_columns, n_block), History(records, d, d)
    for x, payoff in zip(X, y.tolist(), strict=True):
        number = records.put(x, payoff, 2)
        busy.learn(number, x, payoff)
        idle.learn(number, x, payoff)
        busy.columns(np.sort(rng.choice(d, 2, replace=False)))
        busy.block(np.sort(rng.choice(d, 4, replace=False)))
    replayed = History(records, d, d)
    replayed.replay(busy.numbers)
    for pair in rng.choice(d, (10, 2)):
        some = np.unique(pair)
        for other in (idle, replayed):
            assert np.array_equal(busy.columns(some), other.columns(some))
            assert np.array_equal(busy.block(some), other.block(some))
    assert np.array_equal(busy.pull, replayed.pull)
    assert busy.total == replayed.total
    assert busy.columns(np.arange(2)) == pytest.approx((X.T @ X)[:2], abs=1e-12)
    assert busy.pull == pytest.approx(X.T @ y, abs=1e-12)


def test_a_history_gives_the_recovery_what_the_rows_would() -> None:
    rng = np.random.default_rng(0)
    d, s, extra = 60, 3, 6
    records = RecordStore(d)
    history = History(records, 2 * s, 2 * (s + extra))
    support = np.array([], dtype=np.int64)
    X, y = unit_vectors(rng, 2 * CHUNK + 10, d), rng.uniform(-1, 1, 2 * CHUNK + 10)
    for t, (x, payoff) in enumerate(zip(X, y.tolist(), strict=True)):
        history.learn(records.put(x, payoff, 1), x, payoff)
        found = recover(history, s, extra, support)
        if t % 10 == 0:
            direct = recover(RowProducts(X[: t + 1], y[: t + 1]), s, extra, support)
            assert found.support.tolist() == direct.support.tolist()
            assert found.weights == pytest.approx(direct.weights, abs=1e-12)
        support = found.support


def test_the_feature_not_asked_for_longest_makes_room() -> None:
    kept = KeptFeatures(3)
    assert kept.place(np.array([5, 7])) == ([0, 1], [0, 1])
    assert kept.place(np.array([5, 9])) == ([0, 2], [2])
    assert kept.place(np.array([1, 5])) == ([1, 0], [1])  # 7 left
    assert kept.features.tolist() == [5, 1, 9]
    assert kept.place(np.array([7, 1, 5])) == ([2, 1, 0], [2])  # 9 left, whatever is wanted stays


def test_a_record_is_stored_once_and_wiped_when_the_last_holder_leaves() -> None:
    models = Sparse(4, 2, "cosamp")
    x = np.array([0.6, 0.0, 0.8, 0.0])
    for user in ("ann", "bob"):
        models.update(user, x, 0.5)
    assert models.share("ann", x, 0.25, models.view("ann", x[None, :]), 1.0, 2.0) == 2
    assert models.tensors()["payoffs"].tolist() == [0.5, 0.25, 0.5]  # three records for four learned payoffs
    models.drop("ann")
    assert models.tensors()["payoffs"].tolist() == [0.5, 0.25]
    models.drop("bob")
    left = [array for array in arrays_held(models) if array.dtype == np.float64]
    assert not any(array.any() for array in left)
    models.update("carl", x, 1.0)
    assert sum(array.shape == (CHUNK, 4) for array in arrays_held(models)) == 1  # the room is used again


def test_a_neighbour_whose_bound_just_reaches_the_limit_does_not_learn() -> None:
    """Ann has two payoffs on e₁ and the spread √(1/3), bob one and √(1/2): the limit is bob's bound itself."""
    models = Sparse(2, 1, "cosamp")
    x = np.array([1.0, 0.0])
    for user in ("ann", "ann", "bob"):
        models.update(user, x, 0.5)
    limit = float(models.view("bob", x[None, :]).spread[0])
    assert limit == pytest.approx(np.sqrt(1 / 2))
    assert models.neighbours("ann", x[None, :], models.view("ann", x[None, :]), 1.0) == ["ann", "bob"]
    assert models.share("ann", x, 0.5, models.view("ann", x[None, :]), 1.0, limit) == 1
    assert models.share("ann", x, 0.5, models.view("ann", x[None, :]), 1.0, limit + 1e-9) == 2


def test_whoever_stays_keeps_what_was_learned_with_a_dropped_user() -> None:
    rng = np.random.default_rng(0)
    policy = SparseCAB(n_features=12, sparsity=2, alpha=0.3, gamma=2.0)
    for _ in range(80):
        policy.learn(f"user {rng.integers(5)}", unit_vectors(rng, 1, 12)[0], float(rng.uniform(-1, 1)))
    contexts = unit_vectors(rng, 6, 12)
    before = {user: policy.explain(user, contexts) for user in policy.users}
    policy.drop("user 0")
    for user in policy.users:
        after = policy.explain(user, contexts)
        assert np.array_equal(after.estimate, before[user].estimate)
        assert np.array_equal(after.width, before[user].width)
        assert "user 0" not in policy.neighbours(user, contexts[0])


def test_memory_follows_histories_and_supports_and_never_the_square_of_features() -> None:
    d, s, n_users, rounds = 3000, 3, 4, 50
    models = Sparse(d, s, "cosamp")
    rng = np.random.default_rng(0)
    for t in range(rounds):
        models.update(t % n_users, unit_vectors(rng, 1, d)[0], float(rng.uniform(-1, 1)))
    held = sum(array.nbytes for array in arrays_held(models))
    records, sums = CHUNK * d, n_users * (1 + 2 * s) * d
    assert held < 8 * 1.1 * (records + sums) < 8 * d * d / 2


def test_estimates_and_spreads_are_those_of_the_formula() -> None:
    rng = np.random.default_rng(1)
    d, s = 20, 4
    models = Sparse(d, s, "subspace-pursuit")
    X, y = unit_vectors(rng, 30, d), rng.uniform(-1, 1, 30)
    for x, payoff in zip(X, y, strict=True):
        models.update("ann", x, float(payoff))
    saved = models.tensors()
    S = saved["supports"][0, : saved["sizes"][0]]
    M = np.eye(len(S)) + X[:, S].T @ X[:, S]
    contexts = unit_vectors(rng, 7, d)
    view = models.view("ann", contexts)
    assert view.estimate == pytest.approx(contexts[:, S] @ np.linalg.inv(M) @ X[:, S].T @ y)
    assert view.spread == pytest.approx(
        [np.sqrt(x @ np.linalg.inv(M) @ x) for x in contexts[:, S]], rel=1e-12
    )


def saved() -> Tensors:
    models = Sparse(6, 2, "cosamp")
    rng = np.random.default_rng(0)
    for t in range(12):
        models.update(f"user {t % 3}", unit_vectors(rng, 1, 6)[0], float(rng.uniform(-1, 1)))
    models.add("idle")
    return {name: tensor.copy() for name, tensor in models.tensors().items()}


@pytest.mark.parametrize(
    ("name", "place", "value", "message"),
    [
        ("history", 0, 99, "contradict each other"),
        ("history", 0, -1, "contradict each other"),
        ("lengths", 0, 3, "contradict each other"),
        ("lengths", 0, 0, "contradict each other"),
        ("sizes", 0, 3, "contradict each other"),
        ("sizes", 0, -1, "contradict each other"),
        ("supports", (0, 1), 6, "contradict each other"),
        ("supports", (0, 1), -1, "contradict each other"),
        ("supports", (0, slice(None)), 2, "contradict each other"),
        ("payoffs", 0, 1.5, "contradict each other"),
        ("payoffs", 0, np.nan, "'payoffs' in the model file holds NaN or infinity"),
        ("contexts", 0, 1.0, "context 0 has norm 2.44949"),
    ],
)
def test_a_file_that_contradicts_itself_changes_nothing(
    name: str, place: Any, value: float, message: str
) -> None:
    tensors = saved()
    tensors[name][place] = value
    models = Sparse(6, 2, "cosamp")
    models.update("old", np.eye(6)[0], 1.0)
    with pytest.raises(FileError, match=message):
        models.restore(tensors)
    assert models.users == ["old"]
    assert models.view("old", np.eye(6)).estimate[0] == 0.5


def test_a_file_for_another_sparsity_or_number_of_features_is_refused() -> None:
    for models in (Sparse(7, 2, "cosamp"), Sparse(6, 3, "cosamp")):
        with pytest.raises(FileError, match="expected kind"):
            models.restore(saved())
