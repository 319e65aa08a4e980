"""Dense models: the compiled loops against plain matrices, choice by choice and bit by bit."""

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from coterie import CAB
from coterie.errors import ContextError, ParameterError, PayoffError, UserError
from coterie.models import Dense
from coterie.models._kernels.jit import jit
from coterie.models._kernels.users import dense as kernels
from coterie.models._kernels.users import panels as panel_kernels
from coterie.models._kernels.users.simd import PANEL, PANELS, WIDEST
from coterie.models.threads import in_chunks, thread_count
from coterie.policies.base.batch import Batch, run_one_by_one
from tests.naive import CachedCAB
from tests.worlds import unit_vectors


def make_batch(seed: int, n_rounds: int, d: int, n_users: int = 9, c: int = 4, log: bool = False) -> Batch:
    rng = np.random.default_rng(seed)
    users = [f"u{i}" for i in rng.integers(n_users, size=n_rounds)]
    items = unit_vectors(rng, 12, d)
    shown = np.array([rng.permutation(12)[:c] for _ in users])
    truth = unit_vectors(rng, 2, d)
    mean = np.array([items[row] @ truth[int(user[1:]) % 2] for user, row in zip(users, shown, strict=True)])
    payoffs = np.clip(np.round(mean + 0.1 * rng.normal(size=mean.shape), 1), -1, 1)
    if not log:
        return Batch(users, shown, items, payoffs)
    served = rng.integers(c, size=n_rounds)
    return Batch(users, shown, items, payoffs[np.arange(n_rounds), served], served)


@pytest.mark.parametrize("width", [1, 2, WIDEST - 1, WIDEST, WIDEST + 1, 25, 3 * WIDEST + 1])
@pytest.mark.parametrize("d", [1, 3, 8])
@pytest.mark.parametrize("many", [False, True])
def test_the_panel_product_is_a_matrix_product(width: int, d: int, many: bool) -> None:
    rng = np.random.default_rng(width)
    x, pairs = unit_vectors(rng, width, d), d * (d + 1) // 2
    flat_pairs, _ = panel_kernels.lay_columns(x, np.arange(width))
    multiply, count = (panel_kernels.multiply_panels, PANELS) if many else (panel_kernels.multiply_panel, 1)
    users = count * PANEL
    half = rng.normal(size=(users, d, d))
    matrices = half + half.transpose(0, 2, 1)
    packed = np.array([m[np.triu_indices(d)] for m in matrices]).reshape(count, PANEL, pairs)
    panels = np.ascontiguousarray(packed.transpose(0, 2, 1))
    out = np.full((width, users + 5), np.nan)
    multiply(panels, 0, flat_pairs, width, out, 3)
    assert out[:, 3:-2] == pytest.approx(np.einsum("kf,jfg,kg->kj", x, matrices, x), abs=1e-12)
    assert np.isnan(out[:, :3]).all()
    assert np.isnan(out[:, -2:]).all()


@pytest.mark.parametrize(
    ("alpha", "gamma", "sharing"),  # whether payoffs are shared
    [
        (0.0, 0.5, False),  # only users with equal estimates are neighbours
        (0.02, 0.2, True),
        (0.1, 0.2, False),  # no bound falls below γ/4
        (0.1, 0.6, True),
        (0.1, 1.5, True),  # every bound is below γ/4 from the start
        (0.3, 0.0, False),
    ],
)
@pytest.mark.parametrize("log", [False, True])
def test_the_compiled_loop_is_the_python_loop(alpha: float, gamma: float, sharing: bool, log: bool) -> None:
    fast, slow = (CAB(n_features=5, alpha=alpha, gamma=gamma) for _ in range(2))
    for policy in (fast, slow):
        for name in ("u3", "idle", "u0", "idle too"):
            policy.add(name)
    shared = 0
    for seed in (1, 2):  # the second batch finds half-trained models
        batch = make_batch(seed, 150, 5, log=log)
        mine, theirs = fast.run(batch), run_one_by_one(slow, batch)
        for column, expected in zip(mine, theirs, strict=True):
            assert column.tolist() == expected.tolist()
        for policy in (fast, slow):
            policy.drop("u1")
        shared += int(mine.updated.sum() - mine.kept.sum())
    assert (shared > 10) == sharing
    assert {k: v.tobytes() for k, v in fast.tensors().items()} == {
        k: v.tobytes() for k, v in slow.tensors().items()
    }


def test_the_compiled_loop_equals_algorithm_1() -> None:
    batch = make_batch(5, 400, 4)
    policy, twin = CAB(n_features=4, alpha=0.03, gamma=0.3), CachedCAB(4, 0.03, 0.3)
    outcome = policy.run(batch)
    for t, user in enumerate(batch.users):
        x = batch.items[batch.candidates[t]]
        k = twin.choose(user, x)
        assert outcome.choice[t] == k, f"round {t}"
        assert outcome.updated[t] == twin.learn(user, x[k], batch.payoffs[t, k])
    assert outcome.updated.max() > 1


def test_choosing_for_many_is_choosing_one_by_one() -> None:
    policy = CAB(n_features=4, alpha=0.2)
    policy.add("idle")
    policy.run(make_batch(3, 200, 4))
    rng = np.random.default_rng(0)
    users = ["u1", "stranger", "idle", "u2", "u1"]
    lists = [unit_vectors(rng, c, 4) for c in (3, 1, 7, 30, 2)]
    assert policy.choose_many(users, lists) == [
        policy.choose(u, x) for u, x in zip(users, lists, strict=True)
    ]
    with pytest.raises(UserError):
        policy.choose_many([["x"]], lists[:1])  # type: ignore[list-item]
    with pytest.raises(ContextError, match="context has 2 features"):
        policy.choose_many(["u1"], [np.zeros((1, 2))])


@jit
def _update_many(panels: Any, contexts: Any) -> None:
    for t in range(contexts.shape[0]):
        kernels.learn_one(panels, 1, 0, contexts, t, 0.5)


def exact_inverse(steps: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return (I + Σ x xᵀ)⁻¹ for x = steps / 2²⁰, in rational arithmetic."""
    d = steps.shape[1]
    total = steps.T @ steps  # exact: below 2⁶³
    rows = [
        [Fraction(int(total[i, j]), 2**40) + (i == j) for j in range(d)]
        + [Fraction(i == j) for j in range(d)]
        for i in range(d)
    ]
    for i in range(d):
        rows[i] = [value / rows[i][i] for value in rows[i]]
        for k in range(d):
            if k != i:
                rows[k] = [a - rows[k][i] * b for a, b in zip(rows[k], rows[i], strict=True)]
    return np.array([[float(rows[i][d + j]) for j in range(d)] for i in range(d)])


@pytest.mark.parametrize("shape", ["hugging one direction", "in a plane", "all over"])
def test_a_million_updates_leave_the_inverse_right_to_the_last_bits(shape: str) -> None:
    """Contexts are multiples of 2⁻²⁰, so that a million of them sum up exactly in integers.

    Without the residues the same updates drift by more than ten times the tolerance: the test would see it go.
    """
    rng = np.random.default_rng(0)
    n = 1_000_000
    x = {
        "hugging one direction": np.column_stack([np.ones(n), 1e-3 * rng.normal(size=n), np.full(n, 0.9)]),
        "in a plane": rng.normal(size=(n, 2)) @ rng.normal(size=(2, 3)),
        "all over": rng.normal(size=(n, 3)),
    }[shape]
    steps = np.floor(x / np.linalg.norm(x, axis=1, keepdims=True) * 2**20 * (1 - 1e-6)).astype(np.int64)
    exact = exact_inverse(steps)[np.triu_indices(3)]
    models = Dense(3)
    models.update("u", steps[0] / 2**20, 0.5)
    _update_many(models._panels, steps[1:] / 2**20)
    assert np.abs(models._panels.inverses[0, :, 0] - exact).max() / np.abs(exact).max() < 5e-16


def test_inverses_and_weights_belong_together() -> None:
    policy = CAB(n_features=4, alpha=0.05, gamma=0.5)
    batch = make_batch(9, 3000, 4)
    outcome = policy.run(batch._replace(users=["only"] * 3000))
    x = batch.items[batch.candidates[np.arange(3000), outcome.choice]]
    y = batch.payoffs[np.arange(3000), outcome.choice]
    saved = policy.tensors()
    matrix = np.eye(4) + x.T @ x
    assert saved["inverses"][0] == pytest.approx(np.linalg.inv(matrix)[np.triu_indices(4)], abs=1e-14)
    assert saved["weights"][0] == pytest.approx(np.linalg.solve(matrix, x.T @ y), abs=1e-13)


def test_nothing_of_a_dropped_user_stays_in_memory() -> None:
    models = Dense(2)
    for name in range(11):
        models.update(name, np.array([0.6, 0.8]), 0.5)
    for name in (3, 10, 0, 7, 1, 2, 4, 5, 6, 8, 9):
        models.drop(name)
    assert not any(array.any() for array in models._panels)


def test_sums_do_not_depend_on_the_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "CHUNK", 1)
    policy = CAB(n_features=3, alpha=0.3)
    policy.run(make_batch(4, 300, 3, n_users=60))
    x = unit_vectors(np.random.default_rng(1), 6, 3)
    seen = []
    for threads in ("1", "3"):
        monkeypatch.setenv("COTERIE_THREADS", threads)
        thread_count.cache_clear()
        seen.append(policy.explain("u1", x).score.tobytes())
    thread_count.cache_clear()
    assert seen[0] == seen[1]
    assert list(in_chunks(lambda a, b: (a, b), 7, 3)) == [(0, 3), (3, 6), (6, 7)]
    monkeypatch.setenv("COTERIE_THREADS", "many")
    thread_count.cache_clear()
    with pytest.raises(ParameterError, match="COTERIE_THREADS is 'many', expected a number of threads"):
        thread_count()
    thread_count.cache_clear()


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"candidates": np.zeros((3, 2))}, ContextError, "candidates are float64"),
        ({"candidates": np.full((150, 4), 12)}, ContextError, "expected positions in the 12 items"),
        ({"candidates": np.zeros((150, 0), dtype=int)}, ContextError, "the candidate lists are empty"),
        ({"payoffs": np.zeros(3)}, PayoffError, r"payoffs have shape \(3,\), expected \(150, 4\)"),
        ({"payoffs": np.full((150, 4), np.nan)}, PayoffError, "payoff is .*nan"),
        ({"served": np.full(150, 9), "payoffs": np.zeros(150)}, ContextError, "served reaches from 9 to 9"),
        ({"served": np.zeros(150), "payoffs": np.zeros(150)}, ContextError, "served is float64"),
        ({"items": np.full((12, 5), 2.0)}, ContextError, "context 0 has norm"),
        ({"users": [[]] * 150}, UserError, "is unhashable"),
    ],
)
def test_a_bad_batch_is_named_and_changes_nothing(
    change: dict[str, Any], error: type[Exception], message: str
) -> None:
    policy = CAB(n_features=5)
    policy.run(make_batch(1, 20, 5))
    before = {k: v.tobytes() for k, v in policy.tensors().items()}
    with pytest.raises(error, match=message):
        policy.run(make_batch(1, 150, 5)._replace(**change))
    assert {k: v.tobytes() for k, v in policy.tensors().items()} == before
