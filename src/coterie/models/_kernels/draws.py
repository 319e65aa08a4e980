"""Choices by the probability of being best: each score is uncertain, and the probabilities are exact propensities."""

import math

import numpy as np

from coterie.arrays import Floats
from coterie.models._kernels.jit import jit

POINTS = 32  # of the grid over the largest score
BELOW, ABOVE = 3.0, 4.0  # standard deviations around the scores that the grid covers
SHARP = 1e-3  # scores are at least so uncertain, as a share of the grid
HALF = math.sqrt(0.5)


@jit
def probability_of_best(score: Floats, sd: Floats, out: Floats) -> None:
    """Write the probability that each score is the largest, if scores are independent normals.

    The largest score is below z with probability Π Φ_k(z). Between two points of a grid, the growth of this product
    is shared out by the growth of each log Φ_k. The probabilities sum to 1. With sd 0 the best has probability 1, and
    equal ones share it.
    """
    n = len(score)
    low, high = -np.inf, -np.inf
    for k in range(n):
        low, high = max(low, score[k] - BELOW * sd[k]), max(high, score[k] + ABOVE * sd[k])
    step = (high - low) / POINTS
    least = max(SHARP * (high - low), 1e-12 * max(abs(high), 1e-300))
    if step <= least:
        step = 8.0 * least / POINTS
        low -= 4.0 * least
    logs = np.zeros(POINTS + 1)  # of the product, at each point
    grown = np.empty((n, POINTS))
    for k in range(n):
        out[k] = 0.0
        width = max(sd[k], least)
        if score[k] + ABOVE * width < low:
            grown[k] = 0.0
        elif k > 0 and score[k] == score[k - 1] and sd[k] == sd[k - 1]:
            grown[k] = grown[k - 1]
        else:
            before = log_below((low - score[k]) / width)
            for i in range(POINTS):
                after = log_below((low + (i + 1) * step - score[k]) / width)
                grown[k, i] = after - before
                before = after
        for i in range(POINTS):
            logs[i] += grown[k, i]
    # logs[i] is the growth between the points i and i + 1; the product is 1 at the last point.
    above, total = 0.0, 0.0
    for i in range(POINTS - 1, -1, -1):
        growth = logs[i]
        if growth > 0.0:
            mass = math.exp(above) - math.exp(above - growth)
            for k in range(n):
                out[k] += mass * grown[k, i] / growth
            total += mass
        above -= growth
    for k in range(n):
        out[k] /= total


@jit
def log_below(z: float) -> float:
    """Return log Φ(z)."""
    if z < -20.0:
        return -0.5 * z * z - math.log(-z) - 0.918938533204672742
    return math.log(0.5 * math.erfc(-z * HALF))


@jit
def mix_floor(chances: Floats, floor: float) -> None:
    """Mix probabilities with a share of uniform choices."""
    for k in range(len(chances)):
        chances[k] = (1.0 - floor) * chances[k] + floor / len(chances)
