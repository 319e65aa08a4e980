"""Visits: each payoff adds a few users, in turn, to the sums of a pass over all users.

`coterie.models.hierarchy.refit` computes new parameters when a pass ends.
"""

import math

import numpy as np

from coterie.arrays import Floats, Ints
from coterie.models._kernels.hierarchy import arrays, few_items
from coterie.models._kernels.hierarchy.arrays import Model, Prior, Sums
from coterie.models._kernels.hierarchy.friends import has_friends, write_deviation
from coterie.models._kernels.hierarchy.posterior import gather_panel, total_weight
from coterie.models._kernels.jit import jit
from coterie.models._kernels.rows.means import Table as Pairs
from coterie.models._kernels.spd import dot, dot_panel, invert_panel, sum_panel, times, times_panel
from coterie.models._kernels.users.simd import PANEL


@jit
def visit_panel(model: Model, prior: Prior, sums: Sums, first: int, last: int) -> None:
    """Add up to PANEL users to the sums of a pass: their posteriors are computed side by side."""
    d, groups, users = model.place[arrays.USED], prior.groups[0], model.users
    kappa = prior.noise[arrays.K_]
    grams, moment, known = np.empty((d, d, PANEL)), np.empty((d, PANEL)), np.zeros(PANEL)
    gather_panel(model, first, last, d, grams, moment)
    square, deviation, befriended = np.zeros(PANEL), np.zeros((d, PANEL)), False
    for row in range(first, last):
        known[row - first] = 1.0 if users.weight[row] > 0 else 0.0
        square[row - first] = users.square[row]
        if users.weight[row] > 0 and has_friends(model, row):
            befriended = True
            _shift_lane(model, row, row - first, grams, moment, square, deviation)
    work, root, spread = np.empty((d, d, PANEL)), np.empty((d, d, PANEL)), np.empty((d, d, PANEL))
    log_det, found, turned = np.empty(PANEL), np.empty(PANEL), np.empty((d, PANEL))
    for i in range(d):
        for k in range(i, d):
            for lane in range(PANEL):
                work[i, k, lane] = prior.precision[i, k] + grams[i, k, lane] / kappa
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
    # The probabilities of a user sum to 1, or to 0 without payoffs; `found` becomes the evidence.
    for lane in range(PANEL):
        top, total = -math.inf, 0.0
        for g in range(groups):
            top = max(top, chance[g, lane])
        for g in range(groups):
            chance[g, lane] = math.exp(chance[g, lane] - top)
            total += chance[g, lane]
        for g in range(groups):
            chance[g, lane] *= known[lane] / total
        found[lane] = top + math.log(total) - 0.5 * log_det[lane]

    for g in range(groups):
        sums.weight[g] += dot(chance[g], known, PANEL)
    added = np.zeros((d, d))
    if model.place[arrays.PHASE] == 1:
        times_panel(spread, d, moment, turned)
        pulled = np.empty(d)
        for g in range(groups):
            added[:], pulled[:] = 0.0, 0.0
            sum_panel(spread, chance[g], d * d, added)
            sum_panel(turned, chance[g], d, pulled)
            for i in range(d):
                sums.pulls[g, i] += pulled[i] / kappa
            add_square(sums.pools[g], d, added)
        return
    sum_panel(spread, known, d * d, added)
    add_square(sums.pools[0], d, added)
    errors, more = np.empty(PANEL), np.empty(PANEL)
    dot_panel(grams, spread, d * d, errors)
    apart = np.empty((d, PANEL))
    scattered = np.empty((d, PANEL))
    for g in range(groups):
        added[:] = 0.0
        times_panel(grams, d, mean[g], turned)
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
        add_square(sums.scatter, d, added)
    for lane in range(PANEL):
        if known[lane] > 0.0:
            row = first + lane
            sums.total[0] += errors[lane] + square[lane]
            payoffs = users.weight[row]
            sums.total[1] += payoffs
            sums.total[2] += found[lane] - 0.5 * (payoffs * math.log(kappa) + square[lane] / kappa)
            sums.total[3] += 1
    if befriended:
        _compare_with_friends(model, prior, sums, deviation, spread, mean, chance)


@jit
def add_square(out: Floats, d: int, part: Floats) -> None:
    """Add a d × d matrix to the first entries of another. Numba compiles no NumPy for a loop."""
    for i in range(d):
        for k in range(d):
            out[i, k] += part[i, k]


@jit
def _shift_lane(
    model: Model, row: int, lane: int, grams: Floats, moment: Floats, square: Floats, deviation: Floats
) -> None:
    """Write what a user's friends say, and take that part from the user's b and Σ v y²."""
    d, rho, said = (
        model.place[arrays.USED],
        model.prior.noise[arrays.RHO_],
        np.empty(model.place[arrays.USED]),
    )
    write_deviation(model, row, d, said)
    for i in range(d):
        turned = 0.0
        for k in range(d):
            turned += grams[i, k, lane] * rho * said[k]
        deviation[i, lane] = said[i]
        square[lane] -= rho * said[i] * (2.0 * moment[i, lane] - turned)
        moment[i, lane] -= turned


@jit
def _compare_with_friends(
    model: Model, prior: Prior, sums: Sums, deviation: Floats, spread: Floats, mean: Floats, chance: Floats
) -> None:
    """Add what up to PANEL users say of ρ: the regression of their own weights on v, weighted by information.

    The information of a user's payoffs on the prior mean is G = precision − precision·C·precision.
    """
    d, rho = model.place[arrays.USED], model.prior.noise[arrays.RHO_]
    said, turned = np.empty(d), np.empty(d)
    for lane in range(PANEL):
        for i in range(d):
            said[i] = deviation[i, lane]
        times(prior.precision, d, said, turned)
        known, pull = dot(said, turned, d), 0.0
        for i in range(d):
            for k in range(d):
                known -= turned[i] * spread[i, k, lane] * turned[k]
            for g in range(prior.groups[0]):
                pull += chance[g, lane] * turned[i] * (mean[g, i, lane] - prior.means[g, i])
        sums.total[4] += pull + rho * known
        sums.total[5] += known


@jit
def visit_some(model: Model, pairs: Pairs, prior: Prior, sums: Sums, first: int, last: int) -> None:
    """Add up to PANEL users to the sums of a pass."""
    if not model.place[arrays.UNIT]:
        visit_panel(model, prior, sums, first, last)
        return
    for row in range(first, last):
        if model.users.weight[row] > 0:
            few_items.visit(model, pairs, prior, sums, row)


@jit
def add_due(place: Ints, pace: Floats, keep: Floats) -> None:
    """Add the visits due after one more payoff; set DUE if everything has to be recomputed."""
    learned = place[arrays.LEARNED]
    if learned <= arrays.EARLY or pace[arrays.SCALE_] == 0.0:
        if learned <= arrays.EARLY and learned & (learned - 1) == 0:
            place[arrays.DUE] = 1
        return
    # The largest total weight that the payoffs can have.
    fresh = min(float(learned), place[arrays.ROWS] * total_weight(float(learned), keep[0]))
    pace[arrays.VISITS_] += min(2.0 * place[arrays.ROWS] / (arrays.GROWTH * fresh), float(arrays.VISITS))


@jit
def next_visit(place: Ints, pace: Floats) -> int:
    """Return the row before which the next visits end, -1 if none are due."""
    last = min(place[arrays.CURSOR] + PANEL, place[arrays.ROWS])
    starting = place[arrays.LEARNED] <= arrays.EARLY or pace[arrays.SCALE_] == 0.0
    if place[arrays.DUE] or starting or pace[arrays.VISITS_] < last - place[arrays.CURSOR]:
        return -1
    return int(last)


@jit
def count_visited(place: Ints, pace: Floats, last: int) -> None:
    """Count users as visited; set DUE if the pass is complete."""
    if place[arrays.CURSOR] < last:
        pace[arrays.VISITS_] -= last - place[arrays.CURSOR]
        place[arrays.CURSOR] = last
    if last >= place[arrays.ROWS]:
        place[arrays.DUE] = 1


@jit
def visit_due(model: Model, pairs: Pairs) -> None:
    """Visit the users that are due after a payoff; set DUE if the pass is complete."""
    place = model.place
    add_due(place, model.pace, model.keep)
    while True:
        first, last = place[arrays.CURSOR], next_visit(place, model.pace)
        if last < 0:
            return
        if first < last:
            visit_some(model, pairs, model.prior, model.sums, first, last)
            if place[arrays.TRIAL]:
                visit_some(model, pairs, model.trial, model.trial_sums, first, last)
        count_visited(place, model.pace, last)


@jit
def visit_rows(model: Model, pairs: Pairs, first: int, last: int) -> None:
    """Visit the users of rows [first, last)."""
    for row in range(first, last, PANEL):
        visit_some(model, pairs, model.prior, model.sums, row, min(row + PANEL, last))
