"""How likely each candidate is the best, compiled. Functions marked `bare` allocate nothing."""

import math

import numpy as np
from numpy.random import Generator

from coterie.arrays import Floats
from coterie.models._kernels.jit import bare, jit
from coterie.models.protocol import TIE

END = 7.0  # standard deviations above the mean at which a normal distribution ends, up to 1e-12
NEVER = 1e-12  # where the largest score is below x with less than this probability, nothing is computed
LEAST = 1e-7  # smaller probabilities count as 0, so that what is certain up to rounding has probability 1
WIDE = 2.0  # standard deviations of the narrowest score in one panel of the integral
STEPS = 64  # of the table, per standard deviation: interpolation is exact to 2e-10
PAIRS = 128  # of opposite draws of correlated scores: shares have a standard error of at most 0.032

NODES, WEIGHTS = np.polynomial.legendre.leggauss(8) * np.array([[0.5], [0.5]]) + np.array([[0.5], [0.0]])
GRID = np.arange(-END * STEPS, END * STEPS + 2) / STEPS
# `scipy.special.ndtr` has the same values, but takes longer to import than the rest of the models.
BELOW = np.array([math.erfc(-z / math.sqrt(2)) / 2 for z in GRID.tolist()])
DENSITY = np.exp(-GRID * GRID / 2) / math.sqrt(2 * math.pi)


@bare
def _normal(z: float) -> tuple[float, float]:
    """Return the probability below z, and the density at z, of a standard normal distribution."""
    at = min((z + END) * STEPS, 2 * END * STEPS)
    if not at > 0:  # also if z is not a number: no place outside of the table is read
        at = 0.0
    i = int(at)
    u = at - i
    v = 1 - u
    z = -END + i / STEPS
    # Cubic interpolation with the derivatives: the density, and −z times the density.
    f, g = DENSITY[i], DENSITY[i + 1]
    rise, dive = u * v * v / STEPS, -u * u * v / STEPS
    left, right = v * v * (1 + 2 * u), u * u * (1 + 2 * v)
    below = left * BELOW[i] + right * BELOW[i + 1] + rise * f + dive * g
    density = left * f + right * g - rise * z * f - dive * (z + 1 / STEPS) * g
    return max(below, 1e-15), density


@bare
def _all_below(mean: Floats, sd: Floats, least: float, x: float) -> float:
    """Return the probability that all scores with a spread above `least` are below x; 0 if it is tiny."""
    every, last, below = 1.0, -1, 1.0
    for k in range(len(mean)):
        if sd[k] > least and mean[k] + END * sd[k] > x:
            if last < 0 or mean[k] != mean[last] or sd[k] != sd[last]:  # new items often have equal scores
                below = _normal((x - mean[k]) / sd[k])[0]
                last = k
            every *= below
            if every <= NEVER:
                return 0.0
    return every


@bare
def first_best(score: Floats) -> int:
    """Return the first candidate whose score is within rounding of the best; the first if scores are not finite."""
    top = score[0]
    for k in range(1, len(score)):
        top = max(top, score[k])
    for k in range(len(score)):
        if top - score[k] < TIE:
            return k
    return 0


@bare
def write_probability_of_best(mean: Floats, sd: Floats, out: Floats, room: Floats) -> None:
    """Write for each of several independent normal scores the probability that it is the largest.

    p_k = ∫ f_k(x) Π_{j≠k} F_j(x) dx, in panels that follow the narrowest score that still matters at x. A score
    without spread is a number: the first of the largest counts, as in all choices. All is in units of the widest
    spread: one below TIE of it is none. `room` is as long as `mean`.
    """
    n = len(mean)
    low, high, top, widest = -math.inf, -math.inf, -math.inf, 0.0
    for k in range(n):
        widest = max(widest, sd[k])
    least = TIE * widest
    for k in range(n):
        out[k] = 0.0
        if sd[k] > least:
            low, high = max(low, mean[k] - END * sd[k]), max(high, mean[k] + END * sd[k])
        else:
            top = max(top, mean[k])
    if top >= low:
        low = top
        for k in range(n):
            if sd[k] <= least and top - mean[k] < (least if least > 0 else TIE):
                out[k] = _all_below(mean, sd, least, top) if high > top else 1.0
                break
    else:  # narrow the range to where something can happen
        step = (high - low) / 2
        while step > 1e-3 * (high - low):
            if _all_below(mean, sd, least, low + step) == 0:
                low += step
            step /= 2
    while low < high:
        width = high - low
        for k in range(n):
            if sd[k] > least and mean[k] + END * sd[k] > low:
                width = min(width, WIDE * sd[k])
        for i in range(len(NODES)):
            x = low + NODES[i] * width
            every, last, below, ratio = WEIGHTS[i] * width, -1, 1.0, 0.0
            for k in range(n):
                room[k] = 0.0
                if sd[k] > least and mean[k] + END * sd[k] > x:
                    if last < 0 or mean[k] != mean[last] or sd[k] != sd[last]:
                        below, density = _normal((x - mean[k]) / sd[k])
                        ratio = density / (sd[k] * below)
                        last = k
                    room[k] = ratio
                    every *= below
            for k in range(n):
                out[k] += every * room[k]
        if not low + width > low:
            break  # the widths are below the rounding of the means
        low += width
    total = 0.0
    for k in range(n):
        out[k] = out[k] if out[k] > LEAST else 0.0
        total += out[k]
    if not total > 0:
        total = out[first_best(mean)] = 1.0
    for k in range(n):
        out[k] /= total


@jit
def probability_of_best(mean: Floats, sd: Floats) -> Floats:
    """Return what `write_probability_of_best` writes."""
    out = np.empty(len(mean))
    write_probability_of_best(mean, sd, out, np.empty(len(mean)))
    return out


@jit
def probability_of_best_together(mean: Floats, covariance: Floats, seed: int) -> Floats:
    """Return for each of several normal scores how often it is the largest, of 2·PAIRS draws that `seed` decides.

    If no two scores are correlated, the probabilities are exact.
    """
    n = len(mean)
    lower, z, out, drawn = np.zeros((n, n)), np.empty(n), np.zeros(n), np.empty((2, n))
    together = False
    for k in range(n):  # Cholesky; a direction without variance is left out
        for i in range(k + 1):
            together = together or (i < k and covariance[k, i] != 0)
            left = covariance[k, i]
            for j in range(i):
                left -= lower[k, j] * lower[i, j]
            if i == k:
                lower[k, k] = math.sqrt(left) if left > 1e-12 * covariance[k, k] else 0.0
            elif lower[i, i] > 0:
                lower[k, i] = left / lower[i, i]
    if not together:
        return probability_of_best(mean, np.diag(lower))
    for pair in range(PAIRS):
        for k in range(0, n, 2):  # Box and Muller
            size = math.sqrt(-2 * math.log1p(-uniform_at(seed, pair, k)))
            angle = 2 * math.pi * uniform_at(seed, pair, k + 1)
            z[k] = size * math.cos(angle)
            if k + 1 < n:
                z[k + 1] = size * math.sin(angle)
        for k in range(n):
            away = 0.0
            for j in range(k + 1):
                away += lower[k, j] * z[j]
            drawn[0, k], drawn[1, k] = mean[k] + away, mean[k] - away
        for sign in range(2):
            out[first_best(drawn[sign])] += 0.5 / PAIRS
    return out


@bare
def uniform_at(seed: int, place: int, part: int) -> float:
    """Return a number in [0, 1) that depends on the three numbers only: a random number without a stream."""
    h = np.uint64(0)
    for number in (seed, place, part):
        h = (h ^ np.uint64(number)) + np.uint64(0x9E3779B97F4A7C15)
        h = (h ^ (h >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        h = (h ^ (h >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        h = h ^ (h >> np.uint64(31))
    return (h >> np.uint64(11)) / 9007199254740992.0


@bare
def draw_from(probability: Floats, rng: Generator) -> int:
    """Return a candidate by its probability; nothing is drawn if one is certain."""
    if len(probability) == 1:
        return 0
    for k in range(len(probability)):
        if probability[k] == 1.0:
            return k
    return pick(probability, rng.random())


@bare
def pick(probability: Floats, point: float) -> int:
    """Return the candidate at a point of [0, 1), divided by the probabilities; never one with probability 0."""
    reached, last = 0.0, 0
    for k in range(len(probability)):
        if probability[k] > 0:
            reached += probability[k]
            last = k
            if point < reached:
                return k
    return last


@bare
def mix_floor(probability: Floats, floor: float) -> None:
    """Mix probabilities with a share of uniform choices."""
    for k in range(len(probability)):
        probability[k] = (1.0 - floor) * probability[k] + floor / len(probability)


@jit
def probability_of_best_average(sums: Floats, covariance: Floats, scale: float, seed: int) -> Floats:
    """Return how likely each candidate has the largest average over its neighbours.

    `sums` are each candidate's neighbours and the sum of their estimates. `covariance` is that of the sums of their
    draws for scale 1; its lower triangle is overwritten.
    """
    for k in range(len(covariance)):
        for other in range(k + 1):
            covariance[k, other] *= scale * scale / (sums[0, k] * sums[0, other])
    return probability_of_best_together(sums[1] / sums[0], covariance, seed)
