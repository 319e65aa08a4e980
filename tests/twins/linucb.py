"""LinUCB with full matrices and `np.linalg.inv`; an item is its basis vector."""

import math
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.twins.probability import chances, choose_by

Vector = NDArray[np.float64]


def first_best(scores: Vector) -> int:
    return min(k for k in range(len(scores)) if max(scores) - scores[k] < 1e-9)


def width(M: Vector, x: Vector) -> float:
    return math.sqrt(float(x @ np.linalg.inv(M) @ x))


def ucb(M: Vector, b: Vector, contexts: Sequence[Vector], scale: float) -> Vector:
    """w·x plus the bound, for each candidate."""
    w = np.linalg.inv(M) @ b
    return np.array([w @ x + scale * width(M, x) for x in contexts])


def thompson_choice(
    M: Vector, b: Vector, contexts: Sequence[Vector], scale: float, t: int, rng: np.random.Generator
) -> int:
    """Choose by the probability that w̃·x is the largest for w̃ ~ N(M⁻¹b, scale² M⁻¹)."""
    X = np.array(contexts)
    return choose_by(chances(X @ np.linalg.inv(M) @ b, scale**2 * X @ np.linalg.inv(M) @ X.T, t - 1), rng)


class NaiveLinUCB:
    def __init__(
        self,
        d: int,
        alpha: float,
        shared: bool = False,
        thompson: bool = False,
        seed: int = 0,
        one_hot: bool = False,
        keep: float = 1.0,
    ) -> None:
        self.keep = keep  # what an old payoff counts after one more
        self.d, self.alpha, self.shared, self.thompson, self.one_hot = d, alpha, shared, thompson, one_hot
        self.rng = np.random.default_rng(seed)
        self.M: dict[Hashable, Vector] = {}
        self.b: dict[Hashable, Vector] = {}
        self.t = 1

    def scale(self) -> float:
        return self.alpha * math.sqrt(math.log(1 + self.t))

    def model(self, user: Hashable) -> tuple[Hashable, Vector, Vector]:
        who = "everybody" if self.shared else user
        return who, self.M.get(who, np.eye(self.d)), self.b.get(who, np.zeros(self.d))

    def choose(self, user: Hashable, contexts: Sequence[Vector]) -> int:
        _, M, b = self.model(user)
        if self.thompson:
            return thompson_choice(M, b, contexts, self.scale(), self.t, self.rng)
        return first_best(ucb(M, b, contexts, self.scale()))

    def learn(self, user: Hashable, x: Any, y: float) -> None:
        who, M, b = self.model(user)
        self.M[who] = np.eye(self.d) + self.keep * (M - np.eye(self.d)) + np.outer(x, x)
        self.b[who] = self.keep * b + y * x
        self.t += 1


def twin_of(policy: Any, d: int) -> NaiveLinUCB:
    """Return the twin of a policy over d features or items. The contract suite compares their choices."""
    return NaiveLinUCB(
        d, policy.alpha, policy.shared, policy.thompson, policy.seed, policy.one_hot, policy._keep
    )
