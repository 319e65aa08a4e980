"""One model for ids, features, contexts and users: the service's default."""

import random
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coterie.data.logs.records import Rank, ShownAction, decode
from coterie.data.logs.rules import Config
from coterie.errors import ParameterError
from coterie.models.features import flatten, hash_name
from coterie.service.coordination.coordinator import Coordinator
from coterie.service.core.answers import ranking_of
from coterie.service.core.bandit import Bandit
from coterie.service.core.encoding import encode_question, shown
from coterie.service.core.policies import Policies
from coterie.service.core.policy_config import check_config
from coterie.service.core.question import Action, Question
from coterie.service.core.reasons import contributions, rows_of
from coterie.service.files.model_file import export_model
from coterie.service.log.erasure import Scrubber
from coterie.service.log.sqlite_store import SqliteStore
from coterie.service.problems import Problem
from coterie.service.settings import Settings
from coterie.service.snapshots import snapshot
from coterie.service.snapshots.recovery import recover
from tests.service.helpers import (
    START,
    Clock,
    ask,
    bandit,
    decide,
    flush,
    opened,
    settings_of,
    with_coordinator,
)
from tests.service.http.test_http import client_of

RAIN, SUN = [{"weather": "rain"}], [{"weather": "sun"}]


def question(k: int) -> Question:
    """Return one of many different questions: with and without features, context and exclusions."""
    features = [{"size": k % 3, "tone": ["calm", "loud"][k % 2]}] if k % 3 else None
    actions = [Action(name, features if name != "c" else None) for name in "abcd"]
    context: list[Any] = [{"device": {"mobile": k % 2 == 0}}, {"hour": k % 5}] if k % 4 else []
    excluded = frozenset("d") if k % 5 == 0 else frozenset[str]()
    return Question(f"event-{k}", f"user-{k % 6}", actions, context, excluded, deferred=k % 7 == 0)


def live(made: Bandit, n: int = 120, start: int = 0, forget: bool = True) -> None:
    for k in range(start, start + n):
        at = START + 1000 * k
        made.rank(question(k), at)
        if k % 7 == 0:
            made.activate(f"event-{k}", at)
        if k % 4:
            made.reward(f"event-{k}", round(1 - (k % 9) / 4, 2), at)
        if forget and k % 50 == 49:
            made.forget("user-2", at)


def replayed(made: Bandit, **changed: Any) -> Bandit:
    again = Bandit()
    for data in made.outbox:
        again.apply(decode(data))
    return again


def learned_by(made: Bandit) -> list[tuple[int, ShownAction, float]]:
    """Return what a bandit learned, in its order: users, actions and payoffs."""
    found: list[tuple[int, ShownAction, float]] = []

    def learn(self: Policies, user: int, action: ShownAction, value: float) -> int:
        found.append((user, action, value))
        return 0

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Policies, "learn", learn)
        replayed(made)
    return found


def test_the_context_decides_between_actions_that_are_ids_only() -> None:
    made, right = bandit(), 0
    rng = random.Random(1)
    for k in range(600):
        wet = rng.random() < 0.5
        shown = [Action("umbrella"), Action("hat")]
        record = decide(made, Question(f"e{k}", f"user-{k % 9}", shown, RAIN if wet else SUN))
        good = (record.choice == 0) == wet
        right += good and k >= 100
        made.reward(f"e{k}", float(good), START)
    assert right > 440  # of 500
    assert not {"items", "vectors"} & made.policies.made.keys()


def test_with_and_without_features_it_is_the_same_model() -> None:
    """What was learned of an id with features counts for the id without, and the other way round."""
    made = bandit(exploration=0.0)
    for k in range(30):
        shown = [Action("a", [{"tone": "calm"}]), Action("b", [{"tone": "loud"}])]
        record = decide(made, Question(f"e{k}", "ann", shown))
        made.reward(f"e{k}", float(record.actions[record.choice] == "b"), START)
    assert decide(made, ask("by id", "ann", "ab")).choice == 1
    assert decide(made, ask("by id, somebody else", "bob", "ab")).choice == 1
    other = [Action("c", [{"tone": "calm"}]), Action("d", [{"tone": "loud"}])]
    assert decide(made, Question("new ids", "bob", other)).choice == 1


def test_chances_are_true_add_up_and_keep_the_floor() -> None:
    made = bandit(exploration=0.1)
    for k in range(40):
        record = decide(made, ask(f"warm {k}", actions="abc"))
        made.reward(f"warm {k}", [1.0, 0.6, 0.0][record.choice], START)
    records = [decide(made, ask(f"e{k}", actions="abc")) for k in range(4000)]
    ranking = ranking_of(records[0]).ranking
    chances = {candidate.id: candidate.probability for candidate in ranking}
    assert sum(chances.values()) == pytest.approx(1)
    assert min(chances.values()) >= 0.1 / 3
    assert chances["a"] > chances["b"] >= chances["c"]
    for k, name in enumerate("abc"):
        often = sum(record.choice == k for record in records) / len(records)
        assert often == pytest.approx(chances[name], abs=0.03)
    for record in records:
        assert record.probability == chances[record.actions[record.choice]]
        assert record.shown == "explored" or (record.shown == "" and record.choice == record.best)
    excluded = ranking_of(decide(made, ask("without", actions="abc", excluded=frozenset("a"))))
    assert excluded.ranking[-1].probability == 0.0
    assert sum(candidate.probability for candidate in excluded.ranking) == pytest.approx(1)


def test_epsilon_is_there_and_without_exploration_the_best_is_shown() -> None:
    epsilon, best = bandit(exploration=0.3, explore="epsilon"), bandit(exploration=0.0)
    for made in (epsilon, best):
        decide(made, ask("e", actions="ab"))
        made.reward("e", -1.0, START)
    record = decide(epsilon, ask("e2", actions="ab"))
    assert sorted(c.probability for c in ranking_of(record).ranking) == pytest.approx([0.15, 0.85])
    assert {decide(best, ask(f"e{k}", actions="ab")).choice for k in range(2, 50)} == {1}
    assert decide(best, ask("e1", actions="ab")).probability == 1.0
    apprentice = bandit(mode="apprentice")
    assert decide(apprentice, ask("e", actions="ab")).probability == 1.0


def test_a_replay_is_the_state_bit_for_bit() -> None:
    made = bandit(exploration=0.2, wait=5.0, max_event_bytes=60_000, max_users=5, parameters={"slots": 256})
    live(made)
    assert made.policies.learned > 50
    again = replayed(made)
    assert snapshot.dump(again) == snapshot.dump(made)
    restored = snapshot.restore(snapshot.dump(made))
    restored.user_names.take(made.ids)
    live(made, 40, 200)
    live(restored, 40, 200)
    assert snapshot.dump(restored) == snapshot.dump(made)


def test_a_store_of_another_policy_goes_on_with_it_and_the_configuration_moves_it(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    unnamed = Settings(store=str(path), given=frozenset())

    async def first(coordinator: Coordinator) -> None:
        live(coordinator.bandit, forget=False)
        flush(coordinator)

    with_coordinator(settings_of(path, Config(policy="cab", exploration=0.3, dimensions=8)), first)
    alone = bandit(policy="cab", exploration=0.3, dimensions=8)
    live(alone, forget=False)

    async def second(coordinator: Coordinator) -> None:
        assert coordinator.bandit.config.policy == "cab"
        assert snapshot.dump(coordinator.bandit) == snapshot.dump(alone)
        await coordinator.configure(Config(exploration=0.3))
        assert not {"items", "vectors"} & coordinator.bandit.policies.made.keys()
        assert coordinator.bandit.policies.learned == alone.policies.learned

    with_coordinator(unnamed, second, Clock(START + 1000 * 119))
    with opened(path) as store:
        moved = recover(store)
        assert moved.config.policy == "hierarchical"
        assert snapshot.dump(moved) == snapshot.dump(recover(store, from_empty=True))
    # What was chosen was chosen by CAB; learned as if by one model from the start.
    taught = bandit(exploration=0.3)
    for user, action, value in learned_by(alone):
        taught.observe(alone.ids[user], action, value, START)
    assert "model" in taught.policies.made
    assert "model" in moved.policies.made
    asked = encode_question(["a", "b"], [[{"tone": "calm"}], None], [{"hour": 3}])
    for name in ("user-0", "user-5"):
        ours = moved.policies.made["model"].explain(moved.names[name], asked).score
        theirs = taught.policies.made["model"].explain(taught.names[name], asked).score
        assert ours.tolist() == theirs.tolist()


def test_and_back_again_to_cab(tmp_path: Path) -> None:
    """CAB learns of the log of one model: by id where no action had features, else by vectors."""

    async def work(coordinator: Coordinator) -> None:
        live(coordinator.bandit, 60)
        flush(coordinator)
        records = [record for batch in coordinator.store.read() for record in batch.records()]
        await coordinator.configure(Config(policy="cab", dimensions=8))
        made = coordinator.bandit
        assert "model" not in made.policies.made
        assert "items" in made.policies.made
        assert "vectors" in made.policies.made
        ranks = [record for record in records if isinstance(record, Rank)]
        by_id = {rank.event for rank in ranks if not any(rank.sent[1])}
        for event in made.events.values():
            assert (made.policies.read(event.action)[0] == "items") == (event.id in by_id)

    with_coordinator(settings_of(tmp_path / "log.db", Config(wait=10_000.0)), work, Clock(START + 1000 * 59))


def test_an_event_tells_what_mattered_by_name(tmp_path: Path) -> None:
    with client_of(tmp_path, config=Config(exploration=0.0)) as client:
        body: dict[str, Any] = {
            "user": "ann",
            "context": [{"device": {"mobile": True}}],
            "actions": [{"id": "a", "features": [{"tone": "calm"}]}, {"id": "b"}],
        }
        other = {"user": "bob", "actions": [{"id": "c"}], "context": [{"device": {"tablet": True}}]}
        client.post("/v1/rank", json={**other, "eventId": "other"})
        client.post(
            "/v1/events/other/reward", json={"value": 0}
        )  # without other payoffs, 1 would say nothing
        for k in range(6):
            client.post("/v1/rank", json={**body, "eventId": f"e{k}"})
            client.post(f"/v1/events/e{k}/reward", json={"value": 1})
        why = client.get("/v1/events/e5").json()
        assert why["chosen"] == "a"
        found = {(part["kind"], *part["features"]): part["value"] for part in why["contributions"]}
        assert {("population",), ("user",), ("id", "id=a"), ("feature", "tone=calm")} <= found.keys()
        assert ("context × id", "device.mobile", "id=a") in found
        assert all(value > 0 for value in found.values())
        reason = why["reasons"][0]
        parts = [reason[name] for name in ("population", "action", "context", "user")]
        assert sum(parts) == pytest.approx(reason["estimate"], abs=1e-5)
        assert reason["score"] == pytest.approx(reason["estimate"] + reason["width"])
        imagined = client.post("/v1/what-if", json=body).json()
        assert imagined["contributions"]


def test_a_scrubbed_record_names_nothing() -> None:
    made = bandit()
    decide(made, Question("e0", "bob", [Action("b")], [{"weather": "cold"}]))
    made.reward("e0", 0.0, START)
    record = decide(made, Question("e", "ann", [Action("a", [{"city": "Rome"}])], [{"street": "Via Appia"}]))
    made.reward("e", 1.0, START)
    again = decide(made, Question("e2", "ann", [Action("a", [{"city": "Rome"}])], [{"street": "Via Appia"}]))
    assert "street=Via Appia" in str(contributions(again))
    clean = Scrubber([record.user]).clean(2, again)
    assert isinstance(clean, Rank)
    assert contributions(clean) is None
    assert rows_of(clean) is not None
    for text in (b"Rome", b"Appia"):
        assert text not in repr(clean).encode()


def test_bad_features_are_refused_with_the_reason_and_change_nothing(tmp_path: Path) -> None:
    deep: Any = 1
    for _ in range(20):
        deep = {"a": deep}
    wide = {f"f{k}": 1 for k in range(600)}
    with client_of(tmp_path) as client:
        for context, own, code, message in (
            ([{"a": deep}], [], 422, "nest deeper than 16"),
            ([], [deep], 422, "nest deeper than 16"),
            ([wide], [wide], 422, "crosses, expected at most"),
            ([1], [], 400, "Expected `object`"),
            ([], "red", 400, "Expected `array"),
        ):
            body = {"user": "ann", "actions": [{"id": "a", "features": own}], "context": context}
            answer = client.post("/v1/rank", json=body)
            assert answer.status_code == code, answer.text
            assert message in answer.json()["error"]["message"]
        slots = {
            "actions": [{"id": "a", "features": []}, {"id": "b", "features": []}],
            "slots": [{"id": "top", "baselineAction": "a", "features": [deep]}],
        }
        answer = client.post("/personalizer/v1.0/multislot/rank", json=slots)
        assert answer.status_code in (400, 422), answer.text
        assert "nest deeper" in answer.text
        assert client.get("/v1/statistics").json()["total"]["decisions"] == 0


def test_slots_have_chances_of_their_own(tmp_path: Path) -> None:
    with client_of(tmp_path) as client:
        body = {
            "eventId": "page",
            "contextFeatures": [{"user": {"id": "ann"}}, {"hour": 8}],
            "actions": [{"id": name, "features": [{"tone": name}]} for name in "abc"],
            "slots": [
                {"id": "top", "baselineAction": "a", "features": [{"large": True}]},
                {"id": "side", "baselineAction": "b"},
            ],
        }
        answer = client.post("/personalizer/v1.0/multislot/rank", json=body)
        assert answer.status_code == 201, answer.text
        sent = {"reward": [{"slotId": "top", "value": 1.0}, {"slotId": "side", "value": 0.0}]}
        path = "/personalizer/v1.0/multislot/events/page/reward"
        assert client.post(path, json=sent).headers["x-coterie-reward"] == "applied, applied"
    store = SqliteStore(str(tmp_path / "log.db"))
    try:
        made = recover(store, from_empty=True)
        assert made.policies.learned == 2
        for event in made.events.values():
            assert 0 < event.probability <= 1
    finally:
        store.close()


def test_the_encoding_is_as_documented() -> None:
    """Hashes and values in the order of `flatten`, whether remembered or not."""
    context, own = [{"device": {"mobile": True}, "hour": 8}], [{"tone": "calm", "size": -3}]
    for _ in range(2):
        hashed = encode_question(["a", "b"], [own, None], context).hashed
        assert hashed.context.tolist() == [hash_name(name) for name in flatten(context)]
        assert hashed.context_values.tolist() == list(flatten(context).values())
        names = ["id=a", *flatten(own), "id=b"]
        assert hashed.features.tolist() == [hash_name(name) for name in names]
        assert hashed.values.tolist() == [1.0, *flatten(own).values(), 1.0]
        assert hashed.starts.tolist() == [0, 3, 4]
        assert hashed.has_id.all()
    digest = blake2b(b"id=a", digest_size=8).digest()
    assert hash_name("id=a") == int.from_bytes(digest, "little")
    assert shown("a", own, context).hashed == encode_question(["a", "b"], [own, None], context)[0].to_bytes()


def test_a_model_file_and_max_items(tmp_path: Path) -> None:
    """Ids take no row of their own, so there is no limit to them."""
    made = bandit(max_items=1)
    live(made, 30)
    assert not made.policies.known_items
    other = bandit(max_items=1)
    from coterie.service.files.model_file import import_model

    import_model(export_model(made), other, START)
    assert other.policies.learned == made.policies.learned


def test_the_default_cannot_be_kept_on_a_device() -> None:
    with pytest.raises(ParameterError, match="cannot be kept on a device, cab can"):
        check_config(Config(), object())  # type: ignore[arg-type]


def test_too_many_crosses_are_refused_before_any_work() -> None:
    made = bandit()
    many = [{f"f{k}": 1 for k in range(700)}]
    with pytest.raises(
        Exception, match="701 features of one action make 490700 crosses, expected at most 200000"
    ):
        made.rank(Question("e", "ann", [Action("a", many)], many), START)
    few, context = [{f"f{k}": 1 for k in range(9)}], [{f"c{k}": 1 for k in range(99)}]
    with pytest.raises(
        Exception, match="10000 features of all actions make 990000 crosses, expected at most 1000000"
    ):
        made.rank(Question("e", "ann", [Action(f"a{k}", few) for k in range(1000)], context), START)
    assert not made.events
    assert made.position == 1
    with pytest.raises(Problem, match="every action is excluded"):
        made.rank(ask("e", actions="a", excluded=frozenset("a")), START)


def test_numbers_stay_finite_with_large_features() -> None:
    made = bandit()
    for k in range(50):
        huge = [{"x": 1e308 * (-1) ** k, "y": 10**300}]
        made.rank(Question(f"e{k}", "ann", [Action("a", huge), Action("b")], huge), START)
        made.reward(f"e{k}", (-1.0) ** k, START)
    assert "model" in made.policies.made
    assert all(np.isfinite(tensor).all() for tensor in made.policies.made["model"].tensors().values())
