"""The probability of being best by one integral, or by drawing; random numbers without a stream; choices."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

Vector = NDArray[np.float64]
PAIRS = 128
NODES, WEIGHTS = np.polynomial.legendre.leggauss(12)


def probability_of_best(mean: Vector, sd: Vector) -> Vector:
    """∫ f_k(x) Π_{j≠k} F_j(x) dx by Gauss and Legendre's rule between the corners of all distributions."""
    steps = np.arange(-9, 9.5, 0.5)
    edges = np.unique((mean[:, None] + steps * sd[:, None]).ravel())
    half = np.diff(edges) / 2
    x = ((edges[:-1] + half)[:, None] + half[:, None] * NODES).ravel()
    weight = (half[:, None] * WEIGHTS).ravel()
    z = (x - mean[:, None]) / sd[:, None]
    below, density = ndtr(z), np.exp(-z * z / 2) / np.sqrt(2 * np.pi) / sd[:, None]
    found = np.array(
        [weight @ (density[k] * np.delete(below, k, axis=0).prod(axis=0)) for k in range(len(mean))]
    )
    likely = np.where(found > 1e-7, found, 0.0)
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
