"""CLUB line by line: a set of edges, components found by walking them, statistics summed anew each time."""

import math
from collections.abc import Hashable, Iterable, Sequence

import numpy as np

from tests.twins.linucb import Vector, first_best, thompson_choice, ucb


class NaiveCLUB:
    """Edges are told by the test, so that the twin needs no random graph of its own."""

    def __init__(
        self,
        d: int,
        alpha: float,
        alpha2: float,
        thompson: bool = False,
        one_hot: bool = False,
        rng: np.random.Generator | None = None,
        edges_come: bool = True,
    ) -> None:
        self.edges_come = edges_come
        self.d, self.alpha, self.alpha2, self.thompson, self.one_hot = d, alpha, alpha2, thompson, one_hot
        self.rng = rng or np.random.default_rng(0)
        self.M: dict[Hashable, Vector] = {}
        self.b: dict[Hashable, Vector] = {}
        self.T: dict[Hashable, int] = {}
        self.E: set[frozenset[Hashable]] = set()
        self.t = 1

    def add(self, user: Hashable, edges: Iterable[tuple[Hashable, Hashable]]) -> None:
        self.M[user], self.b[user], self.T[user] = np.eye(self.d), np.zeros(self.d), 0
        self.E |= {frozenset(edge) for edge in edges if user in edge}

    def drop(self, user: Hashable) -> None:
        del self.M[user], self.b[user], self.T[user]
        self.E = {edge for edge in self.E if user not in edge}

    def component(self, user: Hashable) -> set[Hashable]:
        found, queue = {user}, [user]
        while queue:
            i = queue.pop()
            for edge in self.E:
                if i in edge:
                    queue += list(edge - found)
                    found |= edge
        return found

    def pooled(self, user: Hashable) -> tuple[Vector, Vector]:
        M, b = np.eye(self.d), np.zeros(self.d)
        for j in self.component(user) if user in self.M else self.strangers_company():
            M = M + (self.M[j] - np.eye(self.d))
            b = b + self.b[j]
        return M, b

    def strangers_company(self) -> set[Hashable]:
        """Everybody, unless nobody ever has an edge."""
        return set(self.M) if self.edges_come else set()

    def choose(self, user: Hashable, contexts: Sequence[Vector]) -> int:
        M, b = self.pooled(user)
        scale = self.alpha * math.sqrt(math.log(1 + self.t))
        if self.thompson:
            return thompson_choice(M, b, contexts, scale, self.t, self.rng)
        return first_best(ucb(M, b, contexts, scale))

    def learn(self, i: Hashable, x: Vector, y: float) -> None:
        self.M[i] = self.M[i] + np.outer(x, x)
        self.b[i] = self.b[i] + y * x
        self.T[i] += 1
        self.cut(i)
        self.t += 1

    def cut(self, i: Hashable) -> None:
        for edge in list(self.E):
            if i in edge:
                (j,) = edge - {i}
                w_i, w_j = np.linalg.inv(self.M[i]) @ self.b[i], np.linalg.inv(self.M[j]) @ self.b[j]
                if np.linalg.norm(w_i - w_j) > self.radius(i) + self.radius(j) + 1e-12:
                    self.E.remove(edge)

    def radius(self, i: Hashable) -> float:
        return self.alpha2 * math.sqrt((1 + math.log(1 + self.T[i])) / (1 + self.T[i]))
