"""Models on a device against one process: every choice, every count of learners, and the state in the end.

JAX's CPU stands for the device; the code is the same.
"""

from collections.abc import Hashable
from typing import Any

import numpy as np
import pytest

from coterie import CAB
from coterie.engines import Cuda
from coterie.models import Movable
from coterie.models.protocol import Eligible

Floats = np.ndarray[Any, np.dtype[np.float64]]


def shown(rng: np.random.Generator, n: int = 5, d: int = 4) -> Floats:
    contexts = rng.normal(size=(n, d))
    found: Floats = contexts / (1.01 * np.linalg.norm(contexts, axis=1, keepdims=True))
    return found


def assert_same_state(one: CAB, other: CAB) -> None:
    """The device multiplies and adds in one step, so the last bits may differ."""
    assert one.learned == other.learned
    assert set(one.users) == set(other.users)
    names = sorted(one.users, key=repr)
    assert isinstance(one.models, Movable)
    assert isinstance(other.models, Movable)
    mine, others = one.models.part(names), other.models.part(names)
    assert mine.keys() == others.keys()
    for name in ("updated", "idle"):
        np.testing.assert_array_equal(mine[name], others[name])
    for name in ("inverses", "weights"):
        np.testing.assert_allclose(mine[name], others[name], rtol=0, atol=1e-13)


def play(one: CAB, other: CAB, rounds: int, seed: int, n_users: int = 30) -> None:
    """Let two policies decide, learn, add and drop the same, and compare each step."""
    rng = np.random.default_rng(seed)
    for t in range(rounds):
        user: Hashable = int(rng.integers(n_users))
        contexts = shown(rng)
        mine, others = one.decide(user, contexts), other.decide(user, contexts)
        assert mine.choice == others.choice
        np.testing.assert_array_equal(mine.members, others.members)
        np.testing.assert_allclose(mine.score, others.score, rtol=0, atol=1e-12)
        payoff = float(rng.choice([0.0, 1.0, -0.5]))
        learned = [policy.learn(user, contexts[mine.choice], payoff) for policy in (one, other)]
        assert learned[0] == learned[1]
        if t % 17 == 3:
            for policy in (one, other):
                policy.add(f"guest {t}")
        if t % 29 == 5:
            for policy in (one, other):
                policy.drop(user)


@pytest.mark.parametrize("eligible", ["updated", "all"])
@pytest.mark.parametrize(("alpha", "gamma"), [(0.1, 0.2), (0.01, 0.2), (0.3, 2.0), (0.0, 0.2), (0.05, 0.0)])
def test_every_choice_is_that_of_one_process(eligible: Eligible, alpha: float, gamma: float) -> None:
    rule: dict[str, Any] = {"n_features": 4, "alpha": alpha, "gamma": gamma, "eligible": eligible}
    one, other = CAB(**rule), CAB(**rule, engine=Cuda("cpu", block=16))
    play(one, other, 150, seed=1)
    assert_same_state(one, other)
    context = shown(np.random.default_rng(9), 1)[0]
    for user in (3, "new"):
        assert sorted(map(str, one.neighbours(user, context))) == sorted(
            map(str, other.neighbours(user, context))
        )


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
