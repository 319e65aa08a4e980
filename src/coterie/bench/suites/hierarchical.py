"""Hierarchical at LastFM's size, against CAB and Vowpal Wabbit on the same rounds; then with a million users.

A run has LastFM's length, 50,000 rounds from the first payoff on, and the cost of a round is the mean over
all of them. This includes the first rounds, in which refits visit more users per payoff than later.
"""

import time
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from importlib.util import find_spec

import numpy as np

from coterie import CAB, VW, Hierarchical
from coterie.bench.measuring import Measured, at_least, at_most, best_of, no_limit
from coterie.bench.rounds import CANDIDATES, FEATURES, RandomVisits
from coterie.bench.suites import hierarchical_growth
from coterie.policies.base.batch import Batch
from coterie.policies.vw import FIXED, SETTINGS

SUITE = "hierarchical"
USERS, ROUNDS, PART = 1892, 50_000, 2_500
SETTING = "squarecb"


def rows(quick: bool, on_progress: Callable[[str], None]) -> Iterator[Measured]:
    """Measure a run at LastFM's size, then growth, the slowest call and memory."""
    n_rounds = 2 * PART if quick else ROUNDS
    crowd = RandomVisits()
    compile_all(crowd)
    parts = [crowd.batch(crowd.rng.integers(USERS, size=PART), CANDIDATES) for _ in range(n_rounds // PART)]
    on_progress(f"{n_rounds:,} rounds at LastFM's size: Hierarchical")
    ours = seconds_by_part(Hierarchical(n_features=FEATURES), parts)
    on_progress(f"{n_rounds:,} rounds at LastFM's size: CAB")
    cab = seconds_by_part(CAB(n_features=FEATURES, alpha=0.1, gamma=0.0), parts)
    yield from against_cab(ours, cab, limited=not quick)
    if find_spec("vowpalwabbit") is None:
        on_progress("Vowpal Wabbit is left out: pip install 'coterie[rivals]'")
    else:
        on_progress(f"{n_rounds:,} rounds at LastFM's size: Vowpal Wabbit")
        loop = Plain(parts[0])
        plain = sum(loop.seconds(part) for part in parts)
        on_progress(f"{n_rounds:,} rounds at LastFM's size: Vowpal Wabbit in our own loop")
        tuned = sum(seconds_by_part(VW(n_features=FEATURES, setting=SETTING), parts))
        yield from against_vw(sum(ours), plain, tuned, n_rounds, limited=not quick)
    yield from hierarchical_growth.rows(quick, on_progress)


def compile_all(crowd: RandomVisits) -> None:
    """Play a few rounds with each policy, so that no compilation is timed."""
    few = crowd.batch(np.arange(5), CANDIDATES)
    for policy in (Hierarchical(n_features=FEATURES), CAB(n_features=FEATURES, alpha=0.1, gamma=0.0)):
        policy.run(few)
        policy.run(few)


def seconds_by_part(policy: Hierarchical | CAB | VW, parts: list[Batch]) -> list[float]:
    """Play all parts with `run`, and return the seconds of processor time of each."""
    return [best_of(1, partial(policy.run, part)) for part in parts]


def against_cab(ours: list[float], cab: list[float], limited: bool) -> Iterator[Measured]:
    """Yield the cost of a round over the whole run, and over its first and last tenth."""
    tenth = max(1, len(ours) // 10)
    for name, part in (
        ("a round, mean of the whole run", slice(None)),
        ("a round, first tenth of the run", slice(tenth)),
        ("a round, last tenth of the run", slice(-tenth, None)),
    ):
        ratio = sum(ours[part]) / sum(cab[part])
        cost = 1e6 * sum(ours[part]) / (len(ours[part]) * PART)
        promise = at_most(0.1, ratio) if limited and part == slice(None) else no_limit(ratio)
        yield Measured(SUITE, name, cost, "µs", "CAB on the same rounds", **promise)


def against_vw(ours: float, plain: float, tuned: float, n_rounds: int, limited: bool) -> Iterator[Measured]:
    """Yield rounds per second against Vowpal Wabbit's, by its package and in our own loop."""
    speed = n_rounds / ours
    promise = at_least(10, plain / ours) if limited else no_limit(plain / ours)
    against = f"VW, {SETTING}: predict and learn of its package, {n_rounds / plain:,.0f} rounds/s"
    yield Measured(SUITE, "rounds per second", speed, "rounds/s", against, **promise)
    against = f"VW, {SETTING}: our loop, which parses once, {n_rounds / tuned:,.0f} rounds/s"
    yield Measured(SUITE, "rounds per second", speed, "rounds/s", against, **no_limit(tuned / ours))


class Plain:
    """Vowpal Wabbit as its package offers it: examples as lists of text, `predict`, then `learn`.

    Items are converted to text before the timing starts.
    """

    def __init__(self, batch: Batch) -> None:
        options = [*SETTINGS[SETTING].split(), *FIXED, "--quiet"]
        self.vw = import_module("vowpalwabbit").Workspace(arg_list=options)
        self.rng = np.random.default_rng(0)
        self.lines = [
            "|A " + " ".join(f"x{place}:{value!r}" for place, value in enumerate(row))
            for row in batch.items.tolist()
        ]

    def seconds(self, batch: Batch) -> float:
        """Play a batch, and return the seconds of processor time."""
        payoffs, draws = batch.payoffs.tolist(), self.rng.random(len(batch.users)).tolist()
        shown = np.asarray(batch.candidates).tolist()
        start = time.thread_time()
        for t, user in enumerate(batch.users):
            lines = [f"shared |U {user}", *(self.lines[item] for item in shown[t])]
            chances = self.vw.predict(lines)
            k = min(int(np.searchsorted(np.cumsum(chances), draws[t])), len(chances) - 1)
            lines[1 + k] = f"0:{-payoffs[t][k]!r}:{chances[k]!r} {lines[1 + k]}"
            self.vw.learn(lines)
        return time.thread_time() - start
