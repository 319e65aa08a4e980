"""Hierarchical over actions that are not declared, while they have no context: the model of declared actions."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from coterie import Action, Hierarchical
from coterie.errors import PayoffError
from coterie.models.hierarchy.named import NamedModel
from coterie.models.hierarchy.refit import COLUMNS
from tests.playing import assert_same_tensors

Make = Callable[[np.random.Generator], list[Any]]


def named(policy: Hierarchical) -> NamedModel:
    assert isinstance(policy._model, NamedModel)
    return policy._model


def play(policy: Hierarchical, make: Make, n: int, seed: int = 1) -> list[int]:
    """Play rounds whose payoff depends on the user and the action, and return the choices."""
    rng, choices = np.random.default_rng(seed), []
    for t in range(n):
        user = None if t % 7 == 3 else int(rng.integers(12))
        shown, coin = make(rng), rng.random()
        k = policy.choose(user, shown)
        likes = (hash(str(shown[k])) + (user or 0)) % 3 == 0
        policy.learn(user, shown[k], float(coin < (0.8 if likes else 0.2)))
        if t % 50 == 20 and user in policy.users:
            policy.drop(user)
        choices.append(k)
    return choices


def some_ids(rng: np.random.Generator) -> list[Any]:
    return [int(k) for k in rng.permutation(70 if rng.random() < 0.1 else 9)[:4]]


def some_vectors(rng: np.random.Generator) -> list[Any]:
    return [row.tolist() for row in rng.normal(size=(4, 3)) + 0.5]


@pytest.mark.parametrize("half_life", [None, 6.5])
@pytest.mark.parametrize("make", [some_ids, some_vectors])
def test_undeclared_actions_are_judged_as_declared_ones_are(make: Make, half_life: float | None) -> None:
    """The rounds have anonymous visitors, users who are dropped, and more ids than the covariance is over."""
    kind: dict[str, Any] = {"one_hot": True} if make is some_ids else {"n_features": 3}
    declared = Hierarchical(**kind, half_life=half_life)
    policy, rng = Hierarchical(half_life=half_life), np.random.default_rng(5)
    assert play(policy, make, 400) == play(declared, make, 400)
    assert sorted(map(str, policy.users)) == sorted(map(str, declared.users))
    for user in (*declared.users, "new"):
        shown = make(rng)
        mine, theirs = policy.explain(user, shown), declared.explain(user, shown)
        assert mine.score == pytest.approx(theirs.score, rel=1e-9)
        assert mine.probability == pytest.approx(theirs.probability, abs=1e-9)


def test_features_that_appear_late_are_learned() -> None:
    policy, rng = Hierarchical(), np.random.default_rng(2)
    for t in range(600):
        x = {"old": float(rng.normal())} | ({"late": float(rng.normal())} if t >= 200 else {})
        policy.learn(t % 5, x, 0.1 * x["old"] + 0.3 * x.get("late", 0.0))
    told = policy.explain("new", [{"old": 1.0}, {"late": 1.0}, {"never": 1.0}])
    assert told.estimate == pytest.approx([0.1, 0.3, 0.0], abs=0.02)
    assert not named(policy).crossed


def test_a_context_ends_the_plain_model_and_what_it_learned_stays() -> None:
    policy = Hierarchical()
    for t in range(200):
        item = "abc"[t % 3]
        policy.learn(t % 10, item, {"a": 0.9, "b": 0.5, "c": 0.1}[item] + 0.01 * (t % 2))
    before = policy.explain(3, ["a", "b", "c"])
    rainy = [Action(item, context={"rain": 1.0}) for item in "abc"]
    assert policy.explain(3, rainy).estimate == pytest.approx(before.estimate)
    policy.learn(3, rainy[2], 0.1)
    assert named(policy).crossed
    rng = np.random.default_rng(3)
    for _ in range(400):
        now = [Action(item, context={"rain": float(rng.normal())}) for item in "abc"]
        k = int(rng.integers(3))
        policy.learn(
            int(rng.integers(10)),
            now[k],
            [0.9, 0.5, 0.1][k] + (0.1 * now[k].context["rain"] if k == 0 else 0),
        )
    dry, wet = policy.explain(3, ["a", "b", "c"]), policy.explain(3, rainy)
    assert dry.estimate == pytest.approx([0.9, 0.5, 0.1], abs=0.03)
    assert (wet.estimate - dry.estimate)[0] == pytest.approx(0.1, abs=0.03)
    kinds = [part.kind for part in policy.contributions(3, rainy, 0)]
    assert len(kinds) == len(
        {(part.kind, part.action, part.context) for part in policy.contributions(3, rainy, 0)}
    )
    policy.drop(3)
    assert 3 not in policy.users


def test_too_many_features_users_or_items_end_the_plain_model() -> None:
    policy = Hierarchical()
    for k in range(COLUMNS):
        policy.learn("ann", {f"f{k}": 1.0}, 0.5)
    assert not named(policy).crossed
    policy.learn("ann", {"one more": 1.0}, 0.5)
    assert named(policy).crossed
    small = Hierarchical(slots=64)
    for k in range(200):
        small.learn(k, "tea", 0.5)
    assert named(small).crossed
    assert small.explain("new", ["tea"]).estimate == pytest.approx([0.5])
    items = Hierarchical(slots=64)
    for k in range(200):  # nothing is kept of anonymous visitors, but of the items
        items.learn(None, f"item {k}", 0.5)
    assert named(items).crossed


def test_a_number_that_cannot_be_learned_changes_nothing() -> None:
    policy = Hierarchical()
    policy.learn("ann", "tea", 1.0)
    before = {name: array.tobytes() for name, array in policy.tensors().items()}
    with pytest.raises(Exception, match="expected a word or a finite number"):
        policy.learn("bob", {"hot": math.inf}, 1.0)
    assert {name: array.tobytes() for name, array in policy.tensors().items()} == before


@pytest.mark.parametrize("make", [some_ids, some_vectors])
@pytest.mark.parametrize("crossed", [False, True])
def test_a_copy_in_parts_is_the_state_of_one_moment(make: Make, crossed: bool) -> None:
    policy = Hierarchical()
    for user in range(700):  # three parts of users
        policy.learn(user, make(np.random.default_rng(user))[0], user % 2)
    if crossed:
        policy.learn(5, Action("x", context={"a": 1.0}), 1.0)
    first = _copied(policy, {})
    assert_same_tensors(_restored(policy, first), policy)
    twin = Hierarchical()
    twin.restore(policy.tensors())
    twin.learned = policy.learned
    wanted = {name: part.begin(first[1].get(name, {})) for name, part in policy.parts().items()}
    head = policy.head()
    policy.learn(699, make(np.random.default_rng(1))[0], 1.0)  # while the copy is made
    policy.drop(3)
    policy.learn("new", make(np.random.default_rng(2))[0], 0.0)
    bodies = {name: dict(first[1].get(name, {})) for name in wanted}
    for name, part in policy.parts().items():
        bodies[name] |= {key: part.take(key) for key in wanted[name]}
        part.end(kept=True)
    assert_same_tensors(_restored(twin, (head, bodies)), twin)
    assert_same_tensors(_restored(policy, _copied(policy, {})), policy)


def _copied(policy: Hierarchical, kept: dict[str, Any]) -> tuple[Any, dict[str, dict[str, bytes]]]:
    found: dict[str, dict[str, bytes]] = {}
    wanted = {name: part.begin(kept.get(name, ())) for name, part in policy.parts().items()}
    head = policy.head()
    for name, part in policy.parts().items():
        found[name] = {key: part.take(key) for key in wanted[name]}
        part.end(kept=True)
    return head, found


def _restored(like: Hierarchical, copied: tuple[Any, dict[str, dict[str, bytes]]]) -> Hierarchical:
    head, parts = copied
    again = Hierarchical()
    bodies = {name: [part[key] for key in sorted(part, key=int)] for name, part in parts.items()}
    again.restore_parts(head, bodies)
    again.learned = like.learned
    return again


@pytest.mark.parametrize("form", ["ids", "vectors", "context", "declared"])
@pytest.mark.parametrize(("scale", "origin"), [(100.0, 0.0), (0.01, 0.0), (-1e6, 3e6), (1e-4, -0.5)])
def test_neither_the_scale_nor_the_origin_of_payoffs_changes_a_choice(
    form: str, scale: float, origin: float
) -> None:
    """With a negative scale, the other policy is told the same payoffs with the other sign."""

    def choices(unit: float, zero: float) -> tuple[list[int], Hierarchical]:
        policy = Hierarchical(one_hot=True) if form == "declared" else Hierarchical()
        rng, found = np.random.default_rng(4), []
        for _ in range(200):
            z, user = float(rng.normal()), int(rng.integers(6))
            shown = some_vectors(rng) if form == "vectors" else [int(k) for k in rng.permutation(5)[:3]]
            payoffs = [np.sin(np.sum(action) + user) + 0.1 * z for action in shown]
            if form == "context":
                shown = [Action(item, context={"z": z}) for item in shown]
            k = policy.choose(user, shown)
            policy.learn(user, shown[k], unit * payoffs[k] + zero)
            found.append(k)
        return found, policy

    plain, _ = choices(np.sign(scale) * 0.5, 0.0)
    other, policy = choices(scale, origin)
    assert sum(a != b for a, b in zip(plain, other, strict=True)) <= 2  # rounding can turn a near tie
    again = Hierarchical(one_hot=policy.one_hot)
    again.restore(policy.tensors())


@pytest.mark.parametrize("policy", [Hierarchical(), Hierarchical(one_hot=True)])
def test_a_payoff_beyond_all_scales_is_refused(policy: Hierarchical) -> None:
    for payoff in (1.1e9, -np.inf, np.nan):
        with pytest.raises(PayoffError, match=r"expected a number in \[-1e\+09, 1e\+09\]"):
            policy.learn("ann", "tea", payoff)
        with pytest.raises(PayoffError, match=r"expected a number in \[-1e\+09, 1e\+09\]"):
            policy.learn_many(["ann"], ["tea"], [payoff])
    assert not policy.users
