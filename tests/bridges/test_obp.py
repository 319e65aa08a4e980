"""Bandit feedback to and from the Open Bandit Pipeline itself."""

from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from coterie import Hierarchical, evaluate, open_interactions
from coterie.bridges import action_dist, to_obp
from coterie.data.logs.interactions import Interaction, InteractionLog
from coterie.errors import FileError, ParameterError
from tests.bridges.alike import alike
from tests.known_worlds import live
from tests.real_obp import import_obp


@pytest.fixture(scope="module")
def ope() -> ModuleType:
    return import_obp("ope")


def synthetic(n: int = 200) -> dict[str, Any]:
    """A bandit feedback that obp made."""
    dataset = import_obp("dataset")
    made = dataset.SyntheticBanditDataset(
        n_actions=4,
        dim_context=3,
        reward_function=dataset.logistic_reward_function,
        behavior_policy_function=dataset.linear_behavior_policy,
        random_state=1,
    )
    return dict(made.obtain_batch_bandit_feedback(n_rounds=n))


def by_obp(ope: ModuleType, feedback: dict[str, Any], likely: Any) -> dict[str, float]:
    """What obp says a policy would have earned."""
    estimators = [ope.InverseProbabilityWeighting(), ope.SelfNormalizedInverseProbabilityWeighting()]
    found = ope.OffPolicyEvaluation(bandit_feedback=feedback, ope_estimators=estimators)
    return dict(found.estimate_policy_values(action_dist=likely))


def test_what_obp_made_comes_back_as_it_was() -> None:
    feedback = synthetic()
    again = to_obp(feedback)
    for key in ("n_rounds", "n_actions", "position"):
        assert again[key] == feedback[key]
    for key in ("context", "action_context", "action", "reward", "pscore"):
        assert again[key] == pytest.approx(feedback[key]), key


@pytest.mark.parametrize("policy", ["uniform", "learner"])
def test_obp_estimates_of_our_policy_what_we_estimate(ope: ModuleType, policy: str) -> None:
    made: Any = policy if policy == "uniform" else Hierarchical(slots=1 << 10, floor=0.1)
    log = open_interactions(synthetic())
    ours = evaluate(log, {"it": made})["it"].estimates
    theirs = by_obp(ope, to_obp(log), action_dist(log, made))
    assert theirs["ipw"] == pytest.approx(ours["ips"].value, abs=1e-9)
    assert theirs["snipw"] == pytest.approx(ours["snips"].value, abs=1e-9)


def test_users_names_and_probabilities_come_back(ope: ModuleType, tmp_path: Path) -> None:
    log = live(0, 60, "epsilon").log
    feedback = to_obp(log)
    held = {key: value for key, value in feedback.items() if value is not None}
    np.savez(tmp_path / "log.npz", **held)
    again = open_interactions(tmp_path / "log.npz")
    assert len({one.user for one in log.interactions}) > 1
    assert alike(log, again)
    assert by_obp(ope, feedback, feedback["pi_b"])["ipw"] == pytest.approx(feedback["reward"].mean())


def test_actions_that_were_not_offered_have_probability_0() -> None:
    """Round 0 offers a and b, round 1 offers c and a: three actions in all, numbered as they come."""
    log = InteractionLog(
        "by hand",
        [
            Interaction("ann", ("a", "b"), None, {"x": 2.0}, 1, 0.25, np.array([0.75, 0.25]), 1.0),
            Interaction("bob", ("c", "a"), None, {}, 0, 0.5, np.array([0.5, 0.5]), 0.0),
        ],
    )
    feedback = to_obp(log)
    assert feedback["pi_b"][:, :, 0].tolist() == [[0.75, 0.25, 0], [0.5, 0, 0.5]]
    assert feedback["action"].tolist() == [1, 2]
    assert feedback["context"].tolist() == [[2.0], [0.0]]
    assert feedback["action_names"].tolist() == ["a", "b", "c"]
    assert action_dist(log, "baseline")[:, :, 0].tolist() == [[1, 0, 0], [0, 0, 1]]


def test_features_that_change_cannot_be_told_to_obp() -> None:
    one = Interaction("ann", ("a", "b"), ({"p": 1.0}, {"p": 2.0}), {}, 0, 0.5, None, 1.0)
    other = one._replace(features=({"p": 1.0}, {"p": 3.0}))
    assert to_obp(InteractionLog("fixed", [one, one]))["action_context"].tolist() == [[1], [2]]
    log = InteractionLog("prices", [one, other])
    with pytest.raises(
        ParameterError, match=r"the features of action 'b' change in record 1 of prices.*=False"
    ):
        to_obp(log)
    feedback = to_obp(log, features=False)
    assert feedback["action_context"] is None
    assert "pi_b" not in feedback
    with pytest.raises(
        ParameterError, match="does not have the probabilities of all actions, so 'logged' has"
    ):
        action_dist(log, "logged")


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"user": ["ann"]}, r"user has 1 ids, expected 2: one per round"),
        ({"action_names": ["a", "b", "c"]}, r"action_names has 3 names, expected 2"),
    ],
)
def test_names_that_do_not_fit_are_refused(more: dict[str, Any], message: str) -> None:
    with pytest.raises(FileError, match=message):
        open_interactions({"action": [0, 1], "reward": [1, 0], "pscore": [0.5, 0.5], **more})
