"""Models on a device against one process: every choice, every count of learners, and the state in the end.

JAX's CPU stands for the device; the code is the same.
"""

from collections.abc import Hashable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coterie import CAB
from coterie.errors import ParameterError, UnavailableError
from coterie.models.users.dense import Dense
from coterie.policies import load
from tests.playing import play_side_by_side
from tests.worlds import random_visits, unit_vectors

jax = pytest.importorskip("jax", reason="jax is not installed (the extra gpu)")

from coterie.bench.suites.cuda import make_world  # noqa: E402
from coterie.engines import Cuda, open_engine  # noqa: E402
from coterie.engines.cuda import OnDevice  # noqa: E402
from tests.engines.device_check import check_runs  # noqa: E402

Floats = np.ndarray[Any, np.dtype[np.float64]]


def shown(rng: np.random.Generator, n: int = 5) -> Floats:
    return unit_vectors(rng, n, 4) / 1.01


def assert_same_state(one: CAB, other: CAB) -> None:
    """The device multiplies and adds in one step, so the last bits may differ."""
    assert one.learned == other.learned
    assert set(one.users) == set(other.users)
    names = sorted(one.users, key=repr)
    assert isinstance(one.models, Dense | OnDevice)
    assert isinstance(other.models, Dense | OnDevice)
    mine, others = one.models.part(names), other.models.part(names)
    assert mine.keys() == others.keys()
    for name in ("updated", "idle"):
        np.testing.assert_array_equal(mine[name], others[name])
    for name in ("inverses", "weights"):
        np.testing.assert_allclose(mine[name], others[name], rtol=0, atol=1e-13)


def play(one: CAB, other: CAB, rounds: int, seed: int, n_users: int = 30) -> None:
    play_side_by_side(one, other, random_visits(one, rounds, seed, n_users), estimates=1e-12, scores=1e-12)


@pytest.mark.parametrize(("alpha", "gamma"), [(0.1, 0.2), (0.3, 2.0), (0.0, 0.2)])
def test_every_choice_is_that_of_one_process(alpha: float, gamma: float) -> None:
    rule: dict[str, Any] = {"n_features": 4, "alpha": alpha, "gamma": gamma}
    one, other = CAB(**rule), CAB(**rule, engine=Cuda("cpu", block=16))
    play(one, other, 100, seed=1)
    assert_same_state(one, other)
    context = shown(np.random.default_rng(9), 1)[0]
    for user in (3, "new"):
        assert sorted(map(str, one.neighbours(user, context))) == sorted(
            map(str, other.neighbours(user, context))
        )


@pytest.mark.slow
def test_ten_thousand_rounds_leave_the_same_state() -> None:
    one, other = (CAB(n_features=4, alpha=0.03, engine=engine) for engine in (None, Cuda("cpu", block=32)))
    rng = np.random.default_rng(0)
    shared = 0
    for _ in range(10_000):
        user, contexts = int(rng.integers(60)), shown(rng)
        choice = one.choose(user, contexts)
        assert other.choose(user, contexts) == choice
        payoff = float(rng.integers(2))
        learners = one.learn(user, contexts[choice], payoff)
        assert other.learn(user, contexts[choice], payoff) == learners
        shared += learners > 1
    assert shared > 1_000
    assert_same_state(one, other)


def test_batches_decide_as_one_by_one_also_over_several_blocks() -> None:
    one, other = (CAB(n_features=4, alpha=0.1, engine=engine) for engine in (None, Cuda("cpu", block=16)))
    play(one, other, 120, seed=3, n_users=50)
    rng = np.random.default_rng(2)
    users: list[Hashable] = [*range(40), "stranger"]
    lists = [shown(rng, n=int(rng.integers(1, 9))) for _ in users]
    alone = [other.choose(user, contexts) for user, contexts in zip(users, lists, strict=True)]
    assert other.choose_many(users, lists) == alone == one.choose_many(users, lists)


def test_who_comes_and_goes_leaves_nothing(tmp_path: Path) -> None:
    one, other = (CAB(n_features=4, alpha=0.1, engine=engine) for engine in (None, Cuda("cpu", block=16)))
    play(one, other, 60, seed=4, n_users=20)
    for user in [*other.users][:7]:
        for policy in (one, other):
            policy.drop(user)
        assert user not in other.users
    play(one, other, 60, seed=5, n_users=20)
    for user in [*other.users]:
        other.drop(user)
    assert len(other.users) == 0
    contexts = shown(np.random.default_rng(1))
    assert other.decide("new", contexts).members.tolist() == [1] * 5


def test_a_saved_policy_goes_on_as_it_would_have(tmp_path: Path) -> None:
    one, other = (CAB(n_features=4, alpha=0.1, engine=Cuda("cpu", block=16)) for _ in range(2))
    play(CAB(n_features=4, alpha=0.1), one, 90, seed=6)
    other.restore(one.tensors())
    other.learned = one.learned
    assert_same_state(one, other)
    plain = CAB(n_features=4, alpha=0.1)
    plain.restore(one.tensors())
    plain.learned = one.learned
    play(plain, other, 40, seed=7)
    one.save(tmp_path / "policy.safetensors")
    assert len(load(tmp_path / "policy.safetensors").users) == len(one.users)


def test_without_room_is_an_error_and_nothing_is_lost() -> None:
    one = CAB(n_features=4, alpha=0.1)
    other = CAB(n_features=4, alpha=0.1, engine=Cuda("cpu", block=4, most_users=6))
    play(one, other, 25, seed=8, n_users=6)
    context = shown(np.random.default_rng(0), 1)[0]
    for user in range(6):
        for policy in (one, other):
            policy.learn(user, context, 1.0)
    before, learned = other.tensors(), other.learned
    with pytest.raises(UnavailableError, match="no room for more than 6 users of 4 features"):
        other.learn("seventh", context, 1.0)
    assert "seventh" not in other.users
    assert other.learned == learned
    for name, array in other.tensors().items():
        np.testing.assert_array_equal(array, before[name])
    other.drop(0)
    other.learn("seventh", context, 1.0)


def test_growth_keeps_what_is_there_where_it_is() -> None:
    policy = CAB(n_features=4, alpha=0.0, gamma=0.0, engine=Cuda("cpu", block=4))
    rng = np.random.default_rng(3)
    policy.learn(0, shown(rng, 1)[0], 1.0)
    assert isinstance(policy.models, OnDevice)
    first = policy.models.blocks._blocks[0]
    before = policy.tensors()["weights"][0]
    policy.models.blocks.reserve(13)
    assert policy.models.blocks.room == 16
    assert policy.models.blocks._blocks[0] is first
    for user in range(1, 13):
        policy.learn(user, shown(rng, 1)[0], 1.0)
    np.testing.assert_array_equal(policy.tensors()["weights"][0], before)


def test_each_of_several_runs_chooses_as_a_run_alone() -> None:
    device = jax.devices("cpu")[0]
    world = make_world(4, 20, 5, 6, 120, seed=5)
    assert check_runs(device, world, 20) > 50


def test_what_cuda_does_not_take_is_refused() -> None:
    with pytest.raises(ParameterError, match="block is 12, expected a power of two"):
        Cuda("cpu", block=12)
    with pytest.raises(ParameterError, match="device is 'tpu'"):
        Cuda("tpu")
    with pytest.raises(ParameterError, match="one_hot is True"):
        CAB(one_hot=True, engine=Cuda("cpu"))
    assert open_engine("cuda?device=cpu&most-users=7").most_users == 7
    with pytest.raises(ParameterError, match="cannot be read"):
        open_engine("cuda?shards=2")
