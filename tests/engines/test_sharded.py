"""Shards against one process: every choice, every count of learners, and the state in the end."""

import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie import CAB
from coterie.engines.local import InProcess, Local
from coterie.engines.placement import SLOTS, Placement, slot_of
from coterie.engines.shard import AnyShard, Change, Kind, Shard
from coterie.engines.sharded import Sharded
from coterie.engines.sharded_users import ShardedUsers
from coterie.engines.supervisor import LostError, WhenDown
from coterie.errors import ParameterError, UnavailableError, UserError
from coterie.models import Movable, make_models
from coterie.models.files import Tensors
from coterie.models.protocol import Seen
from tests.playing import play_side_by_side
from tests.worlds import candidates, random_visits

KINDS: list[dict[str, Any]] = [{"one_hot": True}, {"n_features": 4}]


def by_user(policy: CAB) -> Tensors:
    """Return what is known of each user, in an order that does not depend on shards."""
    names = sorted(policy.users, key=repr)
    models = policy.models.whole() if isinstance(policy.models, Sharded) else policy.models
    assert isinstance(models, Movable)
    part = models.part(names)
    if policy.one_hot:
        items = np.array(part.pop("items").tobytes().decode().strip("[]").split(","))
        pairs = [part[f"pair_{name}"] for name in ("user", "item", "times", "total")]
        sort = np.lexsort((items[pairs[1]], pairs[0]))
        part |= {"pair_user": pairs[0][sort], "pair_times": pairs[2][sort], "pair_total": pairs[3][sort]}
        part["pair_item"] = items[pairs[1]][sort]
    return part


def assert_same_state(one: CAB, other: CAB) -> None:
    assert one.learned == other.learned
    mine, others = by_user(one), by_user(other)
    assert mine.keys() == others.keys()
    for name in mine:
        np.testing.assert_array_equal(mine[name], others[name], err_msg=name)


def play(one: CAB, other: CAB, rounds: int, seed: int, n_users: int = 30) -> None:
    play_side_by_side(one, other, random_visits(one, rounds, seed, n_users), scores=1e-12)


@pytest.mark.parametrize("kind", KINDS, ids=["one-hot", "dense"])
@pytest.mark.parametrize(("alpha", "gamma"), [(0.1, 0.2), (0.01, 0.2), (0.3, 2.0), (0.0, 0.2), (0.05, 0.0)])
@pytest.mark.parametrize("shards", [1, 2, 4, 7])
def test_every_choice_is_that_of_one_process(
    kind: dict[str, Any], alpha: float, gamma: float, shards: int
) -> None:
    rule: dict[str, Any] = {"alpha": alpha, "gamma": gamma}
    one = CAB(**kind, **rule)
    other = CAB(**kind, **rule, engine=Local(shards, snapshot_every=20))
    play(one, other, 120, seed=shards)
    assert_same_state(one, other)
    context = candidates(np.random.default_rng(9), one, 1)[0]
    assert set(one.neighbours(3, context)) == set(other.neighbours(3, context))
    assert sorted(one.neighbours("new", context), key=repr) == sorted(
        other.neighbours("new", context), key=repr
    )


@pytest.mark.parametrize("kind", KINDS, ids=["one-hot", "dense"])
@pytest.mark.parametrize(
    "shards", [pytest.param(1, marks=pytest.mark.slow), 2, pytest.param(4, marks=pytest.mark.slow), 7]
)
def test_ten_thousand_rounds_leave_the_same_state(kind: dict[str, Any], shards: int) -> None:
    one, other = (CAB(**kind, alpha=0.03, engine=engine) for engine in (None, Local(shards)))
    rng = np.random.default_rng(shards)
    for _ in range(10_000):
        user, contexts = int(rng.integers(60)), candidates(rng, one)
        choice = one.choose(user, contexts)
        assert other.choose(user, contexts) == choice
        payoff = float(rng.integers(2))
        assert one.learn(user, contexts[choice], payoff) == other.learn(user, contexts[choice], payoff)
    assert_same_state(one, other)


@pytest.mark.parametrize("kind", KINDS, ids=["one-hot", "dense"])
def test_many_decisions_at_once_are_those_one_by_one(kind: dict[str, Any]) -> None:
    one, other = CAB(**kind), CAB(**kind, engine=Local(3))
    play(one, other, 60, seed=1)
    rng = np.random.default_rng(2)
    users = [*range(20), "stranger"]
    contexts = [candidates(rng, one, 2 + k % 4) for k in range(len(users))]
    assert other.choose_many(users, contexts) == [
        one.choose(u, c) for u, c in zip(users, contexts, strict=True)
    ]
    assert other.choose_many([], []) == []


@pytest.mark.parametrize("kind", KINDS, ids=["one-hot", "dense"])
def test_users_move_while_everything_goes_on(kind: dict[str, Any]) -> None:
    one, other = (CAB(**kind, alpha=0.02, engine=engine) for engine in (None, Local(3)))
    play(one, other, 80, seed=3)
    assert isinstance(other.models, Sharded)
    for shards in (7, 2, 2, 1, 4):
        for done, total in other.models.rebalance(shards):
            assert 0 < done <= total
            if done % 700 == 0:
                play(one, other, 3, seed=done)
        assert other.models.shards == shards
        counts = np.bincount(other.models.placement.table, minlength=shards)
        assert counts.max() - counts.min() <= 1
        play(one, other, 20, seed=shards)
        assert_same_state(one, other)
        for user in other.users:  # everybody is where they are looked for
            owner = other.models.placement.shard_of(user)
            assert other.models._supervisor.ask({owner: ("knows", user)})[owner]


@pytest.mark.parametrize("kind", KINDS, ids=["one-hot", "dense"])
def test_a_file_goes_from_one_process_to_shards_and_back(kind: dict[str, Any], tmp_path: Any) -> None:
    one, other = (CAB(**kind, alpha=0.02, engine=engine) for engine in (None, Local(3)))
    play(one, other, 80, seed=4)
    for policy, name in ((one, "one"), (other, "other")):
        policy.save(tmp_path / name)
    wide = CAB.load(tmp_path / "one", engine=Local(5))
    single = CAB.load(tmp_path / "other")
    for policy in (wide, single):
        assert_same_state(one, policy)
        play(one, policy, 1, seed=5)
        one = CAB.load(tmp_path / "one")
    assert single.engine is None
    with pytest.raises(ParameterError, match="no further parameters, but got"):
        CAB.load(tmp_path / "one", motor=Local(5))


# Faults: a backend whose shards can be killed, and whose rebuilding takes as long as a test wants.


class Frail:
    """Shards in this process that die on request."""

    def __init__(self) -> None:
        self.inside = InProcess()
        self.dead: set[int] = set()
        self.held = False
        self.die_in: dict[int, int] = {}  # after how many calls a shard dies: before or after doing it
        self.after = False
        self.starts = 0
        self.stillborn = False

    def start(self, shard: int, kind: type[AnyShard], *parameters: Any) -> None:
        self.starts += 1
        if not self.stillborn:
            self.dead.discard(shard)
        self.inside.start(shard, kind, *parameters)

    def stop(self, shard: int) -> None:
        self.inside.stop(shard)

    def ask(self, shard: int, method: str, *arguments: Any) -> Any:
        if shard in self.die_in:
            self.die_in[shard] -= 1
            if self.die_in[shard] < 0:
                del self.die_in[shard]
                if self.after:
                    self.inside.ask(shard, method, *arguments)
                self.dead.add(shard)
        if shard in self.dead:
            return LostError("gone")
        return (method == "rebuild", self.inside.ask(shard, method, *arguments))

    def is_done(self, ticket: Any) -> bool:
        return isinstance(ticket, LostError) or not (self.held and ticket[0])

    def take(self, ticket: Any, patient: bool = False) -> Any:
        if isinstance(ticket, LostError):
            raise ticket
        if ticket[0]:
            self.held = False  # whoever waits, waits until it is there
        return ticket[1]

    def keep(self, snapshot: Any) -> Any:
        return snapshot


class Engine:
    """Makes models on a frail backend."""

    def __init__(self, shards: int, when_down: WhenDown = "wait", snapshot_every: int = 10) -> None:
        self.backend = Frail()
        self.rest = (shards, when_down, snapshot_every)

    def models(self, n_features: int | None, one_hot: bool) -> Sharded:
        return Sharded(self.backend, Kind(n_features, one_hot), *self.rest)

    def user_store(self) -> ShardedUsers:
        return ShardedUsers(self.backend, *self.rest)

    def close(self) -> None:
        pass


@pytest.mark.parametrize("kind", KINDS, ids=["one-hot", "dense"])
@pytest.mark.parametrize("after", [False, True], ids=["before the call", "after the call"])
@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_shards_that_die_anywhere_lose_nothing_and_learn_nothing_twice(
    kind: dict[str, Any], after: bool, seed: int
) -> None:
    chance = random.Random(seed)
    engine = Engine(chance.choice([1, 2, 4]), "wait", chance.choice([1, 3, 1000]))
    engine.backend.after = after
    one, other = (CAB(**kind, alpha=0.02, engine=e) for e in (None, engine))
    for k in range(12):
        engine.backend.die_in[chance.randrange(engine.rest[0])] = chance.randrange(12)
        play(one, other, 4, seed=seed + k)
    engine.backend.die_in.clear()
    assert_same_state(one, other)
    assert engine.backend.starts > engine.rest[0]


@pytest.mark.parametrize("kind", KINDS, ids=["one-hot", "dense"])
def test_a_partial_answer_says_so_and_payoffs_wait_their_turn(kind: dict[str, Any]) -> None:
    engine = Engine(4, "partial")
    one, other = (CAB(**kind, alpha=0.02, engine=e) for e in (None, engine))
    play(one, other, 60, seed=6)
    assert isinstance(other.models, Sharded)
    counts = {s: len(engine.backend.inside.shards[s].users()) for s in range(4)}
    lost = other.models.placement.shard_of(3)
    engine.backend.dead.add(lost)
    engine.backend.held = True
    contexts = candidates(np.random.default_rng(0), one)
    decision = other.decide(3, contexts)
    assert decision.seen is not None
    assert decision.seen == Seen(sum(counts.values()) - counts[lost], 3, 4)
    assert f"partial: {decision.seen.users} users, on 3 of 4 shards" in str(decision)
    assert (decision.members >= 1).all()
    np.testing.assert_array_equal(decision.estimate, 0)  # a stranger, meanwhile
    rng = np.random.default_rng(1)
    for user in range(12):
        context = candidates(rng, one)[0]
        assert one.learn(user, context, 1.0) > 0
        assert other.learn(user, context, 1.0) == 0
    assert len(other.models.waiting) == 12
    assert other.learned == one.learned
    assert other.decide(5, contexts).seen is not None
    engine.backend.held = False
    again = other.decide(5, contexts)
    assert again.seen is None
    assert other.learned == one.learned
    assert not other.models.waiting
    assert again.choice == one.choose(5, contexts)
    assert_same_state(one, other)


def test_a_user_dropped_while_payoffs_wait_is_gone() -> None:
    engine = Engine(2, "partial")
    policy = CAB(one_hot=True, engine=engine)
    assert isinstance(policy.models, Sharded)
    for user in range(8):
        policy.learn(user, "a", 1.0)
    engine.backend.dead |= {0, 1}
    engine.backend.held = True
    assert policy.decide(0, ["a"]).seen == (0, 0, 2)
    policy.learn(0, "a", 1.0)
    assert len(policy.models.waiting) == 1
    policy.drop(0)
    assert not policy.models.waiting
    assert 0 not in policy.users
    assert policy.learned == 9


def test_refusing_changes_nothing() -> None:
    engine = Engine(2, "refuse")
    one, other = CAB(one_hot=True), CAB(one_hot=True, engine=engine)
    play(one, other, 40, seed=7)
    engine.backend.dead.add(1)
    engine.backend.held = True
    for _ in range(2):
        with pytest.raises(UnavailableError, match="1 of 2 shards are down"):
            other.choose(1, ["item 1", "item 2"])
        with pytest.raises(UnavailableError, match="1 of 2 shards are down"):
            other.learn(1, "item 1", 1.0)
    engine.backend.held = False
    assert_same_state(one, other)


def test_a_shard_that_cannot_be_rebuilt_is_given_up() -> None:
    engine = Engine(2)
    policy = CAB(one_hot=True, engine=engine)
    policy.learn("a", "x", 1.0)
    engine.backend.stillborn = True
    engine.backend.dead.add(0)
    with pytest.raises(UnavailableError, match="shard 0 died 3 times while it was rebuilt"):
        policy.choose("a", ["x"])


def test_a_change_is_applied_once_by_its_number() -> None:
    shard = Shard(Kind(None, True))
    change = Change(5, "update", ("ada", "news", 1.0))
    assert shard.change(change) == 1
    before = shard.models.view("ada", ["news"])
    assert shard.change(change) == 1
    assert shard.change(Change(4, "update", ("ada", "news", 1.0))) == 1
    np.testing.assert_array_equal(shard.models.view("ada", ["news"]), before)


def test_logs_are_cut_by_snapshots() -> None:
    engine = Engine(2, snapshot_every=5)
    policy = CAB(one_hot=True, engine=engine)
    for t in range(200):
        policy.learn(t % 9, t % 4, 0.5)
    assert isinstance(policy.models, Sharded)
    assert all(len(log) <= 6 for log in policy.models._supervisor._log)


def test_a_slot_is_the_same_everywhere() -> None:
    assert [slot_of(user) for user in ("ada", 7, b"x", None, ("a", 1))] == [379, 3970, 2234, 622, 1949]
    assert slot_of(1) == slot_of(True) == slot_of(1.0) == slot_of(np.int64(1)) == slot_of(np.float32(1))
    assert slot_of((1, 2.0)) == slot_of((True, 2))
    with pytest.raises(UserError, match=r"frozenset.*use str, int"):
        slot_of(frozenset())


def test_users_spread_evenly_over_slots() -> None:
    counts = np.bincount([slot_of(f"user {k}") for k in range(100_000)], minlength=SLOTS)
    expected = 100_000 / SLOTS
    assert (
        np.square(counts - expected).sum() / expected < SLOTS + 5 * (2 * SLOTS) ** 0.5
    )  # χ², five deviations


@given(st.integers(1, 20), st.integers(1, 20))
def test_no_slot_moves_without_need(shards: int, then: int) -> None:
    placement = Placement(shards)
    moves = placement.moves_to(then)
    for slot, source, target in moves:
        assert placement.table[slot] == source != target
        placement.table[slot] = target
    counts = np.bincount(placement.table, minlength=then)
    assert len(counts) == then
    assert counts.max() - counts.min() <= 1
    assert len(moves) <= SLOTS * max(shards - then, then - shards) // max(shards, then) + max(shards, then)


@pytest.mark.parametrize("kind", KINDS, ids=["one-hot", "dense"])
def test_users_are_taken_over_once(kind: dict[str, Any]) -> None:
    policy = CAB(**kind, engine=Local(2))
    play(CAB(**kind), policy, 30, seed=8)
    assert isinstance(policy.models, Sharded)
    part = policy.models.whole().part(policy.users)
    models = make_models(kind.get("n_features"), "one_hot" in kind)
    models.put(part)
    with pytest.raises(Exception, match="is known already"):
        models.put(part)
    assert sorted(models.users, key=repr) == sorted(policy.users, key=repr)


def test_what_shards_cannot_do_is_refused_by_name() -> None:
    with pytest.raises(ParameterError, match="thompson=True"):
        CAB(one_hot=True, thompson=True, engine=Local(2))
    with pytest.raises(
        ParameterError, match="half_life is 20, but shards do not forget what is old; leave out"
    ):
        CAB(one_hot=True, half_life=20, engine=Local(2))
    with pytest.raises(ParameterError, match="shards is 0"):
        CAB(one_hot=True, engine=Local(0))
    with pytest.raises(ParameterError, match="when_down is 'cry'"):
        CAB(one_hot=True, engine=Local(2, when_down="cry"))  # type: ignore[arg-type]
    policy = CAB(one_hot=True, engine=Local(2))
    with pytest.raises(UserError, match="'nobody' is not known"):
        policy.drop("nobody")
