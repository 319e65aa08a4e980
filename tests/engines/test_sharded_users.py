"""Hierarchical with its users in shards, against one process: every choice, every score and the state, to the bit."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie import Candidates, Hierarchical
from coterie.engines import Local
from coterie.engines.shard import Change
from coterie.engines.sharded_users import ShardedUsers
from coterie.engines.users_shard import UsersShard
from coterie.errors import ParameterError, PayoffError, UnavailableError, UserError
from coterie.models._kernels.hierarchy.arrays import TRIED
from coterie.models.files import read_file
from coterie.models.hierarchy import remote_users
from coterie.models.hierarchy.remote_users import StoredUser
from coterie.policies.base.batch import Batch
from tests.engines.test_sharded import Engine
from tests.playing import assert_same_tensors, play_side_by_side
from tests.policies.test_hierarchical import KINDS, contexts_of, make, world
from tests.worlds import Visit

SHARDS = [1, 2, 4, 7]


def play(one: Hierarchical, other: Hierarchical, kind: str, rounds: int, seed: int) -> None:
    visits = (
        Visit(user, contexts_of(kind, shown, features), [], payoffs)
        for user, shown, features, payoffs in world(kind, seed, rounds)
    )
    play_side_by_side(one, other, visits)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shards", SHARDS)
def test_every_choice_is_that_of_one_process(kind: str, shards: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_users, "RECENT", 5)  # so that data are sent back and forth
    monkeypatch.setattr(remote_users, "WINDOW", 11)
    half_life = 9.0 if shards == 4 else None
    one = make(kind, seed=shards, half_life=half_life)
    other = make(kind, seed=shards, half_life=half_life, engine=Local(shards, snapshot_every=20))
    play(one, other, kind, 300, seed=shards)
    assert_same_tensors(one, other)
    context = contexts_of(kind, np.array([3]), next(iter(world(kind, shards, 1)))[2])[0]
    assert list(one.users) == list(other.users)
    assert one.neighbours("user 3", context) == other.neighbours("user 3", context)
    assert one.neighbours("new", context) == other.neighbours("new", context)
    assert one.groups() == other.groups()


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shards", SHARDS)
def test_ten_thousand_rounds_leave_the_same_state(kind: str, shards: int) -> None:
    one, other = make(kind), make(kind, engine=Local(shards))
    play(one, other, kind, 10_000, seed=shards)
    assert_same_tensors(one, other)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "many ids"])  # which has one group
def test_groups_are_tried_and_taken_alike(kind: str) -> None:
    one, other = make(kind), make(kind, engine=Local(3))
    play(one, other, kind, 900, seed=8)
    assert one._model.population.model.place[TRIED] > 0  # the comparison did reach the trials
    assert_same_tensors(one, other)


@pytest.mark.parametrize("kind", KINDS)
def test_many_at_once_are_those_one_by_one(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_users, "RECENT", 16)  # so that changes are sent during the batch
    rounds = list(world(kind, 3, 200))
    features = rounds[0][2]
    items = contexts_of(kind, np.arange(len(features)), features)
    lists, payoffs = np.array([r[1] for r in rounds]), np.array([r[3] for r in rounds])
    users = [r[0] for r in rounds]
    one, other = make(kind), make(kind, engine=Local(3))
    batch = Batch(users, lists, items, payoffs)
    for mine, others in zip(one.run(batch), other.run(batch), strict=True):
        np.testing.assert_array_equal(mine, others)
    shown = contexts_of(kind, lists[:, 0], features)
    assert one.learn_many(users, shown, payoffs[:, 0]) == other.learn_many(users, shown, payoffs[:, 0])
    assert_same_tensors(one, other)
    asked = [*users[:20], "stranger"]
    contexts = [contexts_of(kind, r[1], features) for r in rounds[:21]]
    assert one.choose_many(asked, contexts) == other.choose_many(asked, contexts)
    assert other.choose_many([], []) == []


def calls_of(people: ShardedUsers) -> list[tuple[int, str]]:
    """Return a list that grows with each call of a shard."""
    backend: Any = people._supervisor.backend
    asked, ask = [], backend.ask

    def counted(shard: int, method: str, *arguments: Any) -> Any:
        asked.append((shard, method))
        return ask(shard, method, *arguments)

    backend.ask = counted
    return asked


def test_a_decision_asks_one_shard_and_many_ask_each_once() -> None:
    policy = Hierarchical(n_features=2, engine=Local(4))
    policy.learn_many(range(3000), np.ones((3000, 2)), np.ones(3000))
    asked = calls_of(policy.models)
    policy.choose(5, np.eye(2))  # so long ago that it is not cached
    assert asked == [(policy.models.placement.shard_of(5), "find")]
    policy.choose(5, np.eye(2))
    assert len(asked) == 1  # cached
    asked.clear()
    policy.choose_many(range(100, 200), [np.eye(2)] * 100)
    assert sorted(asked) == [(shard, "find") for shard in range(4)]
    asked.clear()
    policy.learn(150, [1.0, 0.0], 1.0)
    assert (policy.models.placement.shard_of(150), "change") in asked
    assert len(asked) <= 1 + 4  # and, seldom, all for the users of coming visits


@pytest.mark.parametrize("kind", ["features", "few ids"])
def test_users_move_while_everything_goes_on(kind: str) -> None:
    one, other = make(kind), make(kind, engine=Local(3))
    play(one, other, kind, 80, seed=3)
    for shards in (7, 2, 2, 4):
        for done, total in other.models.rebalance(shards):
            assert 0 < done <= total
            if done % 900 == 0:
                play(one, other, kind, 3, seed=done)
        assert other.models.shards == shards
        other._remote.clear()  # type: ignore[union-attr] # users are found where they are now
        play(one, other, kind, 20, seed=shards)
        assert_same_tensors(one, other)


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_goes_from_one_process_to_shards_and_back(kind: str, tmp_path: Path) -> None:
    one, other = make(kind), make(kind, engine=Local(3))
    play(one, other, kind, 150, seed=4)
    for policy, name in ((one, "one"), (other, "other")):
        policy.save(tmp_path / name)
    files = [read_file(tmp_path / name, "hierarchical") for name in ("one", "other")]
    assert files[0][:2] == files[1][:2]  # nothing tells that there were shards
    wide = Hierarchical.load(tmp_path / "one", engine=Local(5))
    single = Hierarchical.load(tmp_path / "other")
    assert single.engine is None
    play(single, wide, kind, 60, seed=5)
    assert_same_tensors(single, wide)
    with pytest.raises(ParameterError, match="made with engine=…, which cannot be copied"):
        wide.__getstate__()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("after", [False, True], ids=["before the call", "after the call"])
@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_shards_that_die_anywhere_lose_nothing_and_learn_nothing_twice(
    kind: str, after: bool, seed: int
) -> None:
    chance = random.Random(seed)
    engine = Engine(chance.choice([1, 2, 4]), "wait", chance.choice([1, 3, 1000]))
    engine.backend.after = after
    one, other = make(kind), make(kind, engine=engine)
    for k in range(8):
        engine.backend.die_in[chance.randrange(engine.rest[0])] = chance.randrange(6)
        play(one, other, kind, 6, seed=seed + k)
        other._remote.clear()  # type: ignore[union-attr] # nothing is cached
    engine.backend.die_in.clear()
    assert_same_tensors(one, other)
    assert engine.backend.starts > engine.rest[0]


@pytest.mark.parametrize("kind", KINDS)
def test_a_partial_answer_says_so_and_payoffs_wait_their_turn(kind: str) -> None:
    engine = Engine(4, "partial")
    one, other = make(kind), make(kind, engine=engine)
    play(one, other, kind, 60, seed=6)
    other._remote.clear()  # type: ignore[union-attr] # nothing is cached
    rounds = list(world(kind, 7, 20))
    engine.backend.dead.add(other.models.placement.shard_of("user 3"))
    engine.backend.held = True
    contexts = contexts_of(kind, rounds[0][1], rounds[0][2])
    decision, stranger = other.explain("user 3", contexts), other.explain("nobody at all", contexts)
    assert decision.seen == (0, 3, 4)
    assert "partial: 0 users, on 3 of 4 shards" in str(decision)
    np.testing.assert_array_equal(decision.estimate, stranger.estimate)  # a stranger, meanwhile
    for user, shown, features, payoffs in rounds:
        context = contexts_of(kind, shown, features)[0]
        assert one.learn(user, context, payoffs[0]) == 1
        assert other.learn(user, context, payoffs[0]) == 0
    assert len(other._remote.waiting) == 20  # type: ignore[union-attr]
    engine.backend.held = False
    again = other.decide("user 3", contexts)
    assert again.seen is None
    assert not other._remote.waiting  # type: ignore[union-attr]
    assert again.choice == one.choose("user 3", contexts)
    assert_same_tensors(one, other)


def test_whose_shard_answers_gets_a_whole_decision_while_others_are_down() -> None:
    engine = Engine(2, "partial")
    policy = Hierarchical(n_features=2, engine=engine)
    policy.learn_many(range(20), np.ones((20, 2)), np.ones(20))
    down, up = (next(u for u in range(20) if policy.models.placement.shard_of(u) == s) for s in (0, 1))
    policy._remote.clear()  # type: ignore[union-attr]
    engine.backend.dead.add(0)
    engine.backend.held = True
    assert policy.decide(down, np.eye(2)).seen is not None
    assert policy.decide(up, np.eye(2)).seen is None


def test_a_user_dropped_while_payoffs_wait_is_gone() -> None:
    engine = Engine(2, "partial")
    policy = Hierarchical(one_hot=True, engine=engine)
    policy.learn_many(range(8), ["a"] * 8, np.ones(8))
    policy._remote.clear()  # type: ignore[union-attr]
    engine.backend.dead |= {0, 1}
    engine.backend.held = True
    assert policy.decide(0, ["a"]).seen is not None
    policy.learn(0, "a", 1.0)
    assert len(policy._remote.waiting) == 1  # type: ignore[union-attr]
    policy.drop(0)
    assert not policy._remote.waiting  # type: ignore[union-attr]
    assert 0 not in policy.users
    assert policy.learned == 9


def test_refusing_changes_nothing() -> None:
    engine = Engine(2, "refuse")
    one, other = make("few ids"), make("few ids", engine=engine)
    play(one, other, "few ids", 40, seed=7)
    other._remote.clear()  # type: ignore[union-attr]
    engine.backend.dead.add(other.models.placement.shard_of("user 1"))
    engine.backend.held = True
    for _ in range(2):
        with pytest.raises(UnavailableError, match="1 of 2 shards are down"):
            other.choose("user 1", ["item 1", "item 2"])
        for user in ("user 1", "user 2"):
            with pytest.raises(UnavailableError, match="1 of 2 shards are down"):
                other.learn(user, "item 1", 1.0)
    assert not other._remote.waiting  # type: ignore[union-attr]
    engine.backend.held = False
    assert_same_tensors(one, other)


def test_a_shard_that_cannot_be_rebuilt_is_given_up() -> None:
    engine = Engine(2)
    policy = Hierarchical(one_hot=True, engine=engine)
    policy.learn("a", "x", 1.0)
    engine.backend.stillborn = True
    engine.backend.dead |= {0, 1}
    with pytest.raises(UnavailableError, match="died 3 times while it was rebuilt"):
        policy.choose("b", ["x"])


def test_a_change_is_applied_once_by_its_number() -> None:
    shard = UsersShard()
    shard.change(Change(5, "put", ([("ada", StoredUser(0, b"12345678"))],)))
    shard.change(Change(4, "drop", ("ada",)))
    assert shard.find(["ada", "bob"]) == [StoredUser(0, b"12345678"), None]
    again = UsersShard()
    again.rebuild(shard.snapshot(), [Change(6, "put", ([("bob", StoredUser(1, b""))],))])
    assert again.between(0, 9) == [("ada", StoredUser(0, b"12345678")), ("bob", StoredUser(1, b""))]
    assert len(again.users()) == 2


def test_logs_are_cut_by_snapshots() -> None:
    engine = Engine(2, snapshot_every=5)
    policy = Hierarchical(one_hot=True, engine=engine)
    for t in range(100):
        policy.learn(t % 9, t % 4, 0.5)
    assert all(len(log) <= 6 for log in policy.models._supervisor._log)


def test_a_log_of_many_payoffs_at_once_is_cut_by_snapshots_too() -> None:
    policy = Hierarchical(one_hot=True, engine=Engine(2, snapshot_every=100))
    for _ in range(5):
        policy.learn_many(range(400), ["a"] * 400, np.ones(400))
    users = [
        len(call[0]) for log in policy.models._supervisor._log for call in (one.arguments for one in log)
    ]
    assert sum(users) <= 2 * 400  # the last of each shard, and what came while a snapshot was taken


def test_bad_input_is_refused_and_changes_nothing() -> None:
    policy = Hierarchical(n_features=2, one_hot=True, engine=Local(2))
    good = Candidates(["a", "b"], np.eye(2))
    policy.learn("ann", good[0], 1.0)
    before = {name: array.tobytes() for name, array in policy.tensors().items()}
    with pytest.raises(UserError, match="no hash that is the same on every machine"):
        policy.learn(frozenset(), good[1], 1.0)
    with pytest.raises(PayoffError):
        policy.learn("ann", good[1], 2.0)
    with pytest.raises(UserError, match="'nobody' is not known"):
        policy.drop("nobody")
    assert not policy._remote.waiting  # type: ignore[union-attr]
    assert {name: array.tobytes() for name, array in policy.tensors().items()} == before
    assert policy.learn("ann", good[1], 1.0) == 1


def test_a_user_who_leaves_after_the_64th_item_changes_nothing_that_no_longer_learns() -> None:
    """The covariance over items has room for 64 items. It stops to learn when there are more."""
    policy = Hierarchical(one_hot=True)
    policy.learn_many(["ann"] * 70, [f"item {i}" for i in range(70)], np.ones(70))
    policy.learn("bob", "item 1", 1.0)
    before = policy.tensors()["few_kept_pulls"]
    policy.drop("ann")
    np.testing.assert_array_equal(policy.tensors()["few_kept_pulls"], before)
