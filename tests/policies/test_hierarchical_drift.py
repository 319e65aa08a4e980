"""Hierarchical finds out by itself that tastes change, and does not imagine it."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coterie import Action, Hierarchical
from coterie.errors import FileError, ParameterError
from coterie.models._kernels.hierarchy import drift as kernel
from coterie.models.hierarchy.drift import make_drift, restored, tensors
from tests.twins.drift import EVERYBODY, OWN, NaiveDrift

KINDS = {EVERYBODY: kernel.EVERYBODY, OWN: kernel.OWN}


@pytest.mark.parametrize("kind", KINDS)
def test_the_tests_are_those_of_the_twin(kind: str) -> None:
    """Errors without a direction, then errors that go on, then errors that turn against the last ones."""
    fast, slow, rng = make_drift("learned"), NaiveDrift(), np.random.default_rng(1)
    found, taste, last = [], rng.normal(size=(5, 3)), np.zeros((5, 3))
    for t in range(1, 700):
        owner, x = int(rng.integers(5)), rng.normal(size=3)
        pull = np.zeros(3) if t < 150 else 3 * taste[owner] if t < 400 else -last[owner]
        error = float(rng.normal() + pull @ x)
        last[owner] = 0.7 * last[owner] + 0.3 * error * x
        features = {int(key): float(value) for key, value in zip(rng.permutation(40)[:3], x, strict=True)}
        if t >= 150:
            features = dict(enumerate(x.tolist()))
        keys = np.array(list(features), dtype=np.uint64)
        kernel.watch(fast, KINDS[kind], owner, keys, np.array(list(features.values())), error, float(t), 5.0)
        kernel.decide_half_life(fast, float(t), 5.0)
        slow.watch(kind, owner, features, error, t, 5)
        slow.decide(t, 5)
        assert fast.half_life[0] == slow.half_life
        for way, up in ((kernel.UP, True), (kernel.DOWN, False)):
            products = slow.products[kind, up]
            assert fast.tests[KINDS[kind], way, 0] == pytest.approx(sum(products), abs=1e-8)
        found.append(slow.half_life)
    assert found[140] == 0 < found[399]  # and not before there was something to find
    assert found[-1] == 0 or found[-1] > found[399]


def play(
    policy: Hierarchical, rounds: Iterator[tuple[Any, list[Action], Any]]
) -> tuple[float, list[float | None]]:
    """Return the mean loss of the last quarter, and the half-life after each round."""
    lost, found = [], []
    for user, shown, means in rounds:
        k = policy.choose(user, shown)
        policy.learn(user, shown[k], means[0][k])
        lost.append(max(means[1]) - means[1][k])
        found.append(policy.present_half_life)
    return float(np.mean(lost[-len(lost) // 4 :])), found


def in_a_context(turns: bool, rounds: int = 2400) -> Iterator[tuple[Any, list[Action], Any]]:
    rng = np.random.default_rng(4)
    weights = rng.normal(size=(4, 3))
    for t in range(rounds):
        x, way = rng.normal(size=3), -1 if turns and t >= rounds // 2 else 1
        means = way * weights @ x
        yield None, [Action(f"i{k}", context=x) for k in range(4)], (means + 0.3 * rng.normal(size=4), means)


def of_users(turns: bool, rounds: int = 4000) -> Iterator[tuple[Any, list[Action], Any]]:
    rng = np.random.default_rng(5)
    chance = rng.beta(2, 4, size=(15, 6))
    for t in range(rounds):
        user = int(rng.integers(15))
        means = chance[user, ::-1] if turns and t >= rounds // 2 else chance[user]
        yield user, [Action(f"i{k}") for k in range(6)], ((rng.random(6) < means).astype(float), means)


@pytest.mark.parametrize("rounds", [in_a_context, of_users])
def test_a_change_is_found_and_nothing_where_there_is_none(rounds: Callable[..., Any]) -> None:
    after, found = play(Hierarchical(seed=1), rounds(turns=True))
    half = len(found) // 2
    assert set(found[:half]) == {None}
    assert found[-1] is not None
    assert after < 0.75 * play(Hierarchical(seed=1, half_life=None), rounds(turns=True))[0]
    steady, found = play(Hierarchical(seed=1), rounds(turns=False))
    assert set(found) == {None}
    assert steady == play(Hierarchical(seed=1, half_life=None), rounds(turns=False))[0]


@pytest.mark.parametrize("rounds", [in_a_context, of_users])
def test_what_was_found_is_in_the_file(rounds: Callable[..., Any], tmp_path: Path) -> None:
    policy = Hierarchical(seed=1)
    play(policy, rounds(turns=True, rounds=2400))
    assert policy.present_half_life is not None
    policy.save(tmp_path / "policy.safetensors")
    again = Hierarchical.load(tmp_path / "policy.safetensors")
    assert again.present_half_life == policy.present_half_life
    for user, shown, (payoffs, _) in rounds(turns=False, rounds=50):
        assert policy.decide(user, shown).score.tolist() == again.decide(user, shown).score.tolist()
        for one in (policy, again):
            one.learn(user, shown[0], payoffs[0])


@pytest.mark.parametrize(
    "wrong", [{"scale": np.zeros((2, 2))}, {"half_life": np.array([-1.0])}, {"weight": np.full((2, 2), -1.0)}]
)
def test_a_damaged_file_is_refused(wrong: dict[str, Any]) -> None:
    given = tensors(make_drift("learned")) | {f"drift_{name}": value for name, value in wrong.items()}
    with pytest.raises(FileError, match="the tests for changes in the model file contradict each other"):
        restored(given, "learned")


def test_a_half_life_is_a_number_learned_or_none() -> None:
    with pytest.raises(ParameterError, match=r"half_life is 'long', expected .*'learned'"):
        Hierarchical(half_life="long")  # type: ignore[arg-type]
    assert Hierarchical(half_life=8).present_half_life == 8
    assert Hierarchical(half_life=None).present_half_life is None
    assert Hierarchical().parameters["half_life"] == "learned"
