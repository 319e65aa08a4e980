"""Ways to play a policy in tests: beside its slow twin, beside another policy, and in its compiled loop."""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest

from coterie import Policy
from coterie.models import UserModels, make_models
from coterie.policies.base.batch import run_one_by_one
from tests.worlds import Visit, batch_of, visits


def agree(
    policy: Policy,
    twin: Any,
    rounds: Iterable[Visit],
    before: Callable[[int, Visit], None] = lambda t, visit: None,
    after: Callable[[int], None] = lambda t: None,
    close: float = 1e-8,
) -> None:
    """Play a policy and its twin, and compare every choice.

    If the twin has `scores`, compare these too: they differ by at most `close`.
    """
    for t, visit in enumerate(rounds):
        before(t, visit)
        if hasattr(twin, "scores"):
            told, expected = policy.decide(visit.user, visit.contexts), twin.scores(visit.user, visit.vectors)
            assert told.score == pytest.approx(expected, abs=close), f"round {t}"
            k, best = told.choice, max(expected)
            assert k == next(k for k, score in enumerate(expected) if best - score < 1e-9), f"round {t}"
        else:
            k = policy.choose(visit.user, visit.contexts)
            assert k == twin.choose(visit.user, visit.vectors), f"round {t}"
        policy.learn(visit.user, visit.contexts[k], visit.payoffs[k])
        twin.learn(visit.user, visit.vectors[k], float(visit.payoffs[k]))
        after(t)


def play_side_by_side(
    one: Policy, other: Policy, rounds: Iterable[Visit], estimates: float = 0.0, scores: float = 0.0
) -> None:
    """Let two policies decide, learn, add and drop the same users, and compare each step.

    `estimates` and `scores` are how far these may differ; choices and neighbours are always equal.
    """
    for t, visit in enumerate(rounds):
        mine, others = one.decide(visit.user, visit.contexts), other.decide(visit.user, visit.contexts)
        assert mine.choice == others.choice
        np.testing.assert_array_equal(mine.members, others.members)
        np.testing.assert_allclose(mine.estimate, others.estimate, rtol=0, atol=estimates)
        np.testing.assert_allclose(mine.score, others.score, rtol=0, atol=scores)
        k = mine.choice
        learned = [policy.learn(visit.user, visit.contexts[k], visit.payoffs[k]) for policy in (one, other)]
        assert learned[0] == learned[1]
        for policy in (one, other):
            if t % 17 == 3:
                policy.add(f"guest {t}")
            if t % 29 == 5:
                policy.drop(visit.user)


def run_equals_one_by_one(
    make: Callable[[], Policy], one_hot: bool, seed: int, d: int = 4, n: int = 300
) -> None:
    """Check a compiled loop: the same outcome and the same final state, from scratch and partly trained."""
    fast, slow = make(), make()
    rounds = list(visits(n, one_hot=one_hot, seed=seed, d=d))
    for part, log in (
        (rounds[: n // 3], False),
        (rounds[n // 3 : 2 * n // 3], True),
        (rounds[2 * n // 3 :], False),
    ):
        batch = batch_of(part, one_hot, d, log)
        for column, expected in zip(fast.run(batch), run_one_by_one(slow, batch), strict=True):
            assert column.tolist() == expected.tolist()
        assert_same_tensors(fast, slow)
        for policy in (fast, slow):  # both ways can be mixed: a few rounds in Python, a user dropped
            for visit in visits(5, one_hot=one_hot, seed=seed + 1, d=d, n_users=9):
                policy.learn(visit.user, visit.contexts[0], visit.payoffs[0])
            policy.drop(policy.users[0])


def assert_same_tensors(one: Policy, other: Policy) -> None:
    """Two policies have learned the same, to the bit."""
    assert one.learned == other.learned
    mine, others = one.tensors(), other.tensors()
    assert mine.keys() == others.keys()
    for name in mine:
        assert mine[name].tobytes() == others[name].tobytes(), name


class Elsewhere:
    """An engine as policies see it, with its models in this process."""

    def models(self, n_features: int | None, one_hot: bool) -> UserModels:
        return make_models(n_features, one_hot)
