"""What is recorded is what happens: recorded probabilities are the shares shown, and evaluations of logs are true."""

import inspect
from typing import NamedTuple

import numpy as np
import pytest

from coterie.arrays import Floats
from coterie.data.logs.interactions import Interaction, InteractionLog
from coterie.data.logs.records import Rank, ShownAction
from coterie.data.logs.rules import Config
from coterie.errors import ParameterError
from coterie.evaluation import evaluate
from coterie.models.encoded import Encoded
from coterie.policies import POLICIES
from coterie.policies.base.vowpal_options import is_installed
from coterie.service.core.answers import ranking_of
from coterie.service.core.bandit import Bandit
from coterie.service.core.policy_config import possible
from coterie.service.core.question import Action, Question
from tests.service.helpers import START, bandit, decide

NAMES = "abcd"
GENRES: list[dict[str, object]] = [
    {"genre": "jazz", "long": True},
    {"genre": "news"},
    {"genre": "film", "year": 1979},
    {"genre": "news"},
]


class Served(NamedTuple):
    """A policy that the service can run."""

    policy: str
    parameters: dict[str, bool]

    def __str__(self) -> str:
        return "-".join([self.policy, *self.parameters])


def served() -> list[Served]:
    """Every policy that the service can run, also by draws."""
    found = []
    for name, kind in POLICIES.items():
        if name == "vw" and not is_installed():
            continue
        draws = "thompson" in inspect.signature(kind).parameters
        given: list[dict[str, bool]] = [{}, {"thompson": True}] if draws else [{}]
        for parameters in given:
            try:
                possible(Config(policy=name, parameters=parameters))
            except ParameterError:
                continue  # needs a graph
            found.append(Served(name, parameters))
    return found


each_served = pytest.mark.parametrize("one", served(), ids=str)
each_form = pytest.mark.parametrize("featured", [False, True], ids=["ids", "features"])


def question(event: str, featured: bool, user: str = "ann") -> Question:
    if not featured:
        return Question(event, user, [Action(name) for name in NAMES])
    actions = [Action(name, [features]) for name, features in zip(NAMES, GENRES, strict=True)]
    return Question(event, user, actions, context=[{"device": "mobile"}])


def trained(one: Served, featured: bool) -> Bandit:
    made = bandit(policy=one.policy, parameters=one.parameters, exploration=0.1, dimensions=16)
    for k in range(40):
        record = decide(made, question(f"warm {k}", featured, f"user {k % 5}"))
        made.reward(f"warm {k}", [0.6, 0.5, 0.4, 0.3][record.choice], START)
    return made


def told(record: Rank) -> Floats:
    """Return the probability of each action, as the service answers it."""
    chances = {one.id: one.probability for one in ranking_of(record).ranking}
    return np.array([chances[name] for name in NAMES])


def logged(record: Rank, user: str, reward: float) -> Interaction:
    return Interaction(user, tuple(NAMES), None, {}, record.choice, record.probability, told(record), reward)


class Always:
    """Shows one action."""

    def __init__(self, action: int) -> None:
        self.chances: Floats = np.eye(len(NAMES))[action]

    def probabilities(self, t: int, one: Interaction, encoded: Encoded) -> Floats:
        """Return the probability of each action."""
        return self.chances

    def learn(self, one: Interaction, encoded: Encoded) -> None:
        """Learn nothing."""


def check_shares(made: Bandit, featured: bool, times: int) -> None:
    """Ask one question with new event ids: every share within four standard errors of the answered probability."""
    for user in ("user 1", "a stranger"):
        p, shown = told(made.decide(question("first", featured, user), START)), np.zeros(len(NAMES))
        assert p.sum() == pytest.approx(1)
        for k in range(times):
            record = made.decide(question(f"e{k}", featured, user), START)
            shown[record.choice] += 1
            assert record.probability == pytest.approx(p[record.choice], rel=1e-12)
        assert (abs(shown / times - p) <= 4 * np.sqrt(p * (1 - p) / times) + 1e-9).all()


@each_form
@each_served
def test_actions_are_shown_as_often_as_is_recorded(one: Served, featured: bool) -> None:
    check_shares(trained(one, featured), featured, 300)


@pytest.mark.slow
@each_form
@each_served
def test_20_000_actions_are_shown_as_often_as_is_recorded(one: Served, featured: bool) -> None:
    check_shares(trained(one, featured), featured, 20_000)


@each_served
def test_an_estimate_for_one_action_is_worth_the_decisions_that_showed_it(one: Served) -> None:
    """Of 200 answers to one question, 30 showed an action: its estimate is worth 30 records, not fewer.

    A probability given a hidden draw would be near 1 for most and small for some, whose weights then decide alone.
    """
    made = trained(one, True)
    records = [made.decide(question(f"e{k}", True, "user 1"), START) for k in range(200)]
    log = InteractionLog(str(one), [logged(record, "user 1", 1.0) for record in records])
    shown = np.bincount([record.choice for record in records], minlength=len(NAMES))
    found = evaluate(log, {name: Always(k) for k, name in enumerate(NAMES)})
    worth = {result.name: result.evidence.effective for result in found.results}
    assert worth == pytest.approx(dict(zip(NAMES, shown, strict=True)))


def log_of(one: Served, seed: int, n: int) -> tuple[InteractionLog, Floats]:
    """Return what the service decided in a world whose means are known, and these means, a row per decision.

    A tenth of the decisions shows a given action by chance: a log that never shows it cannot be evaluated.
    """
    made = bandit(policy=one.policy, parameters=one.parameters, exploration=0.4, dimensions=8)
    rng = np.random.default_rng(seed)
    means = 0.2 + 0.6 * rng.random((3, len(NAMES)))
    found, truth = [], np.zeros((n, len(NAMES)))
    for t in range(n):
        user = int(rng.integers(3))
        record = decide(made, question(f"{seed}-{t}", False, f"user {user}"), START + t)
        reward = float(rng.random() < means[user, record.choice])
        made.reward(record.event, reward, START + t)
        truth[t] = means[user]
        found.append(logged(record, f"user {user}", reward))
    return InteractionLog(f"{one}-{seed}", found), truth


@pytest.mark.slow
@each_served
def test_evaluations_of_its_logs_hold_the_truth(one: Served) -> None:
    """200 logs of 150 decisions, three policies of known value: 95 % intervals hold the truth in at least 180."""
    held = {"uniform": 0, "first": 0, "last": 0}
    for seed in range(200):
        log, truth = log_of(one, seed, 150)
        found = evaluate(log, {"uniform": "uniform", "first": Always(0), "last": Always(len(NAMES) - 1)})
        values = {"uniform": truth.mean(), "first": truth[:, 0].mean(), "last": truth[:, -1].mean()}
        for result in found.results:
            _, low, high = result.best_estimate
            held[result.name] += low <= values[result.name] <= high
    print(one, held)
    assert min(held.values()) >= 180, held


def test_a_policy_over_vectors_alone_gets_ids_as_hashed_features() -> None:
    made = bandit(policy="sparse-cab", dimensions=16)
    record = decide(made, question("e1", featured=False))
    assert (record.hashed, record.featured) == (None, False)
    made.reward("e1", 1.0, START + 1)
    made.observe("bob", ShownAction("a"), 1.0, START + 2)
    assert made.policies.learned == 2
