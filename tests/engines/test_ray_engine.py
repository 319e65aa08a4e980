"""Shards in Ray actors: what holds for shards in one process holds for real ones, also when they are killed."""

import os
import random
import signal
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from coterie import CAB
from coterie.engines.sharded import Sharded
from coterie.errors import ParameterError
from tests.engines import test_sharded_users
from tests.engines.test_sharded import KINDS, assert_same_state, play
from tests.playing import assert_same_tensors
from tests.policies.test_hierarchical import make
from tests.worlds import candidates

pytest.importorskip("ray")

from coterie.engines import Ray
from coterie.engines.ray import Actors


@pytest.fixture
def engine(ray_cluster: str) -> Iterator[Ray]:
    with Ray(shards=3, snapshot_every=15) as engine:
        yield engine


def sharded(policy: CAB) -> tuple[Sharded, Actors]:
    models: Any = policy.models
    return models, models._supervisor.backend


def kill(policy: CAB, shard: int) -> None:
    """Kill the process of a shard, as the kernel would when memory is short."""
    _, backend = sharded(policy)
    os.kill(backend.take(backend.ask(shard, "process")), signal.SIGKILL)


ONE_IS_FAST = [
    pytest.param(KINDS[0], marks=pytest.mark.slow),
    KINDS[1],
    pytest.param({**KINDS[1], "compensate": False}, marks=pytest.mark.slow),
]


@pytest.mark.parametrize("kind", ONE_IS_FAST, ids=["one-hot", "dense", "plain steps"])
def test_actors_decide_and_learn_as_one_process(engine: Ray, kind: dict[str, Any]) -> None:
    one, other = CAB(**kind, alpha=0.02), CAB(**kind, alpha=0.02, engine=engine)
    play(one, other, 60, seed=1)
    rng = np.random.default_rng(2)
    users = [*range(10), "stranger"]
    contexts = [candidates(rng, one, 2 + k % 4) for k in range(len(users))]
    assert other.choose_many(users, contexts) == one.choose_many(users, contexts)
    models, _ = sharded(other)
    for done, _ in models.rebalance(2):
        if done % 500 == 0:
            play(one, other, 2, seed=done)
    assert_same_state(one, other)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS, ids=["one-hot", "dense"])
def test_actors_killed_in_the_middle_of_a_load_lose_nothing(engine: Ray, kind: dict[str, Any]) -> None:
    chance = random.Random(0)
    one, other = CAB(**kind, alpha=0.02), CAB(**kind, alpha=0.02, engine=engine)
    for k in range(3):
        play(one, other, 12, seed=k)
        kill(other, chance.randrange(3))
    play(one, other, 12, seed=9)
    assert_same_state(one, other)


def test_a_partial_answer_from_real_actors(ray_cluster: str) -> None:
    with Ray(shards=3, when_down="partial") as engine:
        one, other = CAB(one_hot=True), CAB(one_hot=True, engine=engine)
        play(one, other, 40, seed=3)
        users = len(one.users)
        for shard in range(2):
            kill(other, shard)
        decision = other.decide(1, ["item 1", "item 2"])
        assert decision.seen is not None
        assert decision.seen.shards == 1
        assert 0 < decision.seen.users < users
        for user in range(5):
            one.learn(user, "item 1", 1.0)
            other.learn(user, "item 1", 1.0)
        sharded(other)[0].settle()
        again = other.decide(1, ["item 1", "item 2"])
        assert again.seen is None
        assert_same_state(one, other)


@pytest.mark.slow
def test_a_shard_that_hangs_counts_as_lost(ray_cluster: str) -> None:
    with Ray(shards=2) as engine:
        one, other = CAB(one_hot=True), CAB(one_hot=True, engine=engine)
        play(one, other, 10, seed=4)
        _, backend = sharded(other)
        os.kill(backend.take(backend.ask(0, "process")), signal.SIGSTOP)
        backend.timeout = 5.0
        assert other.choose(1, ["item 1"]) == 0
        backend.timeout = 60
        play(one, other, 10, seed=5)
        assert_same_state(one, other)


def test_a_mistake_in_an_actor_is_told_as_itself(engine: Ray) -> None:
    policy = CAB(n_features=2, engine=engine)
    _, backend = sharded(policy)
    with pytest.raises(Exception, match="no_such"):
        backend.take(backend.ask(0, "no_such"))
    with pytest.raises(ParameterError, match="timeout is -1"):
        Ray(timeout=-1)


def test_shards_end_with_their_engine(ray_cluster: str) -> None:
    with Ray(shards=2) as engine:
        policy = CAB(one_hot=True, engine=engine)
        policy.learn("ada", "news", 1.0)
        _, backend = sharded(policy)
        processes = [backend.take(backend.ask(shard, "process")) for shard in range(2)]
    for process in processes:
        for _ in range(3000):
            try:
                os.kill(process, 0)
            except ProcessLookupError:
                break
            time.sleep(0.1)
        else:
            pytest.fail(f"process {process} goes on")


def test_actors_keep_the_users_of_a_learned_prior(engine: Ray) -> None:
    name, chance = "both", random.Random(0)
    one, other = make(name), make(name, engine=engine)
    for k in range(3):
        test_sharded_users.play(one, other, name, 15, seed=k)
        backend = other.models._supervisor.backend
        os.kill(backend.take(backend.ask(chance.randrange(3), "process")), signal.SIGKILL)
    for done, _ in other.models.rebalance(2):
        if done % 700 == 0:
            test_sharded_users.play(one, other, name, 2, seed=done)
    assert_same_tensors(one, other)
