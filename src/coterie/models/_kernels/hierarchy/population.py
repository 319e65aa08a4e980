"""Regressions of many users under one prior that is learned from all of them: the loops behind `Hierarchical`.

The model is told in `shared.py`. Facts per user are S = Σ v x xᵀ, b = Σ v y x and Σ v y²,
where v is 1 for a payoff that knows nothing of its item and less for one whose item effect is uncertain or whose pair
has paid before. A posterior is computed when it is asked for: C = (precision + S/κ)⁻¹ and, in group k,
m_k = C (precision·means_k + b/κ). Where users forget, v is multiplied by keep^age, and the age of a payoff counts the
user's later ones.

Refits are spread: each payoff pays for visits to a few users, in turn, which add to sums. What a whole pass over
the users teaches is in `coterie.models.hierarchy.population`.
"""

import math
from typing import NamedTuple

import numpy as np

from coterie.models._kernels.hierarchy import families
from coterie.models._kernels.hierarchy.shared import (
    BONUS,
    BROAD,
    CURSOR,
    DUE,
    EARLY,
    EPSILON_,
    GROWTH,
    IDS,
    K_,
    LEARNED,
    NEXT,
    PASSES,
    PHASE,
    PHI,
    PHI_,
    ROWS,
    START,
    TAU_,
    TRIAL,
    TRIED,
    UNIT,
    USED,
    VISITS,
    WIDTH,
    Floats,
    Ints,
    Model,
    Prior,
    Sums,
    Users,
    counted,
    spread_chance,
)
from coterie.models._kernels.jit import inner, jit
from coterie.models._kernels.rows import means as pair_table
from coterie.models._kernels.spd import (
    add_outer,
    add_packed,
    dot,
    dot_panel,
    invert,
    invert_panel,
    sum_panel,
    times,
    times_panel,
    unpack,
)
from coterie.models._kernels.users.panels import lay_out, multiply_panel
from coterie.models._kernels.users.simd import PANEL

__all__ = ["BROAD", "NEXT", "PASSES", "START", "TRIED", "Users"]  # for `coterie.models.hierarchy.population`


class Posterior(NamedTuple):
    """What one user's payoffs say, as `prepare` writes it."""

    gram: Floats  # (D, D) room to work in
    root: Floats  # (D, D) R with RᵀR = C
    spread: Floats  # (D, D) C
    moment: Floats  # (D,) b
    mean: Floats  # (GROUPS, D) m of each group
    chance: Floats  # (GROUPS,) the user's probability of each group


@inner
def gather(model: Model, row: int, d: int, gram: Floats, moment: Floats) -> None:
    """Write a user's S and b; zeros for row -1."""
    for i in range(d):
        moment[i] = 0.0
        for k in range(d):
            gram[i, k] = 0.0
    if row < 0:
        return
    unpack(model.users.gram[row], d, gram)
    for i in range(d):
        moment[i] = model.users.moment[row, i]


@inner
def gather_panel(model: Model, first: int, last: int, d: int, gram: Floats, moment: Floats) -> None:
    """Write S and b of some users, at most PANEL, side by side; zeros beside them."""
    if last - first < PANEL:
        for lane in range(PANEL):
            row = first + lane if first + lane < last else -1
            gather(model, row, d, gram[:, :, lane], moment[:, lane])
        return
    packed, at = model.users.gram, 0
    for i in range(d):
        for k in range(i + 1):
            for lane in range(PANEL):
                gram[i, k, lane] = gram[k, i, lane] = packed[first + lane, at]
            at += 1
        for lane in range(PANEL):
            moment[i, lane] = model.users.moment[first + lane, i]


@inner
def posterior(
    prior: Prior,
    d: int,
    gram: Floats,
    moment: Floats,
    root: Floats,
    spread: Floats,
    mean: Floats,
    chance: Floats,
) -> float:
    """Write C, its root, every group's m and probability; return the log evidence, but for Σ v y² and payoffs.

    `gram` is overwritten.
    """
    kappa, groups = prior.noise[K_], prior.groups[0]
    for i in range(d):
        for k in range(d):
            gram[i, k] = prior.precision[i, k] + gram[i, k] / kappa
    log_det = invert(gram, d, root, spread)
    pull, pooled = np.empty(d), np.empty(d)
    for g in range(groups):
        times(prior.precision, d, prior.means[g], pooled)
        for i in range(d):
            pull[i] = pooled[i] + moment[i] / kappa
        times(spread, d, pull, mean[g])
        chance[g] = (
            math.log(prior.share[g]) + 0.5 * dot(pull, mean[g], d) - 0.5 * dot(prior.means[g], pooled, d)
        )
    return spread_chance(chance, groups) - 0.5 * log_det


@inner
def fill(x: Floats, d: int, features: Floats) -> None:
    """Write a context: a constant, then the features."""
    x[0] = 1.0
    for i in range(1, d):
        x[i] = features[i - 1]


@inner
def item_effect(model: Model, item: int) -> tuple[float, float]:
    """Return the mean and variance of an item's effect; those of the prior for an item without payoffs."""
    tau, epsilon = model.prior.noise[TAU_], model.prior.noise[EPSILON_]
    if item < 0:
        return epsilon, tau
    doubt = 1.0 / (1.0 / tau + model.effects[item, 0])
    return doubt * (model.effects[item, 1] + epsilon / tau), doubt


@inner
def prepare(model: Model, row: int, post: Posterior) -> None:
    """Compute a user's posterior; that of a stranger for row -1."""
    d = model.place[USED]
    gather(model, row, d, post.gram, post.moment)
    posterior(model.prior, d, post.gram, post.moment, post.root, post.spread, post.mean, post.chance)


@inner
def room(model: Model) -> Posterior:
    """Return room for a posterior."""
    groups, d = model.prior.means.shape
    return Posterior(
        np.empty((d, d)),
        np.empty((d, d)),
        np.empty((d, d)),
        np.empty(d),
        np.empty((groups, d)),
        np.empty(groups),
    )


@jit
def view(
    model: Model,
    pairs: pair_table.Table,
    row: int,
    table: Floats,
    numbers: Ints,
    which: Ints,
    noise: Floats,
    parts: Floats,
    chance: Floats,
) -> None:
    """Write what makes up each candidate's score, see `view_with`, and the user's probability of each group."""
    post = room(model)
    prepare(model, row, post)
    view_with(model, pairs, row, table, numbers, which, noise, parts, post)
    for g in range(model.prior.groups[0]):
        chance[g] = post.chance[g]


@inner
def view_with(
    model: Model,
    pairs: pair_table.Table,
    row: int,
    table: Floats,
    numbers: Ints,
    which: Ints,
    noise: Floats,
    parts: Floats,
    post: Posterior,
) -> None:
    """Write what makes up each candidate's score.

    `noise` holds standard normal draws, one per used entry of a context. parts[k] becomes: what the population says,
    the user's deviation from it, the item's effect, what the pair has shown, the standard deviation, the draw.
    """
    prior, d, groups = model.prior, model.place[USED], model.prior.groups[0]
    kappa, phi = prior.noise[K_], prior.noise[PHI_]
    ids = model.place[IDS]
    root, spread, mean, chance = post.root, post.spread, post.mean, post.chance
    # Eight candidates are looked at side by side. `lines`: what every x is multiplied with, the groups' means last.
    lines = np.zeros((2 + groups, d))
    for g in range(groups):
        for i in range(d):
            lines[0, i] += prior.share[g] * prior.means[g, i]
            lines[2 + g, i] = mean[g, i]
    for j in range(d):
        factor = noise[j]
        for i in range(j + 1):
            lines[1, i] += factor * root[j, i]
    flat, flat_spread = lay_out(lines, 2 + groups, d), lay_out(spread, d, d)
    flat_precision, flat_doubt = lay_out(prior.precision, d, d), np.empty((groups, d * d))
    for g in range(groups):
        flat_doubt[g] = lay_out(prior.doubt[g], d, d)
    x, turned, weighed = np.zeros((1, d, PANEL)), np.empty((1, d, PANEL)), np.empty((1, d, PANEL))
    doubted, found = np.empty((d, PANEL)), np.empty((2 + groups, PANEL))
    variances, doubts = np.empty(PANEL), np.empty(PANEL)
    for k in range(len(which)):
        lane = k % PANEL
        if lane == 0:
            for other in range(min(PANEL, len(which) - k)):
                fill(x[0, :, other], d, table[which[k + other]])
            multiply_panel(x, 0, flat, 2 + groups, found, 0)
            multiply_panel(x, 0, flat_spread, d, turned[0], 0)
            multiply_panel(turned, 0, flat_precision, d, weighed[0], 0)
            dot_panel(x, turned, d, variances)
            for g in range(groups):
                if chance[g] > 1e-6:
                    multiply_panel(weighed, 0, flat_doubt[g], d, doubted, 0)
                    dot_panel(weighed, doubted, d, doubts)
                    for other in range(PANEL):
                        variances[other] += chance[g] * chance[g] * doubts[other]
        item = numbers[which[k]] if len(numbers) else -1
        crowd, variance, own, second = found[0, lane], variances[lane], 0.0, 0.0
        for g in range(groups):
            here = found[2 + g, lane]
            own += chance[g] * here
            second += chance[g] * here * here
        variance += max(second - own * own, 0.0)
        effect, shown = 0.0, 0.0
        if ids:
            effect, doubt = item_effect(model, item)
            variance += doubt
            entry = pair_table.find(pairs, row, item)
            if entry >= 0:
                tally = float(pairs.tally[entry])
                told = tally * phi / (1.0 - phi + tally * phi)
                shown = told * (pairs.total[entry] / tally - own - effect)
                variance = (1.0 - told) * (1.0 - told) * variance + phi * kappa * (1.0 - told)
            else:
                variance += phi * kappa
        parts[k, 0], parts[k, 1] = crowd, own - crowd
        parts[k, 2], parts[k, 3] = effect, shown
        parts[k, 4], parts[k, 5] = math.sqrt(max(variance, 0.0)), found[1, lane]


@jit
def score(parts: Floats, explore: float, out: Floats) -> None:
    """Write each candidate's score: the estimate, a bonus for what is not known, and the draw."""
    for k in range(len(out)):
        estimate = parts[k, 0] + parts[k, 1] + parts[k, 2] + parts[k, 3]
        out[k] = estimate + explore * (BONUS * parts[k, 4] + WIDTH * parts[k, 5])


@inner
def learn(
    model: Model,
    pairs: pair_table.Table,
    row: int,
    features: Floats,
    item: int,
    payoff: float,
    post: Posterior,
) -> None:
    """Learn a payoff of a user whose posterior was prepared, which is spoiled by it.

    There must be room; the pair's own count and sum are updated by the caller, afterwards.
    """
    prior, users, place = model.prior, model.users, model.place
    ids = place[IDS]
    d, groups = place[USED], prior.groups[0]
    kappa, phi = prior.noise[K_], prior.noise[PHI_]
    spread, moment, mean, chance = post.spread, post.moment, post.mean, post.chance
    x, turned, weighed, doubted = np.empty(d), np.empty(d), np.empty(d), np.empty(d)
    fill(x, d, features)
    times(spread, d, x, turned)
    times(prior.precision, d, turned, weighed)
    own_variance, own, mean_doubt = dot(x, turned, d), 0.0, 0.0
    for g in range(groups):
        own += chance[g] * dot(mean[g], x, d)
        times(prior.doubt[g], d, weighed, doubted)
        mean_doubt += chance[g] * chance[g] * dot(weighed, doubted, d)

    # A payoff of a pair that paid before says less: `seen` is what it says of x·w + e, with variance `blur`.
    seen, blur, effect, doubt = payoff, kappa, 0.0, 0.0
    if ids:
        effect, doubt = item_effect(model, item)
        entry = pair_table.find(pairs, row, item)
        if entry >= 0:
            tally = float(pairs.tally[entry])
            before = pairs.total[entry] / tally
            _weigh_repeat(model, tally, before, payoff, own + effect, own_variance + mean_doubt + doubt)
            told = tally * phi / (1.0 - phi + tally * phi)
            rest = 1.0 - told
            seen = (payoff - told * before) / rest
            blur = kappa * (1.0 - phi + phi * rest) / (rest * rest)
        precision = 1.0 / (blur + own_variance + mean_doubt)
        model.effects[item, 0] += precision
        model.effects[item, 1] += precision * (seen - own)

    # Which group the user is in, now that this payoff is known; then each group's mean, by that much.
    variance, target = own_variance + blur + doubt, seen - effect
    total = 0.0
    for g in range(groups):
        off = target - dot(mean[g], x, d)
        chance[g] *= math.exp(-0.5 * off * off / variance)
        total += chance[g]
    if place[TRIAL]:
        _try_out(model, row, x, target, own)
    visited = place[PHASE] == 1 and row < place[CURSOR]
    own_pull = dot(turned, moment, d) / kappa  # what x·m is but for the population's mean
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
    add_packed(users.gram[row], d, value, x)
    for i in range(d):
        users.moment[row, i] += value * target * x[i]
    for i in range(1, d):
        model.pace[1] += x[i] * x[i]
    users.square[row] += value * target * target
    users.times[row] += 1
    place[LEARNED] += 1


@inner
def fade(users: Users, row: int, keep: float) -> None:
    """Let all that a user has paid count less."""
    for i in range(users.gram.shape[1]):
        users.gram[row, i] *= keep
    for i in range(users.moment.shape[1]):
        users.moment[row, i] *= keep
    users.square[row] *= keep


@inner
def _try_out(model: Model, row: int, x: Floats, target: float, own: float) -> None:
    """Note by how much the trial's prediction of a payoff is better than `own`, in squared error."""
    d, groups = model.place[USED], model.trial.groups[0]
    gram, root, spread = np.empty((d, d)), np.empty((d, d)), np.empty((d, d))
    moment, mean, chance = np.empty(d), np.empty((groups, d)), np.empty(groups)
    gather(model, row, d, gram, moment)
    posterior(model.trial, d, gram, moment, root, spread, mean, chance)
    other = 0.0
    for g in range(groups):
        other += chance[g] * dot(mean[g], x, d)
    better = (target - own) * (target - own) - (target - other) * (target - other)
    model.pace[2] += better
    model.pace[3] += better * better


@inner
def _weigh_repeat(
    model: Model, tally: float, before: float, payoff: float, estimate: float, variance: float
) -> None:
    """Add the log likelihood of a repeated payoff under each share of the pair's own effect."""
    kappa = model.prior.noise[K_]
    for i in range(len(PHI)):
        told = tally * PHI[i] / (1.0 - PHI[i] + tally * PHI[i])
        rest = 1.0 - told
        wide = kappa * (1.0 - PHI[i] + PHI[i] * rest) + rest * rest * variance
        off = payoff - rest * estimate - told * before
        model.repeats[i] -= 0.5 * (math.log(wide) + off * off / wide)


@inner
def visit(model: Model, prior: Prior, sums: Sums, first: int, last: int) -> None:
    """Add some users, at most PANEL, to the sums of a pass: their posteriors are computed side by side."""
    d, groups, users = model.place[USED], prior.groups[0], model.users
    kappa = prior.noise[K_]
    facts, moment, known = np.empty((d, d, PANEL)), np.empty((d, PANEL)), np.zeros(PANEL)
    gather_panel(model, first, last, d, facts, moment)
    for row in range(first, last):
        known[row - first] = 1.0 if users.times[row] > 0 else 0.0
    work, root, spread = np.empty((d, d, PANEL)), np.empty((d, d, PANEL)), np.empty((d, d, PANEL))
    log_det, found, turned = np.empty(PANEL), np.empty(PANEL), np.empty((d, PANEL))
    for i in range(d):
        for k in range(i, d):
            for lane in range(PANEL):
                work[i, k, lane] = prior.precision[i, k] + facts[i, k, lane] / kappa
    invert_panel(work, d, root, spread, log_det)

    pull, mean = np.empty((d, PANEL)), np.empty((groups, d, PANEL))
    pooled, chance = np.empty(d), np.empty((groups, PANEL))
    for g in range(groups):
        times(prior.precision, d, prior.means[g], pooled)
        for i in range(d):
            for lane in range(PANEL):
                pull[i, lane] = pooled[i] + moment[i, lane] / kappa
        times_panel(spread, d, pull, mean[g])
        dot_panel(pull, mean[g], d, found)
        base = math.log(prior.share[g]) - 0.5 * dot(prior.means[g], pooled, d)
        for lane in range(PANEL):
            chance[g, lane] = base + 0.5 * found[lane]
    # Chances of one user sum to 1, or to 0 where there is no user; `found` becomes the evidence.
    for lane in range(PANEL):
        top, total = np.max(chance[:, lane]), 0.0
        for g in range(groups):
            chance[g, lane] = math.exp(chance[g, lane] - top)
            total += chance[g, lane]
        for g in range(groups):
            chance[g, lane] *= known[lane] / total
        found[lane] = top + math.log(total) - 0.5 * log_det[lane]

    for g in range(groups):
        sums.weight[g] += np.sum(chance[g])
    added = np.zeros((d, d))
    if model.place[PHASE] == 1:
        times_panel(spread, d, moment, turned)
        pulled = np.empty(d)
        for g in range(groups):
            added[:], pulled[:] = 0.0, 0.0
            sum_panel(spread, chance[g], d * d, added)
            sum_panel(turned, chance[g], d, pulled)
            for i in range(d):
                sums.pulls[g, i] += pulled[i] / kappa
                for k in range(d):
                    sums.pools[g, i, k] += added[i, k]
        return
    sum_panel(spread, known, d * d, added)
    for i in range(d):
        for k in range(d):
            sums.pools[0, i, k] += added[i, k]
    errors, more = np.empty(PANEL), np.empty(PANEL)
    dot_panel(facts, spread, d * d, errors)
    apart = np.empty((d, PANEL))
    scattered = np.empty((d, PANEL))
    for g in range(groups):
        added[:] = 0.0
        times_panel(facts, d, mean[g], turned)
        for i in range(d):
            for lane in range(PANEL):
                apart[i, lane] = mean[g, i, lane] - prior.means[g, i]
                scattered[i, lane] = chance[g, lane] * apart[i, lane]
        for i in range(d):
            for lane in range(PANEL):
                turned[i, lane] -= 2.0 * moment[i, lane]
            sum_panel(apart, scattered[i], d, added[i])
        dot_panel(turned, mean[g], d, more)
        for lane in range(PANEL):
            errors[lane] += chance[g, lane] * more[lane]
        for i in range(d):
            for k in range(d):
                sums.scatter[i, k] += added[i, k]
    for lane in range(PANEL):
        if known[lane] > 0.0:
            row = first + lane
            sums.total[0] += errors[lane] + users.square[row]
            payoffs = counted(float(users.times[row]), model.keep[0])
            sums.total[1] += payoffs
            sums.total[2] += found[lane] - 0.5 * (payoffs * math.log(kappa) + users.square[row] / kappa)
            sums.total[3] += 1


@inner
def visit_some(
    model: Model, pairs: pair_table.Table, prior: Prior, sums: Sums, first: int, last: int
) -> None:
    """Add some users, at most PANEL, to the sums of a pass."""
    if not model.place[UNIT]:
        visit(model, prior, sums, first, last)
        return
    for row in range(first, last):
        if model.users.times[row] > 0:
            families.visit(model, pairs, prior, sums, row)


@jit
def owe(place: Ints, pace: Floats, keep: Floats) -> None:
    """Count the visits that one more payoff pays for; say in `place` if everything is due to be computed anew."""
    learned = place[LEARNED]
    if learned <= EARLY:
        if learned & (learned - 1) == 0:
            place[DUE] = 1
        return
    fresh = min(float(learned), place[ROWS] * counted(float(learned), keep[0]))  # what still counts, at most
    pace[0] += min(2.0 * place[ROWS] / (GROWTH * fresh), float(VISITS))


@jit
def next_visit(place: Ints, pace: Floats) -> int:
    """Return the row before which the next visits end that are paid for, -1 if there are none."""
    last = min(place[CURSOR] + PANEL, place[ROWS])
    if place[DUE] or place[LEARNED] <= EARLY or pace[0] < last - place[CURSOR]:
        return -1
    return int(last)


@jit
def visited(place: Ints, pace: Floats, last: int) -> None:
    """Count users as visited; say in `place` if a pass is due to end."""
    if place[CURSOR] < last:
        pace[0] -= last - place[CURSOR]
        place[CURSOR] = last
    if last >= place[ROWS]:
        place[DUE] = 1


@inner
def pay_visits(model: Model, pairs: pair_table.Table) -> None:
    """Visit a few users, after a payoff was learned and its pair counted; say in `place` if a pass is due to end."""
    place = model.place
    owe(place, model.pace, model.keep)
    while True:
        first, last = place[CURSOR], next_visit(place, model.pace)
        if last < 0:
            return
        if first < last:
            visit_some(model, pairs, model.prior, model.sums, first, last)
            if place[TRIAL]:
                visit_some(model, pairs, model.trial, model.trial_sums, first, last)
        visited(place, model.pace, last)


@jit
def visit_rows(model: Model, pairs: pair_table.Table, first: int, last: int) -> None:
    """Visit some users at once."""
    for row in range(first, last, PANEL):
        visit_some(model, pairs, model.prior, model.sums, row, min(row + PANEL, last))
