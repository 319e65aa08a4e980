"""The compatible API to the letter: bodies, codes and headers in both forms, users in the context, slots."""

import asyncio
import doctest
import itertools
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import pytest
from hypothesis import given
from hypothesis import strategies as st
from litestar.testing import TestClient

from coterie.data.logs.interactions import open_interactions
from coterie.data.logs.records import decode
from coterie.data.logs.rules import Config
from coterie.errors import FileError
from coterie.service import durations
from coterie.service.coordination.coordinator import Coordinator
from coterie.service.coordination.slots import narrow
from coterie.service.core.bandit import Bandit
from coterie.service.core.policy_config import make_policy
from coterie.service.core.question import Action, Question
from coterie.service.files.model_file import export_model, import_model
from coterie.service.files.payoffs import payoffs_of
from coterie.service.http.compatible import Refusal
from coterie.service.log.sqlite_store import SqliteStore
from coterie.service.personalizer import configuration as personalizer_configuration
from coterie.service.personalizer import user as personalizer_user
from coterie.service.problems import Problem
from coterie.service.serve import make_app
from coterie.service.settings import Settings
from coterie.service.snapshots.recovery import recover
from tests.service.helpers import START, ask, bandit, decide

V1, PREVIEW = "/personalizer/v1.0", "/personalizer"
FORMS = [V1, PREVIEW, *(f"/personalizer/v1.1-preview.{k}" for k in (1, 2, 3))]
APPLY = {"evaluationId": "e9", "policyName": "best"}
EVALUATION = {
    "name": "mine",
    "startTime": "2000-01-01T00:00:00Z",
    "endTime": "2100-01-01T00:00:00Z",
    "policies": [],
}
CAB = {"name": "cab", "arguments": "--alpha 0.1"}
FILES = {"name": "mine", "arguments": "--cb_explore_adf --epsilon 0.2 --final_regressor stolen"}
DESKS: WeakKeyDictionary[Any, Coordinator] = WeakKeyDictionary()  # what stands behind a client
VERSION = {"api-version": "2022-09-01-preview"}


@contextmanager
def client_of(folder: Path, **more: Any) -> Iterator[TestClient[Any]]:
    chosen = Settings(store=str(folder / "log.db"), **more)
    app: Any = make_app(chosen, SqliteStore(chosen.store))
    with TestClient(app, base_url="http://127.0.0.1") as client:
        DESKS[client] = app.app.state.coordinator
        client.params = VERSION  # which the first form does not mind
        yield client


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient[Any]]:
    with client_of(tmp_path_factory.mktemp("compatible"), config=Config(exploration=0.0)) as made:
        yield made


ACTIONS = [{"id": "NewsArticle", "features": [{"type": "News"}]}, {"id": "b", "features": [{"type": "S"}]}]


@pytest.mark.parametrize("base", FORMS)
def test_the_published_example_is_answered_to_the_letter(client: TestClient[Any], base: str) -> None:
    event = f"75269AD0-{FORMS.index(base)}"
    body = {
        "contextFeatures": [{"user": {"profileType": "AnonymousUser"}}, {"device": {"mobile": True}}],
        "actions": ACTIONS,
        "excludedActions": ["b"],
        "eventId": event,
        "deferActivation": False,
    }
    answer = client.post(f"{base}/rank", json=body)
    assert answer.status_code == 201
    assert answer.json() == {
        "ranking": [{"id": "NewsArticle", "probability": 1.0}, {"id": "b", "probability": 0.0}],
        "eventId": event,
        "rewardActionId": "NewsArticle",
    }
    rewarded = client.post(f"{base}/events/{event}/reward", json={"value": 0.7})
    assert (rewarded.status_code, rewarded.content) == (204, b"")
    assert rewarded.headers["x-coterie-reward"] == "applied"
    activated = client.post(f"{base}/events/{event}/activate")
    assert (activated.status_code, activated.content) == (204, b"")


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "code"),
    [
        ("POST", "/rank", {}, 400, "InvalidRankRequest"),
        ("POST", "/rank", {"actions": [{"id": "a" * 257}]}, 400, "InvalidRankRequest"),
        ("POST", "/rank", {"actions": [{"id": "a"}], "eventId": "e" * 257}, 400, "InvalidRankRequest"),
        ("POST", "/rank", {"actions": [{"id": "a"}], "excludedActions": ["a"]}, 400, "InvalidRankRequest"),
        ("POST", "/rank", {"actions": [{"id": str(k)} for k in range(51)]}, 413, "PayloadSizeExceeded"),
        ("POST", "/events/e/reward", {"value": 1.1}, 400, "InvalidRewardRequest"),
        ("POST", "/events/e/reward", {"value": "NaN"}, 400, "InvalidRewardRequest"),
        ("POST", "/multislot/rank", {"actions": [{"id": "a"}], "slots": []}, 400, "InvalidRankRequest"),
        ("POST", "/multislot/events/e/reward", {"reward": []}, 400, "InvalidRewardRequest"),
        ("PUT", "/configurations/service", {"defaultReward": 2}, 400, "InvalidServiceConfiguration"),
        ("PUT", "/configurations/service", {"rewardWaitTime": "P3D"}, 400, "InvalidRewardWaitTime"),
        ("PUT", "/configurations/service", {"rewardWaitTime": "soon"}, 400, "InvalidRewardWaitTime"),
        (
            "PUT",
            "/configurations/service",
            {"autoOptimizationFrequency": "PT1M"},
            400,
            "InvalidServiceConfiguration",
        ),
        (
            "PUT",
            "/configurations/service",
            {"autoOptimizationStartDate": "soon"},
            400,
            "InvalidServiceConfiguration",
        ),
        ("PUT", "/configurations/policy", {"name": "cab"}, 400, "InvalidPolicyConfiguration"),
        ("GET", "/evaluations/e", None, 404, "EvaluationNotFound"),
        ("POST", "/configurations/applyFromEvaluation", APPLY, 404, "EvaluationNotFound"),
        (
            "POST",
            "/configurations/applyFromEvaluation",
            APPLY | {"policyName": "online"},
            404,
            "EvaluationNotFound",
        ),
        ("POST", "/configurations/applyFromEvaluation", {}, 400, "BadRequest"),
        ("PUT", "/evaluations/e", {}, 400, "InvalidEvaluationContract"),
        ("PUT", "/evaluations/e", EVALUATION | {"startTime": "soon"}, 400, "InvalidEvaluationContract"),
        ("PUT", "/evaluations/e", EVALUATION | {"endTime": "2001-01-01"}, 400, "NoLogsExistInDateRange"),
        ("PUT", "/evaluations/e", EVALUATION | {"policies": [FILES]}, 400, "InvalidPolicyContract"),
        ("PUT", "/configurations/policy", FILES, 400, "InvalidPolicyConfiguration"),
        ("PUT", "/evaluations/e", EVALUATION | {"policies": [CAB, CAB]}, 400, "DuplicateCustomPolicyNames"),
        ("PUT", "/evaluations/e", EVALUATION | {"endTime": "1999-01-01"}, 400, "InvalidEvaluationContract"),
        ("DELETE", "/evaluations/e", None, 404, "EvaluationNotFound"),
        ("PUT", "/featureImportances/e", {}, 400, "InvalidEvaluationContract"),
        ("GET", "/featureImportances/e", None, 404, "ResourceNotFound"),
        ("GET", "/nowhere", None, 404, "ResourceNotFound"),
        ("PATCH", "/rank", {}, 405, "OperationNotAllowed"),
    ],
)
def test_errors_have_the_contracts_shape(
    client: TestClient[Any], method: str, path: str, body: Any, status: int, code: str
) -> None:
    for base in FORMS:
        answer = client.request(method, base + path, json=body)
        assert (answer.status_code, answer.headers["x-ms-error-code"]) == (status, code)
        error = answer.json()["error"]
        assert error["code"] == code
        assert error["message"]


def test_what_cannot_be_applied_is_named(client: TestClient[Any]) -> None:
    answer = client.post(f"{V1}/configurations/applyFromEvaluation", json=APPLY)
    assert answer.json()["error"]["message"] == "evaluation 'e9' does not exist"


def test_the_versions_are_labels_of_their_own_in_the_metrics(client: TestClient[Any]) -> None:
    client.get("/personalizer/v1.1-preview.3/status")
    assert 'route="/personalizer/v1.1-preview.3/status"' in client.get("/metrics").text


def in_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def test_the_policy_is_shown_without_holding_up_the_event_loop(
    client: TestClient[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its defaults are read off a policy that is made for it, which takes as long as a large decision."""
    in_the_loop: list[bool] = []

    def noted(*given: Any) -> Any:
        in_the_loop.append(in_event_loop())
        return make_policy(*given)

    monkeypatch.setattr(personalizer_configuration, "make_policy", noted)
    assert client.get("/personalizer/v1.0/configurations/policy").status_code == 200
    assert in_the_loop == [False]


def test_a_body_that_is_not_json_is_refused(client: TestClient[Any]) -> None:
    for content in (b"", b"{", b'"\xff"', b"[" * 50_000):
        answer = client.post(f"{V1}/rank", content=content, headers={"content-type": "application/json"})
        assert (answer.status_code, answer.headers["x-ms-error-code"]) == (400, "InvalidRankRequest")


def test_a_model_is_a_file_that_coterie_wrote(client: TestClient[Any]) -> None:
    for kind, status, code in (
        ("application/octet-stream", 400, "InvalidModelImportFormat"),
        ("application/json", 415, "BadRequest"),
    ):
        answer = client.put(f"{V1}/model", content=b"{}", headers={"content-type": kind})
        assert (answer.status_code, answer.headers["x-ms-error-code"]) == (status, code)


def test_too_large_a_body_is_told_the_contracts_way(client: TestClient[Any]) -> None:
    answer = client.post(f"{V1}/rank", content=b" " * 1_000_001)
    assert (answer.status_code, answer.headers["x-ms-error-code"]) == (413, "PayloadSizeExceeded")


def test_the_second_form_needs_its_version(client: TestClient[Any]) -> None:
    answer = client.get(f"{PREVIEW}/status", params={"api-version": "2099-01-01"})
    assert answer.status_code == 400
    assert answer.json()["error"]["target"] == "api-version"
    assert client.get(f"{PREVIEW}/status").json()["apiStatus"] == "Valid"


def test_the_user_is_found_where_the_settings_say(tmp_path: Path) -> None:
    with client_of(tmp_path, user_path="who.account") as client:
        context = [{"place": "home"}, {"who": {"account": 12, "age": 30}}]
        client.post(f"{V1}/rank", json={"contextFeatures": context, "actions": ACTIONS, "eventId": "one"})
        client.post(f"{V1}/rank", json={"contextFeatures": [], "actions": ACTIONS, "eventId": "two"})
        assert client.get("/v1/events/one").json()["user"] == "12"
        assert client.get("/v1/events/two").json()["user"] == "(shared)"


def test_the_users_id_is_no_feature(client: TestClient[Any]) -> None:
    """Else no two users would be shown the same thing, and none could learn from another."""
    for user, event in (("ann", "same-1"), ("bob", "same-2")):
        body = {"contextFeatures": [{"user": {"id": user, "age": 3}}], "actions": ACTIONS, "eventId": event}
        client.post(f"{V1}/rank", json=body)
    events = DESKS[client].bandit.events
    assert events["same-1"].action.hashed == events["same-2"].action.hashed
    assert events["same-1"].user != events["same-2"].user


@pytest.mark.parametrize("value", [True, None, "", [], {"id": 1}])
def test_what_is_no_id_is_the_shared_user(value: Any) -> None:
    assert personalizer_user.find_user([{"user": {"id": value}}], "user.id")[0] == "(shared)"
    assert personalizer_user.find_user([{"user": value}], "user.id")[0] in ("(shared)", "1")


def test_a_user_that_cannot_be_shown_is_refused() -> None:
    for user in ("x" * 257, "a\nb", "a\n", ".", ".."):
        with pytest.raises(Refusal, match="no control characters"):
            personalizer_user.find_user([{"user": {"id": user}}], "user.id")


def test_finding_a_user_leaves_the_request_as_it_was() -> None:
    context = [{"user": {"id": "ann", "age": 3}}]
    assert personalizer_user.find_user(context, "user.id") == ("ann", [{"user": {"age": 3}}])
    assert context == [{"user": {"id": "ann", "age": 3}}]


def test_one_event_id_is_one_request(client: TestClient[Any]) -> None:
    slots = [{"id": "s", "baselineAction": "NewsArticle"}]
    several = {"actions": ACTIONS, "slots": slots, "eventId": "both"}
    assert client.post(f"{V1}/multislot/rank", json=several).status_code == 201
    assert client.post(f"{V1}/rank", json={"actions": ACTIONS, "eventId": "both"}).status_code == 409
    assert client.post(f"{V1}/rank", json={"actions": ACTIONS, "eventId": "single"}).status_code == 201
    again = client.post(f"{V1}/multislot/rank", json=several | {"eventId": "single"})
    assert (again.status_code, again.headers["x-ms-error-code"]) == (409, "InvalidRankRequest")


@pytest.mark.parametrize(
    ("slots", "message"),
    [
        ([{"id": "s", "baselineAction": "x"}], "baselineAction of slot 's'"),
        (
            [{"id": "s", "baselineAction": "b", "excludedActions": ["b"]}],
            "baselineAction of slot 's'",
        ),
        ([{"id": "s", "baselineAction": "b"}] * 2, "the same id"),
        ([{"id": f"s{k}", "baselineAction": "b"} for k in range(3)], "at least as many actions"),
        (
            [{"id": f"s{k}", "baselineAction": "b", "excludedActions": ["NewsArticle"]} for k in range(2)],
            "not enough actions",
        ),
    ],
)
def test_slots_that_cannot_be_filled_are_refused(
    client: TestClient[Any], slots: list[Any], message: str
) -> None:
    before = DESKS[client].bandit.position
    answer = client.post(f"{V1}/multislot/rank", json={"actions": ACTIONS, "slots": slots})
    assert (answer.status_code, answer.headers["x-ms-error-code"]) == (400, "InvalidRankRequest")
    assert message in answer.json()["error"]["message"]
    assert DESKS[client].bandit.position == before


@given(st.lists(st.sets(st.sampled_from("abcd")), min_size=1, max_size=4), st.randoms())
def test_slots_never_run_dry_and_nothing_possible_is_excluded(excluded: list[set[str]], chance: Any) -> None:
    actions = [Action(name) for name in "abcd"]
    questions = [Question(f"e/{k}", "u", actions, excluded=frozenset(out)) for k, out in enumerate(excluded)]
    ways = {
        way
        for way in itertools.permutations("abcd", len(questions))
        if all(name not in out for name, out in zip(way, excluded, strict=True))
    }
    taken: list[str] = []
    for k, question in enumerate(questions):
        if not ways:
            with pytest.raises(Problem, match="not enough actions"):
                narrow(question, set(taken), questions[k + 1 :])
            return
        left = narrow(question, set(taken), questions[k + 1 :])
        open_to = [name for name in "abcd" if name not in left.excluded]
        assert set(open_to) == {way[k] for way in ways if list(way[:k]) == taken}
        taken.append(chance.choice(open_to))
    assert tuple(taken) in ways


@given(st.floats(0, 172_800).map(lambda seconds: round(seconds, 3)))
def test_durations_come_back(seconds: float) -> None:
    assert durations.parse_duration(durations.format_duration(seconds)) == pytest.approx(seconds, abs=1e-6)


@pytest.mark.parametrize("text", ["", "P", "PT", "P1DT", "1H", "P1Y", "PT1H2", "-PT1S", "PT1M1H", "9" * 99])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a duration"):
        durations.parse_duration(text)


def test_the_examples_in_the_docstrings_run() -> None:
    for module in (durations, personalizer_configuration, personalizer_user):
        assert doctest.testmod(module).failed == 0


def test_a_model_moves_to_a_service_that_numbers_its_users_otherwise() -> None:
    first, second = bandit(exploration=0.0), bandit(exploration=0.0)
    for k, user in enumerate(["ann", "bob"]):
        decide(first, ask(f"e{k}", user))
        first.reward(f"e{k}", 1.0 if user == "ann" else -1.0, START)
    decide(second, ask("other", "bob"))  # here bob is 0 and ann is 1
    import_model(export_model(first), second, START)
    assert second.names == {"bob": 0, "ann": 1}
    for user in ("ann", "bob"):
        mine, theirs = first.what_if(ask("w", user))[1], second.what_if(ask("w", user))[1]
        assert mine.score.tolist() == theirs.score.tolist()
    again = Bandit()
    again.user_names.take(second.ids)
    for data in second.outbox:
        again.apply(decode(data))
    assert export_model(again) == export_model(second)


def test_an_import_is_in_the_log(tmp_path: Path) -> None:
    with client_of(tmp_path, config=Config(exploration=0.0)) as client:
        client.post(f"{V1}/rank", json={"actions": [{"id": "a"}, {"id": "b"}], "eventId": "e"})
        client.post(f"{V1}/events/e/reward", json={"value": -1})
        model = client.get(f"{V1}/model").content
        client.delete(f"{V1}/model")
        file = {"content-type": "application/octet-stream"}
        assert client.put(f"{V1}/model", content=model, headers=file).status_code == 204
    store = SqliteStore(str(tmp_path / "log.db"))
    try:
        assert export_model(recover(store, from_empty=True)) == model
    finally:
        store.close()


@given(st.data())
def test_a_damaged_model_file_is_refused_and_changes_nothing(data: st.DataObject) -> None:
    made = bandit()
    decide(made, ask("e1"))
    made.reward("e1", 1.0, START)
    sound = export_model(made)
    file = bytearray(sound)
    place = data.draw(st.integers(0, len(file) - 1))
    file[place] ^= data.draw(st.integers(1, 255))
    before = made.position
    try:
        import_model(bytes(file), made, START)
    except FileError:
        assert made.position == before
    else:  # such as a tab in the place of a space
        assert export_model(made) == sound


@pytest.mark.parametrize("levels", [300, 900, 950, 990, 100_000])
@pytest.mark.parametrize("inside", [False, True], ids=["of safetensors", "of ours"])
def test_a_model_file_with_a_deep_header_is_refused(levels: int, inside: bool) -> None:
    deep = '{"a":' * levels + "1" + "}" * levels
    ours = (
        f'{{"version":"1","policy":"x","parameters":{deep},"dimensions":2,"learned":{{}},"names":{{}}}}'
        if inside
        else "{}"
    )
    outer = "{}" if inside else deep
    header = (
        json.dumps({"__metadata__": {"coterie-model": ours}, "deep": "DEEP"})
        .replace('"DEEP"', outer)
        .encode()
    )
    made = bandit()
    with pytest.raises(FileError, match="model file"):
        import_model(len(header).to_bytes(8, "little") + header, made, START)
    assert made.position == 1


def test_a_log_of_personalizers_is_learned_as_its_requests_would_be(tmp_path: Path) -> None:
    """One decision of Personalizer's log, and the same request sent here, give the same user and vector."""
    context = {"user": {"id": "ann", "age": 3}, "device": {"mobile": True}}
    line = {
        "_label_cost": -1.0,
        "_label_probability": 0.9,
        "_label_Action": 1,
        "_labelIndex": 0,
        "a": [1, 2],
        "p": [0.9, 0.1],
        "c": {**context, "_multi": [{"_tag": action["id"], "j": action["features"]} for action in ACTIONS]},
    }
    (tmp_path / "old.dsjson").write_text(json.dumps(line) + "\n")
    (payoff,) = payoffs_of(open_interactions(tmp_path / "old.dsjson"))
    with client_of(tmp_path, config=Config(exploration=0.0)) as client:
        parts = [{name: part} for name, part in context.items()]
        body = {"contextFeatures": parts, "actions": ACTIONS, "excludedActions": ["b"], "eventId": "e"}
        client.post(f"{V1}/rank", json=body)
        made = DESKS[client].bandit
        assert payoff.user == made.ids[made.events["e"].user] == "ann"
        assert payoff.action == made.events["e"].action
    assert payoff.value == 1.0
