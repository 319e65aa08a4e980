"""One-hot models are classes of users, and must never differ from a loop over users."""

import itertools
import math
from collections.abc import Hashable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie import CAB
from coterie.errors import ContextError, FileError, ParameterError, PayoffError, UserError
from coterie.models import OneHot
from coterie.models._kernels.bounds import scale_after
from coterie.models._kernels.users.history_arrays import FREE_ID, IDS
from coterie.models.batches import distinct, positions
from coterie.models.files import Tensors
from coterie.policies.base.batch import Batch, Outcome, run_one_by_one
from tests.naive import DirectCAB

GRID = list(itertools.product([0.0, 0.01, 0.05, 0.1, 0.5], [0.0, 0.05, 0.2, 2.0]))


def make(alpha: float, gamma: float, seed: int | None = None) -> tuple[CAB, DirectCAB]:
    """Return a policy and its twin; with a seed, both draw."""
    policy = CAB(one_hot=True, alpha=alpha, gamma=gamma, thompson=seed is not None, seed=seed or 0)
    return policy, DirectCAB(alpha, gamma, seed)


def assert_same_state(policy: CAB, twin: DirectCAB, items: Sequence[Hashable]) -> None:
    assert set(policy.users) == set(twin.history)
    assert policy.learned == twin.t - 1
    for user in twin.history:
        own = policy.models.view(user, items)
        assert own.estimate.tolist() == [twin.w(user, item) for item in items]
        assert own.spread.tolist() == [twin.spread(user, item) for item in items]
    check_books(policy.models)


def check_books(models: Any) -> None:
    """Everything that is kept twice agrees: sizes with members, references with what points, free with rest."""
    assert isinstance(models, OneHot)
    state, ids = models._state, models._state.ids
    refs = np.zeros(len(ids), dtype=np.int64)
    alive = set()
    for row in models._rows.values():
        user = state.users[row]
        if user["start"] >= 0:
            cells = state.entries[user["start"] : user["start"] + (1 << int(user["bits"]))]
            cells = cells[cells["item"] >= 0]
            assert len(cells) == user["count"] == len(np.unique(cells["item"]))
            np.add.at(refs, cells["id"], 1)
            alive |= set(cells["id"].tolist())
    for column in models._columns.values():
        item = state.items[column]
        marks = state.marks[item["mark_start"] : item["mark_start"] + item["mark_count"]]
        assert (np.diff(marks["until"]) > 0).all()
        np.add.at(refs, marks["id"], 1)
        alive |= set(marks["id"].tolist())
        cells = state.classes[item["start"] : item["start"] + item["count"]]
        pairs = list(zip(cells["times"].tolist(), cells["total"].tolist(), strict=True))
        assert pairs == sorted(set(pairs))
        assert (cells["size"] > 0).all()
        assert cells["size"].sum() == item["touched"] > 0
        assert ids["slot"][cells["id"]].tolist() == list(range(len(cells)))
        assert (ids["parent"][cells["id"]] == -1).all()
    waiting = list(alive)
    while waiting:
        if (parent := int(ids["parent"][waiting.pop()])) >= 0:
            refs[parent] += 1
            if parent not in alive:
                alive.add(parent)
                waiting.append(parent)
    assert ids["refs"][sorted(alive)].tolist() == refs[sorted(alive)].tolist()
    free, spare = int(state.counts[FREE_ID]), set()
    while free >= 0:
        assert free not in spare
        spare.add(free)
        free = int(ids["parent"][free])
    assert spare | alive == set(range(int(state.counts[IDS])))
    assert not spare & alive


def test_two_users_by_hand() -> None:
    """α = 0.5, γ = 0. Ann learns jazz 1: pair (1, 1), w = 1/2, spread = 1/√2.

    After one payoff t = 2 and the factor is 0.5·√log 3 = 0.524. Bob is new: w = 0, spread 1. Their distance
    is 0.5 ≤ 0.524·(1 + 0.707) = 0.895, so Bob decides on jazz with Ann: estimate (0 + 0.5)/2 = 0.25.
    """
    policy = CAB(one_hot=True, alpha=0.5, gamma=0.0)
    assert policy.learn("ann", "jazz", 1.0) == 1
    told = policy.explain("bob", ["news", "jazz"])
    factor = 0.5 * math.sqrt(math.log(3))
    assert told.members.tolist() == [2, 2]
    assert told.near_estimate.tolist() == [0.0, 0.25]
    assert told.near_width == pytest.approx([factor, factor * (1 + 1 / math.sqrt(2)) / 2])
    assert policy.neighbours("bob", "jazz") == ["ann", "bob"]
    assert policy.users == ["ann"]


def test_a_shared_update_moves_classes_and_merges_them_by_hand() -> None:
    """α = 0: everybody is sure, so neighbours with equal estimates learn together. On one item:

    a learns 0: (1, 0), by a mark. b is new, w = 0 as a's: b learns 1 and a with b: a (2, 1), b (1, 1).
    c is new: w = 0 while a has 1/3 and b 1/2, so c learns 1 alone: c (1, 1), in b's class.
    """
    policy = CAB(one_hot=True, alpha=0.0, gamma=0.2)
    assert [policy.learn("a", 7, 0.0), policy.learn("b", 7, 1.0), policy.learn("c", 7, 1.0)] == [1, 2, 1]
    assert [policy.explain(user, [7]).estimate[0] for user in "abc"] == [1 / 3, 1 / 2, 1 / 2]
    assert policy.neighbours("c", 7) == ["b", "c"]
    assert policy.learn("b", 7, -1.0) == 2  # b and c: (2, 0)
    assert policy.models.tensors()["class_times"].tolist() == [2, 2]
    check_books(policy.models)


@pytest.mark.parametrize("payoffs", ["binary", "real"])
@pytest.mark.parametrize(("alpha", "gamma"), GRID)
def test_every_choice_is_that_of_the_loop_over_users(
    alpha: float, gamma: float, payoffs: str, tmp_path: Path
) -> None:
    policy, twin = make(alpha, gamma)
    rng = np.random.default_rng([int(1000 * alpha), int(100 * gamma), len(payoffs)])
    items = [f"item {i}" for i in range(6)]
    known: list[Any] = []
    for t in range(350):
        chance = rng.random()
        if chance < 0.03 and known:
            gone = known.pop(int(rng.integers(len(known))))
            policy.drop(gone)
            twin.drop(gone)
        elif chance < 0.06:
            policy.add(new := int(rng.integers(30)))
            twin.add(new)
        elif chance < 0.07:
            policy.save(tmp_path / "model")
            policy = CAB.load(tmp_path / "model")
        user = int(rng.integers(1 + min(t // 4, 24)))
        contexts = [items[i] for i in rng.integers(len(items), size=3)]
        near = policy.explain(user, contexts)
        assert near.members.tolist() == [len(twin.neighbourhood(user, item)) for item in contexts]
        assert near.score == pytest.approx(twin.scores(user, contexts), abs=1e-12)
        choice = policy.choose(user, contexts)
        assert choice == twin.choose(user, contexts)
        payoff = float(rng.integers(2)) if payoffs == "binary" else float(rng.uniform(-1, 1))
        assert policy.learn(user, contexts[choice], payoff) == twin.learn(user, contexts[choice], payoff)
        known = list(twin.history)
    item = items[int(rng.integers(6))]
    assert set(policy.neighbours(3, item)) == set(twin.neighbourhood(3, item))
    assert_same_state(policy, twin, items)


def make_batch(
    seed: int, rounds: int, users: int, items: int, candidates: int, binary: bool = True, log: bool = True
) -> Batch:
    rng = np.random.default_rng(seed)
    shape = (rounds,) if log else (rounds, candidates)
    return Batch(
        rng.integers(users, size=rounds).tolist(),
        rng.integers(items, size=(rounds, candidates)),
        [f"item {i}" for i in range(items)],
        rng.integers(2, size=shape).astype(float) if binary else rng.uniform(-1, 1, size=shape),
        rng.integers(candidates, size=rounds) if log else None,
    )


def assert_same_outcome(one: Outcome, other: Outcome) -> None:
    for name, a, b in zip(Outcome._fields, one, other, strict=True):
        assert a.dtype == b.dtype
        assert a.tolist() == b.tolist(), name


def assert_same_tensors(one: Tensors, other: Tensors) -> None:
    assert one.keys() == other.keys()
    for name in one:
        assert one[name].dtype == other[name].dtype
        assert one[name].tobytes() == other[name].tobytes(), name


@pytest.mark.parametrize("seed", [None, 5])
@pytest.mark.parametrize(("alpha", "gamma"), GRID[::2])
def test_a_compiled_run_is_one_by_one_to_the_bit(alpha: float, gamma: float, seed: int | None) -> None:
    fast, twin = make(alpha, gamma, seed)
    slow, _ = make(alpha, gamma, seed)
    for part, (binary, log) in enumerate(itertools.product([True, False], [True, False])):
        batch = make_batch(part, 150, 20 + 5 * part, 8, 3, binary, log)
        outcome = fast.run(batch)
        assert_same_outcome(outcome, run_one_by_one(slow, batch))
        assert_same_outcome(outcome, run_one_by_one(cast(Any, Direct(twin)), batch))
        assert_same_tensors(fast.tensors(), slow.tensors())
        assert list(fast.users) == list(slow.users)
        for policy in (fast, slow, twin):  # what comes between batches goes on from there
            policy.learn("late", "item 3", 0.5)
            policy.drop(part)
            policy.add(1000 + part)
    assert_same_state(fast, twin, [f"item {i}" for i in range(9)])


class Direct:
    """The twin as `run_one_by_one` takes it."""

    largest_payoff = 1.0

    def __init__(self, twin: DirectCAB) -> None:
        self.twin, self.learn = twin, twin.learn

    def decide(self, user: Hashable, items: Sequence[Hashable]) -> Any:
        members = [len(self.twin.neighbourhood(user, item)) for item in items]
        return SimpleNamespace(choice=self.twin.choose(user, items), members=members)

    def draw(self, decision: Any) -> int:
        return int(decision.choice)


def test_a_function_of_t_as_alpha_is_played_one_by_one() -> None:
    batch = make_batch(0, 60, 9, 5, 3)
    by_function = CAB(one_hot=True, alpha=lambda t: 0.1 * math.sqrt(math.log1p(t)), gamma=0.5)
    by_number = CAB(one_hot=True, alpha=0.1, gamma=0.5)
    assert_same_outcome(by_function.run(batch), by_number.run(batch))


def test_the_compiled_clock_is_pythons() -> None:
    """The kernel's α·√log(1+t) has the bits of `scale_at`, or shared updates would part ways."""
    from coterie.policies.base.parameters import scale_at

    learned = [*range(2000), *(10**k + 7 for k in range(4, 12))]
    assert [scale_after(0.37, n) for n in learned] == [scale_at(0.37, n) for n in learned]


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_history_equals_the_twins(data: st.DataObject) -> None:
    alpha = data.draw(st.sampled_from([0.0, 0.01, 0.03, 0.1, 0.5]))
    gamma = data.draw(st.sampled_from([0.0, 0.2, 1.0, 2.0]))
    policy, twin = make(alpha, gamma)
    payoffs = st.sampled_from([0.0, 1.0, -1.0, 0.1, 0.2, 0.3, 1 / 3, 1e-17])
    user, item = st.integers(0, 6), st.integers(0, 2)
    for _ in range(data.draw(st.integers(1, 40))):
        step = data.draw(st.sampled_from(["learn", "learn", "learn", "learn", "add", "drop", "restore"]))
        name = data.draw(user)
        if step == "learn":
            what, payoff = data.draw(item), data.draw(payoffs)
            assert policy.learn(name, what, payoff) == twin.learn(name, what, payoff)
        elif step == "add":
            policy.add(name)
            twin.add(name)
        elif step == "drop" and name in twin.history:
            policy.drop(name)
            twin.drop(name)
        elif step == "restore":
            saved = policy.tensors()
            policy.restore(saved)
            assert_same_tensors(policy.tensors(), saved)
        told = policy.explain(name, [0, 1, 2])
        assert told.members.tolist() == [len(twin.neighbourhood(name, i)) for i in range(3)]
        assert told.score == pytest.approx(twin.scores(name, [0, 1, 2]), abs=1e-12)
    assert_same_state(policy, twin, [0, 1, 2])
    for gone in list(twin.history):
        policy.drop(gone)
    assert all(tensor.size <= 2 for tensor in policy.tensors().values())  # "[]"
    assert not policy.models._state.items["mark_count"].any()  # type: ignore[attr-defined]


def test_permuting_users_permutes_the_answers() -> None:
    batch = make_batch(3, 400, 25, 6, 3, binary=False)
    other = np.random.default_rng(0).permutation(25)
    one, two = make(0.02, 0.2)[0], make(0.02, 0.2)[0]
    assert_same_outcome(one.run(batch), two.run(batch._replace(users=other[np.asarray(batch.users)])))
    for user in range(25):
        assert one.explain(user, ["item 1"]).score == two.explain(int(other[user]), ["item 1"]).score


def test_no_sharing_keeps_what_was_learned_and_not_users_times_items() -> None:
    """α = 0: everybody learns of every payoff, and still only a mark is kept."""
    policy = CAB(one_hot=True, alpha=0.0, gamma=0.2)
    for user in range(5000):
        policy.models.update(user, "first", 0.0)
    before = policy.models._state.entries.nbytes  # type: ignore[attr-defined]
    for item in range(50):
        assert policy.learn(item, item, 1.0) == 5000
    saved = policy.tensors()
    assert len(saved["pair_user"]) == 5000  # of the first item, which each learned alone
    assert len(saved["mark_until"]) == 50
    assert len(saved["class_item"]) == 51
    assert policy.models._state.entries.nbytes == before  # type: ignore[attr-defined]


def test_a_row_and_room_of_dropped_users_are_used_again() -> None:
    policy = CAB(one_hot=True, alpha=0.1)
    for user in range(2000):
        for item in range(6):
            policy.learn(user, item, float((user + item) % 2))
        if user >= 10:
            policy.drop(user - 10)
    state = policy.models._state  # type: ignore[attr-defined]
    assert len(state.users) == 16
    assert len(state.entries) <= 512
    assert len(state.ids) <= 256
    check_books(policy.models)


def test_thompson_chooses_as_draws_of_each_users_posterior_would() -> None:
    """The best of averages of independent draws, one a user; an item that is listed twice counts once."""
    policy, _ = make(0.3, 0.0, seed=0)
    rng = np.random.default_rng(1)
    for user in range(12):
        for _ in range(user):
            policy.learn(user, "x", float(rng.random() < 0.5))
    scale = 0.3 * math.sqrt(math.log1p(policy.learned + 1))
    views = [policy.models.view(user, ["x"]) for user in policy.neighbours(3, "x")]
    assert 3 < len(views) < 12
    by_user = np.mean(
        [v.estimate[0] + scale * v.spread[0] * rng.standard_normal(20_000) for v in views], axis=0
    )
    unknown = policy.neighbours(3, "y")
    others = np.mean([scale * rng.standard_normal(20_000) for _ in unknown], axis=0)
    found = policy.decide(3, ["x", "x", "y"]).probability
    assert found[1] == 0
    assert found[0] == pytest.approx((by_user > others).mean(), abs=0.02)
    assert found.sum() == pytest.approx(1)


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        ({"payoffs": np.array([0.0, np.nan])}, PayoffError, r"expected a number in \[-1, 1\]"),
        ({"payoffs": np.array([0.0, 1.5])}, PayoffError, r"expected a number in \[-1, 1\]"),
        ({"candidates": np.array([[0, 1], [2, 3]])}, ContextError, "expected positions in the 3 items"),
        ({"candidates": np.array([[0, 1], [2, -1]])}, ContextError, "expected positions in the 3 items"),
        ({"served": np.array([0, 2])}, ContextError, "served reaches from 0 to 2"),
        ({"items": [[1], [2], [3]]}, ContextError, "unhashable"),
        ({"users": [[1], [2]]}, UserError, "unhashable"),
    ],
)
def test_a_bad_batch_is_refused_before_its_first_round(
    change: dict[str, Any], error: type[Exception], text: str
) -> None:
    policy, _ = make(0.1, 0.2)
    good = Batch([1, 2], np.array([[0, 1], [2, 1]]), ["a", "b", "c"], np.ones(2), np.zeros(2, dtype=np.int64))
    before = policy.tensors()
    with pytest.raises(error, match=text):
        policy.run(good._replace(**change))
    assert_same_tensors(policy.tensors(), before)
    assert policy.learned == 0


def test_thompson_is_true_or_false() -> None:
    with pytest.raises(ParameterError, match="thompson is 1, expected True or False"):
        CAB(one_hot=True, thompson=1)  # type: ignore[arg-type]


def test_distinct_finds_integers_near_and_far() -> None:
    for values in ([3, -5, 3, 0], [10**15, -4, 10**15], [7]):
        found, where = distinct(np.array(values))
        assert found.tolist() == sorted(set(values))
        assert found[where].tolist() == values
    assert positions(np.array(["b", "a", "b"]))[0] == ["b", "a"]


def saved_models() -> Tensors:
    policy, _ = make(0.03, 0.2)
    policy.run(make_batch(1, 300, 10, 4, 2))
    tensors = policy.tensors()
    assert min(len(tensors["mark_until"]), len(tensors["class_item"])) > 3
    policy, _ = make(0.05, 0.2)
    policy.restore(tensors)
    policy.learned = 300
    policy.run(make_batch(2, 300, 10, 4, 2))
    tensors = policy.tensors()
    assert len(tensors["pair_user"]) > 3
    assert len(tensors["mark_until"]) > 3
    return tensors


def test_a_damaged_file_is_refused_and_nothing_changes() -> None:
    good = saved_models()
    models = OneHot()
    models.update("me", "it", 1.0)
    before = models.tensors()
    hostile: list[tuple[str, Any]] = []
    for name, tensor in good.items():
        if name in ("users", "items"):
            continue
        kind = np.float64 if name == "class_total" else np.int64
        for value in (-2, 10**6, 2**62):
            for place in (0, len(tensor) // 2, -1):
                bad = tensor.astype(kind).copy()
                bad[place] = value
                hostile.append((name, bad))
        hostile += [(name, tensor[:-1]), (name, np.concatenate([tensor, tensor[-1:]]))]
        hostile += [(name, tensor.astype(np.float32)), (name, tensor[:, None])]
    hostile += [
        ("pair_user", good["pair_user"][::-1]),
        ("class_item", good["class_item"][::-1]),
        ("class_times", good["class_times"] * 0),
        ("mark_until", good["mark_until"][::-1]),
        ("order", good["order"] * 0),
    ]
    for name, tensor in hostile:
        try:
            models.restore({**good, name: tensor})
        except FileError:
            assert_same_tensors(models.tensors(), before)
        else:  # another history, but a sound one
            check_books(models)
            models.restore(before)
    for name in good:
        with pytest.raises(FileError, match=f"lacks the tensor '{name}'"):
            models.restore({k: v for k, v in good.items() if k != name})


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_whatever_a_file_says_the_books_agree(data: st.DataObject) -> None:
    good = saved_models_once()
    name = data.draw(st.sampled_from(sorted(set(good) - {"users", "items"})))
    tensor = good[name].copy()
    for _ in range(data.draw(st.integers(1, 3))):
        tensor[data.draw(st.integers(0, len(tensor) - 1))] = data.draw(st.integers(-2, 25))
    models = OneHot()
    try:
        models.restore({**good, name: tensor})
    except FileError:
        return
    check_books(models)
    for user in list(models.users):
        models.drop(user)
    assert models.users == []


_saved: list[Tensors] = []


def saved_models_once() -> Tensors:
    if not _saved:
        _saved.append(saved_models())
    return _saved[0]
