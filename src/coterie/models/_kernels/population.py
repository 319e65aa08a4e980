"""Regressions of many users under one prior that is learned from all of them: the loops behind `Hierarchical`.

    payoff = x·w + e + g + noise     x: a constant 1, then the features
    w ~ Σ_k share_k N(means_k, covariance)
    e ~ N(ε, τ²)                     one per item
    g ~ N(0, φκ), noise ~ N(0, (1−φ)κ)   g: one per pair of user and item; κ is the variance of a first payoff

Facts per user are S = Σ v x xᵀ, b = Σ v y x and Σ v y², where v is 1 for a payoff that knows nothing of its item
and less for one whose item effect is uncertain or whose pair has paid before. A posterior is computed when it is
asked for: C = (precision + S/κ)⁻¹ and, in group k, m_k = C (precision·means_k + b/κ). Where users forget, v is
multiplied by keep^age, and the age of a payoff counts the user's later ones.

Refits are spread: each payoff pays for visits to a few users, in turn, which add to sums. What a whole pass over
the users teaches is in `coterie.models.population`.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from coterie.models._kernels import means as pair_table
from coterie.models._kernels.jit import inner, jit
from coterie.models._kernels.spd import add_outer, add_packed, dot, invert, times, unpack

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


class Posterior(NamedTuple):
    """What one user's payoffs say, as `prepare` writes it."""

    gram: Floats  # (D, D) room to work in
    root: Floats  # (D, D) R with RᵀR = C
    spread: Floats  # (D, D) C
    moment: Floats  # (D,) b
    mean: Floats  # (GROUPS, D) m of each group
    chance: Floats  # (GROUPS,) the user's probability of each group


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
def gather(model: Model, pairs: pair_table.Table, row: int, d: int, gram: Floats, moment: Floats) -> None:
    """Write a user's S and b; zeros for row -1."""
    for i in range(d):
        moment[i] = 0.0
        for k in range(d):
            gram[i, k] = 0.0
    if row < 0:
        return
    if not model.place[UNIT]:
        unpack(model.users.gram[row], d, gram)
        for i in range(d):
            moment[i] = model.users.moment[row, i]
        return
    entry = pairs.head[row]
    while entry >= 0:
        j, tally, total = 1 + pairs.item[entry], float(pairs.tally[entry]), pairs.total[entry]
        gram[j, j] = tally
        gram[0, j] = gram[j, 0] = tally
        gram[0, 0] += tally
        moment[j] = total
        moment[0] += total
        entry = pairs.next[entry]


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
    top = -np.inf
    for g in range(groups):
        times(prior.precision, d, prior.means[g], pooled)
        for i in range(d):
            pull[i] = pooled[i] + moment[i] / kappa
        times(spread, d, pull, mean[g])
        chance[g] = (
            math.log(prior.share[g]) + 0.5 * dot(pull, mean[g], d) - 0.5 * dot(prior.means[g], pooled, d)
        )
        top = max(top, chance[g])
    total = 0.0
    for g in range(groups):
        chance[g] = math.exp(chance[g] - top)
        total += chance[g]
    for g in range(groups):
        chance[g] /= total
    return top + math.log(total) - 0.5 * log_det


@inner
def fill(x: Floats, d: int, features: Floats, item: int, unit: int) -> None:
    """Write a context: a constant, then the features, or a 1 in the item's place."""
    x[0] = 1.0
    if unit:
        for i in range(1, d):
            x[i] = 0.0
        if 0 <= item < d - 1:
            x[1 + item] = 1.0
        return
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
def prepare(model: Model, pairs: pair_table.Table, row: int, post: Posterior) -> None:
    """Compute a user's posterior; that of a stranger for row -1."""
    d = model.place[USED]
    gather(model, pairs, row, d, post.gram, post.moment)
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
    prepare(model, pairs, row, post)
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
    unit, ids = model.place[UNIT], model.place[IDS]
    root, spread, mean, chance = post.root, post.spread, post.mean, post.chance
    drawn = np.zeros(d)
    for j in range(d):
        factor = noise[j]
        for i in range(j + 1):
            drawn[i] += factor * root[j, i]
    x, turned, weighed, doubted = np.empty(d), np.empty(d), np.empty(d), np.empty(d)
    for k in range(len(which)):
        at = which[k]
        item = numbers[at] if len(numbers) else -1
        fill(x, d, table[at], item, unit)
        times(spread, d, x, turned)
        variance = dot(x, turned, d)
        times(prior.precision, d, turned, weighed)
        crowd, own, second = 0.0, 0.0, 0.0
        for g in range(groups):
            crowd += prior.share[g] * dot(prior.means[g], x, d)
            here = dot(mean[g], x, d)
            own += chance[g] * here
            second += chance[g] * here * here
            if chance[g] > 1e-6:
                times(prior.doubt[g], d, weighed, doubted)
                variance += chance[g] * chance[g] * dot(weighed, doubted, d)
        variance += max(second - own * own, 0.0)
        if unit and item < 0:
            variance += START + BROAD  # an item that nobody has paid for
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
        parts[k, 4], parts[k, 5] = math.sqrt(max(variance, 0.0)), dot(drawn, x, d)


@jit
def score(parts: Floats, explore: float, out: Floats) -> None:
    """Write each candidate's score: the estimate, a bonus for what is not known, and the draw."""
    for k in range(len(out)):
        estimate = parts[k, 0] + parts[k, 1] + parts[k, 2] + parts[k, 3]
        out[k] = estimate + explore * (BONUS * parts[k, 4] + WIDTH * parts[k, 5])


@inner
def add_entry(sums: Sums, phase: int, j: int) -> None:
    """Let the users who were visited before a new item appeared know nothing of it."""
    if phase == 0:
        sums.pools[0, j, j] += START * sums.total[3]
        return
    for g in range(len(sums.weight)):
        sums.pools[g, j, j] += START * sums.weight[g]


@inner
def admit(model: Model, item: int) -> bool:
    """Give an item without payoffs its entry, where items have entries; return whether it had none."""
    place = model.place
    fresh = place[UNIT] and place[USED] < item + 2
    while place[UNIT] and place[USED] < item + 2:
        add_entry(model.sums, place[PHASE], place[USED])
        add_entry(model.trial_sums, place[PHASE], place[USED])
        add_entry(model.kept, 0, place[USED])
        place[USED] += 1
    return bool(fresh)


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
    unit, ids = place[UNIT], place[IDS]
    d, groups = place[USED], prior.groups[0]
    kappa, phi = prior.noise[K_], prior.noise[PHI_]
    spread, moment, mean, chance = post.spread, post.moment, post.mean, post.chance
    x, turned, weighed, doubted = np.empty(d), np.empty(d), np.empty(d), np.empty(d)
    fill(x, d, features, item, unit)
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
        _try_out(model, pairs, row, x, target, own)
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
    if not unit:
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
def counted(times: float, keep: float) -> float:
    """Return what so many payoffs of a user count: 1 + keep + keep² + …"""
    return times if keep >= 1.0 else (1.0 - keep**times) / (1.0 - keep)


@inner
def _try_out(model: Model, pairs: pair_table.Table, row: int, x: Floats, target: float, own: float) -> None:
    """Note by how much the trial's prediction of a payoff is better than `own`, in squared error."""
    d, groups = model.place[USED], model.trial.groups[0]
    gram, root, spread = np.empty((d, d)), np.empty((d, d)), np.empty((d, d))
    moment, mean, chance = np.empty(d), np.empty((groups, d)), np.empty(groups)
    gather(model, pairs, row, d, gram, moment)
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
def visit(model: Model, pairs: pair_table.Table, prior: Prior, sums: Sums, row: int) -> None:
    """Add one user to the sums of a pass."""
    d, groups, users = model.place[USED], prior.groups[0], model.users
    kappa = prior.noise[K_]
    gram, square = np.empty((d, d)), np.empty((d, d))
    root, spread = np.empty((d, d)), np.empty((d, d))
    moment, mean, chance = np.empty(d), np.empty((groups, d)), np.empty(groups)
    gather(model, pairs, row, d, gram, moment)
    for i in range(d):
        for k in range(d):
            square[i, k] = gram[i, k]
    evidence = posterior(prior, d, gram, moment, root, spread, mean, chance)
    turned = np.empty(d)
    if model.place[PHASE] == 1:
        times(spread, d, moment, turned)
        for g in range(groups):
            sums.weight[g] += chance[g]
            for i in range(d):
                sums.pulls[g, i] += chance[g] * turned[i] / kappa
                for k in range(d):
                    sums.pools[g, i, k] += chance[g] * spread[i, k]
        return
    errors = users.square[row]
    for i in range(d):
        for k in range(d):
            sums.pools[0, i, k] += spread[i, k]
            errors += square[i, k] * spread[i, k]
    apart = np.empty(d)
    for g in range(groups):
        sums.weight[g] += chance[g]
        for i in range(d):
            apart[i] = mean[g, i] - prior.means[g, i]
        add_outer(sums.scatter, d, chance[g], apart)
        times(square, d, mean[g], turned)
        errors += chance[g] * (dot(turned, mean[g], d) - 2.0 * dot(moment, mean[g], d))
    payoffs = counted(float(users.times[row]), model.keep[0])
    sums.total[0] += errors
    sums.total[1] += payoffs
    sums.total[2] += evidence - 0.5 * (payoffs * math.log(kappa) + users.square[row] / kappa)
    sums.total[3] += 1


@inner
def pay_visits(model: Model, pairs: pair_table.Table) -> None:
    """Visit a few users, after a payoff was learned and its pair counted; say in `place` if a pass is due to end."""
    place = model.place
    learned = place[LEARNED]
    if learned <= EARLY:
        if learned & (learned - 1) == 0:
            place[DUE] = 1
        return
    fresh = min(
        float(learned), place[ROWS] * counted(float(learned), model.keep[0])
    )  # what still counts, at most
    model.pace[0] += min(2.0 * place[ROWS] / (GROWTH * fresh), float(VISITS))
    while model.pace[0] >= 1.0:
        model.pace[0] -= 1.0
        row = place[CURSOR]
        if row < place[ROWS]:
            if model.users.times[row] > 0:
                visit(model, pairs, model.prior, model.sums, row)
                if place[TRIAL]:
                    visit(model, pairs, model.trial, model.trial_sums, row)
            place[CURSOR] += 1
        if place[CURSOR] >= place[ROWS]:
            place[DUE] = 1
            return


@jit
def visit_rows(model: Model, pairs: pair_table.Table, first: int, last: int) -> None:
    """Visit some users at once."""
    for row in range(first, last):
        if model.users.times[row] > 0:
            visit(model, pairs, model.prior, model.sums, row)
