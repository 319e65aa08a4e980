"""Hierarchical in random small games: what says the same in other words changes no probability.

Two policies learn the same choices, which the first one makes; the second is told the same game in another way.
"""

import copy
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.random import Generator

from coterie import Action, Candidates, Hierarchical
from coterie.models._kernels.hierarchy.payoffs import count_payoff
from coterie.models._kernels.hierarchy.payoffs import within_reach as reach
from tests.twins.payoffs import within_reach

Kind = Literal["vectors", "ids", "both", "named", "context"]
KINDS: tuple[Kind, ...] = ("vectors", "ids", "both", "named", "context")


class Retold(NamedTuple):
    """The same game in other words."""

    scale: float = 1.0  # of payoffs
    origin: float = 0.0
    units: float = 1.0  # of all features
    shift: float = 0.0  # of all features
    names: str = ""  # of features and items
    order: int = 0  # by how much candidates are rotated


class Shown(NamedTuple):
    user: Any
    items: list[int]
    features: Any  # (candidates, 3)
    context: Any  # (2,)


def round_of(kind: Kind, rng: Generator) -> Shown:
    user = None if rng.random() < 0.1 else int(rng.integers(5))
    return Shown(
        user, rng.permutation(6)[:3].tolist(), rng.normal(size=(3, 3)) * [1, 2, 0.5], rng.normal(size=2)
    )


def make(kind: Kind) -> Hierarchical:
    n_features = 3 if kind in ("vectors", "both") else None
    return Hierarchical(n_features=n_features, one_hot=kind in ("ids", "both"), seed=1)


def told(kind: Kind, shown: Shown, how: Retold) -> Any:
    """Return the candidates as the policy takes them."""
    table = np.roll((shown.features * how.units + how.shift), how.order, axis=0)
    items = np.roll([f"{how.names}{item}" for item in shown.items], how.order).tolist()
    if kind == "vectors":
        return table
    if kind == "ids":
        return items
    if kind == "both":
        return Candidates(items, table)
    if kind == "named":
        return [{f"{how.names}{j}": float(v) for j, v in enumerate(row)} for row in table]
    context = {f"{how.names}{j}": float(v * how.units + how.shift) for j, v in enumerate(shown.context)}
    return [Action(item, None, context) for item in items]


def assert_the_same(kind: Kind, seed: int, clicks: bool, how: Retold, within: float) -> None:
    rng, game = np.random.default_rng(seed), np.random.default_rng(seed + 1)
    weights, taste = game.normal(size=3), game.normal(size=(6, 3)) * 0.5
    one, two = make(kind), make(kind)
    for _ in range(50):
        shown = round_of(kind, rng)
        mine, theirs = told(kind, shown, Retold()), told(kind, shown, how)
        first, second = one.decide(shown.user, mine), two.decide(shown.user, theirs)
        assert np.roll(second.probability, -how.order) == pytest.approx(first.probability, abs=within)
        k = one.draw(first)
        worth = shown.features[k] @ weights * 0.3 + taste[shown.items[k]] @ np.r_[1, shown.context]
        y = float(rng.random() < 1 / (1 + np.exp(-worth))) if clicks else float(worth + rng.normal() * 0.3)
        one.learn(shown.user, mine[k], y)
        two.learn(shown.user, theirs[(k + how.order) % 3], y * how.scale + how.origin)


seeds, kinds = st.integers(0, 10_000), st.sampled_from(KINDS)
Law = Callable[..., None]


@settings(max_examples=20, deadline=None)
@given(
    kinds, seeds, st.booleans(), st.sampled_from([1e-4, 0.01, 7.0, 1e4]), st.sampled_from([0.0, -3.0, 50.0])
)
def test_the_origin_and_the_scale_of_payoffs(
    kind: Kind, seed: int, clicks: bool, scale: float, origin: float
) -> None:
    assert_the_same(kind, seed, clicks, Retold(scale=scale, origin=origin * scale), 1e-5)


@settings(max_examples=20, deadline=None)
@example("vectors", 3, False, 1e-3)  # the first visitor is anonymous
@given(
    st.sampled_from(["vectors", "both", "named"]),
    seeds,
    st.booleans(),
    st.sampled_from([1e-3, 0.1, 8.0, 1e3]),
)
def test_the_units_of_features(kind: Kind, seed: int, clicks: bool, units: float) -> None:
    """In a context the first choices depend a little on the units: nothing has varied yet."""
    assert_the_same(kind, seed, clicks, Retold(units=units), 1e-5)


@settings(max_examples=20, deadline=None)
@given(
    st.sampled_from(["vectors", "both", "named"]), seeds, st.booleans(), st.sampled_from([-3.0, 0.5, 20.0])
)
def test_the_origin_of_features(kind: Kind, seed: int, clicks: bool, shift: float) -> None:
    assert_the_same(kind, seed, clicks, Retold(shift=shift), 1e-5)


@settings(max_examples=20, deadline=None)
@given(kinds, seeds, st.booleans(), st.integers(0, 2))
def test_the_names_and_the_order_of_what_is_shown(kind: Kind, seed: int, clicks: bool, order: int) -> None:
    assert_the_same(kind, seed, clicks, Retold(names="other ", order=order), 1e-5)


@settings(max_examples=10, deadline=None)
@given(kinds, seeds, st.lists(st.integers(1, 20), min_size=3, max_size=6))
def test_payoffs_in_batches_teach_what_they_teach_one_by_one(kind: Kind, seed: int, sizes: list[int]) -> None:
    rng, (one, two) = np.random.default_rng(seed), (make(kind), make(kind))
    for size in sizes:
        shown = [round_of(kind, rng) for _ in range(size)]
        each = [told(kind, one, Retold()) for one in shown]
        users, payoffs = [one.user for one in shown], rng.normal(size=size).tolist()
        for user, candidates, payoff in zip(users, each, payoffs, strict=True):
            one.learn(user, candidates[0], payoff)
        two.learn_many(users, _joined(kind, each), payoffs)
    last = round_of(kind, rng)
    for user in (last.user, 0, "new"):
        known = one.decide(user, told(kind, last, Retold()))
        assert two.decide(user, told(kind, last, Retold())).probability.tolist() == known.probability.tolist()


def _joined(kind: Kind, each: list[Any]) -> Any:
    """Return the first candidate of each round, as `learn_many` takes them."""
    if kind == "vectors":
        return np.array([table[0] for table in each])
    if kind == "both":
        return Candidates([shown.ids[0] for shown in each], np.array([shown.features[0] for shown in each]))
    return [shown[0] for shown in each]


@pytest.mark.parametrize("kind", ["ids", "context"])
@pytest.mark.parametrize("wrong", [1e6, -1e6])
def test_one_payoff_that_is_far_beyond_all_others_does_not_hide_them(kind: str, wrong: float) -> None:
    rng, policy = np.random.default_rng(2), Hierarchical(seed=2)
    best = 0
    for t in range(900):
        context = {"time": "night" if rng.random() < 0.5 else "day"} if kind == "context" else {}
        shown = [Action(name, None, context) for name in ("a", "b", "c")]
        k = policy.choose(f"u{t % 20}", shown)
        best += t >= 600 and k == 2
        policy.learn(f"u{t % 20}", shown[k], wrong if t == 300 else 0.3 * k + 0.1 * rng.normal())
    assert best > 240


@given(st.lists(st.floats(-100, 100), min_size=33, max_size=60), st.floats(-1e6, 1e6))
def test_a_payoff_that_counts_for_less_says_the_same_in_other_units(
    before: list[float], payoff: float
) -> None:
    found = [counted([scale * y for y in before], scale * payoff) / scale for scale in (1.0, 4.0)]
    assert found[0] == pytest.approx(found[1])
    assert found[0] == pytest.approx(within_reach(before, payoff), abs=1e-6)
    low, high = min(before), max(before)
    if low <= payoff <= high:
        assert found[0] == payoff or len(set(before)) > 2


def counted(before: list[float], payoff: float) -> float:
    """Return what the loops let a payoff count as after others."""
    paid = np.zeros(5)
    for n, y in enumerate(before):
        count_payoff(paid, y, n + 1.0)
    return float(reach(paid, payoff, float(len(before))))


def test_what_was_found_for_a_list_does_not_outlive_a_payoff_or_a_file() -> None:
    """A policy that decided about a list just before says the same of it as one that did not."""
    rng = np.random.default_rng(2)
    policy, tensors = Hierarchical(seed=1), Hierarchical(seed=1).tensors()
    for t in range(60):
        context = {"hour": float(rng.normal(20, 3)), f"new {t // 7}": float(rng.normal())}
        features = {"price": float(rng.normal(5, 2)), f"size {t // 9}": 2.0}
        actions: Any = policy.read([Action(f"a{k}", features, context) for k in range(3)])
        other, payoff = copy.deepcopy(policy), float(rng.integers(2))
        policy.decide("ann", actions)
        policy.contributions("ann", actions, 0)
        for one in (policy, other):
            if t == 50:
                one.restore(tensors)
            else:
                one.learn("ann", actions[t % 3], payoff)
        expected, found = other.decide("ann", actions), policy.decide("ann", actions)
        assert found.score.tobytes() == expected.score.tobytes()
        assert policy.contributions("ann", actions, 1) == other.contributions("ann", actions, 1)
        tensors = policy.tensors() if t == 20 else tensors
