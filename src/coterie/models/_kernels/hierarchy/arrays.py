"""The arrays of the models behind `Hierarchical`, and the constants of their compiled loops.

    payoff = x·w + e + g + noise
    w ~ Σ_k share_k N(means_k + ρ·v, covariance)    v: what friends' payoffs say, see `friends.py`; 0 without friends
    e ~ N(ε, τ²)                         one per item
    g ~ N(0, φκ), noise ~ N(0, (1−φ)κ)   g: one per pair of user and item; κ is the variance of a first payoff

With features, x is a constant 1 and the features (`population.py`). With ids alone and few items, x is a constant 1
and a 1 in the item's place, without e and g (`few_items.py`); τ² is then the variance of the items' means.

A tensor in a model file is named after its fields here, such as `many_prior_means`.
"""

from typing import NamedTuple

import numpy as np

from coterie.arrays import Floats, Ints
from coterie.models._kernels.given import given
from coterie.models._kernels.rows.means import Table

# Variances before anything is learned, as shares of the variance of payoffs.
START = 0.25  # of the constant's and of each item's weight between users; of all features together
NOISE = 0.5  # κ
SPREAD = 0.25  # τ²: between items
BROAD = 4.0  # of the population's mean, of the mean effect of items, and of all features' means together
GROWTH = 0.15  # one pass over the users takes as long as the payoffs need to grow by half of this
VISITS = 4  # users visited per payoff, at most
EARLY = 16  # up to this number of payoffs, everything is recomputed after 1, 2, 4, … payoffs
# At explore = 1: the bonus and the width of the draw, in standard deviations of what all users can learn together.
BONUS, WIDTH = 1.0, 0.5
# An item that rarely comes back is not worth exploring: with r payoffs per item, the variance of its effect counts
# r/(r + RARE) in bonus and width.
RARE = 30.0
FEW = 64  # up to this number of items the covariance is over items
NO_ID = -(1 << 40)  # the number of an action without an id, where others have one
# The values of φ that are compared by the likelihood of repeated payoffs.
PHI = np.array([0.0, 0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 0.95, 0.98])


@given
class Prior(NamedTuple):
    """What is known of the population."""

    covariance: Floats  # (D, D)
    precision: Floats  # (D, D) its inverse
    means: Floats  # (GROUPS, D)
    doubt: Floats  # (GROUPS, D, D) the posterior covariance of `means`
    share: Floats  # (GROUPS,)
    noise: Floats  # κ, φ, τ², ε, the start of a new item's variance between users, ρ
    groups: Ints  # how many there are


@given
class Users(NamedTuple):
    """The statistics of each user, one row each; `gram` and `moment` are empty if they follow from the pairs."""

    gram: Floats  # (room, D(D+1)/2) S, packed
    moment: Floats  # (room, D) b
    square: Floats  # (room,) Σ v y²
    weight: Floats  # (room,) payoffs, less what faded


@given
class Sums(NamedTuple):
    """The sums of a pass over the users, so far."""

    pools: Floats  # (GROUPS, D, D) Σ r C
    scatter: Floats  # (D, D) Σ r (m − mean)(m − mean)ᵀ
    pulls: Floats  # (GROUPS, D) Σ r C b / κ
    weight: Floats  # (GROUPS,) Σ r
    late: Floats  # (GROUPS, D, D) the payoffs of users after their visit
    late_pulls: Floats  # (GROUPS, D)
    total: Floats  # squared errors, payoffs, evidence, users; pull and precision of ρ


@given
class Model(NamedTuple):
    """All that is learned, except for the pairs of user and item."""

    prior: Prior
    users: Users
    effects: Floats  # (items, 2) precision and pull of each item's effect
    sums: Sums
    kept: Sums  # the sums of users who were dropped
    kept_known: Floats  # (GROUPS, D, D) their information on the groups' means: precision, then pull
    kept_pulls: Floats  # (GROUPS, D)
    trial: Prior  # a prior with one more group
    trial_sums: Sums
    repeats: Floats  # (len(PHI),) log likelihood of repeated payoffs
    place: Ints  # see the names below
    pace: Floats  # visits due, the payoffs' variance in use, Σ and Σ² of the trial's gains in prediction
    seen: Floats  # (2, D) the mean of each feature over the payoffs, and its sum of squares around it
    paid: Floats  # the payoffs, see the names below
    keep: Floats  # (1,) the factor of a user's old payoffs at each new one: 1 if nothing is forgotten
    friends: Table  # of each user's row, the friends' rows as `item` and their weights as `tally`


# Entries of `place`: counts, positions and flags.
USED, ROWS, LEARNED, PHASE, CURSOR, DUE, TRIAL, PASSES, NEXT, TRIED, UNIT, IDS, ITEMS = range(13)
# Entries of `noise`.
K_, PHI_, TAU_, EPSILON_, START_, RHO_ = range(6)
# Entries of `paid` after those in `payoffs.py`: the squared errors of recent estimates, and their number.
ERRORS_, GUESSES_ = 5, 6
# Entries of `pace`.
VISITS_, SCALE_, GAINS_, GAINS2_ = range(4)


@given
class Contexts(NamedTuple):
    """Items in the format of the compiled loops."""

    features: Floats  # (items, features)
    numbers: Ints  # (items,) items' numbers, negative without data, NO_ID; empty if no item has an id
