"""Recorded probabilities are the shares that are shown, and evaluations are true, for every policy that can run."""

import inspect
from collections.abc import Iterator

import msgspec
import numpy as np
import pytest

from coterie.arrays import Floats
from coterie.data.logs.interactions import Interaction, InteractionLog
from coterie.errors import CoterieError
from coterie.evaluation import evaluate
from coterie.models.encoded import Encoded
from coterie.policies import POLICIES
from coterie.service.core.answers import ranking_of
from coterie.service.core.bandit import Bandit
from coterie.service.core.policy_config import check_config
from coterie.service.core.question import Action, Question
from coterie.service.settings import Config
from tests.service.helpers import START, bandit, decide

NAMES = "abcd"
ASKED = 20_000


def served() -> Iterator[Config]:
    """Every policy that the service can run, with Thompson sampling if it has it."""
    for name, kind in POLICIES.items():
        switches = [{}, {"thompson": True}] if "thompson" in inspect.signature(kind).parameters else [{}]
        for parameters in switches:
            config = Config(policy=name, parameters=parameters, exploration=0.1, dimensions=8)
            try:
                check_config(config)
            except CoterieError:  # such as one whose state cannot be made again from the log
                continue
            yield config


def label(config: Config) -> str:
    return "-".join([config.policy, *config.parameters])


SERVED = list(served())


def question(event: str, user: str, featured: bool) -> Question:
    actions = [
        Action(name, [{"size": k, "kind": name}] if featured else None) for k, name in enumerate(NAMES)
    ]
    return Question(event, user, actions, [{"hour": 3}] if featured else [])


def taught(config: Config, featured: bool) -> Bandit:
    """Return a bandit that learned 80 payoffs of three users."""
    made, rng = bandit(**msgspec.structs.asdict(config)), np.random.default_rng(1)
    for t in range(80):
        record = decide(made, question(f"e{t}", f"user {t % 3}", featured), START + t)
        made.reward(record.event, float(rng.random() < 0.3 + 0.1 * record.choice), START + t)
    return made


@pytest.mark.slow
@pytest.mark.parametrize("featured", [False, True], ids=["ids", "features"])
@pytest.mark.parametrize("config", SERVED, ids=label)
def test_recorded_probabilities_are_the_shares_of_20_000_answers(config: Config, featured: bool) -> None:
    """One question in one state, with new event ids: each share within four standard errors."""
    made = taught(config, featured)
    shown = np.zeros(len(NAMES))
    for k in range(ASKED):
        record = made.decide(question(f"again {k}", "user 1", featured), START + 100)
        shown[record.choice] += 1
    chances = {one.id: one.probability for one in ranking_of(record).ranking}
    told = np.array([chances[name] for name in NAMES])
    assert told.sum() == pytest.approx(1)
    assert record.probability == pytest.approx(told[record.choice])
    assert (abs(shown / ASKED - told) <= 4 * np.sqrt(told * (1 - told) / ASKED) + 1e-12).all()


def log_of(config: Config, seed: int, n: int) -> tuple[InteractionLog, Floats]:
    """Return what the service decided in a world whose means are known, and these means, a row per decision.

    A tenth of the decisions shows a given action by chance: a log that never shows it cannot be evaluated.
    """
    given = msgspec.structs.asdict(config) | {"exploration": 0.4}
    made, rng = bandit(**given), np.random.default_rng(seed)
    means = 0.2 + 0.6 * rng.random((3, len(NAMES)))
    found, truth = [], np.zeros((n, len(NAMES)))
    for t in range(n):
        user = int(rng.integers(3))
        record = decide(made, question(f"{seed}-{t}", f"user {user}", False), START + t)
        reward = float(rng.random() < means[user, record.choice])
        made.reward(record.event, reward, START + t)
        chances = {one.id: one.probability for one in ranking_of(record).ranking}
        likely = np.array([chances[name] for name in NAMES])
        truth[t] = means[user]
        found.append(
            Interaction(
                f"user {user}", tuple(NAMES), None, {}, record.choice, record.probability, likely, reward
            )
        )
    return InteractionLog(f"{config.policy}-{seed}", found), truth


class Always:
    """Shows one action."""

    def __init__(self, action: int) -> None:
        self.chances: Floats = np.eye(len(NAMES))[action]

    def probabilities(self, t: int, one: Interaction, encoded: Encoded) -> Floats:
        """Return the probability of each action."""
        return self.chances

    def learn(self, one: Interaction, encoded: Encoded) -> None:
        """Learn nothing."""


@pytest.mark.slow
@pytest.mark.parametrize("config", SERVED, ids=label)
def test_evaluations_of_its_logs_hold_the_truth(config: Config) -> None:
    """200 logs of 150 decisions, three policies of known value: 95 % intervals hold the truth in at least 180."""
    held = {"uniform": 0, "first": 0, "last": 0}
    for seed in range(200):
        log, truth = log_of(config, seed, 150)
        found = evaluate(log, {"uniform": "uniform", "first": Always(0), "last": Always(len(NAMES) - 1)})
        values = {"uniform": truth.mean(), "first": truth[:, 0].mean(), "last": truth[:, -1].mean()}
        for result in found.results:
            _, low, high = result.best_estimate
            held[result.name] += low <= values[result.name] <= high
    print(label(config), held)
    assert min(held.values()) >= 180, held
