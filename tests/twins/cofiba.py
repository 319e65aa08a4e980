"""COFIBA as printed: sets of edges, breadth-first search, full matrices, an inverse whenever one is needed."""

import math
from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import NDArray

from tests.twins.probability import seed_number

Vector = NDArray[np.float64]
Edges = set[frozenset[int]]


def component(start: int, edges: Edges) -> set[int]:
    found, waiting = {start}, [start]
    while waiting:
        node = waiting.pop()
        for edge in edges:
            if node in edge:
                (other,) = edge - {node}
                if other not in found:
                    found.add(other)
                    waiting.append(other)
    return found


class NaiveCOFIBA:
    """Users are known from their first payoff on; items are vectors."""

    def __init__(self, d: int, alpha: float, alpha2: float, complete: bool, seed: int) -> None:
        self.d, self.alpha, self.alpha2, self.complete = d, alpha, alpha2, complete
        self.seed = seed_number(seed)
        self.number: dict[Hashable, int] = {}
        self.M: list[Vector] = []
        self.b: list[Vector] = []
        self.base: Edges = set()  # with which a new user graph starts
        self.graphs: dict[int, Edges] = {0: set()}  # item cluster → edges between users
        self.items: list[Vector] = []
        self.item_edges: Edges = set()
        self.cluster: list[int] = []  # of each item
        self.t = 1

    def factor(self, alpha: float) -> float:
        return alpha * math.sqrt(math.log(1 + self.t))

    def joined(self, earlier: list[int], seed: int, number: int) -> list[int]:
        """Who of the earlier ones a newcomer gets an edge to."""
        if self.complete or not earlier:
            return earlier
        n, rng = len(earlier) + 1, np.random.default_rng([seed, number])
        drawn = [
            other
            for other, r in zip(earlier, rng.random(len(earlier)), strict=True)
            if r < 3 * math.log(n) / n
        ]
        return drawn or [earlier[rng.integers(len(earlier))]]

    def add(self, user: Hashable) -> int:
        if user not in self.number:
            new = self.number[user] = len(self.M)
            self.M.append(np.eye(self.d))
            self.b.append(np.zeros(self.d))
            edges = {frozenset((new, other)) for other in self.joined(list(range(new)), 2 * self.seed, new)}
            self.base |= edges
            for graph in self.graphs.values():
                graph |= edges
        return self.number[user]

    def largest(self) -> int:
        return max(sorted(set(self.cluster)) or [0], key=lambda c: self.cluster.count(c))

    def item(self, x: Vector) -> int | None:
        return next((i for i, known in enumerate(self.items) if (known == x).all()), None)

    def scores(self, user: Hashable, contexts: Sequence[Vector]) -> Vector:
        found = []
        for x in contexts:
            item = self.item(x)
            cluster = self.largest() if item is None else self.cluster[item]
            everybody = set(self.number.values())
            pool = component(self.number[user], self.graphs[cluster]) if user in self.number else everybody
            M = np.eye(self.d) + sum(self.M[j] - np.eye(self.d) for j in pool)
            b = np.zeros(self.d) + sum(self.b[j] for j in pool)
            inverse = np.linalg.inv(M)
            found.append(x @ inverse @ b + self.factor(self.alpha) * math.sqrt(x @ inverse @ x))
        return np.array(found)

    def agree(self, i: int, j: int, x: Vector) -> bool:
        def estimate(user: int) -> float:
            return float(x @ np.linalg.inv(self.M[user]) @ self.b[user])

        def cb(user: int) -> float:
            return self.factor(self.alpha2) * math.sqrt(x @ np.linalg.inv(self.M[user]) @ x)

        return abs(estimate(i) - estimate(j)) <= cb(i) + cb(j) + 1e-12

    def neighbourhood(self, i: int, x: Vector) -> set[int]:
        return {j for j in range(len(self.M)) if j == i or self.agree(i, j, x)}

    def learn(self, user: Hashable, x: Vector, y: float) -> None:
        i = self.add(user)
        item = self.item(x)
        if item is None:
            home = self.largest()
            earlier = [k for k, c in enumerate(self.cluster) if c == home]
            item = len(self.items)
            self.items.append(x)
            self.cluster.append(home)
            self.item_edges |= {
                frozenset((item, other)) for other in self.joined(earlier, 2 * self.seed + 1, item)
            }
        self.M[i] = self.M[i] + np.outer(x, x)
        self.b[i] = self.b[i] + y * x

        graph = self.graphs[self.cluster[item]]
        for edge in list(graph):
            if i in edge:
                (j,) = edge - {i}
                if not self.agree(i, j, x):
                    graph.remove(edge)

        mine = self.neighbourhood(i, x)
        for edge in list(self.item_edges):
            if item in edge:
                (other,) = edge - {item}
                if self.neighbourhood(i, self.items[other]) != mine:
                    self.item_edges.remove(edge)

        old = self.cluster[item]
        rest = [k for k, c in enumerate(self.cluster) if c == old]
        parts: list[set[int]] = []
        while rest:
            parts.append(component(rest[0], self.item_edges))
            rest = [k for k in rest if k not in parts[-1]]
        size = max(len(part) for part in parts)
        stays = next((p for p in parts if len(p) == size and item in p), None) or next(
            p for p in parts if len(p) == size
        )
        for part in parts:
            if part is not stays:
                new = max(self.graphs) + 1
                self.graphs[new] = set(self.base)
                for k in part:
                    self.cluster[k] = new
        self.t += 1
