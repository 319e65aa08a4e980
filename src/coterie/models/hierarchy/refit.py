"""New parameters of a population, computed at the end of each pass over its users.

Passes alternate: one ends with new variances (an EM and an MM step), the next with new means of the groups
(generalised least squares). Neither lowers the likelihood. A trial with one more group is fitted in the same visits,
and is accepted if its evidence is better by more than the price of its parameters (BIC).
"""

import math
from typing import Any

import numpy as np

from coterie.arrays import Floats
from coterie.models._kernels.hierarchy import arrays
from coterie.models._kernels.hierarchy.payoffs import BETWEEN_, MEAN_, SQUARES_
from coterie.models._kernels.hierarchy.visits import visit_rows
from coterie.models._kernels.spd import invert
from coterie.models.hierarchy.population import GROUPS, Population
from coterie.models.ranges import MOST_LEARNED

COLUMNS = 32  # features that can be added to a population
BROAD_FEATURES = 2.0  # the prior variance that the means of features explain, as a share of the payoffs'
UNEQUAL = 10.0  # a feature whose spread is so many times the median's, or more, is taken to be in other units
TWO_VALUED = 0.75  # of the squared errors of estimates are noise at least, if payoffs have two values
MEMORY = 0.9  # the factor of these squared errors at each fit: they fall as the model learns
SMALLEST = 1e-12  # of a matrix's largest eigenvalue; smaller ones are rounding
WEAK = 5.0  # the starting value of a variance counts as so many observations
TRIAL_FIRST, TRIAL_LAST = 4, 12  # passes after which a trial can be accepted, and after which it ends
DIRECTIONS = 3  # in which a group is split, one per trial
APART = 0.8  # the distance of a split group's halves from the old mean, in standard deviations
SURE = 2.0  # standard errors by which a trial's predictions have to be better: evidence alone also rewards groups
# that only fit the skew of payoffs of 0 and 1


def refit_if_due(population: Population, pairs: Any, n_items: int) -> None:
    """Compute new parameters if a pass over the users is complete."""
    place = population.model.place
    if not place[arrays.DUE]:
        return
    place[arrays.DUE] = 0
    model = population.model
    fitted = (*model.prior, *model.trial, model.effects[:n_items])
    before = [array.copy() for array in fitted]
    sound = True
    try:
        if place[arrays.LEARNED] <= arrays.EARLY or population.model.pace[arrays.SCALE_] == 0:
            start_again(population, pairs)
        else:
            end_pass(population, n_items)
    except np.linalg.LinAlgError:
        sound, place[arrays.PHASE] = False, 0
        next_pass(population)
    if not (sound and all((np.abs(array) <= MOST_LEARNED).all() for array in fitted)):
        for array, old in zip(fitted, before, strict=True):
            array[:] = old  # a pass over numbers of very different size: the next one may succeed


def start_again(population: Population, pairs: Any) -> None:
    """Compute the scales of payoffs and features and the population's mean from the first payoffs, all at once."""
    model, d = population.model, population.n_used
    new_scale(population)
    prior, start = model.prior, start_covariance(population)
    prior.covariance[:d, :d], prior.precision[:d, :d] = start, _inverse(start)
    if d > 1 and not population.unit:  # users who were dropped before features had a scale say nothing of it
        model.kept.scatter[:d, :d] = model.kept.total[3] * start
    model.place[arrays.PHASE] = 1
    visit_rows(model, pairs, 0, population.n_rows)
    new_means(population, model.prior, model.sums)
    next_pass(population)
    model.place[arrays.PHASE] = 0


def end_pass(population: Population, n_items: int) -> None:
    """Compute new variances or means, and begin the next pass."""
    model, place = population.model, population.model.place
    on_trial = bool(place[arrays.TRIAL])
    if place[arrays.PHASE] == 0:
        accepted = on_trial and judge(population)
        noise = float(model.prior.noise[arrays.K_])
        new_variances(population, model.prior, model.trial_sums if accepted else model.sums)
        model.effects[:] *= noise / model.prior.noise[arrays.K_]  # early payoffs count as later ones do
        if place[arrays.TRIAL]:
            new_variances(population, model.trial, model.trial_sums)
            model.trial.noise[arrays.RHO_] = model.prior.noise[
                arrays.RHO_
            ]  # `friends.py` uses the latter for both
        if population.ids:
            new_effects(population, n_items)
        model.paid[[arrays.ERRORS_, arrays.GUESSES_]] *= MEMORY
    else:
        new_means(population, model.prior, model.sums)
        if on_trial:
            new_means(population, model.trial, model.trial_sums)
    place[arrays.PHASE] = 1 - place[arrays.PHASE]
    next_pass(population)
    ready = (
        place[arrays.PHASE] == 0 and not place[arrays.TRIAL] and place[arrays.LEARNED] >= place[arrays.NEXT]
    )
    groups = population.n_groups
    many = population.n_used > 1 and groups < GROUPS  # with the constant alone there is nothing to split
    if ready and many and population.n_rows >= 10 * (groups + 1):
        split(population)


def next_pass(population: Population) -> None:
    """Reset the sums and begin with the first user."""
    population.model.place[arrays.CURSOR] = 0
    for array in (*population.model.sums, *population.model.trial_sums):
        array[:] = 0


def add_features(population: Population, values: Floats) -> None:
    """Add features, given by their first values that are not 0; all users had 0 so far. A new pass begins.

    A feature counts as if its spread were its first value, until it is fitted with the others.
    """
    first = population.n_used
    population.widen(first + len(values), 1 + COLUMNS)
    model, variance = population.model, payoff_variance(population)
    d = model.place[arrays.USED] = first + len(values)
    for i, value in zip(range(first, d), values.tolist(), strict=True):
        share = variance / (value * value * (d - 1))
        for prior in (model.prior, model.trial):
            prior.covariance[i, i], prior.precision[i, i] = arrays.START * share, 1 / (arrays.START * share)
            prior.doubt[:, i, i] = BROAD_FEATURES * share
        model.kept.pools[0, i, i] = model.kept.total[3] * arrays.START * share  # of users who were dropped
    model.place[arrays.TRIAL] = 0
    next_pass(population)


def payoff_variance(population: Population) -> float:
    """Return the variance of all payoffs so far; 1 while they are all equal."""
    squares, learned = population.model.paid[SQUARES_], population.model.place[arrays.LEARNED]
    return float(squares / learned) if squares > 0 else 1.0


def new_scale(population: Population) -> None:
    """Set all variances to their shares of the payoffs' variance; what was learned keeps its weight."""
    model, noise = population.model, population.model.prior.noise
    variance = payoff_variance(population)
    ratio = variance / (model.pace[arrays.SCALE_] or 1.0)
    if model.paid[SQUARES_] > 0:
        model.pace[arrays.SCALE_] = variance
    noise[arrays.K_], noise[arrays.TAU_] = arrays.NOISE * variance, arrays.SPREAD * variance
    noise[arrays.START_] = arrays.START * variance
    for array in (model.effects, model.kept_known, model.kept_pulls):
        array /= ratio
    for array in (model.kept.pools, model.kept.scatter, model.kept.total[:1]):
        array *= ratio


def start_covariance(population: Population) -> Floats:
    """Return the covariance of users' weights before anything is learned: (D, D)."""
    return _around_mean(population, by_scale(population, arrays.START, arrays.START))


def mean_covariance(population: Population, prior: arrays.Prior) -> Floats:
    """Return the prior covariance of a group's mean: (D, D)."""
    found = by_scale(population, arrays.BROAD, BROAD_FEATURES)
    if population.unit:
        found[1:] = prior.noise[arrays.TAU_]
    return _around_mean(population, found)


def by_scale(population: Population, constant: float, features: float) -> Floats:
    """Return a variance of each weight: `constant` for the constant and items, `features` for all features together.

    Both are shares of the payoffs' variance. The scale of features counts: a feature with a larger spread is taken to
    say more, within UNEQUAL times the median spread. (D,)
    """
    d, variance = population.n_used, payoff_variance(population)
    found = np.full(d, constant * variance)
    spread = np.sqrt(population.model.seen[1, 1:d] / max(population.model.place[arrays.LEARNED], 1))
    if population.unit or not (spread > 0).any():
        return found
    middle = float(np.median(spread[spread > 0]))
    spread[spread == 0] = middle
    counted = np.clip(spread, middle / UNEQUAL, middle * UNEQUAL)
    found[1:] = features * variance * np.square(counted / spread) / np.square(counted).sum()
    return found


def _around_mean(population: Population, variances: Floats) -> Floats:
    """Return the covariance of independent weights of features minus their means, as one of weights of features.

    So the origin of the features does not matter.
    """
    turn = np.eye(len(variances))
    turn[0, 1:] = -population.model.seen[0, 1 : len(variances)]
    return np.asarray((turn * variances) @ turn.T)


def new_variances(population: Population, prior: arrays.Prior, sums: arrays.Sums) -> None:
    """Compute covariance, noise and the groups' shares from a pass, with a weak prior.

    The new covariance Γ solves Γ·M·Γ = Q. M is the information of all users' payoffs on their weights, and Q the sum
    of the squares of the weights that were found: a step of an MM algorithm (Zhou et al. 2019). Like EM it never
    lowers the likelihood, but it does not need more steps where users have few payoffs each.
    """
    d, k, kept = population.n_used, int(prior.groups[0]), population.model.kept
    errors, payoffs, _, users, pull, known = sums.total + kept.total
    # Of users who were dropped, only C + Σ r (m − mean)(m − mean)ᵀ is kept, under the prior of that time. It counts
    # as in EM, and so does the weak prior.
    covariance, weight = prior.covariance[:d, :d], kept.total[3] + WEAK
    known_by, found_in = _scatter(population, prior, sums)
    prior.covariance[:d, :d] = _between(
        covariance,
        known_by + weight * covariance,
        found_in + (kept.pools[0] + kept.scatter)[:d, :d] + WEAK * start_covariance(population),
    )
    if not population.unit:
        prior.precision[:d, :d] = _inverse(prior.covariance[:d, :d])
    variance = payoff_variance(population)
    found = (errors + WEAK * arrays.NOISE * variance) / (payoffs + WEAK)
    prior.noise[arrays.K_] = max(found, least_noise(population))
    prior.noise[arrays.START_] = arrays.START * variance
    prior.share[:k] = (sums.weight[:k] + kept.weight[:k] + 1) / (users + k)
    prior.noise[arrays.RHO_] = pull / (known + 1)


def least_noise(population: Population) -> float:
    """Return the least noise of payoffs with two values, such as clicks; 0 if there are others.

    Where users have few payoffs each, these cannot tell whether a rare click is noise or taste. It is noise until
    estimates can tell clicks in advance.
    """
    paid = population.model.paid
    if paid[BETWEEN_] or not paid[arrays.GUESSES_]:
        return 0.0
    return float(TWO_VALUED * paid[arrays.ERRORS_] / paid[arrays.GUESSES_])


def _scatter(population: Population, prior: arrays.Prior, sums: arrays.Sums) -> tuple[Floats, Floats]:
    """Return two sums over the users of a pass: covariance − C, and Σ r (m − mean)(m − mean)ᵀ."""
    d = population.n_used
    covariance, pools, scatter = prior.covariance[:d, :d], sums.pools[0, :d, :d], sums.scatter[:d, :d]
    if not population.unit:
        return sums.total[3] * covariance - pools, scatter
    return covariance @ pools @ covariance, covariance @ scatter @ covariance


def _between(covariance: Floats, known: Floats, found: Floats) -> Floats:
    """Return Γ with Γ·M·Γ = `found`, where `known` = covariance·M·covariance; both are positive definite."""
    root, back = _powers(covariance)
    half, unhalf = _powers(back @ known @ back)
    inner, _ = _powers(half @ back @ found @ back @ half)
    made = root @ unhalf @ inner @ unhalf @ root
    return np.asarray((made + made.T) / 2)


def _powers(matrix: Floats) -> tuple[Floats, Floats]:
    """Return the square root of a symmetric, positive definite matrix, and the inverse of this root."""
    values, vectors = np.linalg.eigh((matrix + matrix.T) / 2)
    roots = np.sqrt(np.maximum(values, SMALLEST * values[-1]))
    return (vectors * roots) @ vectors.T, (vectors / roots) @ vectors.T


def new_means(population: Population, prior: arrays.Prior, sums: arrays.Sums) -> None:
    """Compute the groups' means from a pass: generalised least squares, weighted by the users' probabilities."""
    d, model = population.n_used, population.model
    broad = _inverse(mean_covariance(population, prior))
    for g in range(int(prior.groups[0])):
        known, pulls = _information(population, prior, sums, g)
        known += model.kept_known[g, :d, :d] + broad
        doubt = _inverse((known + known.T) / 2)
        prior.doubt[g, :d, :d] = doubt
        prior.means[g, :d] = doubt @ (pulls + model.kept_pulls[g, :d] + broad[:, 0] * model.paid[MEAN_])
    if population.unit:
        new_spread(population, prior)


def new_spread(population: Population, prior: arrays.Prior) -> None:
    """Compute the variance of the items' means (MacKay's step)."""
    d, k = population.n_used, int(prior.groups[0])
    means, doubts = prior.means[:k, 1:d], np.diagonal(prior.doubt[:k, 1:d, 1:d], axis1=1, axis2=2)
    determined = (1 - doubts / prior.noise[arrays.TAU_]).sum()
    weak = WEAK * arrays.SPREAD * payoff_variance(population)
    prior.noise[arrays.TAU_] = (np.square(means).sum() + weak) / (determined + WEAK)


def _information(
    population: Population, prior: arrays.Prior, sums: arrays.Sums, g: int
) -> tuple[Floats, Floats]:
    """Return the information of a pass on a group's mean, as precision and pull."""
    d = population.n_used
    if population.unit:
        return (sums.pools + sums.late)[g, :d, :d], (sums.pulls + sums.late_pulls)[g, :d]
    precision = prior.precision[:d, :d]
    known = sums.weight[g] * precision - precision @ sums.pools[g, :d, :d] @ precision
    return known + sums.late[g, :d, :d], precision @ sums.pulls[g, :d] + sums.late_pulls[g, :d]


def new_effects(population: Population, n_items: int) -> None:
    """Compute τ² and ε from the items' effects, and φ from the repeated payoffs of pairs."""
    model, noise = population.model, population.model.prior.noise
    tau, epsilon = noise[arrays.TAU_], noise[arrays.EPSILON_]
    variance = payoff_variance(population)
    precision, pull = model.effects[:n_items][model.effects[:n_items, 0] > 0].T
    weight = 1 / (tau + 1 / precision)
    doubt = 1 / (1 / tau + precision)
    apart = doubt * (pull + epsilon / tau) - epsilon
    # MacKay's step, with as many squares as the data determine: EM would need very long to leave a small τ².
    determined = (1 - doubt / tau).sum()
    weak = WEAK * arrays.SPREAD * variance
    noise[arrays.TAU_] = (np.square(apart).sum() + weak) / (determined + WEAK)
    noise[arrays.EPSILON_] = (weight * pull / precision).sum() / (
        weight.sum() + 1 / (arrays.BROAD * variance)
    )
    chance = np.exp(model.repeats - model.repeats.max())
    noise[arrays.PHI_] = float(chance @ arrays.PHI / chance.sum())
    model.trial.noise[1:] = noise[1:]


def split(population: Population) -> None:
    """Begin a trial: the largest group becomes two, apart in a direction in which users differ much."""
    model, place = population.model, population.model.place
    prior, trial, d, k = model.prior, model.trial, population.n_used, population.n_groups
    for old, new in zip(prior, trial, strict=True):
        new[:] = old
    # Directions are compared by what they add to payoffs, so the units and the origin of features do not matter.
    turn = _units(population)
    back = np.linalg.inv(turn)
    values, vectors = np.linalg.eigh(back @ prior.covariance[:d, :d] @ back.T)
    which = d - 1 - int(place[arrays.TRIED]) % min(DIRECTIONS, d)
    axis = vectors[:, which] * np.sign(vectors[np.argmax(np.abs(vectors[:, which])), which])
    step = APART * math.sqrt(values[which]) * turn @ axis
    largest = int(np.argmax(prior.share[:k]))
    trial.covariance[:d, :d] -= prior.share[largest] * np.outer(step, step)
    if not population.unit:
        trial.precision[:d, :d] = _inverse(trial.covariance[:d, :d])
    trial.share[[largest, k]] = prior.share[largest] / 2
    trial.means[k, :d] = prior.means[largest, :d] - step
    trial.means[largest, :d] += step
    trial.doubt[k] = prior.doubt[largest]
    trial.groups[0] = k + 1
    place[arrays.TRIAL], place[arrays.PASSES] = 1, 0
    model.pace[arrays.GAINS_ :] = 0
    place[arrays.TRIED] += 1


def _units(population: Population) -> Floats:
    """Return a root of `start_covariance`, in which all features count alike."""
    variances = by_scale(population, 1.0, 1.0) / payoff_variance(population)
    turn = np.eye(len(variances))
    turn[0, 1:] = -population.model.seen[0, 1 : len(variances)]
    return np.asarray(turn * np.sqrt(variances))


def judge(population: Population) -> bool:
    """Accept the trial if its evidence pays for one more mean and share, or end it after its last pass."""
    model, place = population.model, population.model.place
    place[arrays.PASSES] += 1
    price = (population.n_used + 1) / 2 * math.log(max(model.sums.total[3], 1.0))
    evidence = _evidence(population, model.trial, model.trial_sums)
    better = evidence - _evidence(population, model.prior, model.sums)
    predicts = model.pace[arrays.GAINS_] > SURE * math.sqrt(model.pace[arrays.GAINS2_])
    if place[arrays.PASSES] >= TRIAL_FIRST and better > price and predicts:
        for old, new in zip(model.prior, model.trial, strict=True):
            old[:] = new
        place[arrays.TRIAL], place[arrays.NEXT] = 0, place[arrays.LEARNED]
        return True
    if place[arrays.PASSES] >= (2 * TRIAL_LAST if better > price else TRIAL_LAST):
        place[arrays.TRIAL], place[arrays.NEXT] = 0, place[arrays.LEARNED] * 3 // 2
    return False


def _evidence(population: Population, prior: arrays.Prior, sums: arrays.Sums) -> float:
    """Return the log likelihood of all payoffs, from a pass over the users."""
    d = population.n_used
    found, users = sums.total[2:4]
    if population.unit:
        return float(found)
    return float(found + users / 2 * np.linalg.slogdet(prior.precision[:d, :d])[1])


def _inverse(matrix: Floats) -> Floats:
    """Return the inverse of a symmetric matrix, with the same bits on every machine."""
    d = len(matrix)
    inverse = np.empty((d, d))
    invert(np.array(matrix, order="C"), d, np.empty((d, d)), inverse)
    return inverse


def keep_sums(population: Population, row: int, pairs: Any) -> None:
    """Add a user's part of the sums to sums that stay when the user is dropped."""
    model, place = population.model, population.model.place
    phase = int(place[arrays.PHASE])
    for end in (0, 1):
        place[arrays.PHASE], own = end, population.make_sums()
        visit_rows(model._replace(sums=own), pairs, row, row + 1)
        if end == 0:
            counted = own._replace(pools=np.zeros_like(own.pools), scatter=np.zeros_like(own.scatter))
            d = population.n_used
            known_by, found_in = _scatter(population, model.prior, own)
            counted.scatter[:d, :d] = own.total[3] * model.prior.covariance[:d, :d] - known_by + found_in
            for sums, more in zip(model.kept, counted, strict=True):
                sums += more
        for g in range(end * population.n_groups):
            known, pulls = _information(population, model.prior, own, g)
            model.kept_known[g, : len(pulls), : len(pulls)] += known
            model.kept_pulls[g, : len(pulls)] += pulls
        if end == phase and row < place[arrays.CURSOR]:  # this pass has counted the user already
            for sums, more in zip(model.sums, own, strict=True):
                sums -= more
    place[arrays.PHASE] = phase
