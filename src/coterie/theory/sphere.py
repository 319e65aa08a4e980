"""Smallest eigenvalues under the worst choices, as a search over directions.

The hardness asks for the least λ_min(Σ_s x_{s,k_s} x_{s,k_s}ᵀ) over all ways to choose one candidate k_s in each
round s. Since λ_min(A) is the minimum of zᵀAz over unit vectors z, and two minima can be exchanged,

    min over choices of λ_min  =  min over z of G(z),     G(z) = Σ_s min_k (z·x_{s,k})².

Any z proves that the minimum is at most G(z). To prove that it is above a limit, the sphere is cut into cells, and G
is bounded from below on each.
"""

from collections.abc import Sequence
from itertools import combinations
from math import comb
from typing import Literal, NamedTuple

import numpy as np

from coterie.arrays import Bools, Floats

# Numbers closer than this, relative to 1 or to the limit, count as equal.
ROUNDING = 1e-9
# With more supports than this, they are not searched one by one.
SUPPORTS = 2000
CHUNK = 2_000_000  # numbers at a time


class Answer(NamedTuple):
    """Whether min G is above a limit; if not, a direction that shows it."""

    verdict: Literal["above", "below", "unknown"]
    direction: Floats | None
    how: str


class Lists(NamedTuple):
    """Candidate lists, padded to equal length."""

    vectors: Floats  # (rounds, candidates, n_features)
    there: Bools  # (rounds, candidates): False where padded

    def upto(self, rounds: int) -> "Lists":
        """Return the first rounds."""
        return Lists(self.vectors[:rounds], self.there[:rounds])

    def squares(self, z: Floats) -> Floats:
        """Return (z·x)² for one direction: (rounds, candidates), infinite where padded."""
        dots = self.vectors @ z
        return np.where(self.there, dots * dots, np.inf)


def pad(contexts: Sequence[Floats]) -> Lists:
    """Put candidate lists into one array; candidates that are equal up to the sign are merged."""
    kept = [_distinct(np.asarray(rows, dtype=np.float64)) for rows in contexts]
    vectors = np.zeros((len(kept), max(map(len, kept)), kept[0].shape[1]))
    there = np.zeros(vectors.shape[:2], dtype=np.bool_)
    for s, rows in enumerate(kept):
        vectors[s, : len(rows)] = rows
        there[s, : len(rows)] = True
    return Lists(vectors, there)


def _distinct(rows: Floats) -> Floats:
    first = np.take_along_axis(rows, (np.abs(rows) > 0).argmax(axis=1)[:, None], axis=1)
    _, places = np.unique(rows * np.where(first < 0, -1.0, 1.0), axis=0, return_index=True)
    return rows[np.sort(places)]


def fall(lists: Lists, directions: Floats) -> Floats:
    """Return min_k (z·x_{s,k})² for each of `directions` (n, n_features) and each round: (n, rounds)."""
    rounds, candidates, n_features = lists.vectors.shape
    dots = directions @ lists.vectors.reshape(rounds * candidates, n_features).T
    squares = np.where(lists.there.ravel(), dots * dots, np.inf)
    least: Floats = squares.reshape(len(directions), rounds, candidates).min(axis=2)
    return least


def descend(lists: Lists, directions: Floats, sparsity: int | None = None, steps: int = 20) -> Floats:
    """Return directions with smaller or equal G: alternates between the worst choices and their least eigenvector."""
    found = np.array(directions)
    for row, start in enumerate(directions):
        z, value = start, np.inf
        for _ in range(steps):
            squares = lists.squares(z)
            now = float(squares.min(axis=1).sum())
            if now >= value - ROUNDING:
                break
            value, found[row] = now, z
            chosen = lists.vectors[np.arange(len(squares)), squares.argmin(axis=1)]
            z = _least_eigenvector(chosen.T @ chosen, z, sparsity)
    return found


def _least_eigenvector(matrix: Floats, near: Floats, sparsity: int | None) -> Floats:
    if sparsity is None or sparsity >= len(matrix):
        return np.asarray(np.linalg.eigh(matrix)[1][:, 0], dtype=np.float64)
    full = np.linalg.eigh(matrix)[1][:, 0]
    best, value = near, np.inf
    for guide in (near, full):
        support = np.sort(np.argsort(-np.abs(guide), kind="stable")[:sparsity])
        values, vectors = np.linalg.eigh(matrix[np.ix_(support, support)])
        if values[0] < value:
            value, best = values[0], np.zeros(len(matrix))
            best[support] = vectors[:, 0]
    return best


def starts(lists: Lists, rng: np.random.Generator, sparsity: int | None, n: int = 24) -> Floats:
    """Return directions to start from: the axes, the candidates' own least eigenvector, and random ones."""
    n_features = lists.vectors.shape[2]
    drawn = rng.standard_normal((n, n_features))
    flat = lists.vectors[lists.there]
    own = np.linalg.eigh(flat.T @ flat)[1][:, : min(4, n_features)].T
    found = np.concatenate([np.eye(n_features)[:64], own, drawn])
    if sparsity is not None and sparsity < n_features:
        kept = np.argsort(-np.abs(found), axis=1, kind="stable")[:, :sparsity]
        sparse = np.zeros_like(found)
        np.put_along_axis(sparse, kept, np.take_along_axis(found, kept, axis=1), axis=1)
        found = sparse
    return np.asarray(found / np.linalg.norm(found, axis=1, keepdims=True), dtype=np.float64)


def compare(
    lists: Lists, limit: float, rng: np.random.Generator, sparsity: int | None = None, effort: int = 4000
) -> Answer:
    """Decide whether G(z) > limit for every unit z (with at most `sparsity` nonzero entries).

    `effort` is how many cells of the sphere are examined before the answer is "unknown".
    """
    if not len(lists.vectors):
        return Answer("below" if limit >= 0 else "above", None, "no rounds")
    level = limit + ROUNDING * max(1.0, abs(limit))
    tried = descend(lists, starts(lists, rng, sparsity), sparsity)
    values = fall(lists, tried).sum(axis=1)
    if values.min() <= level:
        return Answer("below", tried[values.argmin()], "a direction")
    if middle(lists) > level:
        return Answer("above", None, "midpoints")
    n_features = lists.vectors.shape[2]
    if sparsity is None or sparsity >= n_features:
        return _cells(lists, level, effort)
    if comb(n_features, sparsity) > SUPPORTS:
        # Sparse directions are directions: a proof for all directions includes them.
        answer = _cells(lists, level, effort)
        return answer if answer.verdict == "above" else Answer("unknown", None, "too many supports")
    for support in combinations(range(n_features), sparsity):
        part = np.ascontiguousarray(lists.vectors[:, :, support])
        answer = _cells(lists._replace(vectors=part), level, effort)
        if answer.verdict == "below" and answer.direction is not None:
            whole = np.zeros(n_features)
            whole[list(support)] = answer.direction
            return Answer("below", whole, answer.how)
        if answer.verdict == "unknown":
            return answer
    return Answer("above", None, "cells of the sphere, each support apart")


def middle(lists: Lists) -> float:
    """Return a lower bound on min G that is good if the candidates of a round are close together.

    With μ_s their mean and r_s the largest distance from it, |z·x| ≥ |z·μ_s| - r_s. For 0 < θ < 1,
    (a - r)² ≥ (1-θ)a² - (1/θ - 1)r², and the right side is negative where a < r. So
    G(z) ≥ (1-θ)·λ_min(Σ μμᵀ) - (1/θ - 1)·Σ r², which is largest at θ = √(Σr² / λ_min): (√λ_min - √Σr²)².
    """
    mean = lists.vectors.sum(axis=1) / lists.there.sum(axis=1, keepdims=True)  # padding is 0
    away = np.linalg.norm(lists.vectors - mean[:, None], axis=2)
    spread = float((np.where(lists.there, away, 0).max(axis=1) ** 2).sum())
    least = max(0.0, float(np.linalg.eigvalsh(mean.T @ mean)[0]))
    return (least**0.5 - spread**0.5) ** 2 if least > spread else 0.0


def _cells(lists: Lists, level: float, effort: int) -> Answer:
    """Cut the sphere into cells until G is proved to be above `level` on each, or a direction is found.

    A cell is a box on a face of the cube (antipodes have equal G, so one face for each axis). Its points lie
    within an angle ρ of its centre z, so |z'·x| is between |z·x|·cos ρ ∓ √(|x|² - (z·x)²)·sin ρ. If one
    candidate is the least in the whole cell, its round is decided; on the cell, G is at least the least
    eigenvalue of the decided rounds plus the lower bounds of the others. Once all rounds are decided that is
    the value of a real sequence of choices, so the search ends.
    """
    rounds, candidates, n_features = lists.vectors.shape
    flat = lists.vectors.reshape(rounds * candidates, n_features)
    there = lists.there.reshape(rounds * candidates)
    squares = np.einsum("pf,pf->p", flat, flat)
    lengths = np.sqrt(squares)
    centres = np.eye(n_features)
    halves = np.ones((n_features, n_features)) - np.eye(n_features)
    looked = 0
    batch = max(1, CHUNK // (rounds * candidates))
    while len(centres):
        if looked >= effort:
            return Answer("unknown", None, f"gave up after {looked} cells")
        # The last cells first: depth-first search keeps the list short.
        now, half = centres[-batch:], halves[-batch:]
        centres, halves = centres[:-batch], halves[:-batch]
        looked += len(now)
        length = np.linalg.norm(now, axis=1)
        sine = np.minimum(1.0, np.linalg.norm(half, axis=1) / length)
        z = now / length[:, None]
        dots = np.abs(z @ flat.T)  # (cells, rounds * candidates)
        cosine = np.sqrt(1 - sine * sine)[:, None]
        worst = np.where(there, dots * dots, np.inf).reshape(len(z), rounds, candidates).min(axis=2)
        value = worst.sum(axis=1)
        if value.min() <= level:
            return Answer("below", z[value.argmin()], "a direction")
        across = np.sqrt(np.maximum(squares - dots * dots, 0)) * sine[:, None]
        along = dots * cosine
        low = np.where(there, np.maximum(along - across, 0), np.inf).reshape(len(z), rounds, candidates)
        high = np.where(dots >= lengths * cosine, lengths, along + across)
        high = np.where(there, high, np.inf).reshape(len(z), rounds, candidates)
        least = low.min(axis=2)
        open_ = np.flatnonzero((least * least).sum(axis=1) <= level)
        if not len(open_):
            continue
        keep = []
        for cell in open_:
            bound, direction = _decided(lists.vectors, low[cell], high[cell], least[cell])
            if bound > level:
                continue
            if direction is not None and float(fall(lists, direction[None]).sum()) <= level:
                return Answer("below", direction, "a direction")
            keep.append(cell)
        if keep:
            centre, width = now[keep], half[keep]
            axis = width.argmax(axis=1)
            step = np.zeros_like(width)
            rows = np.arange(len(keep))
            step[rows, axis] = width[rows, axis] / 2
            smaller = width - step
            centres = np.concatenate([centres, centre - step, centre + step])
            halves = np.concatenate([halves, smaller, smaller])
    return Answer("above", None, "cells of the sphere")


def _decided(contexts: Floats, low: Floats, high: Floats, least: Floats) -> tuple[float, Floats | None]:
    """Return the bound by decided rounds, and their least eigenvector: low, high (rounds, candidates)."""
    best = high.argmin(axis=1)
    rows = np.arange(len(best))
    others = low.copy()
    others[rows, best] = np.inf
    decided = high[rows, best] <= others.min(axis=1)
    if not decided.any():
        return 0.0, None
    chosen = contexts[rows[decided], best[decided]]
    values, vectors = np.linalg.eigh(chosen.T @ chosen)
    rest = least[~decided]
    return max(0.0, float(values[0])) + float(rest @ rest), np.asarray(vectors[:, 0], dtype=np.float64)
