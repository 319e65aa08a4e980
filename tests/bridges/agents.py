"""Agents of somebody else, as policies: what `own:make=…` names in the tests."""

from collections.abc import Callable, Hashable
from typing import Any

import numpy as np

from coterie import CAB, Policy
from coterie.bridges import FromFunction


class Greedy:
    """Remembers the mean payoff of each item, and shows the best so far."""

    def __init__(self) -> None:
        self.sums: dict[Hashable, list[float]] = {}
        self.forgotten: list[Hashable] = []

    def choose(self, user: Hashable, items: list[Hashable]) -> int:
        means = [np.mean(self.sums.get(item, [0.5])) for item in items]
        return int(np.argmax(means))

    def learn(self, user: Hashable, item: Hashable, payoff: float) -> None:
        self.sums.setdefault(item, []).append(payoff)

    def forget(self, user: Hashable) -> None:
        self.forgotten.append(user)


def greedy(*, n_features: int | None, one_hot: bool, seed: int) -> Policy:
    """Make a greedy policy over item ids."""
    agent = Greedy()
    return FromFunction(
        on_choose=agent.choose, on_learn=agent.learn, on_drop=agent.forget, one_hot=one_hot, seed=seed
    )


def ours(*, n_features: int | None, one_hot: bool, seed: int) -> Policy:
    """Make a policy of coterie, as a policy of one's own would be made."""
    return CAB(one_hot=one_hot, n_features=n_features)


def not_a_policy(**_: Any) -> Callable[..., Any]:
    """Make something else."""
    return print
