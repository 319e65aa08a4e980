"""Vowpal Wabbit's arguments: run by Vowpal Wabbit in evaluations, and mapped to the policy in force elsewhere."""

import doctest
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from litestar.testing import TestClient

from coterie.data.logs.interactions import Interaction, InteractionLog
from coterie.data.logs.rules import Config
from coterie.errors import ParameterError
from coterie.evaluation import evaluate
from coterie.policies.base.vowpal_options import is_installed
from coterie.service.core.question import Action, Question, without_ignored
from coterie.service.evaluations import vowpal
from coterie.service.evaluations.job_queue import Evaluations
from coterie.service.evaluations.served_policy import ServedPolicy
from coterie.service.personalizer import evaluations, learning_settings
from tests.service.personalizer.test_personalizer import DESKS, client_of

BASE = "/personalizer/v1.1-preview.3"
RECORDED = (
    "--cb_explore_adf --quadratic GT --quadratic MR --quadratic OR --ignore A --cb_type ips --epsilon 0.2"
)
TIMES = {"startTime": "2000-01-01", "endTime": "2100-01-01"}
NEEDS_VW = pytest.mark.skipif(not is_installed(), reason="vowpalwabbit is not installed")


def rank(client: TestClient[Any], event: str, mobile: bool) -> str:
    device = {"device": {"kind": "mobile" if mobile else "desk"}}
    actions = [{"id": name, "features": [{"topic": name}]} for name in ("News", "Sports")]
    body = {"contextFeatures": [device, {"Ad": {"shown": event}}], "actions": actions, "eventId": event}
    answer = client.post(f"{BASE}/rank", json=body)
    assert answer.status_code == 201
    return str(answer.json()["rewardActionId"])


def test_a_policy_of_vowpal_wabbit_is_kept_and_what_has_a_counterpart_is_applied(tmp_path: Path) -> None:
    sent = {"name": "app1", "arguments": RECORDED}
    with client_of(tmp_path) as client:
        before = client.get(f"{BASE}/configurations/policy").json()
        answer = client.put(f"{BASE}/configurations/policy", json=sent)
        assert (answer.status_code, answer.json()) == (200, sent)
        assert answer.headers["x-coterie-policy"] == (
            "policy=hierarchical; exploration=0.2; ignored=A; without effect: --quadratic GT --quadratic MR "
            "--quadratic OR --cb_type ips"
        )
        config = DESKS[client].bandit.config
        assert (config.policy, config.exploration, config.ignored) == ("hierarchical", 0.2, "A")
        assert client.get("/v1/configuration").json()["ignored"] == "A"
        assert client.get(f"{BASE}/configurations/service").json()["explorationPercentage"] == 0.2
    with client_of(tmp_path, given=frozenset()) as client:  # it survives a restart
        assert client.get(f"{BASE}/configurations/policy").json() == sent
        assert client.delete(f"{BASE}/configurations/policy").json() == before
        assert client.get(f"{BASE}/configurations/policy").json() == before
        assert DESKS[client].bandit.config.ignored == ""
        client.put(f"{BASE}/configurations/policy", json=sent)
        cab = client.put(f"{BASE}/configurations/policy", json={"name": "cab", "arguments": "--alpha 0.3"})
        assert cab.json()["name"] == "cab"
        assert cab.headers["x-coterie-policy"] == "policy=cab"


def test_ignored_features_change_nothing_in_a_decision_and_are_kept_in_the_log() -> None:
    config = Config(ignored="A")
    asked = Question(
        "e",
        "ann",
        [Action("a", [{"Ad": {"size": 3}, "Alone": 1, "topic": {"x": 1}}]), Action("b")],
        [{"Ad": {"shown": "x"}}, {"device": {"mobile": True}}],
    )
    seen = without_ignored(asked, config)
    assert seen.context == [{}, {"device": {"mobile": True}}]
    assert [one.features for one in seen.actions] == [[{"Alone": 1, "topic": {"x": 1}}], None]
    assert without_ignored(asked, Config()) is asked


def test_events_that_differ_in_ignored_features_alone_are_the_same_to_the_model(tmp_path: Path) -> None:
    with client_of(tmp_path, config=Config(ignored="A")) as client:
        for event in ("e1", "e2"):
            rank(client, event, mobile=True)  # what was shown in the ad is the event's id
        events = DESKS[client].bandit.events
        by_choice = {events[name].action.hashed for name in ("e1", "e2")}
        assert len(by_choice) <= 2  # of the two actions


def test_a_replayed_policy_leaves_out_what_the_service_leaves_out() -> None:
    one = Interaction(
        "u", ("a", "b"), ({"Ad.size": 1.0, "t=x": 1.0}, {"Alone": 1.0}), {"Ad.s=x": 1.0}, 0, 0.5, None, 1.0
    )
    served = ServedPolicy(Config(ignored="A"), 10)
    seen, encoded = served._seen(one, None)  # type: ignore[arg-type]
    assert seen.context == {}
    assert seen.features == ({"t=x": 1.0}, {"Alone": 1.0})
    assert len(encoded) == 2


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("--cb_explore_adf --final_regressor x", "--final_regressor is no option"),
        ("--cb_explore_adf -i /etc/passwd", "--i is no option"),
        ("--cb_explore_adf --daemon", "--daemon is no option"),
        ("--cb_explore_adf -b 40", "--bit_precision is '40', expected at most 22"),
        ("--cb_explore_adf --epsilon 2", "--epsilon is 2, expected a number from 0 to 1"),
        ("--cb_explore_adf --epsilon nan", "--epsilon is 'nan', expected at most"),
        ("--cb_explore_adf --epsilon", "--epsilon has no value"),
        ("--cb_explore_adf --quadratic ../x", "expected a word"),
        ("--cb_explore_adf loose", "arguments have 'loose'"),
        ("--cb_explore_adf 'open", "No closing quotation"),
    ],
)
def test_options_that_reach_further_or_do_not_fit_are_refused(arguments: str, said: str) -> None:
    with pytest.raises(ParameterError, match=said):
        learning_settings.read_settings(arguments)


def test_other_arguments_are_not_vowpal_wabbits() -> None:
    assert learning_settings.read_settings("--alpha 0.3 --policy cab") is None


def decisions(count: int) -> list[Interaction]:
    """Decisions by chance: on a phone the second action earns, elsewhere the first."""
    found = []
    for t in range(count):
        phone, chosen = t % 2, (t // 2) % 2
        context = {"device.phone": 1.0} if phone else {"device.desk": 1.0}
        features = ({"topic=news": 1.0}, {"topic=sports": 1.0})
        reward = float(chosen == phone)
        found.append(Interaction("u", ("a", "b"), features, context, chosen, 0.5, np.full(2, 0.5), reward))
    return found


@NEEDS_VW
def test_vowpal_wabbit_uses_the_first_letters_of_objects_as_namespaces() -> None:
    """With pairs of device and topic it learns the rule; without them, or without the devices, it cannot."""
    log = InteractionLog("planted", decisions(600))
    plain = "--cb_explore_adf --epsilon 0.1 -l 0.5 --power_t 0 --cb_type mtr"
    policies = {
        "pairs": vowpal.Vowpal(f"{plain} --quadratic dj"),
        "blind": vowpal.Vowpal(f"{plain} --quadratic dj --ignore d"),
        "alone": vowpal.Vowpal(plain),
        "uniform": "uniform",
    }
    worth = {one.name: one.estimates["dr"].value for one in evaluate(log, policies).results}
    assert worth["pairs"] > 0.85
    assert worth["blind"] < 0.7
    assert worth["alone"] < 0.7


@NEEDS_VW
def test_an_evaluation_runs_vowpal_wabbit_and_its_policy_can_be_applied(tmp_path: Path) -> None:
    arguments = f"{RECORDED} -l 0.5 --dsjson"
    with client_of(tmp_path, config=Config(exploration=1.0)) as client:
        for k in range(40):
            shown = rank(client, f"e{k}", mobile=bool(k % 2))
            value = float((shown == "Sports") == bool(k % 2))
            client.post(f"{BASE}/events/e{k}/reward", json={"value": value})
        policies = [{"name": "Custom learning settings 1", "arguments": arguments}]
        body = {"name": "vw", **TIMES, "policies": policies, "enableOfflineExperimentation": False}
        made = client.post(f"{BASE}/evaluations", json=body)
        assert (made.status_code, made.json()["status"]) == (201, "pending")
        path = f"{BASE}/evaluations/{made.json()['id']}"
        end = time.monotonic() + 300
        while (found := client.get(path).json())["status"] == "pending":
            assert time.monotonic() < end
            time.sleep(0.1)
        assert found["status"] == "completed", found
        (mine,) = [one for one in found["policyResults"] if one["name"] == "Custom learning settings 1"]
        assert (mine["arguments"], mine["policySource"]) == (arguments, "Custom")
        reference = {"evaluationId": found["id"], "policyName": "Custom learning settings 1"}
        applied = client.post(f"{BASE}/configurations/applyFromEvaluation", json=reference)
        assert applied.status_code == 204
        assert applied.headers["x-coterie-policy"].startswith("policy=hierarchical; exploration=0.2")
        assert client.get(f"{BASE}/configurations/policy").json()["arguments"] == arguments
        native = client.post(f"/v1/evaluations/{found['id']}/apply", json={"policy": reference["policyName"]})
        assert (native.status_code, native.json()["error"]["code"]) == (422, "not_applicable")


def test_without_vowpal_wabbit_the_policy_in_force_takes_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluations, "is_installed", lambda: False)
    made_jobs: list[Any] = []
    make = Evaluations.make

    async def noted(self: Evaluations, job: Any) -> Any:
        made_jobs.append(job)
        return await make(self, job)

    monkeypatch.setattr(Evaluations, "make", noted)
    with client_of(tmp_path) as client:
        rank(client, "e", mobile=True)
        policies = [{"name": "mine", "arguments": RECORDED}]
        made = client.post(f"{BASE}/evaluations", json={"name": "vw", **TIMES, "policies": policies})
        assert made.status_code == 201
        one = made_jobs[-1].policy("mine")
        assert (one.policy, one.exploration, one.ignored, one.arguments) == (
            "hierarchical", 0.2, "A", RECORDED,
        )  # fmt: skip


def test_the_examples_in_the_docstrings_run() -> None:
    for module in (vowpal, learning_settings):
        assert doctest.testmod(module).failed == 0
