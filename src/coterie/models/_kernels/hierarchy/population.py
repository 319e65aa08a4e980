"""Decisions and payoffs of one user under the population's prior: the model of features and of items' effects."""

import math

import numpy as np

from coterie.arrays import Floats, Ints
from coterie.models._kernels.hierarchy import arrays
from coterie.models._kernels.hierarchy.arrays import Contexts, Model, Users
from coterie.models._kernels.hierarchy.posterior import (
    Posterior,
    add_gain,
    gather,
    item_effect,
    make_posterior,
    observe,
    posterior,
    prepare,
    relative_noise,
    write_x,
)
from coterie.models._kernels.jit import jit
from coterie.models._kernels.probability import mix_floor, write_probability_of_best
from coterie.models._kernels.rows.means import Table as Pairs
from coterie.models._kernels.rows.means import find as find_pair
from coterie.models._kernels.spd import add_outer, add_packed, dot, dot_panel, times
from coterie.models._kernels.users.panels import lay_out, multiply_panel
from coterie.models._kernels.users.simd import PANEL


@jit
def view(model: Model, pairs: Pairs, row: int, contexts: Contexts, which: Ints, parts: Floats) -> Floats:
    """Write the parts of each candidate's score, see `view_with`; return the user's probability of each group."""
    post = make_posterior(model)
    prepare(model, row, post)
    view_with(model, pairs, row, contexts, which, parts, post)
    return post.chance[: model.prior.groups[0]]


@jit
def view_with(
    model: Model,
    pairs: Pairs,
    row: int,
    contexts: Contexts,
    which: Ints,
    parts: Floats,
    post: Posterior,
) -> None:
    """Write the parts of the score of each context `which[k]`.

    parts[k] gets: the population's estimate, the user's deviation from it, the item's effect, the pair's effect; then
    two variances of their sum, the one that is worth exploring, because payoffs of all users reduce it, and the rest.
    While no feature has varied between payoffs, their scale is not known and they are taken to be at their mean.
    """
    prior, d, groups = model.prior, model.place[arrays.USED], model.prior.groups[0]
    kappa, phi = prior.noise[arrays.K_], prior.noise[arrays.PHI_]
    ids = model.place[arrays.IDS]
    spread, mean, chance = post.spread, post.mean, post.chance
    # PANEL candidates are computed side by side. Each x is multiplied with `lines`; the groups' means are the last.
    lines = np.zeros((1 + groups, d))
    for g in range(groups):
        for i in range(d):
            lines[0, i] += prior.share[g] * prior.means[g, i]
            lines[1 + g, i] = mean[g, i]
    scaled, again = has_scale(model), return_rate(model)
    flat, flat_spread = lay_out(lines, 1 + groups, d), lay_out(spread, d, d)
    flat_precision, flat_doubt = lay_out(prior.precision, d, d), np.empty((groups, d * d))
    for g in range(groups):
        doubt_laid_out = lay_out(prior.doubt[g], d, d)
        for i in range(d * d):
            flat_doubt[g, i] = doubt_laid_out[i]
    x, turned, weighed = np.zeros((1, d, PANEL)), np.empty((1, d, PANEL)), np.empty((1, d, PANEL))
    doubted, found = np.empty((d, PANEL)), np.empty((1 + groups, PANEL))
    variances, doubts, shared = np.empty(PANEL), np.empty(PANEL), np.empty(PANEL)
    for k in range(len(which)):
        lane = k % PANEL
        if lane == 0:
            for other in range(min(PANEL, len(which) - k)):
                write_x(
                    x[0, :, other], d, contexts.features[which[k + other]] if scaled else model.seen[0, 1:]
                )
            multiply_panel(x, 0, flat, 1 + groups, found, 0)
            multiply_panel(x, 0, flat_spread, d, turned[0], 0)
            multiply_panel(turned, 0, flat_precision, d, weighed[0], 0)
            dot_panel(x, turned, d, variances)
            shared[:] = 0.0
            for g in range(groups):
                if chance[g] > 1e-6:
                    multiply_panel(weighed, 0, flat_doubt[g], d, doubted, 0)
                    dot_panel(weighed, doubted, d, doubts)
                    for other in range(PANEL):
                        shared[other] += chance[g] * chance[g] * doubts[other]
        item = contexts.numbers[which[k]] if len(contexts.numbers) else -1
        crowd, common, variance, own, second = found[0, lane], shared[lane], variances[lane], 0.0, 0.0
        for g in range(groups):
            here = found[1 + g, lane]
            own += chance[g] * here
            second += chance[g] * here * here
        variance += max(second - own * own, 0.0)
        effect, shown = 0.0, 0.0
        if ids and item != arrays.NO_ID:
            effect, doubt = item_effect(model, item)
            common += again * doubt
            variance += (1.0 - again) * doubt
            entry = find_pair(pairs, row, item)
            if entry >= 0:
                tally = float(pairs.tally[entry])
                known = tally * phi / (1.0 - phi + tally * phi)
                shown = known * (pairs.total[entry] / tally - own - effect)
                common *= (1.0 - known) * (1.0 - known)
                variance = (1.0 - known) * (1.0 - known) * variance + phi * kappa * (1.0 - known)
            else:
                variance += phi * kappa
        parts[k, 0], parts[k, 1] = crowd, own - crowd
        parts[k, 2], parts[k, 3] = effect, shown
        parts[k, 4], parts[k, 5] = max(common, 0.0), max(variance, 0.0)


@jit
def return_rate(model: Model) -> float:
    """Return how much of the uncertainty of items is worth exploring: more, the more often items come back."""
    often = model.place[arrays.LEARNED] / max(model.place[arrays.ITEMS], 1)
    return float(often / (often + arrays.RARE))


@jit
def has_scale(model: Model) -> bool:
    """Return whether some feature has varied between payoffs."""
    return bool((model.seen[1, : model.place[arrays.USED]] > 0.0).any())


@jit
def score(parts: Floats, explore: float, floor: float, score: Floats, chances: Floats) -> None:
    """Write each candidate's score and its probability of being chosen.

    The score is the estimate and a bonus, and is uncertain: both in standard deviations of what payoffs of all users
    can teach. What only this user's payoffs teach is not explored: it is of no use for others, and many users never
    return. Without exploration the first of the best is chosen.
    """
    n = len(score)
    width = np.empty(n)
    for k in range(n):
        sd = math.sqrt(parts[k, 4])
        score[k] = parts[k, 0] + parts[k, 1] + parts[k, 2] + parts[k, 3] + explore * arrays.BONUS * sd
        width[k] = explore * arrays.WIDTH * sd
    write_probability_of_best(score, width, chances, np.empty(n))
    mix_floor(chances, floor)


@jit
def learn(
    model: Model, pairs: Pairs, row: int, features: Floats, item: int, payoff: float, post: Posterior
) -> float:
    """Learn a payoff of a user; return its error in standard deviations.

    `post` is the user's posterior, and is overwritten. There must be room. The caller updates the pair's
    count and sum afterwards.
    """
    prior, users, place = model.prior, model.users, model.place
    ids = place[arrays.IDS]
    d, groups = place[arrays.USED], prior.groups[0]
    kappa, phi = prior.noise[arrays.K_], prior.noise[arrays.PHI_]
    spread, moment, mean, chance = post.spread, post.moment, post.mean, post.chance
    x, turned, weighed, doubted = np.empty(d), np.empty(d), np.empty(d), np.empty(d)
    write_x(x, d, features if has_scale(model) else model.seen[0, 1:])
    times(spread, d, x, turned)
    times(prior.precision, d, turned, weighed)
    own_variance, own, mean_doubt = dot(x, turned, d), 0.0, 0.0
    for g in range(groups):
        own += chance[g] * dot(mean[g], x, d)
        times(prior.doubt[g], d, weighed, doubted)
        mean_doubt += chance[g] * chance[g] * dot(weighed, doubted, d)
    if (
        place[arrays.LEARNED] == 0
    ):  # the payoff's and the features' scale are not known: all is as for the constant
        own, own_variance, mean_doubt = payoff, prior.covariance[0, 0], prior.doubt[0, 0, 0]

    # A payoff of a pair with earlier payoffs has less information: `seen` estimates x·w + e, with variance `blur`.
    seen, blur, effect, doubt = payoff, kappa, 0.0, 0.0
    if ids and item >= 0:
        effect, doubt = item_effect(model, item)
    crowd = 0.0
    for g in range(groups):
        crowd += prior.share[g] * dot(prior.means[g], x, d)
    noisy = relative_noise(model, crowd + effect)
    blur *= noisy
    if ids and item >= 0:
        entry = find_pair(pairs, row, item)
        if entry >= 0:
            tally = float(pairs.tally[entry])
            before = pairs.total[entry] / tally
            _compare_shares(model, tally, before, payoff, own + effect, own_variance + mean_doubt + doubt)
            known = tally * phi / (1.0 - phi + tally * phi)
            rest = 1.0 - known
            seen = (payoff - known * before) / rest
            blur = noisy * kappa * (1.0 - phi + phi * rest) / (rest * rest)
        place[arrays.ITEMS] += model.effects[item, 0] == 0.0
        precision = 1.0 / (blur + own_variance + mean_doubt)
        model.effects[item, 0] += precision
        model.effects[item, 1] += precision * (seen - own)

    # The user's probability of each group with this payoff; then each group's mean is updated by that weight.
    variance, target = own_variance + blur + doubt, seen - effect
    total = 0.0
    for g in range(groups):
        off = target - dot(mean[g], x, d)
        chance[g] *= math.exp(-0.5 * off * off / variance)
        total += chance[g]
    if place[arrays.TRIAL] and users.weight[row] > 0:  # groups can only help users who return
        _compare_trial(model, row, x, target, own)
    visited = place[arrays.PHASE] == 1 and row < place[arrays.CURSOR]
    # x·m without the part of the population's mean.
    own_pull = dot(turned, moment, d) / kappa + dot(post.shift, x, d)
    for g in range(groups):
        weight = chance[g] / total if total > 0.0 else 1.0 / groups
        if weight < 1e-6:
            continue
        times(prior.doubt[g], d, weighed, doubted)
        gain = 1.0 / (variance / weight + dot(weighed, doubted, d))
        off = target - dot(mean[g], x, d)
        for i in range(d):
            prior.means[g, i] += doubted[i] * off * gain
        add_outer(prior.doubt[g], d, -gain, doubted)
        if visited:
            add_outer(model.sums.late[g], d, weight / variance, weighed)
            for i in range(d):
                model.sums.late_pulls[g, i] += weight / variance * weighed[i] * (target - own_pull)

    value = kappa / (blur + doubt)
    if model.keep[0] < 1.0:
        fade(users, row, model.keep[0])
    write_x(x, d, features)
    add_packed(users.gram[row], d, value, x)
    for i in range(d):
        users.moment[row, i] += value * target * x[i]
    observe(model, x, payoff, own + effect)
    users.square[row] += value * target * target
    users.weight[row] = model.keep[0] * users.weight[row] + 1.0
    return float(target - own) / math.sqrt(variance)


@jit
def fade(users: Users, row: int, keep: float) -> None:
    """Reduce the weight of a user's payoffs."""
    for at in range(users.gram.shape[1]):
        users.gram[row, at] *= keep
    for i in range(users.moment.shape[1]):
        users.moment[row, i] *= keep
    users.square[row] *= keep


@jit
def _compare_trial(model: Model, row: int, x: Floats, target: float, own: float) -> None:
    """Add the trial's gain in squared error over the prediction `own` of a payoff."""
    d, post = model.place[arrays.USED], make_posterior(model)
    gather(model, row, d, post.gram, post.moment, post.shift)
    posterior(model.trial, d, post)
    other = 0.0
    for g in range(model.trial.groups[0]):
        other += post.chance[g] * dot(post.mean[g], x, d)
    add_gain(model, target, own, other)


@jit
def _compare_shares(
    model: Model, tally: float, before: float, payoff: float, estimate: float, variance: float
) -> None:
    """Add the log likelihood of a repeated payoff for each value of φ."""
    kappa = model.prior.noise[arrays.K_]
    for i in range(len(arrays.PHI)):
        phi = arrays.PHI[i]
        known = tally * phi / (1.0 - phi + tally * phi)
        rest = 1.0 - known
        # Rounding of very large numbers can make a variance negative.
        wide = kappa * (1.0 - phi + phi * rest) + rest * rest * max(variance, 0.0)
        off = payoff - rest * estimate - known * before
        model.repeats[i] -= 0.5 * (math.log(wide) + off * off / wide)
