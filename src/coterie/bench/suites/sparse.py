"""SparseCAB against CAB and LinUCB-MULTIPLE where few of 2,000 features matter: regret, time and memory.

Only `choose` and `learn` are timed. Each policy has its best alpha of 0, 0.001, 0.01 and 0.1 in this world, and
updates are not shared (gamma = 0): the clusters' payoffs differ by about 0.03 here, and with gamma = 0.2 both CAB and
SparseCAB would treat all users as one cluster from the first rounds on.
"""

import gc
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from time import process_time
from types import FunctionType, ModuleType
from typing import Any, final

import numpy as np

from coterie.bench.measuring import Measured, at_most, no_limit
from coterie.data.rounds import Round
from coterie.data.worlds.sparse_world import SparseWorld
from coterie.policies import CAB, LinUCB, Policy, SparseCAB

SUITE = "sparse"
OURS = "SparseCAB"


@final
@dataclass
class Played:
    """One policy, with its regret and time so far."""

    policy: Policy
    regret: float = 0.0
    seconds: float = 0.0

    @property
    def megabytes(self) -> float:
        """The policy's memory now."""
        return held_bytes(self.policy) / 1e6


def rows(quick: bool, on_progress: Callable[[str], None]) -> Iterator[Measured]:
    """Play 10,000 rounds at d = 2,000, or 1,500 at d = 400, and yield the results. CAB takes long."""
    small: dict[str, Any] = {"n_features": 400, "n_users": 8, "clusters_per_family": 2, "n_candidates": 10}
    world = SparseWorld(**small) if quick else SparseWorld()
    play(contestants(world), world.rounds(3))  # compiles
    played = contestants(world)
    n_rounds = 1_500 if quick else 10_000
    for number, sent in enumerate(world.rounds(n_rounds), 1):
        play(played, [sent])
        if number % (n_rounds // 100) == 0:
            on_progress(f"{number:,} of {n_rounds:,} rounds in a sparse world")
    yield from compared(played, time_limit=None if quick else 0.1)


def contestants(world: SparseWorld) -> dict[str, Played]:
    """Return the policies, untrained."""
    d = world.n_features
    return {
        OURS: Played(SparseCAB(n_features=d, sparsity=world.sparsity, alpha=0.01, gamma=0.0)),
        "CAB": Played(CAB(n_features=d, alpha=0.001, gamma=0.0)),
        "LinUCB-MULTIPLE": Played(LinUCB(n_features=d, alpha=0.0)),
    }


def play(played: dict[str, Played], rounds: Iterable[Round]) -> None:
    """Make every policy choose and learn in each round."""
    for sent in rounds:
        for one in played.values():
            start = process_time()
            k = one.policy.choose(sent.user, sent.contexts)
            one.policy.learn(sent.user, sent.contexts[k], float(sent.payoffs[k]))
            one.seconds += process_time() - start
            one.regret += float(sent.expected.max() - sent.expected[k])


def compared(played: dict[str, Played], time_limit: float | None) -> Iterator[Measured]:
    """Yield all results, SparseCAB's as ratios to the others'. The saving in time grows with d."""
    rivals = [name for name in played if name != OURS]
    regret, seconds, memory = (
        {name: getattr(one, what) for name, one in played.items()}
        for what in ("regret", "seconds", "megabytes")
    )
    best = min(rivals, key=lambda name: regret[name])
    for what, unit, found, against, limit in (
        ("regret", "regret", regret, best, 0.5),
        ("time", "s", seconds, "CAB", time_limit),
        ("memory", "MB", memory, "CAB", 1.0),
    ):
        ratio = found[OURS] / found[against]
        keeps = no_limit(ratio) if limit is None else at_most(limit, ratio)
        yield Measured(SUITE, f"{what} of {OURS}", found[OURS], unit, against, **keeps)
        for name in rivals:
            ratio = found[name] / found[OURS]
            yield Measured(SUITE, f"{what} of {name}", found[name], unit, OURS, **no_limit(ratio))


def held_bytes(root: Any) -> int:
    """Return the bytes of all arrays that can be reached from an object, each buffer counted once."""
    seen, waiting, buffers = {id(root)}, [root], {}
    while waiting:
        thing = waiting.pop()
        if isinstance(thing, np.ndarray):
            while isinstance(thing.base, np.ndarray):
                thing = thing.base
            buffers[id(thing)] = thing.nbytes
        for other in gc.get_referents(thing):
            if id(other) not in seen and not isinstance(other, type | ModuleType | FunctionType):
                seen.add(id(other))
                waiting.append(other)
    return sum(buffers.values())
