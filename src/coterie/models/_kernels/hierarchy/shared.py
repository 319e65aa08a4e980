"""What the compiled loops of `Hierarchical` share: the arrays of a model, and constants.

    payoff = x·w + e + g + noise
    w ~ Σ_k share_k N(means_k, covariance)
    e ~ N(ε, τ²)                         one per item
    g ~ N(0, φκ), noise ~ N(0, (1−φ)κ)   g: one per pair of user and item; κ is the variance of a first payoff

With features x is a constant 1 and the features (`population.py`). With ids alone, while there
are few items, x is a constant 1 and a 1 in the item's place, without e and g (`families.py`).
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from coterie.models._kernels.jit import inner

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

START = 0.05  # the variance of the constant's and of each item's weight before anything is learned
BROAD = 1.0  # the prior variance of the population's mean, of the constant and of each item
GROWTH = 0.15  # a pass over the users takes while payoffs grow by half of this
VISITS = 4  # users visited for a payoff, at most
EARLY = 16  # payoffs until which everything is computed anew at 1, 2, 4, …
BONUS, WIDTH = 0.25, 0.2  # of the standard deviation and of the posterior draw, at explore = 1
# The shares of a pair's own effect in κ that are compared by the likelihood of payoffs that repeat.
PHI = np.array([0.0, 0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 0.95, 0.98])


class Prior(NamedTuple):
    """What is known of the population."""

    covariance: Floats  # (D, D)
    precision: Floats  # (D, D) its inverse
    means: Floats  # (GROUPS, D)
    doubt: Floats  # (GROUPS, D, D) the posterior covariance of `means`
    share: Floats  # (GROUPS,)
    noise: Floats  # κ, φ, τ², ε
    groups: Ints  # how many there are


class Users(NamedTuple):
    """The facts of each user, one row each; `gram` and `moment` are empty where pairs tell them."""

    gram: Floats  # (room, D(D+1)/2) S, packed
    moment: Floats  # (room, D) b
    square: Floats  # (room,) Σ v y²
    times: Ints  # (room,) payoffs


class Sums(NamedTuple):
    """What a pass has added up so far."""

    pools: Floats  # (GROUPS, D, D) Σ r C
    scatter: Floats  # (D, D) Σ r (m − mean)(m − mean)ᵀ
    pulls: Floats  # (GROUPS, D) Σ r C b / κ
    weight: Floats  # (GROUPS,) Σ r
    late: Floats  # (GROUPS, D, D) what users learned after their visit
    late_pulls: Floats  # (GROUPS, D)
    total: Floats  # squared errors, payoffs, evidence, users


class Model(NamedTuple):
    """Everything that is learned, pairs of user and item apart."""

    prior: Prior
    users: Users
    effects: Floats  # (items, 2) precision and pull of each item's effect
    sums: Sums
    kept: Sums  # what users who were dropped say of variances
    kept_known: Floats  # (GROUPS, D, D) what they say of the groups' means: precision and pull
    kept_pulls: Floats  # (GROUPS, D)
    trial: Prior  # a prior with one more group
    trial_sums: Sums
    repeats: Floats  # (len(PHI),) log likelihood of repeated payoffs
    place: Ints  # see the names below
    pace: Floats  # visits owed, Σ‖features‖², how much better the trial predicts: the sum and the sum of squares
    keep: Floats  # (1,) what a payoff counts after one more of the user: 1 where nothing is forgotten


# Entries of `place`.
USED, ROWS, LEARNED, PHASE, CURSOR, DUE, TRIAL, PASSES, NEXT, TRIED, UNIT, IDS = range(12)
# Entries of `noise`.
K_, PHI_, TAU_, EPSILON_ = range(4)


@inner
def counted(times: float, keep: float) -> float:
    """Return what so many payoffs of a user count: 1 + keep + keep² + …"""
    return times if keep >= 1.0 else (1.0 - keep**times) / (1.0 - keep)


@inner
def spread_chance(chance: Floats, groups: int) -> float:
    """Turn log likelihoods of groups into probabilities, in place; return the log of their sum."""
    top, total = -np.inf, 0.0
    for g in range(groups):
        top = max(top, chance[g])
    for g in range(groups):
        chance[g] = math.exp(chance[g] - top)
        total += chance[g]
    for g in range(groups):
        chance[g] /= total
    return top + math.log(total)
