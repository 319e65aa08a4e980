"""The compiled loops of the sparse hierarchical model: estimates, probabilities, learning and fitting."""

from typing import NamedTuple

import numpy as np

from coterie.arrays import Floats, Ints
from coterie.models._kernels.given import given
from coterie.models._kernels.hierarchy.blocks import Blocked
from coterie.models._kernels.hierarchy.effect_keys import (
    CONTEXT_FEATURE,
    CONTEXT_ID,
    FEATURE,
    ID,
    KINDS,
    POPULATION,
    USER,
    USER_CONTEXT_ID,
    USER_FEATURE,
    USER_ID,
    HashedItems,
    Listed,
    feature_key,
    list_effects,
    make_list,
)
from coterie.models._kernels.hierarchy.effect_table import (
    CURSOR,
    REFIT,
    USED,
    Table,
    find,
    find_or_add,
    mark_changed,
)
from coterie.models._kernels.hierarchy.payoffs import chance_of_larger, count_payoff, within_reach
from coterie.models._kernels.jit import jit, step
from coterie.models._kernels.probability import write_probability_of_best
from coterie.models.ranges import MOST_LEARNED

# Columns of `figures`, which has one row per kind.
VARIANCE, SQUARES, FREEDOM, LENGTH, TIMES, TOUCHED, MEMBERS = 0, 1, 2, 3, 4, 5, 6
# Elements of `noise`: the noise and its sums; the payoffs so far (PAID, as in `payoffs.py`); the payoffs' variance in
# use, 0 while all are equal; and the payoff that counts as 0.
NOISE, NOISE_SUM, NOISE_TIMES, MEAN, SQUARED, LOW, HIGH, BETWEEN, SCALE, ORIGIN = range(10)
PAID = slice(MEAN, SCALE)

# Shares of the variance of payoffs.
START = 0.15  # the prior variance that a kind adds to the payoff, before anything is learned
START_POPULATION = 4.0  # the same of the population's effect: it takes up the mean
START_NOISE = 0.5
LEAST_NOISE = 5e-3
WEAK = 5.0  # these starting values count as so many observations
EARLY = 16  # up to this number of payoffs, all that was learned gets their new scale at 1, 2, 4, … payoffs
GROWTH = 1.05  # the variances are fitted again when the number of payoffs has grown by this factor
MEMORY = 0.9  # the factor of the sum of residuals at each fit: the noise falls as the model learns
# An effect that rarely comes back is not worth exploring: with r payoffs per effect of its kind, its variance counts
# r/(r + RARE) in bonus and width.
RARE = 8.0
OUTLIER = 9.0  # variances; a squared error beyond says less of a user's own effects
VISITS = 8  # effects added to the sums of the next fit, per effect of a payoff
LEAST_SQUARED = 1e-24  # payoffs whose squares around their mean add up to less count as equal
MOST_ERROR = 1e35  # no features in range give a larger one
MOST_LEFT = 1000.0  # payoffs' variances; a larger squared residual must not hide all others in the noise
MOST_SQUARE = 1e80  # of a weight, in the sums of a fit


@given
class Variances(NamedTuple):
    """The fitted prior variance of each kind of effect, the fitted noise, and the sums of the next fit."""

    figures: Floats  # (KINDS, 7)
    noise: Floats  # (10,)


@given
class Settings(NamedTuple):
    """How choices are drawn: see `Hierarchical`."""

    explore: float
    floor: float


@jit
def return_rate(often: float) -> float:
    """Return how much of an uncertainty is worth exploring, with so many payoffs per effect."""
    return often / (often + RARE)


@jit
def sum_effects(
    table: Table,
    figures: Floats,
    candidates: HashedItems,
    user: int,
    listed: Listed,
    blocked: Blocked,
    found: Floats,
) -> None:
    """Write a row per candidate: the sum of w·x for each kind, and in column 0 the variance that is worth exploring.

    It is the sum of v·x² over the kinds that all users share, without the population's effect, which all candidates
    have. What only this user's payoffs teach is of no use for others: it counts by the share of one user among all.
    """
    keys, values, kinds, _ = listed
    again = np.ones(KINDS)
    for kind in range(1, KINDS):
        if figures[kind, MEMBERS] > 0.0:
            again[kind] = return_rate(figures[kind, TOUCHED] / figures[kind, MEMBERS])
    for k in range(found.shape[0]):
        m = list_effects(candidates, k, user, listed, blocked)
        found[k, :] = 0.0
        for j in range(m):
            kind, x = kinds[j], values[j]
            v = figures[kind, VARIANCE]
            e = find(table, keys[j])
            if e >= 0:
                v = 1.0 / (1.0 / v + table.precision[e])
                found[k, kind] += table.pull[e] * v * x
            if ID <= kind < USER_ID:
                found[k, 0] += again[kind] * v * x * x
            elif kind >= USER_ID:
                found[k, 0] += again[kind] * v * x * x / max(figures[USER, MEMBERS], 1.0)


@jit
def sum_kinds(row: Floats) -> float:
    """Return the sum of w·x over all kinds, in one order."""
    total = 0.0
    for kind in range(1, KINDS):
        total += row[kind]
    return total


@jit
def probabilities(score: Floats, sd: Floats, floor: float, chances: Floats) -> None:
    """Write the probability that each score is the largest, if each has half of `sd`, mixed with a uniform floor."""
    n = score.shape[0]
    write_probability_of_best(score, 0.5 * sd, chances, np.empty(n))
    for k in range(n):
        chances[k] = (1.0 - floor) * chances[k] + floor / n


@step
def score_all(
    table: Table,
    fit: Variances,
    candidates: HashedItems,
    user: int,
    blocked: Blocked,
    in_blocks: Floats,
    settings: Settings,
) -> Floats:
    """Return the rows of SCORED, a column per candidate. `in_blocks` is what `view_blocks` wrote."""
    n = in_blocks.shape[0]
    scored, found = np.empty((8, n)), np.empty((n, KINDS))
    sum_effects(table, fit.figures, candidates, user, make_list(candidates), blocked, found)
    for k in range(n):
        row = found[k]
        row[POPULATION] += fit.noise[ORIGIN]
        row[ID] += in_blocks[k, 0]
        row[CONTEXT_ID] += in_blocks[k, 1]
        row[0] += in_blocks[k, 3]
        scored[2, k] = row[POPULATION]
        scored[3, k] = row[ID] + row[FEATURE]
        scored[4, k] = row[CONTEXT_ID] + row[CONTEXT_FEATURE]
        scored[5, k] = row[USER] + row[USER_ID] + row[USER_FEATURE] + row[USER_CONTEXT_ID]
        scored[0, k] = sum_kinds(row)
        scored[1, k] = settings.explore * np.sqrt(row[0])
        scored[6, k] = scored[0, k] + scored[1, k]
    probabilities(scored[6], scored[1], settings.floor, scored[7])
    return scored


@jit
def payoff_variance(noise: Floats) -> float:
    """Return the variance of payoffs, 1 while all are equal."""
    return float(noise[SCALE]) if noise[SCALE] > 0.0 else 1.0


@jit
def noise_at(noise: Floats, estimate: float) -> float:
    """Return the noise of a payoff with this estimate.

    Where payoffs have two values, such as clicks, it is at least half of p·(1 − p), where p is the probability of the
    larger one: without clicks for a while, the fitted noise is too small.
    """
    if noise[SCALE] == 0.0 or noise[BETWEEN] > 0.0:
        return float(noise[NOISE])
    wide = noise[HIGH] - noise[LOW]
    p, _ = chance_of_larger(noise[PAID], estimate)
    return float(max(noise[NOISE], 0.5 * p * (1.0 - p) * wide * wide))


@step
def learn(
    table: Table,
    fit: Variances,
    candidates: HashedItems,
    user: int,
    payoff: float,
    now: int,
    blocked: Blocked,
    in_block: Floats,
) -> tuple[bool, float, float]:
    """Learn the payoff of the first candidate; `now` is the number of this payoff, from 1.

    `in_block` is what `view_blocks` wrote. Returns whether it was learned, and for the block the payoff minus all
    other effects, and its noise. If a result would be out of range, nothing is changed.
    """
    return learn_in(table, fit, candidates, user, payoff, now, make_list(candidates), blocked, in_block)


@jit
def learn_in(
    table: Table,
    fit: Variances,
    candidates: HashedItems,
    user: int,
    payoff: float,
    now: int,
    listed: Listed,
    blocked: Blocked,
    in_block: Floats,
) -> tuple[bool, float, float]:
    """The same, with room for the list of effects."""
    figures, noise = fit
    keys, values, kinds, places = listed
    m = list_effects(candidates, 0, user, listed, blocked)
    payoff = within_reach(noise[PAID], payoff, float(now - 1))
    if not stays_in_range(table, fit, listed, m, payoff, in_block):
        return False, 0.0, 0.0
    if now == 1:
        noise[ORIGIN] = payoff
    count_payoff(noise[PAID], payoff, float(now))
    payoff -= noise[ORIGIN]
    add_lengths(figures, payoff_variance(noise), listed, m)
    head, kept = -1, 0
    for j in range(m):
        if values[j] == 0.0:  # nothing to learn
            continue
        e = -1 if kinds[j] >= USER_ID and head < 0 else find_or_add(table, keys[j], kinds[j], head, now)
        if kinds[j] == USER:
            head = e
        if e >= 0:
            figures[kinds[j], TOUCHED] += 1.0
            figures[kinds[j], MEMBERS] += 1.0 if table.precision[e] == 0.0 else 0.0
            mark_changed(table, e)
            table.touched[e] = now
            places[kept, 0], values[kept], kinds[kept] = e, values[j], kinds[j]
            kept += 1
    estimate, spread = 0.0, 0.0
    for j in range(kept):
        e, x = places[j, 0], values[j]
        v = 1.0 / (1.0 / figures[kinds[j], VARIANCE] + table.precision[e])
        estimate += table.pull[e] * v * x
        spread += v * x * x
    own = noise_at(noise, noise[ORIGIN] + estimate + in_block[0] + in_block[1])
    rest, blur = payoff - estimate, spread + own
    spread += in_block[2]
    total, error = spread + own, rest - in_block[0] - in_block[1]
    # Payoffs may have a wide tail. A few large ones must not look like the tastes of the users who had them; what all
    # users share learns the mean. A click is large, too, where clicks are rare, but its noise is known.
    tail = max(error * error / (OUTLIER * total), 1.0) if noise[BETWEEN] > 0.0 else 1.0
    for j in range(kept):
        e, x = places[j, 0], values[j]
        v = 1.0 / (1.0 / figures[kinds[j], VARIANCE] + table.precision[e])
        # For one effect, the uncertainty of all others is part of the noise.
        others = max(total - v * x * x, own)
        if kinds[j] == USER or kinds[j] >= USER_ID:
            others *= tail
        table.pull[e] += x * (error + table.pull[e] * v * x) / others
        table.precision[e] += x * x / others
    after = error * own / total
    if noise[SCALE] > 0.0:  # before, residuals and weights are not yet in units of payoffs
        noise[NOISE_SUM] += min(after * after, MOST_LEFT * noise[SCALE]) + spread * own / total
        noise[NOISE_TIMES] += 1.0
        add_to_fit(table, figures, VISITS * m)
    due = table.counts[CURSOR] >= table.counts[USED] and now >= table.counts[REFIT] * GROWTH
    if due and noise[SCALE] > 0.0:  # payoffs that are all equal say nothing about variances
        refit(table, fit, now)
    if noise[SQUARED] > LEAST_SQUARED and (noise[SCALE] == 0.0 or (now <= EARLY and now & (now - 1) == 0)):
        rescale(table, fit, noise[SQUARED] / now)
    return True, rest, blur


@jit
def stays_in_range(
    table: Table, fit: Variances, listed: Listed, m: int, payoff: float, in_block: Floats
) -> bool:
    """Return whether all numbers are finite and at most MOST_LEARNED after learning a payoff."""
    figures, noise = fit[0].copy(), fit[1]
    add_lengths(figures, payoff_variance(noise), listed, m)
    for kind in range(1, KINDS):
        if not (1.0 / MOST_LEARNED <= figures[kind, VARIANCE] <= MOST_LEARNED):
            return False
        if not figures[kind, LENGTH] <= MOST_LEARNED:
            return False
    estimate, spread = 0.0, 0.0
    for j in range(m):
        e, x = find(table, listed.keys[j]), listed.values[j]
        listed.places[j, 0] = e
        if e >= 0:
            v = 1.0 / (1.0 / figures[listed.kinds[j], VARIANCE] + table.precision[e])
            estimate += table.pull[e] * v * x
        else:
            v = figures[listed.kinds[j], VARIANCE]
        spread += v * x * x
    rest = payoff - noise[ORIGIN] - estimate
    own = noise_at(noise, noise[ORIGIN] + estimate + in_block[0] + in_block[1])
    total, error = spread + in_block[2] + own, rest - in_block[0] - in_block[1]
    if not (abs(error) <= MOST_ERROR and abs(rest) <= MOST_ERROR and total <= MOST_LEARNED * MOST_LEARNED):
        return False
    for j in range(m):
        e, x = listed.places[j, 0], listed.values[j]
        pull, precision = (table.pull[e], table.precision[e]) if e >= 0 else (0.0, 0.0)
        v = 1.0 / (1.0 / figures[listed.kinds[j], VARIANCE] + precision)
        others = max(total - v * x * x, own)
        if not abs(pull + x * (error + pull * v * x) / others) <= MOST_LEARNED:
            return False
        if not precision + x * x / others <= MOST_LEARNED:
            return False
    return True


@jit
def rescale(table: Table, fit: Variances, variance: float) -> None:
    """Set the variance and the origin of payoffs. What was learned keeps its weight, and predictions stay."""
    figures, noise = fit
    ratio = variance / (noise[SCALE] if noise[SCALE] > 0.0 else 1.0)
    noise[SCALE] = variance
    noise[NOISE] *= ratio
    noise[NOISE_SUM] *= ratio
    for kind in range(KINDS):
        figures[kind, VARIANCE] *= ratio
        figures[kind, SQUARES] *= ratio
    for e in range(table.counts[USED]):
        mark_changed(table, e)
        table.precision[e] /= ratio
        table.pull[e] /= ratio
    e = find(table, feature_key(POPULATION, np.uint64(0)))
    if e >= 0:
        v = 1.0 / (1.0 / figures[POPULATION, VARIANCE] + table.precision[e])
        table.pull[e] -= (noise[MEAN] - noise[ORIGIN]) / v
        noise[ORIGIN] = noise[MEAN]


@jit
def start_of(kind: int) -> float:
    """Return the prior variance of a kind before anything is learned, as a share of the payoffs'."""
    return START_POPULATION if kind == POPULATION else START


@jit
def add_lengths(figures: Floats, variance: float, listed: Listed, m: int) -> None:
    """Add the length of each kind's values. A kind's first variance is chosen by its length."""
    squares, often = np.zeros(KINDS), np.zeros(KINDS)
    for j in range(m):
        squares[listed.kinds[j]] += listed.values[j] * listed.values[j]
        often[listed.kinds[j]] += 1.0 if listed.values[j] != 0.0 else 0.0
    for kind in range(1, KINDS):
        if squares[kind] > 0:
            # Several effects together explain more than one: START grows with the root of their number.
            length = squares[kind] / np.sqrt(often[kind])
            if figures[kind, TIMES] == 0.0:
                figures[kind, VARIANCE] = start_of(kind) * variance / length
            figures[kind, LENGTH] += length
            figures[kind, TIMES] += 1.0


@jit
def add_to_fit(table: Table, figures: Floats, most: int) -> None:
    """Add the next effects to the sums of the next fit: `most` of them, so that no call reads the whole table."""
    cursor = table.counts[CURSOR]
    end = min(table.counts[USED], cursor + most)
    for e in range(cursor, end):
        kind = table.kinds[e]
        if kind:
            v0 = figures[kind, VARIANCE]
            v = 1.0 / (1.0 / v0 + table.precision[e])
            w = table.pull[e] * v
            figures[kind, SQUARES] += min(w * w, MOST_SQUARE)
            figures[kind, FREEDOM] += 1.0 - v / v0
    table.counts[CURSOR] = end


@jit
def refit(table: Table, fit: Variances, now: int) -> None:
    """Fit the variances: v₀ ← Σw²/Σ(1 − v/v₀), each sum with a weak prior (MacKay 1992).

    EM's v₀ ← mean of w² + v has the same fixed point, and takes many more steps.
    """
    figures, noise = fit
    variance = noise[SCALE] = noise[SQUARED] / now
    for kind in range(1, KINDS):
        if figures[kind, TIMES] > 0:
            start = start_of(kind) * variance * figures[kind, TIMES] / figures[kind, LENGTH]
            squares, freedom = WEAK * start + figures[kind, SQUARES], WEAK + figures[kind, FREEDOM]
            figures[kind, VARIANCE] = min(max(squares / freedom, 1.0 / MOST_LEARNED), MOST_LEARNED)
        else:
            figures[kind, VARIANCE] = START * variance
        figures[kind, SQUARES] = figures[kind, FREEDOM] = 0.0
    noise[NOISE] = min(max(noise[NOISE_SUM] / noise[NOISE_TIMES], LEAST_NOISE * variance), MOST_LEARNED)
    noise[NOISE_SUM] *= MEMORY
    noise[NOISE_TIMES] *= MEMORY
    table.counts[CURSOR] = 0
    table.counts[REFIT] = now


@step
def largest(
    table: Table,
    figures: Floats,
    candidates: HashedItems,
    k: int,
    user: int,
    blocked: Blocked,
    most: int,
) -> tuple[Ints, Floats]:
    """Return the effects of candidate k with the largest |w·x|, at most `most`, without those that have no data.

    The first array has the kind, the action's feature and the context's feature of each, the second w·x.
    """
    kept, worth = np.zeros((most, 3), dtype=np.int64), np.zeros(most)
    listed = make_list(candidates)
    keys, values, kinds, places = listed
    m = list_effects(candidates, k, user, listed, blocked)
    n = 0
    for j in range(m):
        e = find(table, keys[j])
        if e < 0:
            continue
        value = table.pull[e] / (1.0 / figures[kinds[j], VARIANCE] + table.precision[e]) * values[j]
        i = n if n < worth.shape[0] else n - 1
        if value == 0.0 or (i < n and abs(value) <= abs(worth[i])):
            continue
        while i > 0 and abs(worth[i - 1]) < abs(value):
            worth[i] = worth[i - 1]
            kept[i, :] = kept[i - 1, :]
            i -= 1
        worth[i] = value
        kept[i, 0], kept[i, 1], kept[i, 2] = kinds[j], places[j, 0], places[j, 1]
        n = min(n + 1, worth.shape[0])
    return kept[:n], worth[:n]
