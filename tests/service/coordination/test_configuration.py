"""What is configured while the service runs outlives it; what a start's settings name wins over it."""

from pathlib import Path
from typing import Any

import pytest
from litestar.testing import TestClient

from coterie.data.logs.rules import Config
from coterie.errors import ParameterError
from coterie.service.coordination.coordinator import Coordinator
from coterie.service.core.question import Action, Question
from coterie.service.log.sqlite_store import SqliteStore
from coterie.service.serve import make_app
from coterie.service.settings import Settings, read_settings
from coterie.service.snapshots import snapshot
from coterie.service.snapshots.recovery import recover
from tests.service.helpers import Clock, ask, opened, settings_of, with_coordinator

SERVICE = "/personalizer/v1.0/configurations/service"
POLICY = "/personalizer/v1.0/configurations/policy"


def _started(settings: Settings) -> TestClient[Any]:
    return TestClient(make_app(settings, SqliteStore(settings.store)), base_url="http://127.0.0.1")


def _settings(folder: Path, text: str = "", **flags: Any) -> Settings:
    file = folder / "settings.toml"
    file.write_text(text)
    return read_settings(file, {}, store=str(folder / "log.db"), **flags)


SENT = {
    "rewardWaitTime": "PT15M",
    "defaultReward": -0.5,
    "rewardAggregation": "sum",
    "explorationPercentage": 0.3,
    "learningMode": "Apprentice",
    "logRetentionDays": 30,
    "modelExportFrequency": "PT1H",
    "modelRetrainDays": 2,
    "autoOptimizationFrequency": "P3D",
    "autoOptimizationStartDate": "2026-01-01T00:00:00Z",
}


@pytest.mark.parametrize("crash", [False, True])
def test_a_configuration_put_outlives_the_process(tmp_path: Path, crash: bool) -> None:
    with _started(_settings(tmp_path)) as client:
        client.put(SERVICE, json=SENT)
        client.put(POLICY, json={"name": "linucb", "arguments": "--alpha 0.7"})
        before = client.get(SERVICE).json(), client.get(POLICY).json(), client.get("/v1/configuration").json()
        if crash:  # what a kill leaves: the file and its write-ahead log
            for end in ("", "-wal"):
                (tmp_path / f"crashed.db{end}").write_bytes((tmp_path / f"log.db{end}").read_bytes())
    name = "crashed.db" if crash else "log.db"
    with _started(read_settings(None, {}, store=str(tmp_path / name))) as client:
        after = client.get(SERVICE).json(), client.get(POLICY).json(), client.get("/v1/configuration").json()
    assert after == before
    assert {key: before[0][key] for key in SENT} == SENT
    assert before[1]["name"] == "linucb"


def test_the_policy_that_was_deleted_stays_deleted(tmp_path: Path) -> None:
    with _started(_settings(tmp_path)) as client:
        client.put(POLICY, json={"name": "linucb", "arguments": "--alpha 0.7"})
        assert client.delete(POLICY).json()["name"] == "hierarchical"
    with _started(_settings(tmp_path)) as client:
        assert client.get(POLICY).json()["name"] == "hierarchical"


def test_what_the_settings_of_a_start_name_wins_and_the_rest_stays(tmp_path: Path) -> None:
    with _started(_settings(tmp_path)) as client:
        client.put(SERVICE, json=SENT)
    text = "retention-days = 5\n[config]\nexploration = 0.01\n"  # the default, but written down
    with _started(_settings(tmp_path, text)) as client:
        found = client.get(SERVICE).json()
        assert (found["explorationPercentage"], found["logRetentionDays"]) == (0.01, 5)
        assert (found["rewardWaitTime"], found["modelRetrainDays"]) == ("PT15M", 2)
        client.put(SERVICE, json={"explorationPercentage": 0.4, "logRetentionDays": 6})
        found = client.get(SERVICE).json()  # until the next start
        assert (found["explorationPercentage"], found["logRetentionDays"]) == (0.4, 6)
    with _started(_settings(tmp_path, text)) as client:
        found = client.get(SERVICE).json()
        assert (found["explorationPercentage"], found["logRetentionDays"]) == (0.01, 5)


def test_a_policy_and_its_parameters_are_named_together(tmp_path: Path) -> None:
    with _started(_settings(tmp_path)) as client:
        client.put(POLICY, json={"name": "cab", "arguments": "--gamma 0.5"})
    with _started(_settings(tmp_path, policy="linucb")) as client:  # which knows no gamma
        assert client.get("/v1/configuration").json()["parameters"] == {}
    with _started(_settings(tmp_path, "[config.parameters]\nalpha = 0.3\n")) as client:  # of the one in force
        found = client.get("/v1/configuration").json()
        assert (found["policy"], found["parameters"]) == ("linucb", {"alpha": 0.3})


def test_a_start_with_another_policy_learns_the_log_and_replays_to_the_same_state(tmp_path: Path) -> None:
    async def live(coordinator: Coordinator) -> bytes:
        begin = coordinator.bandit.position
        for k in range(20):
            await coordinator.rank(ask(f"{begin}-{k}", f"user-{k % 3}"))
            assert await coordinator.reward(f"{begin}-{k}", 1.0) == "applied"
        assert coordinator.bandit.policies.learned == (20 if begin < 20 else 40)
        return snapshot.dump(coordinator.bandit)

    path = tmp_path / "log.db"
    with_coordinator(Settings(store=str(path)), live, Clock())
    state = with_coordinator(Settings(store=str(path), config=Config(policy="linucb")), live, Clock())
    with opened(path) as store:
        assert snapshot.dump(recover(store, from_empty=True)) == state


def test_a_count_that_no_record_can_hold_is_refused(tmp_path: Path) -> None:
    with _started(_settings(tmp_path)) as client:
        answer = client.put("/v1/configuration", json={"maxEventBytes": 2**70})
        assert answer.status_code == 400, answer.text
        assert client.get("/v1/configuration").json()["maxEventBytes"] == 268_435_456


def test_nobody_can_write_down_what_was_given(tmp_path: Path) -> None:
    with pytest.raises(ParameterError, match="unknown field `given`"):
        _settings(tmp_path, "given = []")


def test_a_change_of_policy_replays_the_same_after_a_user_was_scrubbed(tmp_path: Path) -> None:
    """What a policy learned from features must not depend on features that are gone by the time of the replay."""
    sent = [{"tone": "calm", "length": 3}], [{"tone": "loud"}], None
    path = tmp_path / "log.db"

    async def work(coordinator: Coordinator) -> None:
        configs = [
            Config(policy="linucb"),
            Config(policy="linucb", dimensions=16),
            Config(),
            Config(policy="cab", dimensions=8),
            Config(),
        ]
        for number, config in enumerate(configs):
            for k in range(9):
                actions = [Action(name, sent[(k + j) % 3]) for j, name in enumerate("abc")]
                shown = [Action(name) for name in "abc"] if k % 3 == 2 else actions
                question = Question(
                    f"e{number}-{k}", f"user-{number}-{k % 2}", shown, [{"hour": k}] if k % 2 else ()
                )
                await coordinator.rank(question)
                await coordinator.reward(question.event, k % 3 / 2)
            await coordinator.configure(config)
            await coordinator.forget(f"user-{number}-1")
            live = snapshot.dump(coordinator.bandit)
            assert live == snapshot.dump(recover(coordinator.store))
            assert live == snapshot.dump(recover(coordinator.store, from_empty=True)), config

    with_coordinator(settings_of(path, Config(exploration=0.3)), work, Clock())
