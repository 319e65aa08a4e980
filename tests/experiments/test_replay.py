"""Replaying a log: what counts, what is learned, and what is refused."""

import doctest
import math
import os
import signal
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from coterie import CAB, CoterieError, LinUCB, Policy, Random
from coterie.bench.direct_loop import DirectLoop
from coterie.bench.rounds import Clicks
from coterie.experiments import Replay, replay
from coterie.policies.base.batch import Batch, run_one_by_one
from tests.naive import DirectCAB

LOG: dict[str, Any] = {
    "users": [1, 2, 1],
    "candidates": [[7, 8], [8, 7], [7, 8]],
    "served": [0, 0, 1],
    "payoffs": [1.0, 0.5, 0.0],
}


def test_a_log_of_three_by_hand() -> None:
    """Untrained, the first listed wins: record 0 counts, and item 7 has paid 1.

    So record 1 picks 7, which was not served, and record 2 picks 7 again, where 8 was served.
    """
    policy = CAB(one_hot=True, alpha=0.5)
    log = replay(policy, **LOG)
    assert log.choice.tolist() == [0, 1, 0]
    assert log.kept.tolist() == [True, False, False]
    assert log.curve().tolist() == [1.0]
    assert policy.learned == 1
    assert policy.users == [1]


def test_the_example_in_the_docstring_runs() -> None:
    assert doctest.testmod(sys.modules["coterie.experiments.run.replay"]) == (0, 3)


def test_the_curve_is_the_mean_so_far() -> None:
    log = Replay(np.zeros(4, dtype=np.int64), np.array([True, False, True, True]), np.array([1.0, 1, 0, 0.5]))
    assert log.curve().tolist() == [1.0, 0.5, 0.5]
    nothing = replay(CAB(one_hot=True), [], np.empty((0, 3), dtype=int), [], [])
    assert nothing.curve().tolist() == []


@pytest.mark.parametrize("kind", ["numbers", "strings", "objects", "list"])
def test_users_of_any_kind_and_parts_of_any_size_give_the_same(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (log,) = Clicks(40, 11, 4).records(3000)
    users: Any = {
        "numbers": log.users.astype(np.int32),
        "strings": log.users.astype(str),
        "objects": np.array([(int(user), "x") for user in log.users], dtype="O,O").astype(object),
        "list": [f"user {user}" for user in log.users],
    }[kind]
    whole, parts, twin = CAB(one_hot=True, alpha=0.05), CAB(one_hot=True, alpha=0.05), DirectCAB(0.05, 0.2)
    calls: list[tuple[int, int]] = []
    one = replay(whole, *log, progress=lambda *done: calls.append(done))
    monkeypatch.setattr(sys.modules["coterie.experiments.run.replay"], "PAUSE", 0.0)  # the smallest parts
    two = replay(parts, users, log.candidates.astype(np.uint8), log.served, log.payoffs)
    assert one.choice.tolist() == two.choice.tolist()
    assert one.kept.tolist() == two.kept.tolist()
    assert calls[-1] == (3000, 3000)
    assert whole.learned == parts.learned == one.kept.sum() > 300
    for t in range(500):
        choice = twin.choose(log.users[t], log.candidates[t].tolist())
        assert one.choice[t] == choice
        if choice == log.served[t]:
            twin.learn(log.users[t], int(log.candidates[t, choice]), log.payoffs[t])


@pytest.mark.parametrize("alpha", [0.01, 0.05, 0.2])
def test_the_benchmarks_direct_loop_chooses_the_same(alpha: float) -> None:
    """From the start, and from what a policy knows: so that the benchmark compares like with like."""
    world = Clicks(60, 12, 5)
    policy, direct = CAB(one_hot=True, alpha=alpha, gamma=0.2), DirectLoop.of(60, 12)
    for log in world.records(4000, part=1000):
        assert replay(policy, *log).choice.tolist() == direct.replay(log, alpha, 0.2).tolist()
    (log,) = world.records(1000, seed=9)
    again = DirectLoop.of_policy(policy, 60, 12)
    assert direct.active.tolist() == again.active.tolist()
    assert again.replay(log, alpha, 0.2).tolist() == replay(policy, *log).choice.tolist()


@pytest.mark.parametrize(
    "policy", [CAB(n_features=3), LinUCB(n_features=3, shared=True), Random(n_features=3)]
)
def test_features_come_from_a_table(policy: Policy) -> None:
    rng = np.random.default_rng(0)
    table = rng.uniform(-0.5, 0.5, size=(6, 3))
    candidates, served = rng.integers(6, size=(80, 4)), rng.integers(4, size=80)
    users, payoffs = rng.integers(5, size=80), rng.uniform(size=80)
    other = type(policy)(**policy.parameters)
    log = replay(policy, users, candidates, served, payoffs, items=table)
    outcome = run_one_by_one(other, Batch(users.tolist(), candidates, table, payoffs, served))
    assert log.choice.tolist() == outcome.choice.tolist()
    assert log.kept.tolist() == outcome.kept.tolist()
    assert policy.learned == other.learned > 5


def test_ids_come_from_a_list() -> None:
    named, numbered = CAB(one_hot=True), CAB(one_hot=True)
    (log,) = Clicks(9, 5, 3).records(400)
    one = replay(named, *log, items=["a", "b", "c", "d", ("e", 5)])
    assert one.choice.tolist() == replay(numbered, *log).choice.tolist()
    assert named.explain(3, ["d"]).score == numbered.explain(3, [3]).score


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"users": "abc"}, "users is a str, expected an array or list of ids"),
        ({"users": np.zeros((3, 1))}, r"users have shape \(3, 1\), expected one id per record"),
        ({"users": [[1], [2], [3]]}, "unhashable"),
        ({"users": [1, 2]}, r"candidates have shape \(3, 2\), expected \(2, candidates\)"),
        ({"candidates": [1, 2, 3]}, r"candidates have shape \(3,\)"),
        ({"candidates": [[], [], []]}, r"candidates have shape \(3, 0\)"),
        ({"candidates": [[1, 2], [3], [1, 2]]}, "candidates is not an array of numbers"),
        ({"candidates": [[1.5, 2], [3, 1], [1, 2]]}, "candidates are float64, expected integers"),
        ({"served": [0, 1]}, r"served is int64 \(2,\), expected integers \(3,\)"),
        ({"served": [0.0, 1.0, 0.0]}, r"served is float64 \(3,\), expected integers"),
        ({"served": [0, 2, 0]}, "served ranges from 0 to 2, expected places in lists of 2"),
        ({"served": [0, -1, 0]}, "served ranges from -1 to 0"),
        ({"payoffs": [0.0, 1.0]}, r"payoffs are float64 \(2,\), expected numbers \(3,\)"),
        ({"payoffs": ["0", "1", "0"]}, "expected numbers"),
        ({"payoffs": [0.0, math.nan, 0.0]}, r"payoff is .*nan.*, expected a number in \[-1, 1\]"),
        ({"payoffs": [0.0, 1.0, -1.5]}, r"payoff is .*-1.5.*, expected a number in \[-1, 1\]"),
        ({"items": ["a", "b"]}, "candidates range from 7 to 8, expected positions in the 2 items"),
        ({"items": [["a"], ["b"]]}, "unhashable"),
    ],
)
def test_a_bad_log_is_named_before_anything_is_learned(change: dict[str, Any], text: str) -> None:
    policy = CAB(one_hot=True)
    with pytest.raises(CoterieError, match=text):
        replay(policy, **{**LOG, **change})
    assert (policy.learned, policy.users) == (0, [])


def test_a_policy_over_features_needs_a_table() -> None:
    with pytest.raises(CoterieError, match="n_features=3; give items=…, the features of each candidate"):
        replay(CAB(n_features=3), **LOG)
    with pytest.raises(CoterieError, match="context has 2 features, this policy was made with n_features=3"):
        replay(CAB(n_features=3), **LOG, items=np.zeros((9, 2)))


@pytest.fixture
def listening() -> Iterator[None]:
    """Let Python hear interrupts, as in a terminal: a shell's `&` turns them off."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("listening")
def test_an_interrupt_stops_between_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    (log,) = Clicks(20, 6, 3).records(4000)
    policy, other = CAB(one_hot=True), CAB(one_hot=True)
    monkeypatch.setattr(sys.modules["coterie.experiments.run.replay"], "PAUSE", 0.0)
    run, played = CAB.run, 0

    def interrupted(self: CAB, batch: Batch) -> Any:
        nonlocal played
        if self.learned > 500:
            os.kill(os.getpid(), signal.SIGINT)
        played += len(batch.users)
        return run(self, batch)

    monkeypatch.setattr(CAB, "run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        replay(policy, *log)
    monkeypatch.undo()
    assert 500 < policy.learned < played < 4000
    replay(other, log.users[:played], log.candidates[:played], log.served[:played], log.payoffs[:played])
    assert other.learned == policy.learned
    assert {k: v.tobytes() for k, v in other.tensors().items()} == {
        k: v.tobytes() for k, v in policy.tensors().items()
    }
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
