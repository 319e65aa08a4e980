"""CoLin's Algorithm 1 as printed: vec(Θ) of length N·d, the whole A, an inverse a round."""

import math
from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]


class NaiveCoLin:
    """`W` has one column a user: how much the others count."""

    def __init__(self, d: int, alpha: float, ridge: float, nodes: dict[Hashable, int], W: Vector) -> None:
        self.d, self.n, self.alpha, self.nodes, self.W = d, len(W), alpha, nodes, W
        self.A = ridge * np.eye(self.n * d)
        self.b = np.zeros(self.n * d)
        self.t = 1

    def vec(self, user: Hashable, x: Vector) -> Vector:
        """vec(X̊Wᵀ), where X̊ is d × N with x in the user's column."""
        X = np.zeros((self.d, self.n))
        X[:, self.nodes[user]] = x
        return (X @ self.W.T).T.ravel()

    def scores(self, user: Hashable, contexts: Sequence[Vector]) -> Vector:
        inverse = np.linalg.inv(self.A)
        theta = inverse @ self.b
        Theta = theta.reshape(self.n, self.d).T  # d × N
        found = []
        for x in contexts:
            z = self.vec(user, x)
            estimate = x @ Theta @ self.W[:, self.nodes[user]]
            found.append(estimate + self.alpha * math.sqrt(math.log(1 + self.t)) * math.sqrt(z @ inverse @ z))
        return np.array(found)

    def learn(self, user: Hashable, x: Vector, y: float) -> None:
        z = self.vec(user, x)
        self.A = self.A + np.outer(z, z)
        self.b = self.b + y * z
        self.t += 1
