"""What clients of Personalizer really send and get, where it goes beyond the examples of its specification."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from litestar.testing import TestClient

from coterie.data.logs.rules import Config
from coterie.service.evaluations.jobs import Job
from coterie.service.personalizer.evaluation_forms import EVALUATION, IMPORTANCE
from tests.service.personalizer.test_personalizer import DESKS, client_of

BASE = "/personalizer/v1.1-preview.3"
ACTIONS = [{"id": name, "features": [{"kind": name}]} for name in "abcd"]
SLOTS = [{"id": "top", "baselineAction": "a"}, {"id": "side", "baselineAction": "b"}]


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient[Any]]:
    with client_of(tmp_path_factory.mktemp("recorded")) as made:
        yield made


def test_a_slot_may_have_position_features(client: TestClient[Any]) -> None:
    """They are features of the slot: another value is another request."""
    first = SLOTS[0] | {"positionFeatures": [{"size": "large"}], "features": [{"row": 1}]}
    body = {"actions": ACTIONS, "slots": [first, SLOTS[1]], "eventId": "position"}
    answer = client.post(f"{BASE}/multislot/rank", json=body)
    assert answer.status_code == 201
    assert [slot["id"] for slot in answer.json()["slots"]] == ["top", "side"]
    other = body | {"slots": [first | {"positionFeatures": [{"size": "small"}]}, SLOTS[1]]}
    again = client.post(f"{BASE}/multislot/rank", json=other)
    assert again.status_code == 409
    assert "'position'" in again.json()["error"]["message"]  # not the id of a slot's event


@pytest.mark.parametrize("excluded", [["a"], ["b"], ["b", "c"], ["a", "d"], ["d"], ["a", "b", "d"]])
def test_an_excluded_action_stays_at_its_place(client: TestClient[Any], excluded: list[str]) -> None:
    for k in range(8):  # the others are in an order that depends on the event
        event = f"excluded {excluded} {k}"
        body = {"actions": ACTIONS, "excludedActions": excluded, "eventId": event}
        answer = client.post(f"{BASE}/rank", json=body).json()
        ids = [one["id"] for one in answer["ranking"]]
        assert [name for name in ids if name in excluded] == excluded
        assert [ids.index(name) for name in excluded] == ["abcd".index(name) for name in excluded]
        others = [one for one in answer["ranking"] if one["id"] not in excluded]
        assert others[0]["id"] == answer["rewardActionId"]
        assert sum(one["probability"] for one in others) == pytest.approx(1)
        assert all(one["probability"] == 0 for one in answer["ranking"] if one["id"] in excluded)
        assert client.post(f"{BASE}/rank", json=body).json() == answer  # read from the log


def test_slots_that_exist_are_learned_beside_one_that_does_not(client: TestClient[Any]) -> None:
    client.post(f"{BASE}/multislot/rank", json={"actions": ACTIONS, "slots": SLOTS, "eventId": "some"})
    rewards = [{"slotId": name, "value": 1} for name in ("top", "left", "side")]
    answer = client.post(f"{BASE}/multislot/events/some/reward", json={"reward": rewards})
    assert answer.status_code == 204
    assert answer.headers["x-coterie-reward"] == "applied, unknown_slot, applied"


def test_an_event_id_may_be_used_again_after_its_log_was_deleted(tmp_path: Path) -> None:
    one = {"actions": ACTIONS, "eventId": "again"}
    several = {"actions": ACTIONS, "slots": SLOTS, "eventId": "slots again"}
    with client_of(tmp_path, config=Config(exploration=0.5)) as client:
        for path, body in (("/rank", one), ("/multislot/rank", several)):
            assert client.post(BASE + path, json=body).status_code == 201
        assert client.post(f"{BASE}/events/again/reward", json={"value": 1}).status_code == 204
        assert client.delete(f"{BASE}/logs").status_code == 204
        for path, body in (("/rank", one), ("/multislot/rank", several)):
            answer = client.post(BASE + path, json=body)
            assert answer.status_code == 201
            assert client.post(BASE + path, json=body).json() == answer.json()  # now a retry again
        rewarded = client.post(f"{BASE}/events/again/reward", json={"value": 1})
        assert rewarded.headers["x-coterie-reward"] == "applied"
        both = {"reward": [{"slotId": slot["id"], "value": 0.5} for slot in SLOTS]}
        rewarded = client.post(f"{BASE}/multislot/events/slots again/reward", json=both)
        assert rewarded.headers["x-coterie-reward"] == "applied, applied"
        client.delete(f"{BASE}/logs")
        assert client.post(f"{BASE}/rank", json=one | {"actions": ACTIONS[1:]}).status_code == 201
        used = client.post(f"{BASE}/rank", json=one)
        assert used.status_code == 409  # the log has the one before
        bandit = DESKS[client].bandit
        assert bandit.remembered.open == sum(event.open for event in bandit.events.values())
        rows = [event.id for event in bandit.remembered.events.values()]
    with client_of(tmp_path, config=Config(exploration=0.5)) as client:
        assert [*DESKS[client].bandit.events] == rows
        assert client.post(f"{BASE}/events/again/reward", json={"value": 1}).status_code == 204


def test_a_log_without_decisions_has_no_dates(tmp_path: Path) -> None:
    with client_of(tmp_path) as client:
        assert client.get(f"{BASE}/logs/properties").json() == {}
        client.post(f"{BASE}/rank", json={"actions": ACTIONS, "eventId": "dated"})
        dates = client.get(f"{BASE}/logs/properties").json()["dateRange"]
        assert dates["from"] <= dates["to"]
        client.delete(f"{BASE}/logs")
        assert client.get(f"{BASE}/logs/properties").json() == {}


@pytest.mark.parametrize("form", ["one", "list", "text"])
def test_decisions_and_rewards_of_clients_may_be_json(client: TestClient[Any], form: str) -> None:
    """The REST client for JavaScript declares all bodies as JSON."""
    decision = {"EventId": f"own {form}", "a": [2, 1], "p": [0.75, 0.25], "c": {"_multi": [{}, {}]}}
    reward = {"EventId": f"own {form}", "v": 1}
    for path, line in (("interactions", decision), ("observations", reward)):
        body: Any = {"one": line, "list": [line], "text": json.dumps(line) + "\n"}[form]
        answer = client.post(f"{BASE}/logs/{path}", json=body)
        assert answer.status_code == 204
        told = answer.headers["x-coterie-decisions" if path == "interactions" else "x-coterie-reward"]
        assert told == ("new=1, known=0" if path == "interactions" else "applied=1")


WORTH = {"value": 0.5, "low": 0.4, "high": 0.6}
SUMS = {"weighted": 5.0, "n": 10, "weights": 9.5, "seen": 8, "squares": 4.0}
PART = {
    "dr": WORTH,
    "sums": SUMS,
    "windows": [{"at": 1_700_000_000, "dr": WORTH, "sums": SUMS}],
    "series": {"5": [[1_700_000_000_000, 0.5, 0.4, 0.6]]},
}
RESULT = {
    "verdict": "no clear winner",
    "words": "",
    "clear_winner": False,
    "policies": [{"policy": name, **PART} for name in ("uniform", "baseline", "logged")],
    "features": [
        {"namespace": "context", "name": "device.mobile", "score": 100.0},
        {"namespace": "action", "name": "kind", "score": 40.0},
        {"namespace": "action", "name": "size", "score": 40.0},
    ],
}


def job(kind: Any = "evaluation", **more: Any) -> Job:
    return Job("id", kind, "name", 0, 1_000, 2_000, **more)


@pytest.mark.parametrize("whole", [True, False])
def test_an_evaluation_under_way_has_the_fields_of_a_finished_one(whole: bool) -> None:
    for status in ("waiting", "running", "failed"):
        first = EVALUATION.first(job(status=status), whole)
        assert (first["policyResults"], first["featureImportance"], first["optimalPolicy"]) == ([], [], "")
    assert EVALUATION.last(job(status="running"), True)["content"]["value"] == []
    assert IMPORTANCE.last(job("importance", status="running"), True)["featureScores"] == []


def test_a_finished_evaluation_names_its_policies_and_the_optimal_one_as_personalizer_does() -> None:
    done = job(status="done", result=RESULT)
    first, listed, last = (
        EVALUATION.first(done, True),
        EVALUATION.first(done, False),
        EVALUATION.last(done, True),
    )
    assert [one["name"] for one in first["policyResults"]] == ["baselineRand", "baseline1", "online"]
    assert [one["policySource"] for one in first["policyResults"]] == ["Random", "Baseline", "Online"]
    assert [one["name"] for one in last["content"]["value"]] == ["baselineRand", "baseline1", "online"]
    assert first["optimalPolicy"] == listed["optimalPolicy"] == last["optimalPolicy"] == "online"
    assert first["featureImportance"] == [["context.device.mobile"], ["action.kind", "action.size"]]
    assert all("totalSummary" in one and "summary" not in one for one in listed["policyResults"])
    assert all("totalSummary" in one and "summary" in one for one in first["policyResults"])
    clear = job(status="done", result=RESULT | {"clear_winner": True})
    assert EVALUATION.first(clear, True)["optimalPolicy"] == "baselineRand"


@pytest.mark.parametrize("name", ["online", "baseline1", "baselineRand", "Online"])
def test_a_policy_to_evaluate_cannot_have_a_name_that_every_evaluation_has(
    client: TestClient[Any], name: str
) -> None:
    client.post(f"{BASE}/rank", json={"actions": ACTIONS})
    policy = {"name": name, "arguments": "--policy cab"}
    times = {"startTime": "2000-01-01", "endTime": "2100-01-01"}
    answer = client.post(f"{BASE}/evaluations", json={"name": "mine", **times, "policies": [policy]})
    assert (answer.status_code, answer.headers["x-ms-error-code"]) == (400, "DuplicateCustomPolicyNames")


def test_a_configuration_that_personalizer_answered_is_taken_as_it_is(tmp_path: Path) -> None:
    saved = {
        "rewardWaitTime": "PT4H",
        "defaultReward": 1.0,
        "rewardAggregation": "average",
        "explorationPercentage": 0.3,
        "modelExportFrequency": "PT3M",
        "logMirrorEnabled": True,
        "logMirrorSasUri": "https://storage.example/logs?sig=secret",
        "logRetentionDays": -1,
        "lastConfigurationEditDate": "2022-10-25T23:14:43",
        "learningMode": "Online",
        "isAutoOptimizationEnabled": True,
        "autoOptimizationFrequency": "P27D",
        "autoOptimizationStartDate": "2022-09-01T21:02:42",
        "modelRetrainDays": 2,
        "isInferenceExplainabilityEnabled": True,
    }
    not_kept = {"lastConfigurationEditDate", "logMirrorSasUri"}  # set here, and a secret of another service
    with client_of(tmp_path) as client:
        first = client.get(f"{BASE}/configurations/service").json()
        assert first.keys() == saved.keys() - {"logMirrorSasUri"}
        answer = client.put(f"{BASE}/configurations/service", json=saved)
        assert answer.status_code == 200
        got = answer.json()
        assert {name: got[name] for name in saved.keys() - not_kept} == {
            name: saved[name] for name in saved.keys() - not_kept
        }
        assert "secret" not in answer.text
    with client_of(tmp_path, given=frozenset()) as client:  # a start that names no setting
        assert client.get(f"{BASE}/configurations/service").json() == got


def ranked(client: TestClient[Any], body: Any, **more: Any) -> Any:
    return client.post(f"{BASE}/rank", json=body, **more)


def test_names_are_read_in_any_case_and_unknown_ones_are_left_out(
    client: TestClient[Any], caplog: pytest.LogCaptureFixture
) -> None:
    """As Azure read them. The log names what was left out, once."""
    sent = {
        "Actions": [{"Id": "a", "Features": [{"Kind": 1}], "price": 3}],
        "EXCLUDEDACTIONS": [],
        "colour": 1,
    }
    for k in range(2):
        answer = ranked(client, sent | {"eventID": f"case {k}"})
        assert (answer.status_code, answer.json()["eventId"]) == (201, f"case {k}")
    assert sorted(line.message for line in caplog.records if "unknown field" in line.message) == [
        "a Personalizer request has the unknown field 'colour', which is left out",
        "a Personalizer request has the unknown field 'price', which is left out",
    ]
    found = client.get("/v1/events/case 0").json()
    assert [one["id"] for one in found["ranking"]] == ["a"]
    excluded = ranked(client, {"actions": ACTIONS, "ExcludedActions": ["a", "b", "c"]}).json()
    assert excluded["rewardActionId"] == "d"
    reward = client.post(f"{BASE}/events/case%200/reward", json={"Value": 1, "note": "x"})
    assert (reward.status_code, reward.headers["x-coterie-reward"]) == (204, "applied")


@pytest.mark.parametrize(
    ("body", "place"),
    [
        ({"Actions": [{"id": 7}]}, "actions[0].id"),
        ({"actions": ACTIONS, "deferActivation": "yes", "x": 1}, "deferActivation"),
        ({"actions": [], "x": 1}, "actions"),
        ({"x": 1}, None),
    ],
)
def test_what_is_wrong_is_named_in_such_bodies_too(client: TestClient[Any], body: Any, place: Any) -> None:
    answer = ranked(client, body)
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "InvalidRankRequest"
    assert answer.json()["error"].get("target") == place


def test_a_name_that_comes_twice_is_refused_among_unknown_ones_too(client: TestClient[Any]) -> None:
    kind = {"content-type": "application/json"}
    answer = client.post(f"{BASE}/events/e/reward", content=b'{"value": 1, "x": 1, "x": 2}', headers=kind)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "InvalidRewardRequest")
    assert "'x' occurs twice" in answer.json()["error"]["message"]


def test_an_empty_event_id_is_none(client: TestClient[Any]) -> None:
    first, second = (ranked(client, {"actions": ACTIONS, "eventId": ""}).json() for _ in range(2))
    assert first["eventId"] != second["eventId"]
    body = {"actions": ACTIONS, "slots": SLOTS, "eventId": ""}
    assert len(client.post(f"{BASE}/multislot/rank", json=body).json()["eventId"]) == 32


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        ("application/json; charset=utf-8", 201),
        ("Application/JSON", 201),
        ("text/json", 201),
        ("application/json-patch+json", 201),
        ("application/*+json", 201),
        ("text/plain", 415),
        ("application/x-www-form-urlencoded", 415),
        ("application/octet-stream", 415),
        ("text/plain+json", 415),
    ],
)
def test_json_is_taken_by_each_of_its_names_and_nothing_that_a_form_can_send(
    client: TestClient[Any], kind: str, status: int
) -> None:
    content = json.dumps({"actions": ACTIONS}).encode()
    for start in (b"", b"\xef\xbb\xbf"):
        answer = client.post(f"{BASE}/rank", content=start + content, headers={"content-type": kind})
        assert answer.status_code == status, answer.text


def test_a_compressed_body_is_refused_by_its_name(client: TestClient[Any]) -> None:
    content = json.dumps({"actions": ACTIONS}).encode()
    for coding, status in (("gzip", 415), ("br", 415), ("identity", 201), ("Identity", 201)):
        headers = {"content-type": "application/json", "content-encoding": coding}
        answer = client.post(f"{BASE}/rank", content=content, headers=headers)
        assert answer.status_code == status, answer.text
        if status == 415:
            assert f"'{coding}'" in answer.json()["error"]["message"]
            assert answer.headers["x-ms-error-code"] == answer.json()["error"]["code"]


def test_slashes_and_the_case_of_the_version_do_not_matter(client: TestClient[Any]) -> None:
    """Azure's portal shows endpoints with a slash at their end; then clients send two."""
    for path in (
        "//personalizer/v1.0/rank",
        "/personalizer/v1.0//rank/",
        "//personalizer/rank?API-Version=2022-09-01-preview",
    ):
        answer = client.post(f"http://127.0.0.1{path}", json={"actions": ACTIONS}, params={})
        assert answer.status_code == 201, answer.text
    wrong = client.post("http://127.0.0.1//personalizer/v1.0/rank", json={"actions": []})
    assert wrong.json()["error"]["code"] == "InvalidRankRequest"


def test_a_configuration_with_nulls_and_other_spellings_is_accepted(client: TestClient[Any]) -> None:
    before = client.get(f"{BASE}/configurations/service").json()
    edited = "lastConfigurationEditDate"
    same = client.put(f"{BASE}/configurations/service", json=dict.fromkeys(before)).json()
    assert same | {edited: 0} == before | {edited: 0}
    sent = {
        "LearningMode": "apprentice",
        "rewardAggregation": "Sum",
        "logRetentionDays": 7.0,
        "rewardWaitTime": "00:10:00.5000000",
        "newField": {"x": 1},
    }
    found = client.put(f"{BASE}/configurations/service", json=sent).json()
    expected = {"learningMode": "Apprentice", "rewardAggregation": "sum", "logRetentionDays": 7}
    assert {name: found[name] for name in expected} == expected
    assert found["rewardWaitTime"] == "PT10M0.5S"
    assert client.put(f"{BASE}/configurations/service", json=before).status_code == 200
    bad = client.put(f"{BASE}/configurations/service", json={"rewardAggregation": "max"})
    assert (bad.status_code, bad.json()["error"]["target"]) == (400, "rewardAggregation")
