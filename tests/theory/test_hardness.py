"""The hardness of data: by hand, against brute force, and with both bounds proved."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.data import DenseWorld
from coterie.errors import ContextError, ParameterError
from coterie.theory import Hardness, hardness, one_hot_hardness
from coterie.theory.sphere import _cells, compare, fall, middle, pad
from tests.twins.hardness import brute_force_hardness


def drawn(seed: int, n_users: int, n_rounds: int, c: int, d: int) -> tuple[list[int], list[np.ndarray]]:
    rng = np.random.default_rng(seed)
    users = rng.integers(n_users, size=n_rounds).tolist()
    contexts = []
    for _ in range(n_rounds):
        rows = rng.standard_normal((int(rng.integers(1, c + 1)), d))
        contexts.append(rows / np.linalg.norm(rows, axis=1, keepdims=True) * rng.uniform(0.3, 1))
    return users, contexts


def test_one_user_one_candidate_by_hand() -> None:
    """x = 1 in each of three rounds: M is 2, 3, 4 after them. At η = 3 the last round with M ≤ η is the second."""
    assert hardness("aaa", [[[1.0]]] * 3, 3.0).value == 2


def test_worst_choice_by_hand() -> None:
    """Round 1 offers e1 or e2, round 2 the same, round 3 only e1, round 4 only e2: each can be avoided until it
    is forced. λ_min stays 1 by choosing e1, e1, e1 and becomes 2 in round 4; at η = 1 HD is 3, at η = 2 it is T."""
    both, e1, e2 = [[1.0, 0.0], [0.0, 1.0]], [[1.0, 0.0]], [[0.0, 1.0]]
    assert hardness("aaaa", [both, both, e1, e2], 1.0).value == 3
    assert hardness("aaaa", [both, both, e1, e2], 2.0).value == 4


def test_rounds_of_others_count_as_waiting() -> None:
    """User a passes η = 1.5 at its first visit, in round 3: until round 2 it had not. User b passes in round 1."""
    assert hardness("bba", [[[1.0]]] * 3, 1.5).value == 2


def test_user_who_never_comes_keeps_it_at_the_last_round() -> None:
    assert hardness("bb", [[[1.0]]] * 2, 1.5, everyone=["a", "b"]) == Hardness(
        2, 2, "a user who never comes", "the number of rounds", "a"
    )


def test_below_the_ridge_nothing_is_hard() -> None:
    assert hardness("bb", [[[1.0]]] * 2, 0.5).value == 0


@settings(max_examples=250, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    n_users=st.integers(1, 3),
    n_rounds=st.integers(1, 6),
    d=st.integers(1, 4),
    eta=st.floats(1, 3),
    sparsity=st.sampled_from([None, 1, 2]),
    ridge=st.sampled_from([1.0, 0.0, 0.5]),
)
def test_equals_brute_force(
    seed: int, n_users: int, n_rounds: int, d: int, eta: float, sparsity: int | None, ridge: float
) -> None:
    users, contexts = drawn(seed, n_users, n_rounds, 3, d)
    everyone = list(range(n_users))
    found = hardness(users, contexts, eta, everyone=everyone, sparsity=sparsity, ridge=ridge)
    exact = brute_force_hardness(users, contexts, eta, everyone, ridge, sparsity)
    assert found.lower <= exact <= found.upper
    assert found.kind == "exact"


@settings(max_examples=100, deadline=None)
@given(
    seed=st.integers(0, 10_000), n_items=st.integers(1, 3), eta=st.floats(0.5, 4), n_rounds=st.integers(1, 10)
)
def test_one_hot_answer_equals_brute_force(seed: int, n_items: int, eta: float, n_rounds: int) -> None:
    rng = np.random.default_rng(seed)
    users = rng.integers(2, size=n_rounds).tolist()
    items = [rng.permutation(n_items)[: rng.choice([1, 1, 1, 2])].tolist() for _ in users]
    contexts = [np.eye(n_items)[rows] for rows in items]
    exact = brute_force_hardness(users, contexts, eta, [0, 1])
    assert one_hot_hardness(users, items, eta, n_items=n_items, everyone=[0, 1]).value == exact
    assert hardness(users, contexts, eta, everyone=[0, 1]).value == exact


def test_one_hot_lists_of_two_items_are_hard_for_ever() -> None:
    rng = np.random.default_rng(0)
    items = [rng.permutation(5)[:2].tolist() for _ in range(500)]
    assert one_hot_hardness([0] * 500, items, 1.0, n_items=5).value == 500


def test_sparse_hardness_is_at_most_the_dense_one() -> None:
    for seed in range(20):
        users, contexts = drawn(seed, 2, 30, 2, 3)
        assert hardness(users, contexts, 3.0, sparsity=1).value <= hardness(users, contexts, 3.0).value


def test_both_bounds_are_proved_over_hundreds_of_rounds() -> None:
    users, contexts = drawn(1, 3, 600, 3, 3)
    found = hardness(users, contexts, 4.0)
    assert 0 < found.lower <= found.upper < 600
    assert found.upper - found.lower <= 60
    # The witness: along its direction the named user's worst choices are still at most η.
    own = [rows for user, rows in zip(users[: found.lower], contexts, strict=False) if user == found.user]
    assert found.direction is not None
    assert 1 + fall(pad(own), found.direction[None]).sum() <= 4 + 1e-8


def test_items_of_unrelated_families_are_hard_for_ever() -> None:
    """A direction within one family is avoided by choosing an item of another: G stays 0, as with item ids."""
    rounds = list(DenseWorld(n_users=3, n_features=4, n_families=2, n_candidates=8, seed=1).rounds(300))
    assert hardness([r.user for r in rounds], [r.contexts for r in rounds], 1.0).value == 300


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10_000), d=st.integers(2, 6))
def test_midpoint_bound_is_below_every_direction(seed: int, d: int) -> None:
    rng = np.random.default_rng(seed)
    centres = rng.standard_normal((20, 1, d)) / 3
    lists = pad(list(centres + rng.uniform(-0.1, 0.1, (20, 3, d)) * rng.random()))
    z = rng.standard_normal((200, d))
    z /= np.linalg.norm(z, axis=1, keepdims=True)
    assert middle(lists) <= fall(lists, z).sum(axis=1).min() + 1e-9


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 10_000), d=st.integers(2, 4), near=st.sampled_from([0.9, 0.999, 1.001, 1.1]))
def test_cells_of_the_sphere_are_never_wrong(seed: int, d: int, near: float) -> None:
    """Without the search for directions that comes first: just below the least eigenvalue, and just above it."""
    _, contexts = drawn(seed, 1, 5, 3, d)
    least = min(np.linalg.eigvalsh(sum(np.outer(x, x) for x in chosen))[0] for chosen in product(*contexts))
    if least > 1e-6:
        verdict = _cells(pad(contexts), near * least, effort=100_000).verdict
        assert verdict == ("above" if near < 1 else "below")


def test_many_features_are_proved_where_candidates_are_close() -> None:
    rng = np.random.default_rng(0)
    centres = rng.standard_normal((400, 1, 20))
    centres /= 2 * np.linalg.norm(centres, axis=2, keepdims=True)
    lists = pad(list(centres + rng.uniform(-0.01, 0.01, (400, 5, 20))))
    assert compare(lists, 0.5, rng).verdict == "above"


@pytest.mark.parametrize(
    ("users", "contexts", "eta", "message"),
    [
        ("a", [[[1.0]], [[1.0]]], 1.0, "1 users and 2 candidate lists"),
        ("a", [[[1.0]]], -1.0, "eta is -1.0"),
    ],
)
def test_refuses_what_it_cannot_read(
    users: str, contexts: list[list[list[float]]], eta: float, message: str
) -> None:
    with pytest.raises(ParameterError, match=message):
        hardness(users, contexts, eta)


def test_refuses_long_contexts_and_too_many_items() -> None:
    with pytest.raises(ContextError, match="norm 2"):
        hardness("a", [[[2.0]]], 1.0)
    with pytest.raises(ParameterError, match="2 different items"):
        one_hot_hardness("a", [["x", "y"]], 1.0, n_items=1)


def test_a_number_that_is_only_bounded_is_not_given_as_exact() -> None:
    with pytest.raises(ParameterError, match="from 3 to 9"):
        _ = Hardness(3, 9, "", "").value
