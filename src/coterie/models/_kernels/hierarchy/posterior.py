"""The posterior of one user under the population's prior.

The statistics of a user are S = Σ v x xᵀ, b = Σ v y x and Σ v y². Here v is 1 for a payoff without item effects, and
less if the item's effect is uncertain or the pair of user and item has paid before. With forgetting, v is multiplied
by keep^age, where age counts the user's later payoffs. A posterior is computed when it is needed:
C = (precision + S/κ)⁻¹ and, in group k, m_k = C (precision·means_k + b/κ).

The prior mean of a user with friends is shifted by s = ρ·v (`friends.py`). So b is b − S·s, the payoffs without that
part, and s is added to m.
"""

import math
from typing import NamedTuple

import numpy as np

from coterie.arrays import Floats
from coterie.models._kernels.hierarchy.arrays import (
    DUE,
    EPSILON_,
    ERRORS_,
    GAINS2_,
    GAINS_,
    GUESSES_,
    K_,
    LEARNED,
    RHO_,
    SCALE_,
    TAU_,
    USED,
    Model,
    Prior,
)
from coterie.models._kernels.hierarchy.friends import has_friends, write_deviation
from coterie.models._kernels.hierarchy.payoffs import BETWEEN_, SQUARES_, chance_of_larger, count_payoff
from coterie.models._kernels.jit import jit
from coterie.models._kernels.spd import dot, invert, times, unpack
from coterie.models._kernels.users.simd import PANEL


class Posterior(NamedTuple):
    """A user's posterior, as `prepare` writes it."""

    gram: Floats  # (D, D) overwritten
    root: Floats  # (D, D) R with RᵀR = C
    spread: Floats  # (D, D) C
    moment: Floats  # (D,) b
    shift: Floats  # (D,) s
    mean: Floats  # (GROUPS, D) m of each group
    chance: Floats  # (GROUPS,) the user's probability of each group


@jit
def total_weight(times: float, keep: float) -> float:
    """Return the total weight of a user's payoffs: 1 + keep + keep² + …"""
    return times if keep >= 1.0 else (1.0 - keep**times) / (1.0 - keep)


@jit
def normalise(chance: Floats, groups: int) -> float:
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


@jit
def _gather_own(model: Model, row: int, d: int, gram: Floats, moment: Floats) -> None:
    """Write a user's S and b without friends; zeros for row -1."""
    for i in range(d):
        moment[i] = 0.0
        for k in range(d):
            gram[i, k] = 0.0
    if row < 0:
        return
    unpack(model.users.gram[row], d, gram)
    for i in range(d):
        moment[i] = model.users.moment[row, i]


@jit
def gather(model: Model, row: int, d: int, gram: Floats, moment: Floats, shift: Floats) -> None:
    """Write a user's S, b and s; zeros for row -1."""
    _gather_own(model, row, d, gram, moment)
    shift[:] = 0.0
    if has_friends(model, row):
        write_deviation(model, row, d, shift)
        for i in range(d):
            shift[i] *= model.prior.noise[RHO_]
        for i in range(d):
            moment[i] -= dot(gram[i], shift, d)


@jit
def gather_panel(model: Model, first: int, last: int, d: int, gram: Floats, moment: Floats) -> None:
    """Write S and b of up to PANEL users side by side, filled up with zeros; friends are left out."""
    if last - first < PANEL:
        for lane in range(PANEL):
            row = first + lane if first + lane < last else -1
            _gather_own(model, row, d, gram[:, :, lane], moment[:, lane])
        return
    packed, at = model.users.gram, 0
    for i in range(d):
        for k in range(i + 1):
            for lane in range(PANEL):
                gram[i, k, lane] = gram[k, i, lane] = packed[first + lane, at]
            at += 1
        for lane in range(PANEL):
            moment[i, lane] = model.users.moment[first + lane, i]


@jit
def posterior(prior: Prior, d: int, post: Posterior) -> None:
    """Compute C, its root, and each group's m and probability from `gram` and `moment`. Overwrites `gram`."""
    gram, root, spread, moment, shift, mean, chance = post
    kappa, groups = prior.noise[K_], prior.groups[0]
    for i in range(d):
        for k in range(d):
            gram[i, k] = prior.precision[i, k] + gram[i, k] / kappa
    invert(gram, d, root, spread)
    pull, pooled = np.empty(d), np.empty(d)
    for g in range(groups):
        times(prior.precision, d, prior.means[g], pooled)
        for i in range(d):
            pull[i] = pooled[i] + moment[i] / kappa
        times(spread, d, pull, mean[g])
        chance[g] = (
            math.log(prior.share[g]) + 0.5 * dot(pull, mean[g], d) - 0.5 * dot(prior.means[g], pooled, d)
        )
    normalise(chance, groups)
    for g in range(groups):
        for i in range(d):
            mean[g, i] += shift[i]


@jit
def write_x(x: Floats, d: int, features: Floats) -> None:
    """Write x: a constant 1, then the features."""
    x[0] = 1.0
    for i in range(1, d):
        x[i] = features[i - 1]


@jit
def item_effect(model: Model, item: int) -> tuple[float, float]:
    """Return the mean and variance of an item's effect; for an item without payoffs, those of the prior."""
    tau, epsilon = model.prior.noise[TAU_], model.prior.noise[EPSILON_]
    if item < 0:
        return epsilon, tau
    doubt = 1.0 / (1.0 / tau + model.effects[item, 0])
    return doubt * (model.effects[item, 1] + epsilon / tau), doubt


@jit
def prepare(model: Model, row: int, post: Posterior) -> None:
    """Compute a user's posterior; row -1 is a user without payoffs."""
    d = model.place[USED]
    gather(model, row, d, post.gram, post.moment, post.shift)
    posterior(model.prior, d, post)


@jit
def make_posterior(model: Model) -> Posterior:
    """Return room for a posterior."""
    groups, d = model.prior.means.shape
    square, line = (d, d), (groups, d)
    return Posterior(
        np.empty(square),
        np.empty(square),
        np.empty(square),
        np.empty(d),
        np.empty(d),
        np.empty(line),
        np.empty(groups),
    )


@jit
def add_gain(model: Model, payoff: float, own: float, other: float) -> None:
    """Add the trial's gain: how much smaller the squared error of its prediction `other` is than that of `own`."""
    gain = (payoff - own) * (payoff - own) - (payoff - other) * (payoff - other)
    model.pace[GAINS_] += gain
    model.pace[GAINS2_] += gain * gain


@jit
def relative_noise(model: Model, estimate: float) -> float:
    """Return the noise of a payoff with this estimate as a share of the average; 1 unless payoffs have two values.

    If they have, it goes as p·(1 − p), where p is the probability of the larger one. Two payoffs cannot tell whether
    there are others.
    """
    paid = model.paid
    if paid[BETWEEN_] > 0.0 or model.pace[SCALE_] == 0.0 or model.place[LEARNED] < 3:
        return 1.0
    p, share = chance_of_larger(paid, estimate)
    return float(p * (1.0 - p) / (share * (1.0 - share)))


@jit
def observe(model: Model, x: Floats, payoff: float, estimate: float) -> None:
    """Count a payoff with its estimate, and update the means and squares of features and payoffs (Welford)."""
    place, paid, seen = model.place, model.paid, model.seen
    place[LEARNED] += 1
    n = float(place[LEARNED])
    count_payoff(paid, payoff, n)
    if n > 1.0:
        paid[ERRORS_] += (payoff - estimate) * (payoff - estimate)
        paid[GUESSES_] += 1.0
    if paid[SQUARES_] > 0.0 and model.pace[SCALE_] == 0.0:  # the first payoff that differs tells their scale
        place[DUE] = 1
    for i in range(1, len(x)):
        if n == 1.0:
            seen[0, i] = x[i]
        off = x[i] - seen[0, i]
        seen[0, i] += off / n
        seen[1, i] += off * (x[i] - seen[0, i])
