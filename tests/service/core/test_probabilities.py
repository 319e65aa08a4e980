"""What is recorded is what happens: shares of shown actions against recorded probabilities, for every policy."""

import numpy as np
import pytest

from coterie.errors import ParameterError
from coterie.policies import POLICIES
from coterie.policies.base.vowpal_options import is_installed
from coterie.service.core.bandit import Bandit
from coterie.service.core.policy_config import possible
from coterie.service.core.question import Action, Question
from coterie.service.settings import Config
from tests.service.helpers import START, bandit, decide

GENRES: list[dict[str, object]] = [
    {"genre": "jazz", "long": True},
    {"genre": "news"},
    {"genre": "film", "year": 1979},
    {"genre": "news"},
]


def served() -> list[tuple[str, dict[str, bool], bool]]:
    """Every policy that the service can run, also by draws, over ids and over features."""
    found = []
    for name, kind in POLICIES.items():
        if name == "vw" and not is_installed():
            continue
        given: list[dict[str, bool]] = [{}]
        if hasattr(kind, "thompson") or name == "cab":
            given.append({"thompson": True})
        for parameters in given:
            try:
                kinds = possible(Config(policy=name, parameters=parameters))
            except ParameterError:
                continue  # needs a graph
            found += [
                (name, parameters, featured) for featured in (False, True) if featured or kinds != ["vectors"]
            ]
    return found


def question(event: str, featured: bool, user: str = "ann") -> Question:
    names = "abcd"
    if not featured:
        return Question(event, user, [Action(name) for name in names])
    actions = [Action(name, [features]) for name, features in zip(names, GENRES, strict=True)]
    return Question(event, user, actions, context=[{"device": "mobile"}])


def trained(policy: str, parameters: dict[str, bool], featured: bool) -> Bandit:
    made = bandit(policy=policy, parameters=parameters, exploration=0.1, dimensions=16)
    for k in range(40):
        record = decide(made, question(f"warm {k}", featured, f"user {k % 5}"))
        made.reward(f"warm {k}", [0.6, 0.5, 0.4, 0.3][record.choice], START)
    return made


def check_shares(made: Bandit, featured: bool, times: int) -> None:
    for user in ("user 1", "a stranger"):
        shown = np.zeros(4)
        recorded = np.full(4, np.nan)
        for k in range(times):
            record = made.decide(question(f"e{k}", featured, user), START)
            shown[record.choice] += 1
            assert recorded[record.choice] in (record.probability, recorded[record.choice]) or np.isnan(
                recorded[record.choice]
            )
            recorded[record.choice] = record.probability
        seen = shown > 0
        assert recorded[seen].sum() == pytest.approx(1, abs=4 / times)
        p = np.where(seen, recorded, 1 - recorded[seen].sum())
        assert (abs(shown / times - p) <= 4 * np.sqrt(np.maximum(p * (1 - p), 0) / times) + 1e-9).all()


each_served = pytest.mark.parametrize(("policy", "parameters", "featured"), served(), ids=str)


@each_served
def test_actions_are_shown_as_often_as_is_recorded(
    policy: str, parameters: dict[str, bool], featured: bool
) -> None:
    check_shares(trained(policy, parameters, featured), featured, 300)


@pytest.mark.slow
@each_served
def test_20_000_actions_are_shown_as_often_as_is_recorded(
    policy: str, parameters: dict[str, bool], featured: bool
) -> None:
    check_shares(trained(policy, parameters, featured), featured, 20_000)


def test_a_policy_over_vectors_alone_gets_ids_as_hashed_features() -> None:
    made = bandit(policy="sparse-cab", dimensions=16)
    record = decide(made, question("e1", featured=False))
    assert record.x is not None
    made.reward("e1", 1.0, START + 1)
    made.observe("bob", 1.0, START + 2, "a")
    assert made.policies.learned == 2
