"""Small planted worlds: groups of users with a common taste, as vectors or as items."""

from collections.abc import Callable, Hashable, Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


class Visit(NamedTuple):
    user: Hashable
    contexts: Any  # as the policy takes them
    vectors: list[NDArray[np.float64]]  # as a twin takes them
    payoffs: NDArray[np.float64]


def visits(
    n_rounds: int,
    *,
    one_hot: bool,
    seed: int,
    n_users: int = 8,
    n_groups: int = 2,
    d: int = 4,
    candidates: int = 4,
    noise: float = 0.2,
) -> Iterator[Visit]:
    """Yield rounds; candidate lists of items may hold an item twice."""
    rng = np.random.default_rng(seed)
    tastes = rng.uniform(-1, 1, size=(n_groups, d)) if one_hot else rng.normal(size=(n_groups, d))
    if not one_hot:
        tastes /= np.linalg.norm(tastes, axis=1, keepdims=True)
    for _ in range(n_rounds):
        user = int(rng.integers(n_users))
        contexts: Any
        if one_hot:
            picked = rng.integers(d, size=candidates)
            vectors, contexts = list(np.eye(d)[picked]), [f"item {i}" for i in picked]
        else:
            x = rng.normal(size=(candidates, d))
            x /= np.linalg.norm(x, axis=1, keepdims=True)
            vectors, contexts = list(x), x
        means = np.array([tastes[user % n_groups] @ v for v in vectors])
        payoffs = np.clip(means + noise * rng.normal(size=candidates), -1, 1)
        yield Visit(user, contexts, vectors, payoffs)


def agree(
    policy: Any,
    twin: Any,
    rounds: Iterator[Visit],
    each: Callable[[int, Visit], None] = lambda t, visit: None,
) -> list[int]:
    """Play both, comparing every choice; `each` is called before each round."""
    choices = []
    for t, visit in enumerate(rounds):
        each(t, visit)
        k = policy.choose(visit.user, visit.contexts)
        assert k == twin.choose(visit.user, visit.vectors), f"round {t}"
        policy.learn(visit.user, visit.contexts[k], visit.payoffs[k])
        twin.learn(visit.user, visit.vectors[k], float(visit.payoffs[k]))
        choices.append(k)
    return choices


def batch_of(rounds: list[Visit], one_hot: bool, d: int, log: bool) -> Any:
    """Return rounds as a batch, with known payoffs or as a log that served candidate 1 each time."""
    from coterie.policies.base.batch import Batch

    n, c = len(rounds), len(rounds[0].vectors)
    if one_hot:
        items: Any = [f"item {i}" for i in range(d)]
        shown = np.array([[int(np.argmax(v)) for v in visit.vectors] for visit in rounds])
    else:
        items = np.concatenate([visit.contexts for visit in rounds])
        shown = np.arange(n * c).reshape(n, c)
    payoffs = np.array([visit.payoffs for visit in rounds])
    users = [visit.user for visit in rounds]
    if log:
        return Batch(users, shown, items, payoffs[:, 1].copy(), np.ones(n, dtype=np.int64))
    return Batch(users, shown, items, payoffs)


def run_equals_one_by_one(
    make: Callable[[], Any], one_hot: bool, seed: int, d: int = 4, n: int = 300
) -> None:
    """Check a compiled loop: the same outcome and the same final state, from scratch and part-trained."""
    from coterie.policies.base.batch import run_one_by_one

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
        mine, theirs = fast.tensors(), slow.tensors()
        assert mine.keys() == theirs.keys()
        for name in mine:
            assert mine[name].tobytes() == theirs[name].tobytes(), name
        assert fast.learned == slow.learned
        for policy in (fast, slow):  # the doors mix freely: a few rounds in Python, a user gone
            for visit in visits(5, one_hot=one_hot, seed=seed + 1, d=d, n_users=9):
                policy.learn(visit.user, visit.contexts[0], visit.payoffs[0])
            policy.drop(policy.users[0])
