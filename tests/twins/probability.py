"""The probability of being best by SciPy's integrals, or by drawing; random numbers without a stream; choices."""

from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.integrate import quad
from scipy.stats import norm

Vector = NDArray[np.float64]
PAIRS = 128


def probability_of_best(mean: Vector, sd: Vector) -> Vector:
    """∫ f_k(x) Π_{j≠k} F_j(x) dx, cut at the corners of all the other distributions."""
    found = []
    for k in range(len(mean)):
        low, high = mean[k] - 9 * sd[k], mean[k] + 9 * sd[k]
        corners = {float(m + z * s) for m, s in zip(mean, sd, strict=True) for z in (-6, -3, -1, 0, 1, 3, 6)}
        edges = [low, *sorted(x for x in corners if low < x < high), high]

        def density(x: float, k: int = k) -> float:
            others = [norm.cdf(x, mean[j], sd[j]) for j in range(len(mean)) if j != k]
            return float(norm.pdf(x, mean[k], sd[k]) * np.prod(others))

        pairs = pairwise(edges)
        found.append(sum(quad(density, a, b, epsabs=1e-12)[0] for a, b in pairs))
    likely = np.where(np.array(found) > 1e-7, found, 0.0)
    return np.asarray(likely / likely.sum())


def chances(mean: Vector, covariance: Vector, seed: int) -> Vector:
    """The shares of 256 draws; exact if no two different candidates are correlated."""
    if not covariance.any():
        return np.asarray(np.eye(len(mean))[min(k for k in range(len(mean)) if max(mean) - mean[k] < 1e-9)])
    first = [
        k for k in range(len(mean)) if not any(np.allclose(covariance[k], covariance[j]) for j in range(k))
    ]
    between = covariance[np.ix_(first, first)]
    shares = np.zeros(len(mean))
    if np.count_nonzero(between) == len(first):  # a candidate that is listed twice counts once
        shares[first] = probability_of_best(mean[first], np.sqrt(np.diag(between)))
        return shares
    lower = factor(covariance)
    for pair in range(PAIRS):
        z = []
        for k in range(0, len(mean), 2):
            size = np.sqrt(-2 * np.log1p(-uniform_at(seed, pair, k)))
            angle = 2 * np.pi * uniform_at(seed, pair, k + 1)
            z += [size * np.cos(angle), size * np.sin(angle)]
        away = lower @ np.array(z[: len(mean)])
        for score in (mean + away, mean - away):
            shares[min(k for k in range(len(mean)) if max(score) - score[k] < 1e-9)] += 0.5 / PAIRS
    return shares


def factor(covariance: Vector) -> Vector:
    """The Cholesky factor, without the directions that have no variance."""
    lower = np.zeros_like(covariance)
    for k in range(len(lower)):
        for i in range(k + 1):
            left = covariance[k, i] - lower[k, :i] @ lower[i, :i]
            if i == k:
                lower[k, k] = np.sqrt(left) if left > 1e-12 * covariance[k, k] else 0.0
            elif lower[i, i] > 0:
                lower[k, i] = left / lower[i, i]
    return lower


def uniform_at(*numbers: int) -> float:
    """SplitMix64's finaliser over each of the numbers in turn."""
    h = 0
    for number in numbers:
        h = ((h ^ number) + 0x9E3779B97F4A7C15) % 2**64
        h = (h ^ (h >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        h = (h ^ (h >> 27)) * 0x94D049BB133111EB % 2**64
        h = h ^ (h >> 31)
    return (h >> 11) / 2**53


def seed_number(seed: int) -> int:
    return int(np.random.SeedSequence(seed).generate_state(1, np.uint64)[0]) >> 1


def choose_by(probability: Any, rng: np.random.Generator) -> int:
    """One number of the stream, and none for a certain choice."""
    if 1.0 in probability:
        return list(probability).index(1.0)
    point, reached = rng.random(), np.cumsum(probability)
    return min(int(np.searchsorted(reached, point, side="right")), len(probability) - 1)
