"""The appendix's two-stage hard thresholding line by line on whole matrices, and the search over all supports."""

from collections.abc import Iterable
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]


def objective(X: Vector, y: Vector, w: Vector) -> float:
    return float(sum((X @ w - y) ** 2) + sum(w**2))


def minimum(X: Vector, y: Vector, support: Iterable[int]) -> Vector:
    """The minimum of the objective over the vectors with this support."""
    S = sorted(support)
    w = np.zeros(X.shape[1])
    w[S] = np.linalg.inv(X[:, S].T @ X[:, S] + np.eye(len(S))) @ X[:, S].T @ y
    return w


def exhaustive_search(X: Vector, y: Vector, s: int) -> Vector:
    supports = combinations(range(X.shape[1]), s)
    return min((minimum(X, y, S) for S in supports), key=lambda w: objective(X, y, w))


def top(values: Vector, count: int, tie: float) -> set[int]:
    """The `count` largest; values no larger than `tie` are zero, and among equals the first listed go first."""
    ranked = sorted((float(v) for v in values if v > tie), reverse=True)
    if len(ranked) <= count:
        return {i for i, v in enumerate(values) if v > tie}
    last = ranked[count - 1]
    chosen = {i for i, v in enumerate(values) if v > last + tie}
    for i, v in enumerate(values):
        if len(chosen) < count and abs(v - last) <= tie:
            chosen.add(i)
    return chosen


def support_of(w: Vector, y: Vector) -> set[int]:
    return top(np.abs(w), len(w), 1e-12 * float(np.linalg.norm(y)))


def two_stage(X: Vector, y: Vector, s: int, ell: int, start: Iterable[int] = ()) -> Vector:
    tie = 1e-12 * float(np.linalg.norm(y))
    w = minimum(X, y, start)
    visited = [(support_of(w, y), objective(X, y, w), w)]
    while len(visited) <= 100:
        g = 2 * X.T @ (X @ w - y) + 2 * w
        S = support_of(w, y)
        outside = np.array([0.0 if a in S else abs(g[a]) for a in range(len(w))])
        Z = S | top(outside, ell, 2 * tie)
        b = minimum(X, y, Z)
        w = minimum(X, y, top(np.abs(b), s, tie))
        came_before = any(support_of(w, y) == before for before, _, _ in visited)
        visited.append((support_of(w, y), objective(X, y, w), w))
        if came_before:
            break
    best = visited[0]
    for step in visited[1:]:
        if step[1] < best[1] - 1e-12 * float(y @ y):
            best = step
    return np.array([best[2][a] if a in best[0] else 0.0 for a in range(len(w))])
