"""A replay of Personalizer's traffic: every route in every version, with the status and the shape of Azure's answers.

The requests have the form of those in the examples of the REST specification and in the recorded tests of clients;
names and values are our own. A shape is an object of names and types: an answer has these names and no others,
besides those in `OWN`.
"""

import time
from collections.abc import Iterator
from typing import Any

import pytest
from litestar.testing import TestClient

from coterie.service.http.compatible import IN_PATH
from tests.service.personalizer.test_personalizer import client_of

LAST = "2022-09-01-preview"
VERSIONS = [*IN_PATH, LAST]
OWN = {"description", "jobId"}  # fields of the specification that Azure leaves out if they are empty
Number = (int, float)

VIEWER = [
    {"visitor": {"kind": "guest", "place": "52.5,13.4"}},
    {"moment": {"day": "3", "weather": "rain"}},
    {"moment": {"isWeekend": False, "hours": 0.25}},
    {"phone": {"mobile": True}},
]
FILMS = [
    {"id": "FilmA", "features": [{"kind": "comedy", "minutes": 90, "director": "X"}, {"likedBy": "20-25"}]},
    {"id": "FilmB", "features": [{"kind": "drama", "minutes": 120, "director": "Y"}, {"likedBy": "40-45"}]},
    {"id": "FilmC", "features": [{"kind": "drama", "minutes": 45, "director": "Z"}]},
]
TOP = {"id": "Top row", "features": [{"size": "large", "place": "left"}], "baselineAction": "FilmA"}
SIDE = {"id": "Side", "features": [{"size": "small"}], "baselineAction": "FilmB"}
VOWPAL = "--cb_explore_adf --quadratic GT --quadratic MR --ignore A --cb_type ips --epsilon 0.2"
SLOTS_OF_VOWPAL = "--ccb_explore_adf --epsilon 0.20000000298023224 --power_t 0 -l 0.001 --cb_type mtr -q ::"
HYPER = "--cb_explore_adf --epsilon 0.2 --dsjson --cb_type ips -l 0.5 --l1 1E-07 --power_t 0.5"
TIMES = {"startTime": "2020-01-01", "endTime": "2100-01-01T00:00:00Z"}

RANKED = {"ranking": [{"id": str, "probability": Number}], "eventId": str, "rewardActionId": str}
SLOTTED = {"slots": [{"id": str, "rewardActionId": str}], "eventId": str}
POLICY = {"name": str, "arguments": str}
CONFIGURED = {
    "rewardWaitTime": str,
    "defaultReward": Number,
    "rewardAggregation": str,
    "explorationPercentage": Number,
    "modelExportFrequency": str,
    "logMirrorEnabled": bool,
    "logRetentionDays": int,
    "lastConfigurationEditDate": str,
    "learningMode": str,
    "isAutoOptimizationEnabled": bool,
    "autoOptimizationFrequency": str,
    "autoOptimizationStartDate": str,
    "modelRetrainDays": int,
    "isInferenceExplainabilityEnabled": bool,
}
SUM = {
    "timeStamp": str,
    "ipsEstimatorNumerator": Number,
    "ipsEstimatorDenominator": Number,
    "snipsEstimatorDenominator": Number,
    "aggregateTimeWindow": str,
    "nonZeroProbability": Number,
    "sumOfSquares": Number,
    "confidenceInterval": Number,
    "averageReward": Number,
}
DATED = {"id": str, "name": str, "startTime": str, "endTime": str, "creationTime": str, "status": str}
LISTED_RESULT = {"name": str, "arguments": str, "policySource": str, "totalSummary": SUM}
EVALUATION = DATED | {
    "evaluationType": str,
    "optimalPolicy": str,
    "policyResults": [LISTED_RESULT | {"summary": [SUM]}],
    "featureImportance": [[str]],
}
LISTED = EVALUATION | {"policyResults": [LISTED_RESULT]}
WORTH = {"expectedReward": Number, "confidenceInterval": [Number]}
CONTENT = {
    "startTime": str,
    "endTime": str,
    "intervalInMinutes": int,
    "value": [
        {
            "name": str,
            "arguments": str,
            "slotId": str,
            "policySource": str,
            "summary": WORTH,
            "timeseries": {"data": [WORTH | {"timeStamp": str}]},
        }
    ],
}
LAST_EVALUATION = DATED | {"evaluationType": str, "content": CONTENT}
IMPORTANCE = DATED | {"featureScores": [{"namespace": str, "featureName": str, "score": Number}]}
NOTHING = None  # an empty body
ERROR = {"error": {"code": str, "message": str, "details": list}}

# Decisions: the name of the request, its path and body, Azure's status, and the shape of the answer.
DECISIONS: list[tuple[str, str, Any, int, Any]] = [
    ("one action", "/rank", {"actions": FILMS[:1]}, 201, RANKED),
    ("no context", "/rank", {"actions": FILMS[:2], "eventId": "{e}1"}, 201, RANKED),
    ("context", "/rank", {"contextFeatures": VIEWER, "actions": FILMS[:2]}, 201, RANKED),
    (
        "excluded",
        "/rank",
        {"contextFeatures": VIEWER, "actions": FILMS, "excludedActions": ["FilmB"], "eventId": "{e}2"},
        201,
        RANKED,
    ),
    ("deferred", "/rank", {"actions": FILMS, "eventId": "{e}3", "deferActivation": True}, 201, RANKED),
    (
        "nulls",
        "/rank",
        {"contextFeatures": None, "actions": FILMS, "excludedActions": None, "eventId": None},
        201,
        RANKED,
    ),
    (
        "empty features",
        "/rank",
        {"actions": [{"id": "FilmA", "features": []}], "contextFeatures": []},
        201,
        RANKED,
    ),
    ("reward", "/events/{e}2/reward", {"value": 0.5}, 204, NOTHING),
    ("whole reward", "/events/{e}1/reward", {"value": 1}, 204, NOTHING),
    ("reward of an unknown event", "/events/987654321/reward", {"value": 1.0}, 204, NOTHING),
    ("activate", "/events/{e}3/activate", None, 204, NOTHING),
    ("activate an unknown event", "/events/987654321/activate", None, 204, NOTHING),
    (
        "slots",
        "/multislot/rank",
        {"contextFeatures": VIEWER, "actions": FILMS, "slots": [TOP, SIDE], "eventId": "{e}4"},
        201,
        SLOTTED,
    ),
    (
        "slots that exclude",
        "/multislot/rank",
        {"actions": FILMS, "slots": [TOP | {"excludedActions": ["FilmB", "FilmC"]}, SIDE]},
        201,
        SLOTTED,
    ),
    (
        "slots with positions",
        "/multislot/rank",
        {
            "actions": FILMS,
            "slots": [
                {"id": "Top row", "positionFeatures": [{"size": "large"}], "baselineAction": "FilmA"},
                SIDE,
            ],
            "eventId": "{e}5",
            "deferActivation": True,
        },
        201,
        SLOTTED,
    ),
    (
        "reward a slot",
        "/multislot/events/{e}4/reward",
        {"reward": [{"slotId": "Top row", "value": 1}]},
        204,
        NOTHING,
    ),
    (
        "reward an unknown slot too",
        "/multislot/events/{e}4/reward",
        {"reward": [{"slotId": "testSlot", "value": 1}, {"slotId": "Side", "value": 0.5}]},
        204,
        NOTHING,
    ),
    (
        "reward slots of an unknown event",
        "/multislot/events/987654321/reward",
        {"reward": [{"slotId": "Top row", "value": 1}]},
        204,
        NOTHING,
    ),
    ("activate slots", "/multislot/events/{e}5/activate", None, 204, NOTHING),
    ("activate slots of an unknown event", "/multislot/events/987654321/activate", None, 204, NOTHING),
    ("no action", "/rank", {"actions": []}, 400, ERROR),
    ("too high a reward", "/events/{e}1/reward", {"value": 11}, 400, ERROR),
]

SAVED = {
    "rewardAggregation": "average",
    "modelExportFrequency": "PT3M",
    "defaultReward": 1.0,
    "modelRetrainDays": 0,
    "rewardWaitTime": "PT4H",
    "explorationPercentage": 0.3,
    "logRetentionDays": -1,
    "learningMode": "Online",
}
CLOCKS = {"rewardWaitTime": "00:10:00", "modelExportFrequency": "00:05:00", "defaultReward": 0.0}
MIRROR = {"logMirrorEnabled": True, "logMirrorSasUri": "https://store.example/logs?sig=x"}
OPTIMISED = {"isAutoOptimizationEnabled": True, "autoOptimizationFrequency": "P7D"}
OPTIMISED |= {"autoOptimizationStartDate": "2019-01-19T00:00:00Z"}

# Administration: the method, the path and body, Azure's status, and the shape of the answer.
ADMINISTRATION: list[tuple[str, str, Any, int, Any]] = [
    ("GET", "/configurations/service", None, 200, CONFIGURED),
    ("PUT", "/configurations/service", SAVED, 200, CONFIGURED),
    ("PUT", "/configurations/service", CLOCKS, 200, CONFIGURED),
    ("PUT", "/configurations/service", SAVED | MIRROR | OPTIMISED, 200, CONFIGURED),
    ("GET", "/configurations/policy", None, 200, POLICY),
    ("PUT", "/configurations/policy", {"name": "app1", "arguments": VOWPAL}, 200, POLICY),
    ("GET", "/configurations/policy", None, 200, POLICY),
    ("PUT", "/configurations/policy", {"name": "slots", "arguments": SLOTS_OF_VOWPAL}, 200, POLICY),
    ("DELETE", "/configurations/policy", None, 200, POLICY),
    ("GET", "/model/properties", None, 200, {"creationTime": str, "lastModifiedTime": str}),
    ("GET", "/logs/properties", None, 200, {"dateRange": {"from": str, "to": str}}),
    ("DELETE", "/model", None, 204, NOTHING),
    ("DELETE", "/logs", None, 204, NOTHING),
    ("GET", "/logs/properties", None, 200, {}),
    ("GET", "/evaluations/unknown", None, 404, ERROR),
    ("DELETE", "/evaluations/unknown", None, 404, ERROR),
    ("POST", "/configurations/applyFromEvaluation", {"evaluationId": "no", "policyName": "x"}, 404, ERROR),
]


def misfits(value: Any, shape: Any, where: str = "") -> Iterator[str]:
    """Yield where a value differs from a shape."""
    if isinstance(shape, dict):
        if not isinstance(value, dict):
            yield f"{where} is {value!r}, expected an object"
            return
        for name in shape.keys() ^ value.keys():
            if name in shape or name not in OWN | {"target", "innerError"}:
                yield f"{where}.{name} is {'missing' if name in shape else 'not Azure’s'}"
        for name in shape.keys() & value.keys():
            yield from misfits(value[name], shape[name], f"{where}.{name}")
    elif isinstance(shape, list):
        if not isinstance(value, list):
            yield f"{where} is {value!r}, expected a list"
            return
        for part in value:
            yield from misfits(part, shape[0], f"{where}[]")
    elif not isinstance(value, shape) or (isinstance(value, bool) and shape is not bool):
        yield f"{where} is {value!r}, expected {shape}"


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient[Any]]:
    with client_of(tmp_path_factory.mktemp("replay")) as made:
        yield made


def send(
    client: TestClient[Any], version: str, method: str, path: str, body: Any = None, **query: Any
) -> Any:
    base = "/personalizer" if version == LAST else f"/personalizer/{version}"
    given = {} if body is None else {"json": body}
    return client.request(method, base + path, params=query | {"api-version": LAST}, **given)


def check(answer: Any, status: int, shape: Any) -> None:
    assert answer.status_code == status, answer.text
    if shape is NOTHING:
        assert answer.content == b""
    else:
        assert [*misfits(answer.json(), shape)] == []
    if status >= 400:
        assert answer.headers["x-ms-error-code"] == answer.json()["error"]["code"]


@pytest.mark.parametrize("version", VERSIONS)
def test_decisions_are_answered_as_azure_answered_them(client: TestClient[Any], version: str) -> None:
    for _, path, body, status, shape in DECISIONS:
        filled = None if body is None else dict(body)
        if filled and isinstance(filled.get("eventId"), str):
            filled["eventId"] = filled["eventId"].replace("{e}", f"{version} ")
        answer = send(client, version, "POST", path.replace("{e}", f"{version} "), filled)
        check(answer, status, shape)
        if shape is RANKED and filled:
            listed = [film["id"] for film in filled["actions"]]
            ids = [one["id"] for one in answer.json()["ranking"]]
            assert sorted(ids) == sorted(listed)
            for name in filled.get("excludedActions") or ():
                assert ids.index(name) == listed.index(name)


@pytest.mark.parametrize("version", VERSIONS)
def test_administration_is_answered_as_azure_answered_it(client: TestClient[Any], version: str) -> None:
    check(send(client, version, "POST", "/rank", {"actions": FILMS}), 201, RANKED)
    before = send(client, version, "GET", "/configurations/service").json()
    for method, path, body, status, shape in ADMINISTRATION:
        answer = send(client, version, method, path, body)
        check(answer, status, shape)
        if body is not None and shape is POLICY:
            assert answer.json() == body
    model = send(client, version, "GET", "/model", signed="false")
    assert (model.status_code, model.headers["content-type"]) == (200, "application/octet-stream")
    assert model.headers["content-disposition"].startswith("attachment; filename=")
    assert model.headers["last-modified"].endswith("GMT")
    base = "/personalizer" if version == LAST else f"/personalizer/{version}"
    file = {"content-type": "application/octet-stream"}
    back = client.put(f"{base}/model", content=model.content, headers=file)
    check(back, 204, NOTHING)
    check(send(client, version, "PUT", "/configurations/service", before), 200, CONFIGURED)


def until_done(client: TestClient[Any], version: str, path: str) -> Any:
    end = time.monotonic() + 300
    while (found := send(client, version, "GET", path)).json()["status"] in (
        "pending",
        "Running",
        "NotSubmitted",
    ):
        assert time.monotonic() < end
        time.sleep(0.05)
    return found


def make(client: TestClient[Any], version: str) -> str:
    """Make an evaluation as clients of the version do, and return its path."""
    for k in range(30):
        event = f"evaluated {version} {k}"
        body = {"contextFeatures": VIEWER, "actions": FILMS, "eventId": event}
        shown = send(client, version, "POST", "/rank", body).json()["rewardActionId"]
        send(client, version, "POST", f"/events/{event}/reward", {"value": float(shown == "FilmA")})
    wanted: dict[str, Any] = {
        "name": "first",
        **TIMES,
        "policies": [{"name": "Custom learning settings 1", "arguments": HYPER}],
    }
    if version == LAST:
        wanted["enablePolicyOptimization"] = False
        check(send(client, version, "PUT", "/evaluations/mine", wanted), 200, NOTHING)
        path = "/evaluations/mine"
        running = send(client, version, "GET", path)
        assert {*misfits(running.json(), LAST_EVALUATION)} <= {
            ".optimalPolicy is not Azure’s"
        }  # if it is done
        listed = send(client, version, "GET", "/evaluations", top=200, skip=0, maxpagesize=50).json()
        assert listed.keys() == {"value"}
        return path
    made = send(client, version, "POST", "/evaluations", wanted | {"enableOfflineExperimentation": False})
    check(made, 201, EVALUATION)
    assert (made.json()["status"], made.json()["optimalPolicy"], made.json()["policyResults"]) == (
        "pending",
        "",
        [],
    )
    assert made.headers["location"].endswith(made.json()["id"])
    check(send(client, version, "GET", f"/evaluations/{made.json()['id']}"), 200, EVALUATION)
    return f"/evaluations/{made.json()['id']}"


@pytest.mark.parametrize(
    "version", [*(pytest.param(one, marks=pytest.mark.slow) for one in IN_PATH[:-1]), *VERSIONS[-2:]]
)
def test_evaluations_are_answered_as_azure_answered_them(client: TestClient[Any], version: str) -> None:
    path = make(client, version)
    done = until_done(client, version, path)
    shape = LAST_EVALUATION | {"optimalPolicy": str} if version == LAST else EVALUATION
    check(done, 200, shape)
    assert done.json()["status"] in ("completed", "Succeeded"), done.text
    results = done.json()["content"]["value"] if version == LAST else done.json()["policyResults"]
    assert {"online", "baseline1", "baselineRand", "Custom learning settings 1"} <= {
        one["name"] for one in results
    }
    listed = send(client, version, "GET", "/evaluations").json()
    rows = listed["value"] if version == LAST else listed
    less = DATED | {"evaluationType": str, "optimalPolicy": str} if version == LAST else LISTED
    assert [wrong for row in rows for wrong in misfits(row, less)] == []
    if version != LAST:
        assert all(isinstance(group, list) and group for group in done.json()["featureImportance"])
        assert done.json()["featureImportance"]
    for name, status in (("online", 204), ("Custom learning settings 1", 204), ("baseline1", 403)):
        reference = {"evaluationId": path.rpartition("/")[2], "policyName": name}
        applied = send(client, version, "POST", "/configurations/applyFromEvaluation", reference)
        check(applied, status, NOTHING if status == 204 else ERROR)
    send(client, version, "DELETE", "/configurations/policy")
    check(send(client, version, "DELETE", path), 204, NOTHING)
    check(send(client, version, "GET", path), 404, ERROR)


def test_feature_importances_are_answered_as_azure_answered_them(client: TestClient[Any]) -> None:
    send(client, LAST, "POST", "/rank", {"contextFeatures": VIEWER, "actions": FILMS})
    check(send(client, LAST, "PUT", "/featureImportances/fi", {"name": "features", **TIMES}), 200, NOTHING)
    check(send(client, LAST, "GET", "/featureImportances/fi"), 200, IMPORTANCE)
    check(until_done(client, LAST, "/featureImportances/fi"), 200, IMPORTANCE)
    rows = send(client, LAST, "GET", "/featureImportances", top=200, skip=0, maxpagesize=50).json()["value"]
    assert [wrong for row in rows for wrong in misfits(row, DATED)] == []
    check(send(client, LAST, "DELETE", "/featureImportances/fi"), 204, NOTHING)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("kind", ["application/octet-stream", "application/json"])
def test_decisions_of_clients_are_answered_as_azure_answered_them(
    client: TestClient[Any], version: str, kind: str
) -> None:
    base = "/personalizer" if version == LAST else f"/personalizer/{version}"
    event = f"own {version} {kind}"
    decision = f'{{"EventId": "{event}", "a": [1, 2], "p": [0.8, 0.2], "c": {{"_multi": [{{}}, {{}}]}}}}'
    for path, body in (("interactions", decision), ("observations", f'{{"EventId": "{event}", "v": 1.0}}')):
        answer = client.post(f"{base}/logs/{path}", content=body, headers={"content-type": kind})
        check(answer, 204, NOTHING)


def test_the_shapes_find_what_differs() -> None:
    assert [*misfits({"a": 1, "b": [{"c": "x"}]}, {"a": int, "b": [{"c": str}]})] == []
    assert [*misfits({"a": True}, {"a": Number})] == [".a is True, expected (<class 'int'>, <class 'float'>)"]
    assert {*misfits({"b": 1}, {"a": int})} == {".a is missing", ".b is not Azure’s"}
