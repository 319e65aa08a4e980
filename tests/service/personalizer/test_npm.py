"""Both npm packages of Personalizer, unchanged, against a real server in a process of its own."""

import base64
import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.service.npm import drive, packages
from tests.service.process import Process, service

KEY = "a-key-that-is-long-enough-to-be-one"
ACTIONS = [{"id": "News", "features": [{"type": "News"}]}, {"id": "Sports", "features": [{"type": "Sports"}]}]
FILE = "application/octet-stream"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    packages()
    store = str(tmp_path_factory.mktemp("npm") / "log.db")
    with service("--store", store, environment={"COTERIE_KEY": KEY}) as process:
        yield process


def request(event: str, **more: Any) -> dict[str, Any]:
    context = [{"user": {"id": "ann"}}, {"device": {"mobile": True}}]
    return {"contextFeatures": context, "actions": ACTIONS, "eventId": event, **more}


def statuses(found: list[Any]) -> list[int]:
    return [one["status"] for one in found]


def encoded(content: bytes) -> str:
    return base64.b64encode(content).decode()


def test_the_older_package_ranks_rewards_and_activates(server: Process) -> None:
    found = drive(
        server.url,
        KEY,
        [
            ["old", "rank", [request("old-1", excludedActions=["Sports"])]],
            ["old", "events.reward", ["old-1", {"value": 0.7}]],
            ["old", "rank", [request("old-2", deferActivation=True)]],
            ["old", "events.activate", ["old-2"]],
            ["old", "events.reward", ["old-2", {"value": 1}]],
            ["old", "rank", [{"actions": []}]],
        ],
    )
    assert statuses(found) == [201, 204, 201, 204, 204, 400]
    assert found[0]["body"]["rewardActionId"] == "News"
    assert found[0]["body"]["ranking"][1] == {"id": "Sports", "probability": 0}
    assert found[1]["headers"]["x-coterie-reward"] == "applied"
    assert found[4]["headers"]["x-coterie-reward"] == "applied"
    assert found[5]["body"]["error"]["code"] == "InvalidRankRequest"


def test_the_rest_package_decides_and_logs(server: Process) -> None:
    slots = [{"id": "top", "baselineAction": "News"}, {"id": "side", "baselineAction": "Sports"}]
    worth = {"slotId": "top", "value": 1}
    context = {
        "user": {"id": "bob"},
        "_multi": [{"_tag": "News", "j": [{"type": "News"}]}, {"_tag": "Sports"}],
    }
    decided = json.dumps({"EventId": "own-1", "a": [2, 1], "p": [0.3, 0.7], "c": context}).encode()
    observed = json.dumps({"EventId": "own-1", "v": 1.0}).encode()
    found = drive(
        server.url,
        KEY,
        [
            ["rest", "post", "/rank", [], request("rest-1")],
            ["rest", "post", "/events/{eventId}/reward", ["rest-1"], {"value": 1}],
            ["rest", "post", "/rank", [], request("rest/2 é", deferActivation=True)],
            ["rest", "post", "/events/{eventId}/activate", ["rest/2 é"]],
            [
                "rest",
                "post",
                "/multislot/rank",
                [],
                {"actions": ACTIONS, "slots": slots, "eventId": "page-1"},
            ],
            ["rest", "post", "/multislot/events/{eventId}/reward", ["page-1"], {"reward": [worth]}],
            ["rest", "post", "/multislot/events/{eventId}/activate", ["page-1"]],
            ["rest", "post", "/logs/interactions", [], encoded(decided), FILE],
            ["rest", "post", "/logs/observations", [], encoded(observed), FILE],
            ["rest", "post", "/events/{eventId}/reward", ["rest-1"], {"value": 7}],
        ],
    )
    assert statuses(found) == [201, 204, 201, 204, 201, 204, 204, 204, 204, 400]
    assert found[0]["body"]["rewardActionId"] in ("News", "Sports")
    assert found[1]["headers"]["x-coterie-reward"] == "applied"
    assert found[3]["headers"]["x-coterie-activation"] == "activated"
    assert {slot["id"] for slot in found[4]["body"]["slots"]} == {"top", "side"}
    assert found[7]["headers"]["x-coterie-decisions"] == "new=1, known=0"
    assert found[8]["headers"]["x-coterie-reward"] == "applied=1"
    assert found[9]["body"]["error"]["code"] == "InvalidRewardRequest"


def test_the_rest_package_administers(server: Process) -> None:
    asked = ("/configurations/service", "/configurations/policy")
    first = drive(server.url, KEY, [["rest", "get", path, []] for path in asked])
    assert statuses(first) == [200, 200]
    wish = first[0]["body"] | {"rewardWaitTime": "PT15M", "learningMode": "Apprentice"}
    found = drive(
        server.url,
        KEY,
        [
            ["rest", "put", "/configurations/service", [], wish],
            ["rest", "put", "/configurations/service", [], first[0]["body"]],
            ["rest", "put", "/configurations/policy", [], {"name": "cab", "arguments": "--alpha 0.3"}],
            ["rest", "delete", "/configurations/policy", []],
            ["rest", "get", "/model/properties", []],
            ["rest", "get", "/logs/properties", []],
            ["rest", "put", "/model", [], encoded(b"no model"), FILE],
            ["rest", "delete", "/model", []],
            ["rest", "delete", "/logs", []],
        ],
    )
    assert statuses(found) == [200, 200, 200, 200, 200, 200, 400, 204, 204]
    assert found[0]["body"]["rewardWaitTime"] == "PT15M"
    assert found[2]["body"]["name"] == "cab"
    assert found[3]["body"] == first[1]["body"]
    assert found[6]["body"]["error"]["code"] == "InvalidModelImportFormat"
    assert [one["unexpected"] for one in found[:6]] == [False] * 6


def test_the_rest_package_evaluates(server: Process) -> None:
    ranks: list[Any] = []
    for k in range(30):
        ranks += [
            ["rest", "post", "/rank", [], request(f"evaluated-{k}")],
            ["rest", "post", "/events/{eventId}/reward", [f"evaluated-{k}"], {"value": k % 2}],
        ]
    drive(server.url, KEY, ranks)
    policy = {"name": "mine", "arguments": "--policy hierarchical --explore 0.25"}
    wish = {
        "name": "First",
        "startTime": "2020-01-01",
        "endTime": "2100-01-01T00:00:00Z",
        "policies": [policy],
    }
    wish["enableOfflineExperimentation"] = False  # type: ignore[assignment]
    (made,) = drive(server.url, KEY, [["rest", "post", "/evaluations", [], wish]])
    assert (made["status"], made["unexpected"], made["body"]["status"]) == (201, False, "pending")
    name = made["body"]["id"]
    assert made["headers"]["location"] == f"/personalizer/v1.1-preview.3/evaluations/{name}"
    end = time.monotonic() + 300
    while (found := drive(server.url, KEY, [["rest", "get", "/evaluations/{evaluationId}", [name]]])[0])[
        "body"
    ]["status"] == "pending":
        assert time.monotonic() < end
    assert found["body"]["status"] == "completed", found
    results = {one["policySource"]: one for one in found["body"]["policyResults"]}
    assert results.keys() == {"Online", "Baseline", "Random", "Custom"}
    total = results["Random"]["totalSummary"]
    assert total["ipsEstimatorDenominator"] >= 30
    assert 0 <= total["averageReward"] <= 1
    assert total["confidenceInterval"] > 0
    calls: list[Any] = [
        ["rest", "get", "/evaluations", []],
        [
            "rest",
            "post",
            "/configurations/applyFromEvaluation",
            [],
            {"evaluationId": name, "policyName": "mine"},
        ],
        ["rest", "get", "/configurations/policy", []],
        [
            "rest",
            "post",
            "/configurations/applyFromEvaluation",
            [],
            {"evaluationId": "none", "policyName": "mine"},
        ],
        ["rest", "delete", "/evaluations/{evaluationId}", [name]],
        ["rest", "get", "/evaluations/{evaluationId}", [name]],
    ]
    answers = drive(server.url, KEY, calls)
    assert statuses(answers) == [200, 204, 200, 404, 204, 404]
    assert [one["id"] for one in answers[0]["body"]] == [name]
    assert "--explore 0.25" in answers[2]["body"]["arguments"]
    assert answers[3]["body"]["error"]["message"] == "evaluation 'none' does not exist"
    assert answers[5]["body"]["error"]["code"] == "EvaluationNotFound"


ARTICLES = [{"id": name, "features": [{"type": name}]} for name in ("News", "Sports", "Entertainment")]
MAIN = {
    "id": "Main Article",
    "baselineAction": "News",
    "features": [{"Size": "Large", "Position": "Top Middle"}],
}
SIDE = {
    "id": "Side Bar",
    "baselineAction": "Sports",
    "features": [{"Size": "Small", "Position": "Bottom Right"}],
}
VISIT = [
    {"User": {"ProfileType": "AnonymousUser", "LatLong": "47.6,-122.1"}},
    {"Device": {"Mobile": True, "Windows": True}},
    {"RecentActivity": {"ItemsInCart": 3}},
]


def test_the_calls_of_the_packages_own_samples_work(server: Process) -> None:
    """Rank without an event id, then reward the id of the answer; the endpoint ends with a slash, as Azure's do."""
    plain = {"actions": ARTICLES, "contextFeatures": VISIT}
    url = f"{server.url}/"
    ranked = drive(
        url,
        KEY,
        [
            ["rest", "post", "/rank", [], plain],
            ["rest", "post", "/multislot/rank", [], plain | {"slots": [MAIN, SIDE]}],
            ["old", "rank", [plain]],
        ],
    )
    assert statuses(ranked) == [201, 201, 201]
    assert [one["unexpected"] for one in ranked[:2]] == [False, False]
    assert [slot["id"] for slot in ranked[1]["body"]["slots"]] == ["Main Article", "Side Bar"]
    single, slots, old = (one["body"]["eventId"] for one in ranked)
    worth = {"reward": [{"slotId": "Main Article", "value": 1}]}
    rewarded = drive(
        url,
        KEY,
        [
            ["rest", "post", "/events/{eventId}/reward", [single], {"value": 1}],
            ["rest", "post", "/multislot/events/{eventId}/reward", [slots], worth],
            ["old", "events.reward", [old, {"value": 1}]],
        ],
    )
    assert statuses(rewarded) == [204, 204, 204]
    assert [one["headers"]["x-coterie-reward"] for one in rewarded] == ["applied"] * 3
