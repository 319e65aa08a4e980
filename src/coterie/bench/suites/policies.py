"""CLUB, SCLUB and DynUCB with many users: 25 features, 25 candidates, one core, `choose` and `learn`."""

from collections.abc import Callable, Iterator
from functools import partial
from inspect import unwrap

import numpy as np

from coterie import CLUB, SCLUB, DynUCB, LinUCB, Policy, Random
from coterie.arrays import Ints
from coterie.bench.measuring import Measured, at_least, at_most, best_of, no_limit, one_by_one, unit_vectors
from coterie.policies.base.batch import Batch

FEATURES, CANDIDATES, GROUPS = 25, 25, 10
FEW, MANY = 2_000, 20_000  # users
ROUNDS = 500  # timed at once

MAKERS: dict[str, Callable[[], Policy]] = {
    "CLUB": lambda: CLUB(n_features=FEATURES, alpha=0.1, alpha2=0.3),
    "SCLUB": lambda: SCLUB(n_features=FEATURES, alpha=0.1, alpha_theta=1.0),
    "SCLUB, nearly everybody alone": lambda: SCLUB(n_features=FEATURES, alpha=0.1, alpha_theta=0.3),
    "DynUCB": lambda: DynUCB(n_features=FEATURES, alpha=0.1, k=GROUPS),
    "LinUCB": lambda: LinUCB(n_features=FEATURES, alpha=0.1),
}
PROMISED = ("CLUB", "SCLUB", "DynUCB")
WAITS = 2  # a round calls choose and learn


def rows(quick: bool, on_progress: Callable[[str], None]) -> Iterator[Measured]:
    """Measure a round with many users, against one with a tenth of them, and in the compiled loop."""
    visits = 2 if quick else 8
    for name, make in MAKERS.items():
        costs = {}
        for n_users in (FEW, MANY):
            on_progress(f"{name}: {n_users:,} users, {visits} visits each before the clock starts")
            policy, batches = prepare(make(), n_users, visits)
            costs[n_users] = min(one_by_one(policy, batch) for batch in batches)
        speed = 1 / costs[MANY]
        promise = at_least(1000, speed) if name in PROMISED else no_limit(speed)
        size = f"{MANY:,} users"
        yield Measured(
            "policies", f"{name}: {size}, choose and learn", speed, "rounds/s", "1 round/s", **promise
        )
        growth = costs[MANY] / costs[FEW]
        promise = at_most(1.5, growth) if name in PROMISED else no_limit(growth)
        against = f"{FEW:,} users, as often visited"
        yield Measured("policies", f"{name}: a round, {size}", 1e6 * costs[MANY], "µs", against, **promise)
        if type(policy).run is not Policy.run:
            policy.run(batches[0])
            compiled = min(best_of(1, partial(policy.run, batch)) for batch in batches) / ROUNDS
            yield Measured(
                "policies", f"{name}: a round of the compiled loop, {size}", 1e6 * compiled, "µs",
                "choose and learn", **no_limit(compiled / costs[MANY]),
            )  # fmt: skip
    round_ = costs[MANY]  # LinUCB's, the shortest
    cost = WAITS * seconds_of_a_turn()
    yield Measured(
        "policies", "LinUCB: what being safe for threads costs a round", 1e6 * cost, "µs", "the round",
        **at_most(0.05, cost / round_),
    )  # fmt: skip


def prepare(policy: Policy, n_users: int, visits: int) -> tuple[Policy, list[Batch]]:
    """Return a policy after several visits of each user, and rounds to play next."""
    rng = np.random.default_rng(0)
    items = unit_vectors(rng, 5000, FEATURES)
    means = np.clip(unit_vectors(rng, GROUPS, FEATURES) @ items.T, -1, 1)  # (groups, items)

    def rounds(users: Ints, candidates: int) -> Batch:
        shown = rng.integers(len(items), size=(len(users), candidates))
        noise = 0.1 * rng.normal(size=shown.shape)
        payoffs = np.clip(means[users % GROUPS, shown.T].T + noise, -1, 1)
        return Batch(users.tolist(), shown, items, payoffs)

    for user in range(n_users):
        policy.add(user)
    for _ in range(visits):
        policy.run(rounds(rng.permutation(n_users), 1))
    return policy, [rounds(rng.integers(n_users, size=ROUNDS), CANDIDATES) for _ in range(12)]


def seconds_of_a_turn(calls: int = 20_000) -> float:
    """Return the processor time in seconds that the lock adds to one call."""
    policy = Random(one_hot=True)
    held, bare = type(policy).add, unwrap(type(policy).add)
    policy.add("ann")

    def call_all(method: Callable[[Random, str], None]) -> None:
        for _ in range(calls):
            method(policy, "ann")

    return max(0.0, best_of(5, lambda: call_all(held)) - best_of(5, lambda: call_all(bare))) / calls
