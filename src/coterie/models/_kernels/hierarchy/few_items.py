"""The model of a few items known by ids alone: a covariance over items finds items that users like together.

    payoff = w_0 + w_item + noise     w: see `arrays.py`; x_i is 1 at 0 and at item i's place

The statistics of a user are m items with the number (n) and the mean (y) of their payoffs. All matrices are m × m:

    B = A Σ Aᵀ + diag(κ/n)            A: the rows x_i of the user's items; B is the covariance of y
    α = B⁻¹ (y − A·means)             the estimate for x is x·means + x Σ Aᵀ α, its variance x Σ x − x Σ Aᵀ B⁻¹ A Σ x

so that only the population's parameters grow with the number of items. A user's C + (m − mean)(m − mean)ᵀ is
Σ − Σ W Σ with W = Aᵀ (B⁻¹ − α αᵀ) A, so a pass sums W alone.

The friends of a user are pooled as if they were one user; v = Σ Aᵀ α (`friends.py`). The user's prior mean is
shifted by ρ·v, so y is without that part here.
"""

import math
from typing import NamedTuple

import numpy as np

from coterie.arrays import Floats, Ints
from coterie.models._kernels.hierarchy import arrays
from coterie.models._kernels.hierarchy.arrays import RHO_, Model, Prior, Sums
from coterie.models._kernels.hierarchy.friends import has_friends, mean_of_all
from coterie.models._kernels.hierarchy.posterior import add_gain, normalise, observe
from coterie.models._kernels.jit import jit
from coterie.models._kernels.rows.means import Table as Pairs
from coterie.models._kernels.spd import add_outer, dot, invert, times


class ItemPosterior(NamedTuple):
    """A user's posterior over the items with payoffs."""

    items: Ints  # (m,)
    tally: Floats  # (m,) n
    average: Floats  # (m,) y
    deviation: Floats  # (D,) v; 0 without friends
    shift: Floats  # (D,) ρ·v
    inverse: Floats  # (m, m) B⁻¹
    pulls: Floats  # (groups, m) α of each group
    chance: Floats  # (groups,) the user's probability of each group
    evidence: Floats  # (1,) the log likelihood of the averages


@jit
def covary(matrix: Floats, i: int, k: int) -> float:
    """Return x_i · matrix · x_k; -1 is an item without payoffs."""
    total = matrix[0, 0]
    if i >= 0:
        total += matrix[0, 1 + i]
    if k >= 0:
        total += matrix[0, 1 + k]
    if i >= 0 and k >= 0:
        total += matrix[1 + i, 1 + k]
    return float(total)


@jit
def covary_items(matrix: Floats, items: Ints, out: Floats) -> None:
    """Write A · matrix · Aᵀ."""
    for i in range(len(items)):
        for k in range(i + 1):
            out[i, k] = out[k, i] = covary(matrix, items[i], items[k])


@jit
def mean_payoff(means: Floats, item: int) -> float:
    """Return the mean payoff of an item in a group."""
    return float(means[0] + (means[1 + item] if item >= 0 else 0.0))


@jit
def write_deviation(model: Model, pairs: Pairs, row: int, out: Floats) -> None:
    """Write v of a user with friends."""
    friends, prior, d = model.friends, model.prior, model.place[arrays.USED]
    tally, total = np.zeros(d), np.zeros(d)
    edge = friends.head[row]
    while edge >= 0:
        entry = pairs.head[friends.item[edge]]
        while entry >= 0:
            tally[1 + pairs.item[entry]] += friends.tally[edge] * pairs.tally[entry]
            total[1 + pairs.item[entry]] += friends.tally[edge] * pairs.total[entry]
            entry = pairs.next[entry]
        edge = friends.next[edge]
    items = np.flatnonzero(tally) - 1
    m, mean = len(items), mean_of_all(model, d)
    both, root, inverse = np.empty((m, m)), np.empty((m, m)), np.empty((m, m))
    off, pulls = np.empty(m), np.empty(m)
    covary_items(prior.covariance, items, both)
    for i in range(m):
        at = 1 + items[i]
        both[i, i] += prior.noise[arrays.K_] / tally[at]
        off[i] = total[at] / tally[at] - mean_payoff(mean, items[i])
    invert(both, m, root, inverse)
    times(inverse, m, off, pulls)
    for k in range(d):
        for i in range(m):
            out[k] += (prior.covariance[k, 0] + prior.covariance[k, 1 + items[i]]) * pulls[i]


@jit
def item_posterior(model: Model, prior: Prior, pairs: Pairs, row: int) -> ItemPosterior:
    """Return a user's posterior; row -1 is a user without payoffs. Friends count as in the model that decides."""
    m, groups, kappa = 0, prior.groups[0], prior.noise[arrays.K_]
    entry = pairs.head[row] if row >= 0 else -1
    while entry >= 0:
        m += 1
        entry = pairs.next[entry]
    items, tally, average = np.empty(m, dtype=np.int64), np.empty(m), np.empty(m)
    entry = pairs.head[row] if row >= 0 else -1
    for i in range(m):
        items[i], tally[i] = pairs.item[entry], pairs.tally[entry]
        average[i] = pairs.total[entry] / tally[i]
        entry = pairs.next[entry]
    deviation, shift = np.zeros(prior.means.shape[1]), np.zeros(prior.means.shape[1])
    if has_friends(model, row):
        write_deviation(model, pairs, row, deviation)
        for i in range(len(shift)):
            shift[i] = model.prior.noise[RHO_] * deviation[i]
    both, root, inverse = np.empty((m, m)), np.empty((m, m)), np.empty((m, m))
    log_terms = 0.0
    covary_items(prior.covariance, items, both)
    for i in range(m):
        both[i, i] += kappa / tally[i]
        log_terms += math.log(tally[i] / kappa) - tally[i] * average[i] * average[i] / kappa
        average[i] -= mean_payoff(shift, items[i])
    log_terms += invert(both, m, root, inverse)
    pulls, chance, off = np.empty((groups, m)), np.empty(groups), np.empty(m)
    for g in range(groups):
        for i in range(m):
            off[i] = average[i] - mean_payoff(prior.means[g], items[i])
        times(inverse, m, off, pulls[g])
        chance[g] = math.log(prior.share[g]) - 0.5 * dot(off, pulls[g], m)
    evidence = normalise(chance, groups) - 0.5 * log_terms
    return ItemPosterior(
        items, tally, average, deviation, shift, inverse, pulls, chance, np.array([evidence])
    )


@jit
def condition(prior: Prior, known: ItemPosterior, item: int, crossed: Floats, reach: Floats) -> float:
    """Write an item's covariance with the user's items, and their regression weights; return the variance left."""
    m = len(known.items)
    for i in range(m):
        crossed[i] = covary(prior.covariance, item, known.items[i])
    times(known.inverse, m, crossed, reach)
    return max(covary(prior.covariance, item, item) - dot(crossed, reach, m), 0.0)


@jit
def mean_weights(known: ItemPosterior, item: int, reach: Floats, out: Floats, places: Ints) -> int:
    """Write x − Σ reach·x_i, the weights of the population's mean in an estimate; return the number of nonzeros."""
    m, n = len(known.items), 1
    out[0], places[0] = 1.0, 0
    at = -1
    for i in range(m):
        out[0] -= reach[i]
        out[n], places[n] = -reach[i], 1 + known.items[i]
        if known.items[i] == item:
            at = n
        n += 1
    if item >= 0 and at < 0:
        out[n], places[n] = 0.0, 1 + item
        at = n
        n += 1
    if item >= 0:
        out[at] += 1.0
    return n


@jit
def view_with(
    prior: Prior, known: ItemPosterior, used: int, numbers: Ints, which: Ints, parts: Floats
) -> None:
    """Write the parts of each candidate's score, as `population.view_with` does, without effects and pairs."""
    m, groups = len(known.items), prior.groups[0]
    crossed, reach, doubted, turned = np.empty(m), np.empty(m), np.empty(m), np.empty(m)
    doubts = np.empty((groups, m, m))
    for g in range(groups):
        if known.chance[g] > 1e-6:
            covary_items(prior.doubt[g], known.items, doubts[g])
    stranger = -1  # a candidate without payoffs: all of these are alike
    for k in range(len(which)):
        item = numbers[which[k]]
        if item >= used - 1:
            item = -1
        if item < 0 and stranger >= 0:
            parts[k] = parts[stranger]
            continue
        variance, common = condition(prior, known, item, crossed, reach), 0.0
        crowd, own, second = 0.0, 0.0, 0.0
        for g in range(groups):
            average = mean_payoff(prior.means[g], item)
            crowd += prior.share[g] * average
            here = average + mean_payoff(known.shift, item) + dot(crossed, known.pulls[g], m)
            own += known.chance[g] * here
            second += known.chance[g] * here * here
            if known.chance[g] > 1e-6:  # the uncertainty of the group's mean: see `mean_weights`
                for i in range(m):
                    doubted[i] = covary(prior.doubt[g], item, known.items[i])
                times(doubts[g], m, reach, turned)
                carried = (
                    covary(prior.doubt[g], item, item) - 2.0 * dot(reach, doubted, m) + dot(reach, turned, m)
                )
                common += known.chance[g] * known.chance[g] * max(carried, 0.0)
        variance += max(second - own * own, 0.0)
        if item < 0:
            variance += prior.noise[arrays.START_]
            common += prior.noise[arrays.TAU_]
        parts[k, 0], parts[k, 1] = crowd, own - crowd
        parts[k, 2], parts[k, 3] = 0.0, 0.0
        parts[k, 4], parts[k, 5] = common, variance
        if item < 0:
            stranger = k


@jit
def view(model: Model, pairs: Pairs, row: int, numbers: Ints, which: Ints, parts: Floats) -> Floats:
    """Write the parts of each candidate's score; return the user's probability of each group."""
    known = item_posterior(model, model.prior, pairs, row)
    view_with(model.prior, known, model.place[arrays.USED], numbers, which, parts)
    return known.chance


@jit
def add_item(model: Model, item: int) -> None:
    """Add an item to x; users who were dropped have no data on it."""
    place = model.place
    while place[arrays.USED] < item + 2:
        i = place[arrays.USED]
        start_item(model.prior, i)
        start_item(model.trial, i)
        model.kept.pools[0, i, i] += model.prior.noise[arrays.START_] * model.kept.total[3]
        place[arrays.USED] += 1


@jit
def start_item(prior: Prior, i: int) -> None:
    """Set the variances of a new item, at place i of x."""
    prior.covariance[i, i] = prior.noise[arrays.START_]
    for g in range(len(prior.share)):
        prior.doubt[g, i, i] = prior.noise[arrays.TAU_]


@jit
def learn(model: Model, pairs: Pairs, row: int, item: int, payoff: float, known: ItemPosterior) -> float:
    """Learn a payoff; return its error in standard deviations. The caller updates the pair afterwards."""
    prior, place = model.prior, model.place
    add_item(model, item)
    m, d, groups = len(known.items), place[arrays.USED], prior.groups[0]
    crossed, reach = np.empty(m), np.empty(m)
    values, places = np.empty(m + 2), np.empty(m + 2, dtype=np.int64)
    variance = condition(prior, known, item, crossed, reach) + prior.noise[arrays.K_]
    n = mean_weights(known, item, reach, values, places)
    chance, total, own = known.chance, 0.0, 0.0
    shift = mean_payoff(known.shift, item)
    estimates = np.empty(groups)
    for g in range(groups):
        estimates[g] = mean_payoff(prior.means[g], item) + shift + dot(crossed, known.pulls[g], m)
        own += chance[g] * estimates[g]
        off = payoff - estimates[g]
        chance[g] *= math.exp(-0.5 * (off * off) / variance)
        total += chance[g]
    if place[arrays.TRIAL] and m > 0:  # groups can only help users who return
        _compare_trial(model, pairs, row, item, payoff, own)
    visited = place[arrays.PHASE] == 1 and row < place[arrays.CURSOR]
    own_pull = shift + dot(reach, known.average, m)  # the estimate without the part of the population's mean
    turned = np.empty(d)
    for g in range(groups):
        weight = chance[g] / total if total > 0.0 else 1.0 / groups
        if weight < 1e-6:
            continue
        turned[:] = 0.0
        for i in range(n):
            row_, factor = prior.doubt[g, places[i]], values[i]
            for k in range(d):
                turned[k] += factor * row_[k]
        spread = 0.0
        for i in range(n):
            spread += values[i] * turned[places[i]]
        gain = 1.0 / (variance / weight + spread)
        for k in range(d):
            prior.means[g, k] += turned[k] * (payoff - estimates[g]) * gain
        add_outer(prior.doubt[g], d, -gain, turned)
        if visited:
            for i in range(n):
                factor = weight / variance * values[i]
                model.sums.late_pulls[g, places[i]] += factor * (payoff - own_pull)
                for k in range(n):
                    model.sums.late[g, places[i], places[k]] += factor * values[k]
    model.users.square[row] = model.keep[0] * model.users.square[row] + payoff * payoff
    model.users.weight[row] = model.keep[0] * model.users.weight[row] + 1.0
    observe(model, np.empty(0), payoff, own)
    return float(payoff - own) / math.sqrt(variance)


@jit
def _compare_trial(model: Model, pairs: Pairs, row: int, item: int, payoff: float, own: float) -> None:
    """Add the trial's gain in squared error over the prediction `own` of a payoff."""
    known = item_posterior(model, model.trial, pairs, row)
    other = mean_payoff(known.shift, item)
    for g in range(model.trial.groups[0]):
        here = mean_payoff(model.trial.means[g], item)
        for i in range(len(known.items)):
            here += covary(model.trial.covariance, item, known.items[i]) * known.pulls[g, i]
        other += known.chance[g] * here
    add_gain(model, payoff, own, other)


@jit
def visit(model: Model, pairs: Pairs, prior: Prior, sums: Sums, row: int) -> None:
    """Add one user to the sums of a pass."""
    known = item_posterior(model, prior, pairs, row)
    m, groups, kappa = len(known.items), prior.groups[0], prior.noise[arrays.K_]
    part, pulled = np.empty((m, m)), np.zeros((m, m))
    for g in range(groups):
        sums.weight[g] += known.chance[g]
    if model.place[arrays.PHASE] == 1:
        for g in range(groups):
            for i in range(m):
                pull = known.chance[g] * dot(known.inverse[i], known.average, m)
                sums.pulls[g, 1 + known.items[i]] += pull
                sums.pulls[g, 0] += pull
                for k in range(m):
                    part[i, k] = known.chance[g] * known.inverse[i, k]
            _add_items(sums.pools[g], known.items, part)
        return
    errors = model.users.square[row]
    for i in range(m):
        share = kappa / known.tally[i]
        left = share - share * share * known.inverse[i, i]
        for k in range(m):
            part[i, k] = known.inverse[i, k]
        for g in range(groups):
            weight, pull = known.chance[g], known.pulls[g, i]
            left += weight * share * share * pull * pull
            for k in range(m):
                pulled[i, k] += weight * pull * known.pulls[g, k]
        average = known.average[i] + mean_payoff(known.shift, known.items[i])
        errors += known.tally[i] * (left - average * average)
    _add_items(sums.pools[0], known.items, part)
    _add_items(sums.scatter, known.items, pulled)
    payoffs = model.users.weight[row]
    sums.total[0] += errors
    sums.total[1] += payoffs
    sums.total[2] += known.evidence[0] - 0.5 * (payoffs * math.log(kappa) + model.users.square[row] / kappa)
    sums.total[3] += 1
    if has_friends(model, row):
        _compare_with_friends(model, prior, sums, known)


@jit
def _compare_with_friends(model: Model, prior: Prior, sums: Sums, known: ItemPosterior) -> None:
    """Add what a user says of ρ: the regression of the averages on v, weighted by information."""
    m, pull = len(known.items), 0.0
    said, turned = np.empty(m), np.empty(m)
    for i in range(m):
        said[i] = mean_payoff(known.deviation, known.items[i])
        for g in range(prior.groups[0]):
            pull += known.chance[g] * said[i] * known.pulls[g, i]
    times(known.inverse, m, said, turned)
    precision = dot(said, turned, m)
    sums.total[4] += pull + model.prior.noise[RHO_] * precision
    sums.total[5] += precision


@jit
def _add_items(out: Floats, items: Ints, part: Floats) -> None:
    """Add Aᵀ · part · A, for a symmetric part."""
    for i in range(len(items)):
        total = 0.0
        for k in range(len(items)):
            out[1 + items[i], 1 + items[k]] += part[i, k]
            total += part[i, k]
        out[0, 1 + items[i]] += total
        out[1 + items[i], 0] += total
        out[0, 0] += total
