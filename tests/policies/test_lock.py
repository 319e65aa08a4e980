"""Every policy may be called from several threads: calls are serialised inside."""

import copy
import inspect
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from types import FunctionType
from typing import Any

import numpy as np
import pytest

from coterie import CAB, CLUB, COFIBA, SCLUB, LinUCB, Policy, load
from coterie.errors import ParameterError
from coterie.policies import POLICIES
from tests.playing import Elsewhere

D, THREADS, ROUNDS = 6, 8, 120
KINDS: list[type[Policy]] = [LinUCB, CLUB, SCLUB, COFIBA, CAB]


@pytest.fixture
def short_switches() -> Iterator[None]:
    """Let threads take turns as often as the interpreter can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("short_switches")
@pytest.mark.parametrize("one_hot", [False, True], ids=["vectors", "items"])
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_eight_threads_leave_a_policy_sound(
    kind: Callable[..., Policy], one_hot: bool, tmp_path: Path
) -> None:
    policy = kind(one_hot=True) if one_hot else kind(n_features=D)
    together = Barrier(THREADS)

    def visit(thread: int) -> None:
        rng = np.random.default_rng(thread)
        together.wait()
        for _ in range(ROUNDS):
            user = int(rng.integers(40))
            x = rng.normal(size=(4, D))
            shown: Any = (
                rng.integers(30, size=4).tolist() if one_hot else x / np.linalg.norm(x, axis=1, keepdims=True)
            )
            k = policy.choose(user, shown)
            policy.learn(user, shown[k], float(rng.integers(2)))

    with ThreadPoolExecutor(THREADS) as pool:
        for done in [pool.submit(visit, thread) for thread in range(THREADS)]:
            done.result()
    assert policy.learned == THREADS * ROUNDS
    assert set(policy.users) == set(range(40))
    policy.save(tmp_path / "model")
    again = load(tmp_path / "model")  # checks that sums, inverses, counts and graphs agree
    assert again.learned == policy.learned
    shown = list(range(30)) if one_hot else np.eye(D)
    assert np.isfinite(policy.explain(0, shown).score).all()
    assert again.explain(0, shown).score == pytest.approx(policy.explain(0, shown).score, abs=1e-9)


@pytest.mark.parametrize("kind", POLICIES.values(), ids=lambda kind: kind.name)
def test_every_public_method_of_every_policy_holds_the_lock(kind: type[Policy]) -> None:
    for name in dir(kind):
        member = inspect.getattr_static(kind, name)
        if name.startswith("_") or isinstance(member, classmethod):
            continue
        function = member.fget if isinstance(member, property) else member
        if isinstance(function, FunctionType):
            assert function.__code__.co_name == "call", f"{kind.__name__}.{name} does not wait for its turn"


def test_a_policy_that_calls_itself_does_not_wait_for_itself() -> None:
    told: list[int] = []

    def alpha(t: int) -> float:
        told.append(len(policy.users))
        return 0.1

    policy = LinUCB(one_hot=True, alpha=alpha)
    policy.learn("ann", "jazz", 1.0)
    assert policy.choose("ann", ["jazz", "news"]) == 0
    assert told


def test_a_copy_has_its_own_lock_and_its_own_stream() -> None:
    rng = np.random.default_rng(3)
    policy = LinUCB(one_hot=True, thompson=True, seed=rng, alpha=lambda t: 0.5)
    twin = copy.deepcopy(policy)
    assert twin._lock is not policy._lock
    assert twin.seed is twin.rng is not rng
    assert twin.explain("ann", [1, 2, 3]).score.tolist() == policy.explain("ann", [1, 2, 3]).score.tolist()


def test_a_copy_made_while_others_learn_is_sound(tmp_path: Path) -> None:
    policy = CLUB(one_hot=True)
    with ThreadPoolExecutor(2) as pool:
        learning = pool.submit(lambda: [policy.learn(t % 50, t % 30, 1.0) for t in range(2000)])
        copies = [copy.deepcopy(policy) for _ in range(20)]
        learning.result()
    for number, twin in enumerate(copies):
        twin.save(tmp_path / f"{number}")
        assert load(tmp_path / f"{number}").learned == twin.learned


def test_a_policy_whose_users_are_elsewhere_cannot_be_copied() -> None:
    policy = CAB(n_features=2, engine=Elsewhere())
    with pytest.raises(ParameterError, match="made with engine=…, which cannot be copied or pickled; save"):
        copy.deepcopy(policy)
