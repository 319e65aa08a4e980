"""What the payoffs of a user's friends say of the user's weights: v, the deviation from the mean of all users.

The friends f are pooled as if they were one user, with the weights a_f of their edges:

    v = (precision + Σ a_f S_f/κ)⁻¹ Σ a_f (b_f − S_f·mean)/κ

Only the friends' own payoffs count, not what their friends say, so no influence returns to its user. The cost grows
with the number of friends.
"""

import numpy as np

from coterie.arrays import Floats
from coterie.models._kernels.hierarchy.arrays import K_, Model
from coterie.models._kernels.jit import jit
from coterie.models._kernels.spd import dot, invert, times


@jit
def has_friends(model: Model, row: int) -> bool:
    """Return whether a user has friends."""
    return 0 <= row < len(model.friends.head) and model.friends.head[row] >= 0


@jit
def mean_of_all(model: Model, d: int) -> Floats:
    """Return the mean of all groups."""
    prior, mean = model.prior, np.zeros(d)
    for g in range(prior.groups[0]):
        for i in range(d):
            mean[i] += prior.share[g] * prior.means[g, i]
    return mean


@jit
def write_deviation(model: Model, row: int, d: int, out: Floats) -> None:
    """Write v of a user with friends."""
    friends, users, prior, kappa = model.friends, model.users, model.prior, model.prior.noise[K_]
    packed, moment, total = np.zeros(d * (d + 1) // 2), np.zeros(d), 0.0
    entry = friends.head[row]
    while entry >= 0:
        other, weight = friends.item[entry], friends.tally[entry]
        if users.weight[other] > 0:
            total += weight
            for at in range(len(packed)):
                packed[at] += weight * users.gram[other, at]
            for i in range(d):
                moment[i] += weight * users.moment[other, i]
        entry = friends.next[entry]
    for i in range(d):
        out[i] = 0.0
    if total == 0.0:
        return
    gram, root, spread = np.empty((d, d)), np.empty((d, d)), np.empty((d, d))
    mean, at = mean_of_all(model, d), 0
    for i in range(d):
        for k in range(i + 1):
            gram[i, k] = gram[k, i] = packed[at]
            at += 1
    for i in range(d):
        moment[i] = (moment[i] - dot(gram[i], mean, d)) / kappa
    for i in range(d):
        for k in range(d):
            gram[i, k] = prior.precision[i, k] + gram[i, k] / kappa
    invert(gram, d, root, spread)
    times(spread, d, moment, out)
