"""GOB.Lin as printed: the whole (n·d)² matrix, A^{-1/2} by eigenvalues, an inverse a round."""

import math
from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]


class NaiveGOBLin:
    """`nodes` says which row of `weights`, the graph's symmetric adjacency matrix, a user is."""

    def __init__(self, d: int, alpha: float, nodes: dict[Hashable, int], weights: Vector) -> None:
        n = len(weights)
        laplacian = np.diag(weights.sum(axis=1)) - weights
        values, vectors = np.linalg.eigh(np.eye(n) + laplacian)
        root = vectors @ np.diag(values**-0.5) @ vectors.T  # A^{-1/2}
        self.root = np.kron(root, np.eye(d))
        self.d, self.n, self.alpha, self.nodes = d, n, alpha, nodes
        self.M, self.b = np.eye(n * d), np.zeros(n * d)
        self.t = 1

    def phi(self, user: Hashable, x: Vector) -> Vector:
        long = np.zeros(self.n * self.d)
        i = self.nodes[user]
        long[i * self.d : (i + 1) * self.d] = x
        found: Vector = self.root @ long
        return found

    def scores(self, user: Hashable, contexts: Sequence[Vector]) -> Vector:
        inverse = np.linalg.inv(self.M)
        w = inverse @ self.b
        found = []
        for x in contexts:
            phi = self.phi(user, x)
            bound = self.alpha * math.sqrt(phi @ inverse @ phi * math.log(1 + self.t))
            found.append(w @ phi + bound)
        return np.array(found)

    def learn(self, user: Hashable, x: Vector, y: float) -> None:
        phi = self.phi(user, x)
        self.M = self.M + np.outer(phi, phi)
        self.b = self.b + y * phi
        self.t += 1
