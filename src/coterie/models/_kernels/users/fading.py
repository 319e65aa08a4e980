"""CAB over ridge regressions whose old payoffs count less. Every question reads all rows.

`rows` are `ridges.Rows` or `means.Table`; rows 0 to n are the updated users. Row -1 has learned nothing.
"""

from typing import Any

import numpy as np
from numpy.random import Generator

from coterie.arrays import Bools, Floats, Ints
from coterie.models._kernels.bounds import is_near, scale_after
from coterie.models._kernels.jit import at_once, jit
from coterie.models._kernels.probability import draw_from, first_best, probability_of_best_together
from coterie.models._kernels.rounds import Rounds, Rule
from coterie.models._kernels.rows.dispatch import add_covariance, fade, fits, name, take, update, used, view


@jit
def gather(
    rows: Any, n: int, items: Any, which: Ints, own_estimate: Floats, own_spread: Floats, scale: float
) -> Floats:
    """Sum over the neighbours among n rows: members, estimates, spreads (3, candidates)."""
    c = len(which)
    estimate, spread, total = np.empty(c), np.empty(c), np.zeros((3, c))
    for row in range(n):
        view(rows, row, items, which, estimate, spread)
        for k in range(c):
            if is_near(own_estimate[k], own_spread[k], estimate[k], spread[k], scale):
                total[0, k] += 1.0
                total[1, k] += estimate[k]
                total[2, k] += spread[k]
    return total


@jit
def chances(
    rows: Any,
    n: int,
    items: Any,
    which: Ints,
    own_estimate: Floats,
    own_spread: Floats,
    scale: float,
    alone: bool,
    seed: int,
) -> tuple[Floats, Floats]:
    """Return members, estimates and spreads of all neighbours (3, candidates), and how likely each is best.

    As in `dense.chances`; `alone` says that the user has learned nothing, and so has no row.
    """
    c = len(which)
    estimate, spread, near = np.empty(c), np.empty(c), np.zeros(c, dtype=np.bool_)
    total, covariance = np.zeros((3, c)), np.zeros((c, c))
    for row in range(-1 if alone else 0, n):
        view(rows, row, items, which, estimate, spread)
        for k in range(c):
            near[k] = is_near(own_estimate[k], own_spread[k], estimate[k], spread[k], scale)
            if near[k]:
                total[0, k] += 1.0
                total[1, k] += estimate[k]
                total[2, k] += spread[k]
        add_covariance(rows, row, items, which, near, covariance)
    for k in range(c):
        for other in range(k + 1):
            covariance[k, other] *= scale * scale / (total[0, k] * total[0, other])
    return total, probability_of_best_together(total[1] / total[0], covariance, seed)


@jit
def near_rows(
    rows: Any, n: int, items: Any, which: Ints, own_estimate: Floats, own_spread: Floats, scale: float
) -> tuple[Bools, Floats]:
    """Return which of n rows are neighbours on the one candidate of `which`, and the spread of each."""
    estimate, spread = np.empty(1), np.empty(1)
    near, spreads = np.zeros(n, dtype=np.bool_), np.empty(n)
    for row in range(n):
        view(rows, row, items, which, estimate, spread)
        near[row] = is_near(own_estimate[0], own_spread[0], estimate[0], spread[0], scale)
        spreads[row] = spread[0]
    return near, spreads


@jit
def learn(rows: Any, row: int, items: Any, position: int, payoff: float, keep: float) -> None:
    """Reduce the weight of what a row has learned, then update the row."""
    fade(rows, row, keep)
    update(rows, row, items, position, payoff)


@jit
def share(
    rows: Any,
    n: int,
    own_row: int,
    items: Any,
    which: Ints,
    payoff: float,
    own_estimate: Floats,
    own_spread: Floats,
    scale: float,
    limit: float,
    keep: float,
) -> int:
    """Update the rows that are neighbours with a bound below `limit`, and always `own_row`; return how many."""
    near, spreads = near_rows(rows, n, items, which, own_estimate, own_spread, scale)
    learners = 0
    for row in range(n):
        if row == own_row or (near[row] and scale * spreads[row] < limit):
            learn(rows, row, items, which[0], payoff, keep)
            learners += 1
    return learners


@at_once
def play(
    rows: Any,
    items: Any,
    named: Ints,
    rounds: Rounds,
    row_of: Ints,
    so_far: Ints,
    keep: float,
    rule: Rule,
    rng: Generator,
) -> None:
    """Play CAB. `so_far`: the next round, payoffs learned, rows.

    Numbers of users are positions in `row_of` (-1: no row yet). Stops before a round if there is no room
    for a new row.
    """
    c = rounds.candidates.shape[1]
    estimate, spread, score = np.empty(c), np.empty(c), np.empty(c)
    limit, thompson = rule.gamma / 4, rule.thompson
    for t in range(so_far[0], len(rounds.who)):
        n = so_far[2]
        if not fits(rows, n + 1, used(rows) + n + 1):
            return
        so_far[0] = t + 1
        user = rounds.who[t]
        row = row_of[user]
        which = rounds.candidates[t]
        scale = scale_after(rule.alpha, so_far[1])
        view(rows, row, items, which, estimate, spread)
        if thompson:
            near, likely = chances(rows, n, items, which, estimate, spread, scale, row < 0, so_far[1])
            k = draw_from(likely, rng)
        else:
            near = gather(rows, n, items, which, estimate, spread, scale)
            for k in range(c):
                if row < 0:
                    near[0, k] += 1.0
                    near[2, k] += spread[k]
                score[k] = near[1, k] / near[0, k] + scale * near[2, k] / near[0, k]
            k = first_best(score)
        rounds.choice[t] = k
        rounds.members[t] = int(near[0, k])
        if rounds.served[t] >= 0 and rounds.served[t] != k:
            continue
        payoff = rounds.payoffs[t, 0 if rounds.served[t] >= 0 else k]
        name(items, which[k], named)
        learners = 0
        if scale * spread[k] < limit:
            own = (estimate[k : k + 1], spread[k : k + 1], scale, limit)
            learners = share(
                rows, n, row, items, which[k : k + 1], payoff, own[0], own[1], own[2], own[3], keep
            )
        elif row >= 0:
            learn(rows, row, items, which[k], payoff, keep)
            learners = 1
        if row < 0:
            row_of[user] = take(rows)
            learn(rows, row_of[user], items, which[k], payoff, keep)
            so_far[2] += 1
            learners += 1
        rounds.updated[t] = learners
        rounds.kept[t] = True
        so_far[1] += 1
