"""The examples of Personalizer's REST specification, sent in every version that has them; the answers are counted.

Each is the request of the example, literally. What an example takes for granted (an evaluation, a decision) is made
before. The page about the move says how many answers are equal, and why the others are not.
"""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from litestar.testing import TestClient

from tests.service.personalizer.test_personalizer import client_of
from tests.service.personalizer.test_replay import (
    CONFIGURED,
    DATED,
    EVALUATION,
    IMPORTANCE,
    LAST,
    LAST_EVALUATION,
    LISTED,
    NOTHING,
    POLICY,
    RANKED,
    SLOTTED,
    VERSIONS,
    misfits,
    send,
)

PAGE = Path(__file__).parents[3] / "docs" / "migrate-from-personalizer.md"
EVENT, JOB = "75269AD0-BFEE-4598-8196-C57383D38E10", "b58c6d92-b727-48c1-9487-4be2782c9e0a"
ARGUMENTS = "--cb_explore_adf --epsilon 0.2 --dsjson --cb_type ips -l 0.5 --l1 1E-07 --power_t 0.5"
ACTIONS = [
    {"id": f"{kind}Article", "features": [{"type": kind}]} for kind in ("News", "Sports", "Entertainment")
]
AROUND = [
    {"user": {"profileType": "AnonymousUser", "latLong": "47.6,-122.1"}},
    {"environment": {"dayOfMonth": "28", "monthOfYear": "8", "weather": "Sunny"}},
    {"device": {"mobile": True, "windows": True}},
    {"recentActivity": {"itemsInCart": 3}},
]
RANK = {
    "contextFeatures": AROUND,
    "actions": ACTIONS,
    "excludedActions": ["SportsArticle"],
    "eventId": EVENT,
    "deferActivation": False,
}
MAIN = {
    "id": "Main Article",
    "features": [{"size": "Large", "position": "Top Middle"}],
    "excludedActions": ["SportsArticle"],
    "baselineAction": "EntertainmentArticle",
}
SIDE = {"id": "Side Bar", "features": [{"size": "Small"}], "baselineAction": "NewsArticle"}
SLOTS = {
    "contextFeatures": AROUND,
    "actions": ACTIONS,
    "slots": [MAIN, SIDE],
    "eventId": EVENT,
    "deferActivation": False,
}
WORTH = {"reward": [{"slotId": "Heroposition", "value": 0.5}, {"slotId": "SideBar", "value": 0.6}]}
SAVED = {
    "rewardWaitTime": "PT10M",
    "defaultReward": 0,
    "rewardAggregation": "earliest",
    "explorationPercentage": 0.2,
    "modelExportFrequency": "PT5M",
    "logMirrorEnabled": True,
    "logMirrorSasUri": "https://testblob.example/container?se=2020-08-13T00%3A00Z&sp=rwl&sig=signature",
    "logRetentionDays": 7,
}
LATER = {
    "lastConfigurationEditDate": "2019-01-19T00:00:00Z",
    "learningMode": "Online",
    "isAutoOptimizationEnabled": True,
    "autoOptimizationFrequency": "P7D",
    "autoOptimizationStartDate": "2019-01-19T00:00:00Z",
}
CLOCKS = SAVED | {"rewardWaitTime": "00:10:00", "modelExportFrequency": "00:05:00"}
CUSTOM = {"name": "Custom learning settings 1", "arguments": ARGUMENTS}
ASKED = {
    "name": "myFirstEvaluation",
    "startTime": "2018-12-19T00:00:00Z",
    "endTime": "2019-01-19T00:00:00Z",
    "policies": [CUSTOM],
}
WEEK = {"startTime": "2019-01-12T00:00:00Z", "endTime": "2019-01-19T00:00:00Z"}
PAGED = {"maxpagesize": 50, "skip": 0, "top": 200}
SECRET = CONFIGURED | {"logMirrorSasUri": str}
MADE = {"creationTime": str, "lastModifiedTime": str}
FILE, BYTES = object(), "application/octet-stream"


class Example(NamedTuple):
    """A request of the specification, in the versions from `since` on, and what its answer is."""

    name: str
    since: int
    method: str
    path: str
    status: int
    shape: Any
    body: Any = None
    until: int = 4


EXAMPLES = [
    Example("ServiceConfiguration_Update", 0, "PUT", "/configurations/service", 200, SECRET, CLOCKS, 0),
    Example("ServiceConfiguration_Update", 1, "PUT", "/configurations/service", 200, SECRET, SAVED | LATER),
    Example("ServiceConfiguration_Get", 0, "GET", "/configurations/service", 200, SECRET),
    Example("Policy_Update", 0, "PUT", "/configurations/policy", 200, POLICY, CUSTOM | {"name": "myPersonalizer"}),
    Example("Policy_Get", 0, "GET", "/configurations/policy", 200, POLICY),
    Example("Policy_Reset", 0, "DELETE", "/configurations/policy", 200, POLICY),
    Example("Rank", 0, "POST", "/rank", 201, RANKED, RANK | {"contextFeatures": [{"timeOfDay": "Morning"}]}, 0),
    Example("Rank", 1, "POST", "/rank", 201, RANKED, RANK),
    Example("Events_Reward", 0, "POST", "/events/id/reward", 204, NOTHING, {"value": 1}),
    Example("Events_Activate", 0, "POST", "/events/id/activate", 204, NOTHING),
    Example("Log_GetProperties", 0, "GET", "/logs/properties", 200, {"dateRange": {"from": str, "to": str}}),
    Example("Log_Interactions", 2, "POST", "/logs/interactions", 204, NOTHING, b"id"),
    Example("Log_Observations", 2, "POST", "/logs/observations", 204, NOTHING, b"id"),
    Example("Model_Get", 0, "GET", "/model", 200, FILE),
    Example("Model_Import", 3, "PUT", "/model", 204, NOTHING, b"id"),
    Example("Model_GetProperties", 0, "GET", "/model/properties", 200, MADE),
    Example("Model_Reset", 0, "DELETE", "/model", 204, NOTHING),
    Example(
        "Evaluations_Create", 0, "POST", "/evaluations", 201, EVALUATION,
        ASKED | {"enableOfflineExperimentation": True}, 3,
    ),
    Example(
        "Evaluations_Create", 4, "PUT", "/evaluations/id", 200, NOTHING, ASKED | {"enablePolicyOptimization": True}
    ),
    Example("Evaluations_List", 0, "GET", "/evaluations", 200, [LISTED], None, 3),
    Example("Evaluations_List", 4, "GET", "/evaluations", 200, {"value": [DATED | {"evaluationType": str}]}, PAGED),
    Example("Evaluations_Get", 0, "GET", f"/evaluations/{JOB}", 200, EVALUATION, None, 3),
    Example("Evaluations_Get", 4, "GET", f"/evaluations/{JOB}", 200, LAST_EVALUATION, WEEK | {"window": "Expanding"}),
    Example(
        "Evaluations_Apply", 1, "POST", "/configurations/applyFromEvaluation", 204, NOTHING,
        {"evaluationId": JOB, "policyName": "online"},
    ),
    Example("Evaluations_Delete", 0, "DELETE", f"/evaluations/{JOB}", 204, NOTHING),
    Example(
        "FeatureImportances_Create", 4, "PUT", "/featureImportances/id", 200, NOTHING,
        WEEK | {"name": "myFeatureImportance"},
    ),
    Example("FeatureImportances_List", 4, "GET", "/featureImportances", 200, {"value": [DATED]}, PAGED),
    Example("FeatureImportances_Get", 4, "GET", f"/featureImportances/{JOB}", 200, IMPORTANCE),
    Example("FeatureImportances_Delete", 4, "DELETE", f"/featureImportances/{JOB}", 204, NOTHING),
    Example("MultiSlot_Rank", 1, "POST", "/multislot/rank", 201, SLOTTED, SLOTS),
    Example("MultiSlotEvents_Reward", 1, "POST", "/multislot/events/id/reward", 204, NOTHING, WORTH),
    Example("MultiSlotEvents_Activate", 1, "POST", "/multislot/events/id/activate", 204, NOTHING),
    Example("Log_Delete", 0, "DELETE", "/logs", 204, NOTHING),
]  # fmt: skip

# What is different, and the words with which the page says why.
STATUSES = {
    "Evaluations_Create": "a time in which the log has no decision",
    "FeatureImportances_Create": "a time in which the log has no decision",
    "Log_Interactions": "that hold no decision or reward",
    "Log_Observations": "that hold no decision or reward",
    "Model_Import": "Models of Personalizer cannot be read",
}
SHAPES = dict.fromkeys(
    ("ServiceConfiguration_Update", "ServiceConfiguration_Get"), "Secrets of other services"
)


@pytest.fixture
def client(tmp_path: Path) -> Iterator[TestClient[Any]]:
    with client_of(tmp_path) as made:
        yield made


@pytest.fixture
def slots(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient[Any]]:
    """Another loop, because the example of slots has the event id of the one without."""
    with client_of(tmp_path_factory.mktemp("slots")) as made:
        yield made


def asked(client: TestClient[Any], version: str, one: Example) -> Any:
    base = "/personalizer" if version == LAST else f"/personalizer/{version}"
    if isinstance(one.body, bytes):
        return client.request(one.method, base + one.path, content=one.body, headers={"content-type": BYTES})
    if one.method == "GET":
        return send(client, version, "GET", one.path, **(one.body or {}))
    return send(client, version, one.method, one.path, one.body)


def test_the_examples_are_answered_as_the_specification_says(
    client: TestClient[Any], slots: TestClient[Any]
) -> None:
    count: Counter[str] = Counter()
    statuses, shapes = set(), set()
    for number, version in enumerate(VERSIONS):
        send(client, version, "POST", "/rank", {"actions": ACTIONS, "eventId": f"before {number}"})
        times = {"name": "before", "startTime": "2019-01-01", "endTime": "2100-01-01"}
        for path in (f"/evaluations/{JOB}", f"/featureImportances/{JOB}"):
            assert send(client, version, "PUT", path, times).status_code == 200
        for one in EXAMPLES:
            if not one.since <= number <= one.until:
                continue
            answer = asked(slots if one.name.startswith("MultiSlot") else client, version, one)
            alike = answer.status_code == one.status
            if not alike:
                statuses.add(one.name)
                assert answer.json()["error"]["code"] == answer.headers["x-ms-error-code"], answer.text
            elif one.shape is NOTHING or one.shape is FILE:
                alike = (one.shape is NOTHING) == (answer.content == b"")
            else:
                found = {*misfits(answer.json(), one.shape)} - {
                    ".optimalPolicy is not Azure’s"
                }  # if it is done
                alike = not found
                if found:
                    shapes.add(one.name)
                    assert found == {".logMirrorSasUri is missing"}, (one.name, found)
            count.update(all=1, status=answer.status_code == one.status, shape=alike)
        send(client, version, "DELETE", f"/featureImportances/{JOB}")
    line = f"equal in status: {count['status']} of {count['all']}; equal in shape: {count['shape']} of {count['all']}"
    print(line)
    assert (statuses, shapes) == (set(STATUSES), set(SHAPES))
    page = " ".join(PAGE.read_text().split())
    assert line in page, line
    for why in {*STATUSES.values(), *SHAPES.values()}:
        assert why in page
