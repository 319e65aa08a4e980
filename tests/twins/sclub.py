"""SCLUB line by line: a list of sets, the oldest first, whose statistics are summed anew when needed."""

import math
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

from tests.twins.linucb import Vector, first_best, ucb


def F(T: int) -> float:  # noqa: N802 (the paper's name)
    return math.sqrt((1 + math.log(1 + T)) / (1 + T))


class NaiveSCLUB:
    def __init__(self, d: int, alpha: float, alpha_theta: float, alpha_p: float) -> None:
        self.d, self.alpha, self.alpha_theta, self.alpha_p = d, alpha, alpha_theta, alpha_p
        self.M: dict[Hashable, Vector] = {}
        self.b: dict[Hashable, Vector] = {}
        self.T: dict[Hashable, int] = {}
        self.clusters: list[set[Hashable]] = []
        self.checked: set[Hashable] = set()
        self.tau = 0

    def add(self, user: Hashable) -> None:
        if user not in self.M:
            self.M[user], self.b[user], self.T[user] = np.eye(self.d), np.zeros(self.d), 0
            if not self.clusters:
                self.clusters.append(set())
            self.clusters[0].add(user)

    def drop(self, user: Hashable) -> None:
        for cluster in self.clusters:
            cluster.discard(user)
        self.clusters = [cluster for cluster in self.clusters if cluster]
        self.checked.discard(user)
        del self.M[user], self.b[user], self.T[user]

    def of(self, user: Hashable) -> set[Hashable]:
        for cluster in self.clusters:
            if user in cluster:
                return cluster
        return self.clusters[0] if self.clusters else set()

    def pooled(self, cluster: set[Hashable]) -> tuple[Vector, Vector]:
        M, b = np.eye(self.d), np.zeros(self.d)
        for user in self.M:
            if user in cluster:
                M = M + (self.M[user] - np.eye(self.d))
                b = b + self.b[user]
        return M, b

    def theta(self, cluster: set[Hashable]) -> Vector:
        M, b = self.pooled(cluster)
        w: Vector = np.linalg.inv(M) @ b
        return w

    def times(self, cluster: set[Hashable]) -> int:
        return sum(self.T[user] for user in cluster)

    def frequency(self, cluster: set[Hashable]) -> float:
        return self.times(cluster) / len(cluster) / self.tau

    def choose(self, user: Hashable, contexts: Sequence[Vector]) -> int:
        M, b = self.pooled(self.of(user))
        return first_best(ucb(M, b, contexts, self.alpha * math.sqrt(math.log(2 + self.tau))))

    def learn(self, i: Hashable, x: Vector, y: float) -> None:
        self.add(i)
        self.tau += 1
        if self.tau in {2**s - 1 for s in range(1, 40)}:
            self.checked = set()
        self.M[i] = self.M[i] + np.outer(x, x)
        self.b[i] = self.b[i] + y * x
        self.T[i] += 1
        self.checked.add(i)
        changed = [self.of(i)]
        if len(self.of(i)) > 1 and self.differ({i}, self.of(i)):
            self.of(i).remove(i)
            self.clusters.append({i})
            changed = [self.of(i), *changed]
        for cluster in changed:
            self.merge(cluster)

    def differ(self, one: set[Hashable], other: set[Hashable]) -> bool:
        far = float(np.linalg.norm(self.theta(one) - self.theta(other)))
        rare = abs(self.frequency(one) - self.frequency(other))
        return (
            far > self.alpha_theta * (F(self.times(one)) + F(self.times(other))) + 1e-12
            or rare > 2 * self.alpha_p * F(self.tau) + 1e-12
        )

    def alike(self, one: set[Hashable], other: set[Hashable]) -> bool:
        far = float(np.linalg.norm(self.theta(one) - self.theta(other)))
        rare = abs(self.frequency(one) - self.frequency(other))
        return far < self.alpha_theta / 2 * (
            F(self.times(one)) + F(self.times(other))
        ) and rare < self.alpha_p * F(self.tau)

    def merge(self, cluster: set[Hashable]) -> None:
        while any(cluster is other for other in self.clusters) and cluster <= self.checked:
            for other in self.clusters:
                if other is not cluster and other <= self.checked and self.alike(cluster, other):
                    break
            else:
                return
            older, younger = [c for c in self.clusters if c is cluster or c is other]
            older |= younger
            self.clusters = [c for c in self.clusters if c is not younger]
            cluster = older


def twin_of(policy: Any, d: int) -> NaiveSCLUB:
    return NaiveSCLUB(d, policy.alpha, policy.alpha_theta, policy.alpha_p)
