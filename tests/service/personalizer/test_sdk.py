"""Both published Personalizer SDKs, unchanged, against a real server in a process of its own."""

import io
import time
import warnings
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.service.process import Process, service

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # they are no longer maintained
    v1 = pytest.importorskip("azure.cognitiveservices.personalizer")
    v1_models = pytest.importorskip("azure.cognitiveservices.personalizer.models")
    preview = pytest.importorskip("azure.ai.personalizer")
    from azure.core.credentials import AzureKeyCredential
    from azure.core.exceptions import (
        ClientAuthenticationError,
        HttpResponseError,
        ResourceExistsError,
        ResourceNotFoundError,
    )
    from msrest.authentication import CognitiveServicesCredentials

DAY, LATER = datetime(2026, 11, 1, tzinfo=UTC), datetime(2100, 1, 1, tzinfo=UTC)
KEY = "a-key-that-is-long-enough-to-be-one"
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    folder = tmp_path_factory.mktemp("personalizer")
    (folder / "settings.toml").write_text("[config]\nexploration = 0.2\n")
    options = ("--store", str(folder / "log.db"), "--settings", str(folder / "settings.toml"))
    with service(*options, environment={"COTERIE_KEY": KEY}) as process:
        yield process


@pytest.fixture
def old(server: Process) -> Any:
    return v1.PersonalizerClient(server.url, CognitiveServicesCredentials(KEY))


@pytest.fixture
def new(server: Process) -> Iterator[Any]:
    with preview.PersonalizerClient(server.url, AzureKeyCredential(KEY)) as client:
        yield client


@pytest.fixture
def admin(server: Process) -> Iterator[Any]:
    with preview.PersonalizerAdministrationClient(server.url, AzureKeyCredential(KEY)) as client:
        yield client


def request(event: str, user: str = "ann", **more: Any) -> dict[str, Any]:
    return {
        "contextFeatures": [{"user": {"id": user}}, {"device": {"mobile": True}}],
        "actions": [
            {"id": "News", "features": [{"type": "News"}]},
            {"id": "Sports", "features": [{"type": "Sports"}]},
        ],
        "eventId": event,
        **more,
    }


def old_request(event: str, **more: Any) -> Any:
    actions = [
        v1_models.RankableAction(id="News", features=[{"type": "News"}]),
        v1_models.RankableAction(id="Sports", features=[{"type": "Sports"}]),
    ]
    return v1_models.RankRequest(
        actions=actions, context_features=[{"user": {"id": "bob"}}], event_id=event, **more
    )


def told(caught: Any) -> tuple[str, str]:
    """Return the code and the target as the second SDK read them."""
    return caught.value.error.code, caught.value.error.target


def outcome(answers: list[Any]) -> str | None:
    header: str | None = answers[-1].http_response.headers.get("x-coterie-reward")
    return header


def test_the_first_sdk_ranks_rewards_and_activates(old: Any) -> None:
    answer = old.rank(old_request("old-1", excluded_actions=["Sports"]))
    assert answer.event_id == "old-1"
    assert answer.reward_action_id == "News"
    assert [(ranked.id, ranked.probability) for ranked in answer.ranking] == [("News", 1.0), ("Sports", 0.0)]
    raw = old.events.reward("old-1", 0.7, raw=True)
    assert raw.response.status_code == 204
    assert raw.response.headers["x-coterie-reward"] == "applied"
    assert old.events.reward("old-1", 0.7, raw=True).response.headers["x-coterie-reward"] == "duplicate"
    old.rank(old_request("old-2", defer_activation=True))
    assert old.events.reward("old-2", 1.0, raw=True).response.headers["x-coterie-reward"] == "not_activated"
    assert old.events.activate("old-2") is None
    assert old.events.reward("old-2", 1.0, raw=True).response.headers["x-coterie-reward"] == "applied"
    assert old.events.reward("never", 1.0, raw=True).response.headers["x-coterie-reward"] == "unknown_event"


def test_the_first_sdk_gets_an_event_id_and_reads_errors(old: Any, server: Process) -> None:
    assert len(old.rank(old_request(None)).event_id) == 32  # type: ignore[arg-type]
    twice = v1_models.RankRequest(actions=[v1_models.RankableAction(id="a", features=[])] * 2)
    with pytest.raises(v1_models.ErrorResponseException) as caught:
        old.rank(twice)
    assert caught.value.response.status_code == 400
    assert caught.value.response.headers["x-ms-error-code"] == "InvalidRankRequest"
    assert caught.value.error.error.code == "InvalidRankRequest"
    assert caught.value.error.error.message == "two actions have the same id"
    stranger = v1.PersonalizerClient(server.url, CognitiveServicesCredentials("wrong"))
    with pytest.raises(v1_models.ErrorResponseException) as caught:
        stranger.rank(old_request("old-3"))
    assert caught.value.response.status_code == 401
    assert caught.value.error.error.code == "401"


def test_the_second_sdk_ranks_rewards_and_activates(new: Any) -> None:
    answer = new.rank(request("new-1"))
    assert answer["eventId"] == "new-1"
    assert sorted(ranked["id"] for ranked in answer["ranking"]) == ["News", "Sports"]
    assert sum(ranked["probability"] for ranked in answer["ranking"]) == pytest.approx(1)
    assert answer["rewardActionId"] in ("News", "Sports")
    assert new.rank(request("new-1")) == answer  # a retry
    seen: list[Any] = []
    assert new.reward("new-1", {"value": 1.0}, raw_response_hook=seen.append) is None
    assert outcome(seen) == "applied"
    new.rank(request("new-2", deferActivation=True))
    new.reward("new-2", {"value": 1.0}, raw_response_hook=seen.append)
    assert outcome(seen) == "not_activated"
    new.activate("new-2")
    new.reward("new-2", {"value": 1.0}, raw_response_hook=seen.append)
    assert outcome(seen) == "applied"


def test_the_second_sdk_reads_errors(new: Any, server: Process) -> None:
    with pytest.raises(HttpResponseError) as caught:
        new.reward("new-1", {"value": 7})
    assert caught.value.status_code == 400
    assert told(caught)[0] == "InvalidRewardRequest"
    assert told(caught)[1] == "value"
    with pytest.raises(HttpResponseError) as caught:
        new.rank({"actions": []})
    assert told(caught)[0] == "InvalidRankRequest"
    with pytest.raises(HttpResponseError) as caught:
        new.rank(request("a\nb"))
    assert told(caught)[1] == "eventId"
    stranger = preview.PersonalizerClient(server.url, AzureKeyCredential("wrong"))
    with pytest.raises(ClientAuthenticationError):
        stranger.rank(request("new-3"))


@pytest.mark.parametrize("event", ["a/b", "a\\b", "a?b#c", "50% of %2F", "é 日本/語", "/", "...", "a/0"])
def test_both_sdks_send_ids_of_any_characters(old: Any, new: Any, event: str) -> None:
    for prefix in ("old", "new"):
        name = prefix + event if event != "/" else "/" + prefix
        if prefix == "old":
            assert old.rank(old_request(name, defer_activation=True)).event_id == name
            old.events.activate(name)
            raw = old.events.reward(name, 0.7, raw=True)
            assert raw.response.headers["x-coterie-reward"] == "applied"
        else:
            answers: list[Any] = []
            assert new.rank(request(name, user=event, deferActivation=True))["eventId"] == name
            new.activate(name)
            new.reward(name, {"value": 1.0}, raw_response_hook=answers.append)
            assert outcome(answers) == "applied"


def test_the_second_sdk_fills_slots(new: Any) -> None:
    body = {
        "contextFeatures": [{"user": {"id": "ann"}}],
        "actions": [{"id": name, "features": [{"kind": name}]} for name in ("a", "b", "c")],
        "slots": [
            {
                "id": "top",
                "features": [{"size": "large"}],
                "excludedActions": ["c"],
                "baselineAction": "a",
            },
            {"id": "side", "features": [{"size": "small"}], "baselineAction": "b"},
        ],
        "eventId": "page-1",
        "deferActivation": True,
    }
    answer = new.rank_multi_slot(body)
    assert answer["eventId"] == "page-1"
    assert [slot["id"] for slot in answer["slots"]] == ["top", "side"]
    chosen = [slot["rewardActionId"] for slot in answer["slots"]]
    assert len(set(chosen)) == 2
    assert chosen[0] != "c"
    assert new.rank_multi_slot(body) == answer
    seen: list[Any] = []
    rewards = {"reward": [{"slotId": "top", "value": 0.5}, {"slotId": "side", "value": 0.0}]}
    new.reward_multi_slot("page-1", rewards, raw_response_hook=seen.append)
    assert outcome(seen) == "not_activated, not_activated"
    new.activate_multi_slot("page-1")
    new.reward_multi_slot("page-1", rewards, raw_response_hook=seen.append)
    assert outcome(seen) == "applied, applied"
    new.reward_multi_slot("page-9", rewards, raw_response_hook=seen.append)
    assert outcome(seen) == "unknown_event, unknown_event"
    new.reward_multi_slot(
        "page-1", {"reward": [{"slotId": "left", "value": 1}]}, raw_response_hook=seen.append
    )
    assert outcome(seen) == "unknown_slot"
    with pytest.raises(HttpResponseError) as caught:
        new.rank_multi_slot(body | {"slots": body["slots"][:1]})  # type: ignore[index]
    assert caught.value.status_code == 409


def test_configurations_are_read_and_changed(admin: Any) -> None:
    first = admin.get_service_configuration()
    assert (first["rewardWaitTime"], first["explorationPercentage"]) == ("PT10M", 0.2)
    wish = first | {"rewardWaitTime": "PT5M", "explorationPercentage": 0.3, "learningMode": "Apprentice"}
    got = admin.update_service_configuration(wish)
    edited = "lastConfigurationEditDate"
    assert first[edited] == first["autoOptimizationStartDate"] == "0001-01-01T00:00:00Z"  # never
    assert first["isInferenceExplainabilityEnabled"] is False
    assert {name: got[name] for name in wish if name != edited} == {
        k: v for k, v in wish.items() if k != edited
    }
    assert got[edited].startswith("20")
    assert admin.get_service_configuration() == got
    with pytest.raises(HttpResponseError) as caught:
        admin.update_service_configuration(wish | {"rewardWaitTime": "PT1S"})
    assert told(caught)[0] == "InvalidRewardWaitTime"
    saved = wish | {"rewardAggregation": "average", "isInferenceExplainabilityEnabled": True}
    saved |= {"logMirrorEnabled": True, "autoOptimizationStartDate": "2022-09-01T21:02:42"}
    got = admin.update_service_configuration(saved)  # as Personalizer answered it
    assert {name: got[name] for name in saved if name != "lastConfigurationEditDate"} == {
        name: value for name, value in saved.items() if name != "lastConfigurationEditDate"
    }
    admin.update_service_configuration(first)
    policy = admin.get_policy()
    assert policy["name"] == "hierarchical"
    assert policy["arguments"].startswith("--explore 1.0")
    changed = admin.update_policy({"name": "cab", "arguments": "--alpha 0.3"})
    assert changed["arguments"].startswith("--alpha 0.3 --gamma 0.2 --thompson false")
    assert admin.update_policy(changed) == changed  # what is shown can be sent
    settings = {"name": "app1", "arguments": "--cb_explore_adf --quadratic GT --ignore A --epsilon 0.3"}
    assert admin.update_policy(settings) == settings
    assert admin.get_policy() == settings
    assert admin.get_service_configuration()["explorationPercentage"] == 0.3
    with pytest.raises(HttpResponseError) as caught:
        admin.update_policy({"name": "app1", "arguments": "--cb_explore_adf -f stolen"})
    assert told(caught)[0] == "InvalidPolicyConfiguration"
    assert admin.reset_policy() == policy


def test_apprentice_mode_shows_the_baseline(admin: Any, new: Any) -> None:
    first = admin.get_service_configuration()
    admin.update_service_configuration(first | {"learningMode": "Apprentice"})
    try:
        for k in range(10):
            answer = new.rank(request(f"apprentice-{k}"))
            assert answer["rewardActionId"] == "News"
            assert answer["ranking"][0] == {"id": "News", "probability": 1.0}
    finally:
        admin.update_service_configuration(first)


def test_the_model_goes_out_comes_back_and_is_emptied(admin: Any, new: Any) -> None:
    new.rank(request("model-1"))
    new.reward("model-1", {"value": 1.0})
    model = b"".join(admin.export_model())
    admin.reset_model()
    assert b"".join(admin.export_model()) != model
    admin.import_model(io.BytesIO(model))
    assert b"".join(admin.export_model()) == model
    with pytest.raises(HttpResponseError) as caught:
        admin.import_model(io.BytesIO(b"not a model"))
    assert told(caught)[0] == "InvalidModelImportFormat"
    assert set(admin.get_model_properties()) == {"creationTime", "lastModifiedTime"}


def test_the_log_has_dates_and_can_be_deleted(admin: Any, new: Any) -> None:
    new.rank(request("logged-1"))
    dates = admin.get_log_properties()["dateRange"]
    assert dates["from"] <= dates["to"]
    admin.delete_logs()
    assert admin.get_log_properties() == {}
    seen: list[Any] = []
    new.reward("logged-1", {"value": 1.0}, raw_response_hook=seen.append)  # what waits still waits
    assert outcome(seen) == "applied"
    new.rank(request("logged-2"))
    assert admin.get_log_properties()["dateRange"]["from"] >= dates["to"]


def test_evaluations_and_feature_importances_are_made_listed_read_applied_and_deleted(
    admin: Any, new: Any
) -> None:
    for k in range(40):
        answer = new.rank(request(f"evaluated-{k}"))
        new.reward(f"evaluated-{k}", {"value": float(answer["rewardActionId"] == "Sports")})
    time_of = {"startTime": "2020-01-01T00:00:00Z", "endTime": "2100-01-01T00:00:00Z"}
    policy = {"name": "mine", "arguments": "--policy hierarchical --explore 0.25"}
    admin.create_evaluation("first", {"name": "First", **time_of, "policies": [policy]})
    admin.create_feature_importance("features", {"name": "Features", **time_of})
    with pytest.raises(ResourceExistsError):
        admin.create_evaluation("first", {"name": "First", **time_of, "policies": []})
    done = _until(lambda: admin.get_evaluation("first", start_time=DAY, end_time=LATER))
    assert (done["status"], done["evaluationType"], done["name"]) == ("Succeeded", "Manual", "First")
    sources = {one["policySource"]: one for one in done["content"]["value"] if one["name"] != "current"}
    assert sources.keys() == {"Online", "Baseline", "Random", "Custom"}
    assert sources["Custom"]["name"] == "mine"
    assert [sources[name]["name"] for name in ("Online", "Baseline", "Random")] == [
        "online",
        "baseline1",
        "baselineRand",
    ]
    assert done["optimalPolicy"] in ("online", "mine", "current")
    assert sources["Custom"]["arguments"] == "--policy hierarchical --explore 0.25"
    low, high = sources["Random"]["summary"]["confidenceInterval"]
    assert low <= sources["Random"]["summary"]["expectedReward"] <= high
    assert sources["Online"]["timeseries"]["data"][0]["expectedReward"] >= 0
    assert (done["content"]["intervalInMinutes"], done["content"]["endTime"]) == (
        5,
        "2100-01-01T00:00:00.000Z",
    )
    daily = admin.get_evaluation(
        "first", start_time=DAY, end_time=LATER, interval_in_minutes=1440, window="Rolling"
    )["content"]
    assert daily["intervalInMinutes"] == 1440
    whole = daily["value"][0]
    assert 1 <= len(whole["timeseries"]["data"]) <= 2  # midnight may have come between two decisions
    before = admin.get_evaluation("first", start_time=datetime(2020, 1, 1, tzinfo=UTC), end_time=DAY)
    assert before["content"]["value"][0]["timeseries"]["data"] == []
    assert before["content"]["value"][0]["summary"] == whole["summary"]  # of the whole evaluation
    with pytest.raises(HttpResponseError) as refused:
        admin.get_evaluation("first", start_time=DAY, end_time=LATER, interval_in_minutes=5, window="Rolling")
    assert told(refused) == ("BadRequest", "window")
    assert [one["id"] for one in admin.list_evaluations()] == ["first"]
    admin.apply_from_evaluation({"evaluationId": "first", "policyName": "mine"})
    assert "--explore 0.25" in admin.get_policy()["arguments"]
    admin.apply_from_evaluation({"evaluationId": "first", "policyName": "online"})  # goes on
    with pytest.raises(HttpResponseError) as refused:
        admin.apply_from_evaluation({"evaluationId": "first", "policyName": "baselineRand"})
    assert told(refused)[0] == "OperationNotAllowed"
    with pytest.raises(ResourceNotFoundError, match="has no policy 'other'"):
        admin.apply_from_evaluation({"evaluationId": "first", "policyName": "other"})
    admin.reset_policy()
    admin.delete_evaluation("first")
    with pytest.raises(ResourceNotFoundError, match="evaluation 'first' does not exist"):
        admin.get_evaluation("first", start_time=DAY, end_time=DAY)
    found = _until(lambda: admin.get_feature_importance("features"))
    assert found["status"] == "Succeeded"
    assert {"featureName": "type", "namespace": "action", "score": 100.0} in found["featureScores"]
    assert [one["id"] for one in admin.list_feature_importances()] == ["features"]
    admin.delete_feature_importance("features")
    assert list(admin.list_feature_importances()) == []


def _until(look: Any) -> Any:
    """Return what `look` finds once it is no longer under way."""
    end = time.monotonic() + 300
    while (found := look())["status"] in ("NotSubmitted", "Running"):
        assert time.monotonic() < end
        time.sleep(0.1)
    return found


def test_what_the_sdks_leave_is_a_service_that_starts_again(tmp_path: Path) -> None:
    store = str(tmp_path / "log.db")
    with service("--store", store) as process:
        with preview.PersonalizerClient(process.url, AzureKeyCredential("any")) as client:
            client.rank(request("before"))
            client.reward("before", {"value": 1.0})
        with preview.PersonalizerAdministrationClient(process.url, AzureKeyCredential("any")) as client:
            model = b"".join(client.export_model())
            client.import_model(io.BytesIO(model))
            client.delete_logs()
        process.kill()
    with (
        service("--store", store) as process,
        preview.PersonalizerAdministrationClient(process.url, AzureKeyCredential("any")) as client,
    ):
        assert b"".join(client.export_model()) == model


def test_the_calls_of_the_packages_own_samples_work(server: Process) -> None:
    """Rank without an event id, then reward the id of the answer; the endpoint ends with a slash, as Azure's do."""
    videos = [
        {
            "id": "Video1",
            "features": [{"videoType": "documentary", "videoLength": 35}, {"mostWatchedByAge": "50-55"}],
        },
        {
            "id": "Video2",
            "features": [{"videoType": "movie", "videoLength": 120}, {"mostWatchedByAge": "40-45"}],
        },
    ]
    around = [{"Features": {"day": "tuesday"}}, {"Features": {"payingUser": True, "hoursOnSite": 0.12}}]
    seen: list[Any] = []
    with preview.PersonalizerClient(f"{server.url}/", AzureKeyCredential(KEY)) as client:
        event = client.rank({"actions": videos, "contextFeatures": around}).get("eventId")
        client.reward(event, {"value": 1.0}, raw_response_hook=seen.append)
        assert outcome(seen) == "applied"
        slots = [
            {"id": "Main", "baselineAction": "Video1", "features": [{"Size": "Large"}]},
            {"id": "Side", "baselineAction": "Video2", "positionFeatures": [{"Size": "Small"}]},
        ]
        page = client.rank_multi_slot({"actions": videos, "slots": slots, "contextFeatures": around})
        assert [slot.get("id") for slot in page.get("slots")] == ["Main", "Side"]
        client.reward_multi_slot(
            page.get("eventId"), {"reward": [{"slotId": "Main", "value": 1.0}]}, raw_response_hook=seen.append
        )
        assert outcome(seen) == "applied"
    first = v1.PersonalizerClient(f"{server.url}/", CognitiveServicesCredentials(KEY))
    actions = [v1_models.RankableAction(id=one["id"], features=one["features"]) for one in videos]
    answer = first.rank(v1_models.RankRequest(actions=actions, context_features=around))
    assert (
        first.events.reward(answer.event_id, 1.0, raw=True).response.headers["x-coterie-reward"] == "applied"
    )
