"""Champion, challenger and holdback: who is in which arm, what the log says of it, and what it is worth."""

import math
from itertools import product
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from coterie.data.logs.interactions import SHARED
from coterie.data.logs.records import ArmName, Configure, decode, encode
from coterie.data.logs.rules import Challenger, Config
from coterie.data.logs.service_log import read_store
from coterie.errors import ParameterError
from coterie.service.coordination.coordinator import Coordinator
from coterie.service.core.answers import ranking_of
from coterie.service.core.bandit import Bandit
from coterie.service.core.policy_config import check_config
from coterie.service.core.question import Action, Question
from coterie.service.settings import read_settings
from coterie.service.snapshots import snapshot
from coterie.service.snapshots.recovery import recover
from coterie.service.trial.assignment import assign
from coterie.service.trial.lift import Sums
from tests.playing import Elsewhere
from tests.service.helpers import START, Clock, ask, bandit, decide, opened, settings_of, with_coordinator
from tests.service.http.test_http import client_of

LINUCB = Challenger("linucb", 0.3)
# Of user-0 to user-19, a share of a half without a salt.
OLD_HOLDBACK = [int(k) for k in ["0", "1", "2", "4", "7", "9", "10", "11", "14", "15", "18", "19"]]


def test_the_arms_get_their_shares_and_a_user_stays_in_one() -> None:
    config = Config(holdback=0.1, challenger=LINUCB)
    arms = [assign(config, f"user-{k}", f"event-{k}") for k in range(4000)]
    parts: list[tuple[ArmName, float]] = [("holdback", 0.1), ("challenger", 0.3), ("champion", 0.6)]
    for name, share in parts:
        assert abs(arms.count(name) / 4000 - share) < 4 * math.sqrt(share * (1 - share) / 4000)
    assert arms == [assign(config, f"user-{k}", f"other-{k}") for k in range(4000)]


def test_trials_with_other_salts_are_drawn_independently() -> None:
    """Of 4,000 users, a quarter is expected in each pair of arms; three standard deviations are 82."""
    config = Config(holdback=0.5)
    arms = {salt: [assign(config, f"user-{k}", "", salt) for k in range(4000)] for salt in ("", "1-2", "1-3")}
    for one, other in (("", "1-2"), ("1-2", "1-3")):
        pairs: list[Any] = list(zip(arms[one], arms[other], strict=True))
        for pair in product(("champion", "holdback"), repeat=2):
            assert abs(pairs.count(pair) - 1000) < 82 * 4 / 3, (one, other, pair)
    assert arms["1-2"] == [assign(config, f"user-{k}", "e", "1-2") for k in range(4000)]


def test_a_user_without_a_salt_is_where_earlier_versions_put_them() -> None:
    config = Config(holdback=0.5)
    held = [k for k in range(20) if assign(config, f"user-{k}", "") == "holdback"]
    assert held == OLD_HOLDBACK


def test_each_trial_has_its_salt_and_a_change_of_shares_keeps_it() -> None:
    made = bandit(holdback=0.1)

    def salt(**rules: Any) -> str | None:
        made.configure(Config(**rules), START + 1000)
        return None if made.trial is None else made.trial.salt

    first = made.trial.salt if made.trial is not None else ""
    assert first
    assert salt(holdback=0.3) == first  # few users move
    assert salt(holdback=0.3, wait=60.0) == first
    other = salt(holdback=0.3, policy="linucb")
    assert other not in (first, "", None)
    third = salt(holdback=0.3, policy="linucb", challenger=Challenger("cab", 0.2))
    assert third not in (first, other)
    assert salt(policy="linucb") is None
    assert salt(holdback=0.3, policy="linucb") not in (first, other, third)


def test_decisions_are_drawn_with_the_salt_of_their_trial() -> None:
    """Visits of one trial agree; the next trial holds back other users."""
    made = bandit(policy="linucb", holdback=0.5)

    def held(visit: str, at: int) -> list[int]:
        arms = [decide(made, ask(f"{visit}-{k}", f"user-{k}"), at).arm for k in range(20)]
        assert made.trial is not None
        salt = made.trial.salt
        assert arms == [assign(made.config, f"user-{k}", "", salt) for k in range(20)]
        return [k for k, arm in enumerate(arms) if arm == "holdback"]

    first = held("one", START)
    assert held("two", START + 1) == first
    assert first != OLD_HOLDBACK
    made.configure(Config(policy="cab", holdback=0.5), START + 1000)
    assert held("three", START + 1001) not in (first, OLD_HOLDBACK)


def test_a_trial_of_an_earlier_version_goes_on_without_a_salt(tmp_path: Path) -> None:
    """The record that began it has no salt; a snapshot and a change of its shares keep that."""
    old = Configure(START, Config(holdback=0.5))
    assert b"salt" not in encode(old)
    made = Bandit()
    made.apply(old)
    assert made.trial is not None
    assert made.trial.salt == ""
    arms = [decide(made, ask(f"e{k}", f"user-{k}")).arm for k in range(20)]
    assert [k for k, arm in enumerate(arms) if arm == "holdback"] == OLD_HOLDBACK
    restored = snapshot.restore(snapshot.dump(made))
    assert restored.trial == made.trial
    restored.configure(Config(holdback=0.9), START + 1000)
    assert restored.trial is not None
    assert restored.trial.salt == ""
    assert {k for k in range(20) if decide(restored, ask(f"f{k}", f"user-{k}")).arm == "holdback"} >= set(
        OLD_HOLDBACK
    )


def test_a_restart_assigns_alike(tmp_path: Path) -> None:
    """From the snapshot, from the log alone, and in a process that takes over."""
    settings = settings_of(tmp_path / "log.db", Config(holdback=0.5))
    found: list[list[str]] = []

    async def work(coordinator: Coordinator) -> None:
        assert coordinator.bandit.trial is not None
        assert coordinator.bandit.trial.salt
        marked = len(found)
        actions = [Action("a"), Action("b")]
        ranks = [await coordinator.rank(Question(f"{marked}-{k}", f"u{k}", actions)) for k in range(60)]
        found.append([record.arm for record in ranks])

    for _ in range(2):
        with_coordinator(settings, work, Clock())
    with opened(tmp_path / "log.db") as store:
        replayed = recover(store, from_empty=True)
        found.append([decide(replayed, ask(f"r{k}", f"u{k}")).arm for k in range(60)])
    assert found[0] == found[1] == found[2]
    assert 15 < found[0].count("holdback") < 45


def test_a_larger_share_moves_nobody_out_of_it() -> None:
    few, more = Config(holdback=0.05, challenger=LINUCB), Config(holdback=0.2, challenger=LINUCB)
    for k in range(500):
        before, after = assign(few, f"user-{k}", ""), assign(more, f"user-{k}", "")
        assert before == after or (before, after) == ("champion", "holdback")


def test_requests_that_name_no_user_are_drawn_one_by_one() -> None:
    config = Config(holdback=0.5)
    arms = [assign(config, SHARED, f"event-{k}") for k in range(400)]
    assert 140 < sum(arm == "holdback" for arm in arms) < 260


def test_the_slots_of_one_page_are_in_one_arm() -> None:
    made = bandit(holdback=0.5)
    for k in range(20):
        arms = {decide(made, ask(f"page-{k}\u001f{slot}", SHARED, slot=slot)).arm for slot in "xyz"}
        assert len(arms) == 1


@pytest.mark.parametrize("mode", ["apprentice", "logging-only"])
def test_nobody_is_compared_where_all_are_shown_the_baseline(mode: str) -> None:
    made = bandit(mode=mode, holdback=0.5, challenger=LINUCB)
    assert {decide(made, ask(f"e{k}", f"user-{k}")).arm for k in range(20)} == {""}


def test_a_user_who_is_held_back_sees_the_baseline_and_the_log_says_how_likely_it_was() -> None:
    made = bandit(holdback=0.5, exploration=0.2)
    for k in range(60):
        record = decide(made, ask(f"e{k}", f"user-{k}", "cab"))
        chances = [candidate.probability for candidate in ranking_of(record).ranking]
        assert sum(chances) == pytest.approx(1)
        assert chances[0] == record.probability
        if record.arm == "holdback":
            assert (record.choice, record.shown, record.probability) == (0, "baseline", 1.0)
        else:
            assert record.arm == "champion"
            assert record.probability < 1


def test_the_challenger_decides_for_its_users_and_learns_from_all() -> None:
    """Only "b" pays. LinUCB without exploration of its own is wrong at most once for each of three items."""
    made = bandit(challenger=Challenger("linucb", 0.3, {"alpha": 0.1}), exploration=0.1)
    assert made.challenger is not None
    for k in range(300):
        record = decide(made, ask(f"e{k}", f"user-{k % 40}", "abc"))
        made.reward(record.event, float(record.actions[record.choice] == "b"), START)
        of_policy = sorted(set(record.likely)) != pytest.approx([0.1 / 3, 0.9 + 0.1 / 3])
        assert not of_policy or record.arm == "champion"  # LinUCB explores by epsilon
    assert made.challenger.learned == made.policies.learned == 300
    assert "items" in made.challenger.made
    shown = [decide(made, ask(f"f{k}", f"user-{k}", "abc")) for k in range(40)]
    theirs = [record for record in shown if record.arm == "challenger"]
    assert 3 < len(theirs) < 25
    assert all(record.best == 1 for record in theirs)
    assert all(record.probability == pytest.approx(0.9 + 0.1 / 3) for record in theirs if record.choice == 1)


def test_the_challenger_alone_is_what_a_change_of_policy_gives(tmp_path: Path) -> None:
    """What it knows is what its policy learns from the log: promoting it changes nothing."""

    async def work(coordinator: Coordinator) -> None:
        await live(coordinator)
        await coordinator.activate("nothing")  # ends the waits that are over
        challenger = coordinator.bandit.challenger
        assert challenger is not None
        before = {kind: policy.tensors() for kind, policy in challenger.made.items()}
        await coordinator.configure(Config(policy="linucb"))
        after = {kind: policy.tensors() for kind, policy in coordinator.bandit.policies.made.items()}
        assert coordinator.bandit.challenger is None
        assert before.keys() == after.keys()
        for kind, tensors in before.items():
            for name, value in tensors.items():
                np.testing.assert_array_equal(value, after[kind][name])

    with_coordinator(settings_of(tmp_path / "log.db", Config(holdback=0.2, challenger=LINUCB)), work, Clock())


async def live(coordinator: Coordinator, rounds: int = 60) -> None:
    """Let a few users come, with features and without, and some of their rewards."""
    sent = [{"tone": "calm", "length": 3}], [{"tone": "loud"}], None
    first = coordinator.bandit.position
    for k in range(rounds):
        actions = [Action(name, sent[(k + j) % 3] if k % 2 else None) for j, name in enumerate("abc")]
        user = SHARED if k % 7 == 0 else f"user-{k % 11}"
        question = Question(f"{first}-{k}", user, actions, [{"hour": k % 5}] if k % 3 else ())
        record = await coordinator.rank(question)
        if k % 4:
            await coordinator.reward(question.event, float(record.choice == 1))
        if k % 10 == 9:
            coordinator.clock.turn(700)  # type: ignore[attr-defined]  # those without a reward get the default


CONFIGS = [
    Config(holdback=0.3),
    Config(holdback=0.2, challenger=LINUCB),
    Config(policy="cab", holdback=0.2, challenger=Challenger("hierarchical", 0.4)),
    Config(policy="linucb", challenger=Challenger("linucb", 0.5)),  # the same in both arms
    Config(policy="linucb"),
]


def test_a_trial_replays_bit_for_bit(tmp_path: Path) -> None:
    path = tmp_path / "log.db"

    async def work(coordinator: Coordinator) -> None:
        for number, config in enumerate(CONFIGS):
            await coordinator.configure(config)
            await live(coordinator, 30)
            await coordinator.forget(f"user-{number}")
            if number % 2:
                await coordinator.snapshot()
            now = snapshot.dump(coordinator.bandit)
            assert now == snapshot.dump(recover(coordinator.store)), config
            assert now == snapshot.dump(recover(coordinator.store, from_empty=True)), config

    with_coordinator(settings_of(path), work, Clock())


def test_a_challenger_outlives_the_log_that_it_learned(tmp_path: Path) -> None:
    """The snapshot holds it, for the log before may be gone."""
    path = tmp_path / "log.db"
    config = Config(holdback=0.2, challenger=LINUCB)

    async def first(coordinator: Coordinator) -> bytes:
        await live(coordinator)
        await coordinator.delete_log()
        await live(coordinator, 7)
        return snapshot.dump(coordinator.bandit)

    async def second(coordinator: Coordinator) -> bytes:
        assert coordinator.bandit.challenger is not None
        assert coordinator.bandit.challenger.learned > 40
        return snapshot.dump(coordinator.bandit)

    clock = Clock()
    state = with_coordinator(settings_of(path, config), first, clock)
    assert with_coordinator(settings_of(path, config), second, clock) == state


def test_a_challenger_that_comes_after_the_log_was_deleted_learns_what_waits(tmp_path: Path) -> None:
    """A reward for a decision that is no longer in the log is learned by both."""

    async def work(coordinator: Coordinator) -> None:
        await coordinator.rank(ask("early", deferred=True))
        await coordinator.rank(ask("before"))
        await coordinator.delete_log()
        await coordinator.configure(Config(challenger=LINUCB))
        await coordinator.activate("early")
        assert await coordinator.reward("early", 1.0) == "applied"
        assert await coordinator.reward("before", 1.0) == "applied"
        await coordinator.rank(ask("after"))
        assert await coordinator.reward("after", 1.0) == "applied"
        assert coordinator.bandit.challenger is not None
        assert (coordinator.bandit.policies.learned, coordinator.bandit.challenger.learned) == (3, 3)
        assert snapshot.dump(coordinator.bandit) == snapshot.dump(recover(coordinator.store))

    with_coordinator(settings_of(tmp_path / "log.db"), work, Clock())


def test_what_only_the_challenger_cannot_learn_is_applied(monkeypatch: pytest.MonkeyPatch) -> None:
    made = bandit(challenger=LINUCB)
    decide(made, ask("e"))

    def refuse(*_: Any) -> int:
        raise ValueError("too large")

    assert made.challenger is not None
    monkeypatch.setattr(made.challenger, "learn", refuse)
    assert made.reward("e", 1.0, START) == "applied"
    assert (made.skipped, made.policies.learned) == (0, 1)


def test_a_log_without_a_trial_says_nothing_of_arms() -> None:
    made = bandit()
    for k in range(3):
        decide(made, ask(f"e{k}"))
    for data in made.outbox:
        fields = msgspec.msgpack.decode(data)
        assert not {"arm", "alone"} & fields.keys()
        assert encode(decode(data)) == data
    assert not {"trial", "rival"} & msgspec.msgpack.decode(snapshot.dump(made)).keys()


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (Config(holdback=0.8, challenger=LINUCB), "holdback is 0.8 and the challenger's share 0.3"),
        (Config(challenger=Challenger("nonsense", 0.1)), "policy is 'nonsense'"),
        (Config(challenger=Challenger("linucb", 0.1, {"beta": 1})), "does not take these parameters"),
    ],
)
def test_what_cannot_be_compared_is_refused_before_anything_changes(config: Config, said: str) -> None:
    made = bandit()
    position = made.position
    with pytest.raises(ParameterError, match=said):
        made.configure(config, START)
    assert (made.position, made.config) == (position, Config())


def test_a_challenger_that_cannot_be_kept_on_a_device_is_refused() -> None:
    with pytest.raises(ParameterError, match="'linucb' cannot be kept on a device"):
        check_config(Config(policy="cab", challenger=LINUCB), Elsewhere())
    check_config(Config(policy="cab", holdback=0.1), Elsewhere())


def test_settings_and_the_api_take_the_same_trial(tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    file.write_text('[config]\nholdback = 0.1\n[config.challenger]\npolicy = "linucb"\nshare = 0.3\n')
    assert read_settings(file, {}).config == Config(holdback=0.1, challenger=LINUCB)
    with client_of(tmp_path) as client:
        config = client.get("/v1/configuration").json()
        assert (config["holdback"], config["challenger"], config["smallestLift"]) == (0.0, None, 0.05)
        assert client.put("/v1/configuration", json=config).json() == config
        assert client.get("/v1/statistics").json()["logRecords"] == 1  # nothing changed
        config |= {"holdback": 0.1, "challenger": {"policy": "linucb", "share": 0.3, "parameters": {}}}
        config["smallestLift"] = 0.1
        assert client.put("/v1/configuration", json=config).json() == config
        assert client.get("/v1/configuration").json() == config
        wrong = {**config, "challenger": {"policy": "linucb", "share": 0.95}}
        answer = client.put("/v1/configuration", json=wrong)
        assert answer.status_code == 422
        assert "at most 1 together" in answer.json()["error"]["message"]
        assert client.get("/v1/configuration").json() == config
        plain = client.put("/v1/configuration", json={}).json()
        assert (plain["holdback"], plain["challenger"]) == (0.0, None)


def test_the_statistics_tell_the_lift_against_the_holdback(tmp_path: Path) -> None:
    """The baseline shows "a", which pays nothing; everybody else is soon shown "b", which always pays."""
    with client_of(tmp_path, config=Config(holdback=0.4, exploration=0.05)) as client:
        held = 0
        for k in range(200):
            body = {"user": f"user-{k % 50}", "actions": [{"id": "a"}, {"id": "b"}], "eventId": f"e{k}"}
            chosen = client.post("/v1/rank", json=body).json()["chosen"]
            client.post(f"/v1/events/e{k}/reward", json={"value": float(chosen == "b")})
            held += client.get(f"/v1/events/e{k}").json()["arm"] == "holdback"
        found = client.get("/v1/statistics").json()
    ours, theirs = found["trial"]["arms"]
    assert (ours["name"], ours["policy"], ours["share"]) == ("champion", "hierarchical", 0.6)
    assert (theirs["name"], theirs["policy"], theirs["learned"]) == ("holdback", "baseline", held)
    assert ours["learned"] + theirs["learned"] == 200
    assert ours["users"] + theirs["users"] == 50
    assert theirs["payoff"] == 0
    assert theirs["interval"]["low"] == 0
    (lift,) = found["trial"]["lifts"]
    assert (lift["arm"], lift["against"], lift["verdict"]) == ("champion", "holdback", "better")
    assert lift["difference"]["value"] == ours["payoff"] > 0.7
    assert (
        0.5 < lift["difference"]["interval"]["low"] < ours["payoff"] <= lift["difference"]["interval"]["high"]
    )
    assert lift["difference"]["relative"] is None  # of nothing
    total = found["total"]
    assert total["decisions"] == total["learned"] == ours["learned"]
    assert (total["holdback"], total["holdbackLearned"]) == (0, held)
    assert (
        total["uniformBlind"] == total["baselineBlind"] == 0
    )  # the holdback does not hide what chance showed


def test_no_trial_no_lift(tmp_path: Path) -> None:
    with client_of(tmp_path) as client:
        found = client.get("/v1/statistics").json()
    assert found["trial"] is None
    assert found["total"]["holdback"] is None


def test_evaluation_leaves_out_who_was_held_back(tmp_path: Path) -> None:
    """Their choices were certain, so no other policy could be judged by them; the others stand for all."""
    path = tmp_path / "log.db"
    arms: list[str] = []

    async def work(coordinator: Coordinator) -> None:
        for k in range(60):
            record = await coordinator.rank(ask(f"e{k}", f"user-{k}"))
            await coordinator.reward(f"e{k}", float(record.choice == 1))
            arms.append(record.arm)

    with_coordinator(
        settings_of(path, Config(holdback=0.3, challenger=LINUCB, exploration=0.1)), work, Clock()
    )
    log = read_store(path)
    assert 5 < arms.count("holdback") < 35
    assert len(log.interactions) == 60 - arms.count("holdback")
    assert any("held back were left out" in note for note in log.notes)
    for one in log.interactions:
        assert one.chances is not None
        assert min(one.chances) > 0
        assert one.chances[one.chosen] == pytest.approx(one.probability)


def test_a_new_trial_begins_with_empty_sums_and_late_payoffs_are_not_its_own() -> None:
    made = bandit(holdback=0.5)
    for k in range(10):
        decide(made, ask(f"e{k}", f"user-{k}"))
        if k < 8:
            made.reward(f"e{k}", 1.0, START)
    assert made.trial is not None
    assert sum(sums.learned for sums in made.trial.arms.values()) == 8
    made.configure(Config(holdback=0.5, wait=60.0), START)
    assert sum(sums.learned for sums in made.trial.arms.values()) == 8  # it is the same comparison
    made.configure(Config(holdback=0.4), START)
    made.reward("e8", 1.0, START)
    assert [sums.learned for sums in made.trial.arms.values()] == [0, 0, 0]
    decide(made, ask("f", "user-0"))
    made.reward("f", 1.0, START)
    decide(made, ask("g", "user-0"))
    made.reward("g", 1.0, START)
    (sums,) = (sums for sums in made.trial.arms.values() if sums.learned)
    assert sums == Sums(1, 2, 2.0, 4.0, 4.0, 4.0)
    made.configure(Config(), START)
    assert made.trial is None
