"""The bandit by hand: decisions, rewards and waits, and that its state is a function of the log."""

import math
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from coterie.data.logs.records import ShownAction, decode
from coterie.data.logs.rules import Config
from coterie.errors import FileError, ParameterError
from coterie.policies import POLICIES
from coterie.policies.base.vowpal_options import is_installed
from coterie.service.coordination.coordinator import Coordinator
from coterie.service.core.answers import ranking_of
from coterie.service.core.bandit import Bandit
from coterie.service.core.deciding import draw
from coterie.service.core.policy_config import possible
from coterie.service.core.question import Action, Question
from coterie.service.files.model_file import export_model
from coterie.service.problems import Problem
from coterie.service.snapshots import snapshot
from tests.service.helpers import START, again, ask, bandit, decide, settings_of, with_coordinator


def test_a_reward_changes_the_next_decision() -> None:
    made = bandit(exploration=0.0)
    assert decide(made, ask("e1", actions="ab")).choice == 0
    assert made.reward("e1", -1.0, START) == "applied"
    assert decide(made, ask("e2", actions="ab")).choice == 1


def test_a_reward_is_learned_once() -> None:
    made = bandit(exploration=0.0)
    decide(made, ask("e1"))
    assert [made.reward("e1", 1.0, START) for _ in range(3)] == ["applied", "duplicate", "duplicate"]
    assert made.policies.learned == 1


def test_a_reward_for_nothing_known_is_not_recorded() -> None:
    made = bandit()
    before = made.position
    assert made.reward("nobody", 1.0, START) == "unknown_event"
    assert made.position == before


def test_the_default_is_learned_after_the_wait_and_a_late_reward_is_not() -> None:
    made = bandit(wait=10.0, default_reward=-0.5)
    decide(made, ask("e1"))
    assert made.reward("e1", 1.0, START + 10_000) == "late"
    assert made.events["e1"].state == "expired"
    assert made.events["e1"].value == -0.5
    assert made.policies.learned == 1


def test_a_reward_just_in_time_is_applied() -> None:
    made = bandit(wait=10.0)
    decide(made, ask("e1"))
    assert made.reward("e1", 1.0, START + 9_999) == "applied"


def test_a_deferred_decision_teaches_nothing_until_activated() -> None:
    made = bandit(wait=10.0)
    decide(made, ask("e1", deferred=True))
    decide(made, ask("e2", deferred=True))
    assert made.reward("e1", 1.0, START) == "not_activated"
    assert made.activate("e1", START)
    assert made.reward("e1", 1.0, START) == "applied"
    made.tick(START + 10_000)
    assert made.events["e2"].state == "discarded"
    assert not made.activate("e3", START)
    assert made.policies.learned == 1


def test_sums_are_learned_at_the_end_of_the_wait_and_named_rewards_once() -> None:
    made = bandit(wait=10.0, aggregation="sum")
    decide(made, ask("e1"))
    outcomes = [made.reward("e1", 0.4, START, name) for name in ("first", "second", "first", None)]
    assert outcomes == ["applied", "applied", "duplicate", "applied"]
    assert made.policies.learned == 0
    made.tick(START + 10_000)
    assert made.events["e1"].value == 1.0  # 3 × 0.4, and never more than 1
    assert made.policies.learned == 1


def test_the_average_is_the_mean_of_the_rewards_within_the_wait_and_is_learned_at_its_end() -> None:
    """(1 + 0.5 − 0.3) / 3 = 0.4; the repeated name does not count, and none in time is the default reward."""
    made = bandit(wait=10.0, aggregation="average", default_reward=-0.5)
    for event in ("e1", "e2"):
        decide(made, ask(event))
    sent = [(1.0, "first"), (0.5, "second"), (1.0, "first"), (-0.3, None)]
    outcomes = [made.reward("e1", value, START, name) for value, name in sent]
    assert outcomes == ["applied", "applied", "duplicate", "applied"]
    assert made.events["e1"].payoff("average") == pytest.approx(0.4)
    assert made.policies.learned == 0
    made.tick(START + 10_000)
    assert made.events["e1"].value == pytest.approx(0.4)
    assert made.events["e2"].value == -0.5
    assert made.reward("e1", 1.0, START + 10_001) == "duplicate"
    assert made.policies.learned == 2


def test_a_retry_is_the_same_event_and_another_body_is_refused() -> None:
    made = bandit()
    record = decide(made, ask("e1"))
    position = made.position
    assert again(made, ask("e1")).position == position - 1
    assert made.position == position
    ask("e1").check_retry(record)
    with pytest.raises(Problem, match="decided for another request") as caught:
        ask("e1", user="bob").check_retry(record)
    assert caught.value.status == 409


def test_apprentice_shows_the_baseline_and_learns_from_it() -> None:
    made = bandit(mode="apprentice")
    record = decide(made, ask("e1", actions="ab", excluded=frozenset("a")))
    assert (record.choice, record.baseline, record.probability) == (1, 1, 1.0)
    made.reward("e1", -1.0, START)
    assert decide(made, ask("e2", actions="ab")).shown == "baseline"
    assert made.policies.learned == 1


def test_logging_only_learns_nothing() -> None:
    made = bandit(mode="logging-only")
    decide(made, ask("e1"))
    made.reward("e1", 1.0, START)
    assert made.policies.learned == 0


def test_probabilities_are_what_happens() -> None:
    """4,000 events of an untrained policy: b and c by chance only, a third of half of them each."""
    made = bandit(exploration=0.5, explore="epsilon")
    chosen = [decide(made, ask(f"e{k}")).choice for k in range(4000)]
    for action, chance in ((0, 1 / 2 + 1 / 6), (1, 1 / 6), (2, 1 / 6)):
        spread = math.sqrt(chance * (1 - chance) / 4000)
        assert abs(chosen.count(action) / 4000 - chance) < 4 * spread


@given(st.text("abcdef", min_size=1, max_size=6), st.text("abcdefg", max_size=6), st.floats(0, 1), st.text())
def test_every_ranking_names_each_action_once_and_its_chances_add_up(
    actions: str, excluded: str, exploration: float, event: str
) -> None:
    names = "".join(dict.fromkeys(actions))
    made = bandit(exploration=exploration)
    question = ask(event, actions=names, excluded=frozenset(excluded))
    if set(names) <= set(excluded):
        with pytest.raises(Problem, match="every action is excluded"):
            made.rank(question, START)
        return
    answer = ranking_of(decide(made, question))
    assert sorted(candidate.id for candidate in answer.ranking) == sorted(names)
    assert sum(candidate.probability for candidate in answer.ranking) == pytest.approx(1)
    assert answer.ranking[0].id == answer.chosen
    assert all((candidate.probability == 0) >= (candidate.id in excluded) for candidate in answer.ranking)


@given(st.text())
def test_chance_comes_from_the_events_name(event: str) -> None:
    assert draw(event, b"secret") == draw(event, b"secret") != draw(event, b"other")
    assert all(0 <= number < 1 for number in draw(event, b"secret"))


def test_forgetting_leaves_no_event_no_name_and_no_model() -> None:
    made = bandit()
    for user in ("ann", "bob"):
        decide(made, ask(f"e-{user}", user))
        made.reward(f"e-{user}", 1.0, START)
    number = made.forget("ann", START)
    assert number == 0
    assert "model" in made.policies.made
    assert list(made.policies.made["model"].users) == [1]
    assert "e-ann" not in made.events
    assert "ann" not in made.names
    assert made.reward("e-ann", 1.0, START) == "unknown_event"
    assert decide(made, ask("new", "ann")).user == 2  # a stranger again
    assert made.forget("nobody", START) is None


def test_the_user_unseen_for_longest_goes() -> None:
    made = bandit(max_users=2, exploration=0.0)
    for event, user in enumerate(["ann", "bob", "ann", "cat"]):
        decide(made, ask(f"e{event}", user))
        made.reward(f"e{event}", 1.0, START)
    assert set(made.names) == {"ann", "cat"}
    assert "model" in made.policies.made
    assert len(made.policies.made["model"].users) == 2


def test_a_rank_that_names_too_many_items_is_refused() -> None:
    made = bandit(policy="cab", max_items=3)
    decide(made, ask("e1", actions="abc"))
    with pytest.raises(Problem, match="names 1 new items, but 3 of at most 3"):
        made.rank(ask("e2", actions="abcd"), START)


def test_actions_with_features_are_vectors() -> None:
    made = bandit(policy="cab", exploration=0.0, dimensions=16)
    actions = [Action("a", [{"tone": "calm"}]), Action("b", [{"tone": "loud"}])]
    record = decide(made, Question("e1", "ann", actions, [{"hour": 8}]))
    assert record.featured
    assert made.policies.read(record.action)[1].shape == (16,)
    made.reward("e1", -1.0, START)
    assert decide(made, Question("e2", "ann", actions, [{"hour": 8}])).choice == 1
    assert "items" not in made.policies.made


def test_a_policy_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ParameterError, match="policy is 'nope', expected one of"):
        bandit(policy="nope")
    with pytest.raises(ParameterError, match="does not take these parameters"):
        bandit(parameters={"nope": 1})


@pytest.mark.parametrize("policy", [name for name in POLICIES if name != "vw" or is_installed()])
def test_a_replay_of_the_log_is_the_state_bit_for_bit(policy: str) -> None:
    """R4, for any policy of the library."""
    config = Config(
        policy=policy, exploration=0.3, wait=5.0, max_event_bytes=40_000, max_users=5, dimensions=8
    )
    kinds = possible(config)
    made = Bandit()
    made.configure(config, START)
    for k in range(200):
        at = START + 300 * k
        vectors = kinds[k % len(kinds)]
        actions = [Action(name, [{"size": k % 3}] if vectors else None) for name in "abcd"]
        made.rank(Question(f"e{k}", f"user-{k % 7}", actions, deferred=k % 11 == 0), at)
        if k % 3:
            made.reward(f"e{k - k % 5}", (k % 9) / 4 - 1, at)
        if k % 50 == 49:
            made.forget(f"user-{k % 7}", at)
    log = [decode(data) for data in made.outbox]
    replayed = Bandit()
    for position, record in enumerate(log):
        replayed.apply(record)
        if position == 150:  # a snapshot in between changes nothing
            replayed = snapshot.restore(snapshot.dump(replayed))
    assert snapshot.dump(replayed) == snapshot.dump(made)
    assert len(log) == made.position


def test_a_snapshot_of_another_version_is_refused_by_name() -> None:
    made = msgspec.msgpack.decode(snapshot.dump(bandit()))
    made["version"] = 99
    with pytest.raises(Exception, match="snapshot has format version 99, this coterie reads version 3"):
        snapshot.restore(msgspec.msgpack.encode(made))


def test_configurations_with_the_same_rules_are_one_record() -> None:
    made = bandit()
    made.configure(Config(), START)
    assert made.position == 1


def test_a_number_of_any_size_is_a_feature() -> None:
    """Found by schemathesis: integers beyond 64 bits cannot be written as MessagePack."""
    made = bandit(dimensions=4)
    decide(made, Question("e1", "ann", [Action("a", [{"n": 10**30}])], [{"m": -(10**25)}]))


def test_items_beyond_the_limit_are_refused_wherever_they_come_from_and_known_ones_go_on(
    tmp_path: Path,
) -> None:
    async def work(coordinator: Coordinator) -> bytes:
        await coordinator.rank(ask("e1", actions="abc"))
        with pytest.raises(Problem, match="names 1 new items, but 3 of at most 3 are known; raise max-items"):
            await coordinator.rank(ask("e2", actions="abd"))
        with pytest.raises(Problem, match="names 2 new items"):
            await coordinator.observe([("ann", ShownAction(name), 1.0) for name in "ade"])
        assert coordinator.bandit.policies.learned == 0  # refused whole
        await coordinator.observe([("ann", ShownAction("a"), 1.0)])
        await coordinator.rank(ask("e3", actions="cab"))
        assert list(coordinator.bandit.policies.known_items) == ["a", "b", "c"]
        content = export_model(coordinator.bandit)
        await coordinator.reset()  # frees the ids
        await coordinator.rank(ask("e4", actions="xyz"))
        return content

    content = with_coordinator(settings_of(tmp_path / "a.db", Config(policy="cab", max_items=3)), work)

    async def take(coordinator: Coordinator) -> None:
        await coordinator.observe([("bob", ShownAction(name), 1.0) for name in "xy"])
        larger = export_model(coordinator.bandit)
        await coordinator.configure(replace(coordinator.bandit.config, max_items=1))
        with pytest.raises(FileError, match=r"the model file has 2 items, expected at most 1 \(max-items\)"):
            await coordinator.import_model(larger)
        await coordinator.import_model(content)  # one item was learned there

    with_coordinator(settings_of(tmp_path / "b.db", Config(policy="cab")), take)


def test_another_policy_learns_a_log_whose_beginning_is_gone(tmp_path: Path) -> None:
    """What waits is learned by the new policy too, also if its decision was removed with the log."""

    async def work(coordinator: Coordinator) -> None:
        await coordinator.rank(ask("gone"))
        await coordinator.rank(ask("shown later", deferred=True))
        await coordinator.delete_log()
        assert await coordinator.activate("shown later")
        assert await coordinator.reward("gone", 1.0) == "applied"
        await coordinator.rank(ask("kept"))
        assert await coordinator.reward("kept", 1.0) == "applied"
        await coordinator.configure(Config(policy="linucb"))
        assert "items" in coordinator.bandit.policies.made
        assert coordinator.bandit.policies.made["items"].learned == 1
        assert await coordinator.reward("shown later", 1.0) == "applied"
        assert coordinator.bandit.policies.made["items"].learned == 2

    with_coordinator(settings_of(tmp_path / "log.db"), work)
