"""CAB with plain steps, which keep no rounding errors: against its slow twin, in memory, in shards and in files."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coterie import CAB
from coterie.engines.local import Local
from coterie.engines.sharded import Sharded
from coterie.errors import FileError, ParameterError
from coterie.experiments.run.specs import make_policy, parse_spec
from coterie.models import Dense
from coterie.models.files import read_file, write_file
from tests.engines.test_sharded import assert_same_state, play
from tests.naive import CachedCAB, SampledCAB
from tests.playing import agree, assert_same_tensors, run_equals_one_by_one
from tests.policies.test_cab import play_both
from tests.worlds import unit_vectors, visits


def plain(d: int = 4, **given: Any) -> CAB:
    return CAB(n_features=d, compensate=False, **given)


@pytest.mark.parametrize("eligible", ["updated", "all"])
@pytest.mark.parametrize(("alpha", "gamma"), [(0.5, 0.0), (0.02, 0.2), (0.1, 2.0)])
def test_every_choice_equals_the_twin(alpha: float, gamma: float, eligible: Any) -> None:
    policy = plain(5, alpha=alpha, gamma=gamma, eligible=eligible)
    shared = play_both(policy, CachedCAB(5, alpha, gamma, eligible), False, seed=3, n_rounds=200)
    assert (shared > 0) == (gamma > 0)


def test_every_choice_equals_the_twin_in_a_long_run() -> None:
    alpha, gamma = 0.03, 0.3
    twin = CachedCAB(4, alpha, gamma, "updated")
    agree(plain(alpha=alpha, gamma=gamma), twin, visits(3000, one_hot=False, seed=4), close=1e-11)
    assert sum(twin.updates.values()) > 5000  # of 3,000 payoffs: many were shared


def test_every_choice_equals_the_twin_with_a_sample() -> None:
    shared = play_both(plain(5, gamma=2.0, sample=3), SampledCAB(5, 0.1, 2.0, 3), False, seed=7)
    assert shared > 0


@pytest.mark.parametrize(
    "given", [{"gamma": 0.6}, {"eligible": "all", "gamma": 1.5}, {"thompson": True}], ids=str
)
def test_the_compiled_loop_is_the_python_loop(given: dict[str, Any]) -> None:
    run_equals_one_by_one(lambda: plain(**given), False, seed=5)


def test_many_at_once_are_one_by_one() -> None:
    policy = plain()
    rng = np.random.default_rng(6)
    policy.learn_many(range(30), unit_vectors(rng, 30, 4), rng.uniform(0, 1, 30))
    lists = [unit_vectors(rng, 5, 4) for _ in range(40)]
    assert policy.choose_many(range(40), lists) == [policy.choose(user, x) for user, x in enumerate(lists)]


def test_a_user_takes_a_third_less_memory() -> None:
    sizes = []
    for policy in (CAB(n_features=25), plain(25)):
        policy.learn_many(range(64), unit_vectors(np.random.default_rng(0), 64, 25), np.ones(64))
        assert isinstance(policy.models, Dense)
        sizes.append(sum(array.nbytes for array in policy.models._panels))
    numbers = 64 * (25 * 26 // 2 + 25)
    assert sizes == [12 * numbers, 8 * numbers]


@pytest.mark.parametrize("eligible", ["updated", "all"])
@pytest.mark.parametrize("shards", [1, 2, 4, 7])
def test_shards_decide_and_learn_as_one_process(shards: int, eligible: Any, tmp_path: Path) -> None:
    given: dict[str, Any] = {"alpha": 0.02, "gamma": 0.4, "eligible": eligible}
    one, other = (plain(**given, engine=engine) for engine in (None, Local(shards, snapshot_every=20)))
    play(one, other, 120, seed=shards)
    assert isinstance(other.models, Sharded)
    for _ in other.models.rebalance(3):
        pass
    play(one, other, 20, seed=9)
    assert_same_state(one, other)
    other.save(tmp_path / "file")
    assert_same_state(one, CAB.load(tmp_path / "file"))
    wide = CAB.load(tmp_path / "file", engine=Local(5))
    play(one, wide, 20, seed=10)
    assert_same_state(one, wide)
    assert not wide.compensate


def test_a_file_goes_on_without_compensation(tmp_path: Path) -> None:
    path = tmp_path / "file"
    policy = plain()
    play(policy, plain(), 60, seed=1)
    policy.save(path)
    again = CAB.load(path)
    assert again.parameters == policy.parameters
    play(policy, again, 60, seed=2)
    assert_same_tensors(policy, again)
    assert policy.tensors()["lost"].shape == (len(policy.tensors()["weights"]), 0)


@pytest.mark.parametrize("compensate", [True, False])
def test_a_file_is_read_only_as_what_it_is(compensate: bool, tmp_path: Path) -> None:
    path = tmp_path / "file"
    policy = CAB(n_features=3, compensate=compensate)
    policy.learn("ann", [0.6, 0.0, 0.8], 1.0)
    policy.save(path)
    state = read_file(path, "cab")
    del state.parameters["compensate"]  # as in files from before the setting, which are compensated
    write_file(path, "cab", state)
    if compensate:
        assert_same_tensors(CAB.load(path), policy)
        state.parameters["compensate"] = False
        write_file(path, "cab", state)
    with pytest.raises(FileError, match="tensor 'lost' in the model file"):
        CAB.load(path)


def test_a_spec_names_it() -> None:
    spec = parse_spec("cab:compensate=False")
    policy = make_policy("cab", spec.complete(view="features", n_features=3, seed=0))
    assert policy.parameters["compensate"] is False


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"n_features": 2, "compensate": 0}, "compensate is 0, expected True or False"),
        (
            {"one_hot": True, "compensate": False},
            "compensate is False and one_hot is True, but models over item ids",
        ),
        ({"n_features": 2, "compensate": False, "half_life": 5}, "compensate is False and half_life is 5"),
    ],
)
def test_what_cannot_be_is_named(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        CAB(**parameters)
