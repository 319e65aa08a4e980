"""Measures whether regret grows as in Corollary 1: time, clusters or users are doubled, all else is fixed.

The corollary's growing term is d·√(T·c·E[m(X)]): a slope of at most 1/2 in the logarithm of T and of m, and none in
that of n. Its first term, paid once at the start, grows up to n²; with few rounds per user it dominates. All
are upper bounds up to logarithms. Slopes depend on the setting: docs/theory.md lists those that were tried.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from coterie.arrays import Floats
from coterie.data import OneHotWorld
from coterie.errors import ParameterError
from coterie.policies import CAB, LinUCB, Policy
from coterie.policies.base.batch import Batch

VARIED: dict[str, tuple[Sequence[int], float]] = {
    "rounds": ((1, 2, 4, 8, 16), 0.5),  # in quarters of the other benchmarks' rounds
    "clusters": ((2, 4, 8), 0.5),
    "users": ((16, 32, 64, 128), 2.0),
}
BASE: dict[str, Any] = {
    "n_users": 64,
    "n_items": 10,
    "n_families": 1,
    "clusters_per_family": 4,
    "gap": 0.2,
    "noise": 0.1,
    "n_candidates": 5,
}
ROUNDS = 4000
NAMES = {"rounds": "n_rounds", "clusters": "clusters_per_family", "users": "n_users"}


class Scaling(NamedTuple):
    """Regret at each value of the varied quantity, and the fitted slope of its logarithm."""

    varied: str
    policy: str
    values: tuple[int, ...]
    regret: Floats  # (runs, values)
    predicted: float  # the largest slope that the corollary allows

    @property
    def slope(self) -> float:
        """The slope of log regret in the logarithm of the value, by least squares over the means."""
        return _slope(self.values, self.regret.mean(axis=0))

    @property
    def error(self) -> float:
        """The standard error of the slope, by leaving out one run at a time."""
        runs = len(self.regret)
        if runs < 2:
            return float("nan")
        left = [_slope(self.values, np.delete(self.regret, run, axis=0).mean(axis=0)) for run in range(runs)]
        return float(np.sqrt((runs - 1) * np.var(left)))


def measure_scaling(
    varied: str,
    *,
    policy: str = "cab",
    runs: int = 8,
    rounds: int = ROUNDS,
    seed: int = 0,
    alpha: float = 0.05,
) -> Scaling:
    """Play a policy ("cab", or "linucb" per user) while one quantity is doubled repeatedly."""
    if varied not in VARIED:
        raise ParameterError(f"varied is {varied!r}, expected one of: {', '.join(VARIED)}")
    values, predicted = VARIED[varied]
    if varied == "rounds":
        values = [max(1, value * rounds // 4) for value in values]
    if policy not in ("cab", "linucb"):
        raise ParameterError(f'policy is {policy!r}, expected "cab" or "linucb"')
    make = partial(CAB, gamma=BASE["gap"]) if policy == "cab" else LinUCB
    made = partial(make, one_hot=True, alpha=alpha)
    lost = np.zeros((runs, len(values)))
    for run in range(runs):
        if varied == "rounds":
            curve = _regret(made(), OneHotWorld(**BASE, seed=seed + run), max(values), seed + run)
            lost[run] = [curve[value - 1] for value in values]
            continue
        for column, value in enumerate(values):
            world = OneHotWorld(**{**BASE, NAMES[varied]: value}, seed=seed + run)
            lost[run, column] = _regret(made(), world, rounds, seed + run)[-1]
    return Scaling(varied, policy, tuple(values), lost, predicted)


def _regret(policy: Policy, world: OneHotWorld, n_rounds: int, seed: int) -> Floats:
    """Return the cumulative regret after each round."""
    sent = list(world.rounds(n_rounds, seed))
    users, lists = [one.user for one in sent], np.array([one.contexts for one in sent])
    payoffs = np.array([one.payoffs for one in sent])
    choice = policy.run(Batch(users, lists, list(range(world.n_items)), payoffs)).choice
    expected = np.array([one.expected for one in sent])
    return np.cumsum(expected.max(axis=1) - expected[np.arange(n_rounds), choice])


def _slope(values: Sequence[int], regret: Floats) -> float:
    return float(np.polyfit(np.log(values), np.log(np.maximum(regret, 1e-12)), 1)[0])
