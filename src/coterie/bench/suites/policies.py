"""CLUB, SCLUB and DynUCB with many users: 25 features, 25 candidates, one core, `choose` and `learn`."""

import time
from collections.abc import Callable, Iterator
from inspect import unwrap

import numpy as np
from numpy.typing import NDArray

from coterie import CLUB, SCLUB, DynUCB, LinUCB, Policy, Random
from coterie.bench.rows import Row, at_least, at_most, best_of, no_limit
from coterie.policies.base.batch import Batch

FEATURES, CANDIDATES, GROUPS = 25, 25, 10
FEW, MANY = 2_000, 20_000

MAKERS: dict[str, Callable[[], Policy]] = {
    "CLUB": lambda: CLUB(n_features=FEATURES, alpha=0.1, alpha2=0.3),
    "SCLUB": lambda: SCLUB(n_features=FEATURES, alpha=0.1, alpha_theta=1.0),
    "SCLUB, nearly everybody alone": lambda: SCLUB(n_features=FEATURES, alpha=0.1, alpha_theta=0.3),
    "DynUCB": lambda: DynUCB(n_features=FEATURES, alpha=0.1, k=GROUPS),
    "LinUCB": lambda: LinUCB(n_features=FEATURES, alpha=0.1),
}
PROMISED = ("CLUB", "SCLUB", "DynUCB")
WAITS = 3  # a round calls choose, which calls decide, and learn


def rows(quick: bool, told: Callable[[str], None]) -> Iterator[Row]:
    """Measure a round with many users, against one with a tenth of them, and in the compiled loop."""
    visits = 2 if quick else 8
    for name, make in MAKERS.items():
        costs = {}
        for n_users in (FEW, MANY):
            told(f"{name}: {n_users:,} users, {visits} visits each before the clock starts")
            policy, batches = prepare(make(), n_users, visits)
            costs[n_users] = min(seconds_one_by_one(policy, batch) for batch in batches)
        speed = 1 / costs[MANY]
        promise = at_least(1000, speed) if name in PROMISED else no_limit(speed)
        size = f"{MANY:,} users"
        yield Row("policies", f"{name}: {size}, choose and learn", speed, "rounds/s", "1 round/s", **promise)
        growth = costs[MANY] / costs[FEW]
        promise = at_most(1.5, growth) if name in PROMISED else no_limit(growth)
        against = f"{FEW:,} users, as often visited"
        yield Row("policies", f"{name}: a round, {size}", 1e6 * costs[MANY], "µs", against, **promise)
        if type(policy).run is not Policy.run:
            policy.run(batches[0])
            compiled = min(seconds_compiled(policy, batch) for batch in batches)
            yield Row(
                "policies", f"{name}: a round of the compiled loop, {size}", 1e6 * compiled, "µs",
                "choose and learn", **no_limit(compiled / costs[MANY]),
            )  # fmt: skip
    round_ = costs[MANY]  # LinUCB's, the shortest
    cost = WAITS * seconds_of_a_turn()
    yield Row(
        "policies", "LinUCB: what being safe for threads costs a round", 1e6 * cost, "µs", "the round",
        **at_most(0.05, cost / round_),
    )  # fmt: skip


def prepare(policy: Policy, n_users: int, visits: int) -> tuple[Policy, list[Batch]]:
    """Return a policy after several visits of each user, and rounds to play next."""
    rng = np.random.default_rng(0)
    items = unit(rng.normal(size=(5000, FEATURES)))
    means = np.clip(unit(rng.normal(size=(GROUPS, FEATURES))) @ items.T, -1, 1)  # (groups, items)

    def rounds(users: NDArray[np.int64], candidates: int) -> Batch:
        shown = rng.integers(len(items), size=(len(users), candidates))
        noise = 0.1 * rng.normal(size=shown.shape)
        payoffs = np.clip(means[users % GROUPS, shown.T].T + noise, -1, 1)
        return Batch(users.tolist(), shown, items, payoffs)

    for user in range(n_users):
        policy.add(user)
    for _ in range(visits):
        policy.run(rounds(rng.permutation(n_users), 1))
    return policy, [rounds(rng.integers(n_users, size=500), CANDIDATES) for _ in range(12)]


def seconds_one_by_one(policy: Policy, batch: Batch) -> float:
    """Return the processor time in seconds of one `choose` and one `learn`."""
    shown = [batch.items[row] for row in batch.candidates]
    start = time.thread_time()
    for t, user in enumerate(batch.users):
        k = policy.choose(user, shown[t])
        policy.learn(user, shown[t][k], batch.payoffs[t, k])
    return (time.thread_time() - start) / len(batch.users)


def seconds_compiled(policy: Policy, batch: Batch) -> float:
    """Return the processor time in seconds of one round of the compiled loop."""
    start = time.thread_time()
    policy.run(batch)
    return (time.thread_time() - start) / len(batch.users)


def seconds_of_a_turn(calls: int = 20_000) -> float:
    """Return the processor time in seconds that the lock adds to one call."""
    policy = Random(one_hot=True)
    held, bare = type(policy).add, unwrap(type(policy).add)
    policy.add("ann")

    def call_all(method: Callable[[Random, str], None]) -> None:
        for _ in range(calls):
            method(policy, "ann")

    return max(0.0, best_of(5, lambda: call_all(held)) - best_of(5, lambda: call_all(bare))) / calls


def unit(vectors: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return rows scaled to norm 1."""
    scaled: NDArray[np.float64] = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return scaled
