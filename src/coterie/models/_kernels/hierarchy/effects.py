"""The compiled loops of the sparse hierarchical model: estimates, probabilities, learning and fitting."""

from typing import NamedTuple

import numpy as np

from coterie.arrays import Floats, Ints
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
from coterie.models._kernels.jit import at_once, jit, step
from coterie.models._kernels.probability import first_best
from coterie.models._kernels.rounds import REFUSED, Rounds
from coterie.models._kernels.rows.game import People, join
from coterie.models.ranges import MOST_LEARNED

# Columns of `figures`, which has one row per kind.
VARIANCE, SQUARES, FREEDOM, LENGTH, TIMES = 0, 1, 2, 3, 4
# Elements of `noise`.
NOISE, NOISE_SUM, NOISE_TIMES = 0, 1, 2

START = 0.03  # the prior variance that a kind adds to the payoff, before anything is learned
START_NOISE = 0.1
WEAK = 20.0  # these starting values count as so many observations
LEAST_NOISE = 1e-3
GROWTH = 1.05  # the variances are fitted again when the number of payoffs has grown by this factor
MEMORY = 0.9  # the factor of the sum of residuals at each fit: the noise falls as the model learns
VISITS = 8  # effects added to the sums of the next fit, per effect of a payoff
MOST_ERROR = 1e35  # no features in range give a larger one
MOST_LEFT = 100.0  # payoffs are at most 1; a larger squared residual must not hide all others in the noise
MOST_SQUARE = 1e80  # of a weight, in the sums of a fit


class Variances(NamedTuple):
    """The fitted prior variance of each kind of effect, the fitted noise, and the sums of the next fit."""

    figures: Floats  # (KINDS, 5)
    noise: Floats  # (3,)


class Settings(NamedTuple):
    """How choices are drawn: see `SparseHierarchical`."""

    explore: float
    gap: float
    floor: float


@jit
def sum_effects(
    table: Table, figures: Floats, candidates: HashedItems, user: int, listed: Listed, found: Floats
) -> None:
    """Write a row per candidate: the sum of w·x for each kind, and the sum of v·x² in column 0."""
    keys, values, kinds, _ = listed
    for k in range(found.shape[0]):
        m = list_effects(candidates, k, user, listed)
        found[k, :] = 0.0
        for j in range(m):
            kind, x = kinds[j], values[j]
            v = figures[kind, VARIANCE]
            e = find(table, keys[j])
            if e >= 0:
                v = 1.0 / (1.0 / v + table.precision[e])
                found[k, kind] += table.pull[e] * v * x
            found[k, 0] += v * x * x


@jit
def sum_kinds(row: Floats) -> float:
    """Return the sum of w·x over all kinds, in one order."""
    total = 0.0
    for kind in range(1, KINDS):
        total += row[kind]
    return total


@jit
def probabilities(score: Floats, settings: Settings, learned: int, chances: Floats) -> None:
    """Write the probabilities: 1/(candidates + γ·gap), the rest for the best, mixed with a uniform floor."""
    gamma, floor = settings.gap * np.sqrt(learned + 1.0), settings.floor
    n, first, highest = score.shape[0], first_best(score), score.max()
    left = 1.0
    for k in range(n):
        if k != first:
            # With an infinite γ only the best has a chance, also among ties.
            chances[k] = 0.0 if np.isinf(gamma) else 1.0 / (n + gamma * max(highest - score[k], 0.0))
            left -= chances[k]
    chances[first] = left
    for k in range(n):
        chances[k] = (1.0 - floor) * chances[k] + floor / n


@step
def score_all(
    table: Table,
    figures: Floats,
    candidates: HashedItems,
    user: int,
    settings: Settings,
    learned: int,
    scored: Floats,
) -> None:
    """Write the rows of SCORED, a column per candidate."""
    n = scored.shape[1]
    found = np.empty((n, KINDS))
    sum_effects(table, figures, candidates, user, make_list(candidates), found)
    for k in range(n):
        row = found[k]
        scored[2, k] = row[POPULATION]
        scored[3, k] = row[ID] + row[FEATURE]
        scored[4, k] = row[CONTEXT_ID] + row[CONTEXT_FEATURE]
        scored[5, k] = row[USER] + row[USER_ID] + row[USER_FEATURE] + row[USER_CONTEXT_ID]
        scored[0, k] = sum_kinds(row)
        scored[1, k] = settings.explore * np.sqrt(row[0])
        scored[6, k] = scored[0, k] + scored[1, k]
    probabilities(scored[6], settings, learned, scored[7])


@jit
def pick(chances: Floats, draw: float) -> int:
    """Return the candidate drawn by `draw`, a uniform number in [0, 1)."""
    reached = 0.0
    for k in range(chances.shape[0] - 1):
        reached += chances[k]
        if draw < reached:
            return k
    return int(chances.shape[0]) - 1


@step
def learn(table: Table, fit: Variances, candidates: HashedItems, user: int, payoff: float, now: int) -> bool:
    """Learn the payoff of the first candidate; `now` is the number of this payoff, from 1.

    Returns False, and changes nothing, if the result would be out of range.
    """
    return learn_in(table, fit, candidates, user, payoff, now, make_list(candidates))


@jit
def learn_in(
    table: Table, fit: Variances, candidates: HashedItems, user: int, payoff: float, now: int, listed: Listed
) -> bool:
    """The same, with room for the list of effects."""
    figures, noise = fit
    keys, values, kinds, places = listed
    m = list_effects(candidates, 0, user, listed)
    if not stays_in_range(table, fit, listed, m, payoff):
        return False
    add_lengths(figures, listed, m)
    head, kept = -1, 0
    for j in range(m):
        e = -1 if kinds[j] >= USER_ID and head < 0 else find_or_add(table, keys[j], kinds[j], head, now)
        if kinds[j] == USER:
            head = e
        if e >= 0:
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
    total, error = spread + noise[NOISE], payoff - estimate
    for j in range(kept):
        e, x = places[j, 0], values[j]
        v = 1.0 / (1.0 / figures[kinds[j], VARIANCE] + table.precision[e])
        # For one effect, the uncertainty of all others is part of the noise.
        others = max(total - v * x * x, noise[NOISE])
        table.pull[e] += x * (error + table.pull[e] * v * x) / others
        table.precision[e] += x * x / others
    after = error * noise[NOISE] / total
    noise[NOISE_SUM] += min(after * after, MOST_LEFT) + spread * noise[NOISE] / total
    noise[NOISE_TIMES] += 1.0
    add_to_fit(table, figures, VISITS * m)
    if table.counts[CURSOR] >= table.counts[USED] and now >= table.counts[REFIT] * GROWTH:
        refit(table, fit, now)
    return True


@jit
def stays_in_range(table: Table, fit: Variances, listed: Listed, m: int, payoff: float) -> bool:
    """Return whether all numbers are finite and at most MOST_LEARNED after learning a payoff."""
    figures, noise = fit[0].copy(), fit[1]
    add_lengths(figures, listed, m)
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
    total, error = spread + noise[NOISE], payoff - estimate
    if not (abs(error) <= MOST_ERROR and total <= MOST_LEARNED * MOST_LEARNED):
        return False
    for j in range(m):
        e, x = listed.places[j, 0], listed.values[j]
        pull, precision = (table.pull[e], table.precision[e]) if e >= 0 else (0.0, 0.0)
        v = 1.0 / (1.0 / figures[listed.kinds[j], VARIANCE] + precision)
        others = max(total - v * x * x, noise[NOISE])
        if not abs(pull + x * (error + pull * v * x) / others) <= MOST_LEARNED:
            return False
        if not precision + x * x / others <= MOST_LEARNED:
            return False
    return True


@jit
def add_lengths(figures: Floats, listed: Listed, m: int) -> None:
    """Add the length of each kind's values. A kind's first variance is chosen by its length."""
    squares, often = np.zeros(KINDS), np.zeros(KINDS)
    for j in range(m):
        squares[listed.kinds[j]] += listed.values[j] * listed.values[j]
        often[listed.kinds[j]] += 1.0
    for kind in range(1, KINDS):
        if squares[kind] > 0:
            # Several effects together explain more than one: START grows with the root of their number.
            length = squares[kind] / np.sqrt(often[kind])
            if figures[kind, TIMES] == 0.0:
                figures[kind, VARIANCE] = START / length
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
    for kind in range(1, KINDS):
        if figures[kind, TIMES] > 0:
            start = START * figures[kind, TIMES] / figures[kind, LENGTH]
            squares, freedom = WEAK * start + figures[kind, SQUARES], WEAK + figures[kind, FREEDOM]
            figures[kind, VARIANCE] = min(max(squares / freedom, 1.0 / MOST_LEARNED), MOST_LEARNED)
        figures[kind, SQUARES] = figures[kind, FREEDOM] = 0.0
    noise[NOISE] = min(max(noise[NOISE_SUM] / noise[NOISE_TIMES], LEAST_NOISE), MOST_LEARNED)
    noise[NOISE_SUM] *= MEMORY
    noise[NOISE_TIMES] *= MEMORY
    table.counts[CURSOR] = 0
    table.counts[REFIT] = now


@step
def largest(
    table: Table, figures: Floats, candidates: HashedItems, k: int, user: int, kept: Ints, worth: Floats
) -> int:
    """Write the effects of candidate k with the largest |w·x|, without those that have no data; return how many.

    `kept` gets the kind, the action's feature and the context's feature, `worth` gets w·x.
    """
    listed = make_list(candidates)
    keys, values, kinds, places = listed
    m = list_effects(candidates, k, user, listed)
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
    return n


@at_once
def play(
    table: Table,
    fit: Variances,
    items: HashedItems,
    rounds: Rounds,
    people: People,
    upcoming: int,
    draws: Floats,
    settings: Settings,
    now: int,
) -> None:
    """Play many rounds without a context: decide, then learn.

    A user's `row` in `people` is the number; new users get the numbers from `upcoming` on. `draws` are uniform in
    [0, 1), one per round.
    """
    n = rounds.candidates.shape[1]
    listed = make_list(items)
    found = np.empty((1, KINDS))
    score, chances = np.empty(n), np.empty(n)
    for t in range(len(rounds.who)):
        user, which = rounds.who[t], rounds.candidates[t]
        for i in range(n):
            sum_effects(table, fit.figures, one_of(items, which[i]), people.row[user], listed, found)
            score[i] = sum_kinds(found[0]) + settings.explore * np.sqrt(found[0, 0])
        probabilities(score, settings, now, chances)
        k = pick(chances, draws[t])
        rounds.choice[t], rounds.members[t] = k, 1
        if rounds.served[t] >= 0 and rounds.served[t] != k:
            continue
        row = people.row[user] if people.row[user] >= 0 else upcoming + people.joined[0]
        payoff = rounds.payoffs[t, 0 if rounds.served[t] >= 0 else k]
        if not learn_in(table, fit, one_of(items, which[k]), row, payoff, now + 1, listed):
            rounds.updated[t] = REFUSED
            continue
        if people.row[user] < 0:
            join(people, user, row)
        now += 1
        rounds.kept[t], rounds.updated[t] = True, 1


@jit
def one_of(items: HashedItems, k: int) -> HashedItems:
    """Return one of several candidates, as a view."""
    context, context_values, starts, features, values, has_id = items
    return HashedItems(context, context_values, starts[k : k + 2], features, values, has_id[k : k + 1])
