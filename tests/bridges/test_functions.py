"""A policy from functions, and policies of one's own in a comparison."""

import copy
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coterie import evaluate, replay
from coterie.bridges import FromFunction
from coterie.data import WORLDS
from coterie.errors import ContextError, FileError, ParameterError, PayoffError, UserError
from coterie.experiments import Plan, compare, parse_spec, parse_specs, play
from coterie.experiments.study.table import table
from tests.bridges.agents import Greedy, greedy

NAMED = "own:make=tests.bridges.agents.greedy"


def fixed(answer: Any, **more: Any) -> FromFunction:
    return FromFunction(on_choose=lambda user, items: answer, one_hot=True, **more)


def test_the_function_decides_and_learns() -> None:
    agent = Greedy()
    policy = FromFunction(on_choose=agent.choose, on_learn=agent.learn, on_drop=agent.forget, one_hot=True)
    assert policy.choose("ann", ["jazz", "news"]) == 0
    assert policy.learn("ann", "jazz", 0.0) == 1
    assert policy.choose("bob", ["jazz", "news"]) == 1
    assert policy.explain("bob", ["jazz", "news"]).probability.tolist() == [0, 1]
    policy.learn_many(["bob", "bob"], ["jazz", "news"], [1.0, 1.0])
    assert agent.sums == {"jazz": [0.0, 1.0], "news": [1.0]}
    assert (list(policy.users), policy.learned) == (["ann", "bob"], 3)
    policy.drop("bob")
    assert (agent.forgotten, list(policy.users)) == (["bob"], ["ann"])
    assert fixed(0).learn("ann", "jazz", 1.0) == 0  # nothing learns


def test_probabilities_are_drawn_from_and_told() -> None:
    policy = fixed([0.25, 0.75], seed=3)
    drawn = [policy.choose("ann", ["jazz", "news"]) for _ in range(400)]
    assert np.mean(drawn) == pytest.approx(0.75, abs=0.07)
    before = [policy.explain("ann", ["jazz", "news"]).choice for _ in range(3)]
    assert len(set(before)) == 1  # explaining moves no stream
    assert policy.explain("ann", ["jazz", "news"]).probability.tolist() == [0.25, 0.75]


def test_features_come_as_an_array() -> None:
    policy = FromFunction(on_choose=lambda user, x: int(np.argmax(x @ [0.0, 1.0])), n_features=2)
    assert policy.choose("ann", [[0.6, 0.1], [0.1, 0.6]]) == 1


@pytest.mark.parametrize("answer", [2, -1, 0.5, "jazz", None, [0.5, 0.6], [1.5, -0.5], [1, 0, 0], [0, 1]])
def test_what_is_no_choice_is_refused(answer: Any) -> None:
    """Whole numbers are not probabilities: [0, 1] could be a ranking as well."""
    with pytest.raises(
        ContextError, match="expected a position from 0 to 1, or 2 probabilities that sum to 1"
    ):
        fixed(answer).choose("ann", ["jazz", "news"])


def test_what_cannot_be_read_changes_nothing() -> None:
    agent = Greedy()
    policy = FromFunction(on_choose=agent.choose, on_learn=agent.learn, one_hot=True)
    with pytest.raises(PayoffError):
        policy.learn("ann", "jazz", 2.0)
    with pytest.raises(UserError):
        policy.learn([], "jazz", 1.0)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="user 'ann' is not known"):
        policy.drop("ann")
    assert (agent.sums, policy.learned, list(policy.users)) == ({}, 0, [])
    with pytest.raises(ParameterError, match="on_choose is 1, expected a function"):
        FromFunction(on_choose=1, one_hot=True)  # type: ignore[arg-type]
    with pytest.raises(ParameterError, match="exactly one kind of context"):
        FromFunction(on_choose=agent.choose)


def test_it_cannot_be_saved(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="a policy made from functions cannot be saved or loaded"):
        fixed(0).save(tmp_path / "policy")
    assert not (tmp_path / "policy").exists()


def test_copies_have_an_agent_of_their_own() -> None:
    agent = Greedy()
    policy = FromFunction(on_choose=agent.choose, on_learn=agent.learn, one_hot=True)
    twin = copy.deepcopy(policy)
    twin.learn("ann", "jazz", 0.0)
    assert agent.sums == {}
    assert (twin.choose("ann", ["jazz", "news"]), policy.choose("ann", ["jazz", "news"])) == (1, 0)


def test_it_plays_replays_and_is_evaluated() -> None:
    """Greedy is evaluated with certainty: weights 2 where it would have shown the logged action, else 0."""
    rows = list(play(greedy(n_features=None, one_hot=True, seed=0), WORLDS["turnover"]().rounds(200, 0)))
    assert len(rows) == 200
    assert all(row.updated == 1 for row in rows)
    told = replay(fixed(0), [1, 2], [[7, 8], [8, 7]], [0, 1], [1.0, 0.0])
    assert told.kept.tolist() == [True, False]
    feedback = {"action": [0, 1] * 50, "reward": [1, 0] * 50, "pscore": [0.5] * 100}
    found = evaluate(feedback, {"greedy": greedy(n_features=None, one_hot=True, seed=0)})
    assert found["greedy"].estimates["ips"].value == pytest.approx(1.0)


# In a comparison


def test_a_policy_of_ones_own_is_compared(tmp_path: Path) -> None:
    plan = Plan("clicks", WORLDS["clicks"](), parse_specs(f"{NAMED},random"), 400, 2, 0, tmp_path)
    found = compare(plan, workers=1)
    assert [result.spec.title for result in found.results] == ["greedy", "RAN"]
    by_hand = list(play(greedy(n_features=None, one_hot=True, seed=0), plan.world.rounds(400, 1)))
    assert found.results[0].runs[1].payoff == pytest.approx(math.fsum(row.payoff for row in by_hand))
    assert table(found)[1][0][0] == "greedy"


def test_a_policy_of_ones_own_is_played_again_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its function may have changed, and its traces do not tell."""
    plan = Plan("clicks", WORLDS["clicks"](), parse_specs(f"{NAMED},random"), 50, 1, 0, tmp_path)
    first = compare(plan, workers=1)
    monkeypatch.setattr(
        "tests.bridges.agents.greedy",
        lambda *, n_features, one_hot, seed: FromFunction(on_choose=lambda user, items: 0, one_hot=one_hot),
    )
    again = compare(plan, workers=1)
    runs = [{result.spec.text: result.runs[0].regret for result in found.results} for found in (first, again)]
    assert runs[0]["random"] == runs[1]["random"]
    assert runs[0][NAMED] != runs[1][NAMED]
    assert not list(tmp_path.glob("traces/own*.safetensors"))
    assert len(list(tmp_path.glob("traces/random*.safetensors"))) == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("own", "own:make=None; write own:make=module.function"),
        ("own:make=greedy", "own:make=greedy; write own:make=module.function"),
        (
            "own:make=no_such_module.greedy",
            r"cannot be imported \(No module named 'no_such_module'\); PYTHONPATH",
        ),
        ("own:make=tests.bridges.agents.lazy", r"cannot be imported \(module .* has no attribute 'lazy'\)"),
        (
            "own:make=tests.bridges.agents.not_a_policy",
            "made a builtin_function_or_method, expected a coterie.Pol",
        ),
    ],
)
def test_what_makes_no_policy_is_told_before_anything_runs(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ParameterError, match=message):
        Plan("clicks", WORLDS["clicks"](), [parse_spec(text)], 50, 1, 0, tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_policy_of_ones_own_takes_no_other_settings() -> None:
    with pytest.raises(
        ParameterError, match=r"unknown setting 'alpha=1' in .*; write name=value with items, make"
    ):
        parse_spec(f"{NAMED}:alpha=1")
