"""Hierarchical with up to a million users: the cost of a round, the slowest call, memory.

One policy grows. Every user joins with one payoff, and at each size rounds of random users are timed. So users have
one or two payoffs, and a payoff leads to the maximum of 8 visits of users: the most expensive state of a policy. A
trial with one more group, which doubles the cost of a visit, is active at every size.

A single call is timed in processor time of its thread: this includes garbage collection, first accesses to
memory pages and refits, but no other programs. A pass over a million users ends every 125,000 payoffs, so the
benchmark plays until shortly before an end and then times single calls through it: three ends, so that one
renews variances and judges a trial, and another renews means and starts a trial.
"""

import gc
import os
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from coterie import Hierarchical
from coterie.bench.measuring import Measured, at_most, best_of, fit, no_limit, peak_resident
from coterie.bench.rounds import CANDIDATES, FEATURES, RandomVisits, name
from coterie.models.hierarchy.plain import PlainModel
from coterie.models.hierarchy.population import Population
from coterie.models.hierarchy.refit import split
from coterie.models.roster import Roster

SUITE = "hierarchical"
FILL = 20_000  # users that join between two progress reports
TIMED, REPEATS = 100, 10  # rounds; at 1,000 users a pass ends every 125, so most timings contain no end
CALLS = 1_000  # before and after the end of a pass
LIMIT_MS, LIMIT_BYTES = 5, 6 * 1024


class Slowest(NamedTuple):
    """The longest of many calls, in seconds."""

    choose: float
    learn: float


NEWCOMERS = 50_000  # beyond the next power of two, where doubling arrays would be copied


def rows(quick: bool, on_progress: Callable[[str], None]) -> Iterator[Measured]:
    """Let a policy grow to a million users, or to 10,000, and measure at several sizes."""
    sizes = (1_000, 10_000) if quick else (1_000, 10_000, 100_000, 1_000_000)
    crowd, policy = RandomVisits(), Hierarchical(n_features=FEATURES)
    gc.collect()
    before = resident()
    costs: list[float] = []
    for size in sizes:
        fill(policy, crowd, size, on_progress)
        on_progress(f"rounds with {size:,} users")
        if size == sizes[-1]:
            gc.collect()
            held = (resident() - before) / size
        costs.append(seconds_of_a_round(policy, crowd))
    yield from growth(sizes, costs, limited=not quick)
    on_progress(f"single calls with {sizes[-1]:,} users")
    yield from slowest_rows(slowest_calls(policy, crowd, on_progress), f"{sizes[-1]:,} users")
    on_progress("more users than there is room for")
    joining = NEWCOMERS // (100 if quick else 1)
    wait = slowest_newcomer(policy, crowd, joining)
    peak = (peak_resident() - before) / len(policy.users)
    what = f"the slowest learn of {joining:,} newcomers after them"
    yield Measured(SUITE, what, 1e3 * wait, "ms", "1 ms", **at_most(LIMIT_MS, 1e3 * wait))
    what = f"the slowest registration of an id, up to {3 * sizes[-1] // 2:,}"
    wait = slowest_join(3 * sizes[-1] // 2)
    yield Measured(SUITE, what, 1e3 * wait, "ms", "1 ms", **at_most(LIMIT_MS, 1e3 * wait))
    what = f"memory per user, {FEATURES} features, id included"
    yield Measured(SUITE, what, held, "bytes", "6 KiB", **at_most(1, held / LIMIT_BYTES))
    if not quick:  # else the peak is that of the compiler
        what = "memory per user at most, while room is made"
        yield Measured(SUITE, what, peak, "bytes", "6 KiB", **no_limit(peak / LIMIT_BYTES))


def fill(policy: Hierarchical, crowd: RandomVisits, size: int, on_progress: Callable[[str], None]) -> None:
    """Add users until there are `size`, each with one payoff."""
    for first in range(len(policy.users), size, FILL):
        on_progress(f"{first:,} of {size:,} users")
        policy.run(crowd.batch(np.arange(first, min(first + FILL, size)), 1))


def users_of(policy: Hierarchical) -> Population:
    """Return the model of vectors."""
    assert isinstance(policy._model, PlainModel)
    return policy._model.many


def seconds_of_a_round(policy: Hierarchical, crowd: RandomVisits) -> float:
    """Return the seconds per round of the compiled loop, for random users, during a trial."""
    population, n_users = users_of(policy), len(policy.users)
    taken = []
    for _ in range(REPEATS):
        batch = crowd.batch(crowd.rng.integers(n_users, size=TIMED), CANDIDATES)
        if not population.model.place[population.positions.TRIAL]:
            split(population)
        taken.append(best_of(1, partial(policy.run, batch)))
    return min(taken) / TIMED


def growth(sizes: tuple[int, ...], costs: list[float], limited: bool) -> Iterator[Measured]:
    """Yield the cost of a round at each size, and the exponent of its growth."""
    for size, cost in zip(sizes, costs, strict=True):
        against = f"{sizes[0]:,} users"
        yield Measured(
            SUITE, f"a round, {size:,} users", 1e6 * cost, "µs", against, **no_limit(cost / costs[0])
        )
    exponent = fit(sizes, costs)
    promise = at_most(0.05, exponent) if limited else no_limit(exponent)
    yield Measured(SUITE, f"cost ~ users ** exponent, to {sizes[-1]:,}", exponent, "", "1", **promise)


def slowest_calls(
    policy: Hierarchical, crowd: RandomVisits, on_progress: Callable[[str], None], calls: int = CALLS
) -> Slowest:
    """Return the longest call of `choose` and of `learn`, in processor time, around the ends of three passes."""
    population, n_users = users_of(policy), len(policy.users)
    at, place = population.positions, population.model.place
    call_one_by_one(policy, crowd, 3)  # compiled before it is timed
    found = []
    for _ in range(3):
        left = (n_users - int(place[at.CURSOR])) // at.VISITS - calls
        for first in range(0, left, FILL):
            on_progress(f"{first:,} of {left:,} payoffs to the end of a pass")
            size = min(FILL, left - first)
            policy.run(crowd.batch(crowd.rng.integers(n_users, size=size), 1))
        phase = int(place[at.PHASE])
        while int(place[at.PHASE]) == phase:
            found.append(call_one_by_one(policy, crowd, calls))
        found.append(call_one_by_one(policy, crowd, calls))
        if place[at.PHASE] == 1:  # variances were renewed: end the trial, so that the next end starts one
            place[at.TRIAL], place[at.NEXT] = 0, 0
    return Slowest(max(one.choose for one in found), max(one.learn for one in found))


def call_one_by_one(policy: Hierarchical, crowd: RandomVisits, calls: int) -> Slowest:
    """Return the longest of `calls` calls of `choose` and `learn`."""
    batch = crowd.batch(crowd.rng.integers(len(policy.users), size=calls), CANDIDATES)
    choose = learn = 0.0
    for t, user in enumerate(batch.users):
        contexts, payoffs = batch.items[batch.candidates[t]], batch.payoffs[t].tolist()
        start = time.thread_time()
        k = policy.choose(user, contexts)
        between = time.thread_time()
        policy.learn(user, contexts[k], payoffs[k])
        choose, learn = max(choose, between - start), max(learn, time.thread_time() - between)
    return Slowest(choose, learn)


def slowest_rows(found: Slowest, size: str) -> Iterator[Measured]:
    """Yield the longest calls, with the limit of 5 ms."""
    for what, seconds in found._asdict().items():
        yield Measured(
            SUITE, f"the slowest call of {what}, {size}, ends of passes among them", 1e3 * seconds, "ms", "1 ms",
            **at_most(LIMIT_MS, 1e3 * seconds),
        )  # fmt: skip


def slowest_newcomer(policy: Hierarchical, crowd: RandomVisits, n_users: int) -> float:
    """Add `n_users` users with one payoff each, and return the longest `learn`."""
    known = len(policy.users)
    names = map(name, range(known, known + n_users))
    return max(best_of(1, partial(policy.learn, user, crowd.items[0], 0.0)) for user in names)


def slowest_join(n_users: int) -> float:
    """Return the longest registration of an id: the dictionary of ids is resized from time to time."""
    roster = Roster()
    return max(best_of(1, partial(roster.join, user)) for user in map(name, range(n_users)))


def resident() -> int:
    """Return this process's resident memory in bytes; its peak if the system does not report it."""
    path = Path("/proc/self/statm")
    if path.exists():
        return int(path.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return peak_resident()
