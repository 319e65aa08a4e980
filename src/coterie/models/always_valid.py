"""Intervals that hold for all looks together, however often one looks at a growing sample.

A mean stays within ± z standard errors of the truth at all times together with probability 1 − level, as the sample
grows, where z solves (a normal mixture: Robbins, 1970; Waudby-Smith et al., 2024)

    Σ weight · exp(½ z² r/(1 + r)) / √(1 + r) = 1/level,   r = (times · size that matters)²/variance

The left side is the evidence against 0. A mixture of one size alone names differences of that size earliest, and much
larger ones late. So SIZES has three.
"""

import math

LEVEL = 0.05  # the probability that an interval does not hold the truth
SIZES = ((0.6, 1.0), (0.2, 5.0), (0.2, 25.0))  # weights, and times of the size that matters
TUNED = 2500  # draws; where no size matters more than others, intervals are narrowest for some times as many


def always(matters: float, variance: float, level: float = LEVEL) -> float:
    """Return how many standard errors an interval needs that holds for all looks together.

    >>> round(always(0.01, 0.01**2 / 15), 2), round(always(0.01, 0.01**2), 2)
    (3.2, 3.39)
    """
    if matters <= 0:
        return math.inf
    sizes = _sizes(matters, variance)
    # Newton's method on the logarithm of the sum, which is convex in z²: from above it comes down to the solution.
    square = min((1 + 1 / r) * (2 * math.log(1 / (level * weight)) + math.log1p(r)) for weight, r in sizes)
    step = square
    while step > 1e-9 * square:
        terms = _terms(square, sizes)
        slope = sum(term * r / (1 + r) / 2 for term, (_, r) in zip(terms, sizes, strict=True)) / sum(terms)
        step = math.log(level * sum(terms)) / slope
        square -= step
    return math.sqrt(square)


def always_for(draws: float, level: float = LEVEL) -> float:
    """Return the same for the mean of so many draws, where no size matters more than others."""
    return always(1.0, TUNED / draws, level)


def chance_always(z: float, draws: float) -> float:
    """Return the chance that a mean is ever z standard errors from the truth or more: a p-value for all looks.

    >>> round(chance_always(always_for(1000.0, 0.01), 1000.0), 6)
    0.01
    """
    if z > 30:
        return 0.0
    return min(1.0, 1 / sum(_terms(z * z, _sizes(1.0, TUNED / draws))))


def _sizes(matters: float, variance: float) -> list[tuple[float, float]]:
    return [(weight, (times * matters) ** 2 / variance) for weight, times in SIZES]


def _terms(square: float, sizes: list[tuple[float, float]]) -> list[float]:
    return [weight * math.exp(square * r / (1 + r) / 2) / math.sqrt(1 + r) for weight, r in sizes]
