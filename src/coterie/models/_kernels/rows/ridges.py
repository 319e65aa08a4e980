"""Numbered ridge regressions over feature vectors, all symmetric matrices as packed upper triangles.

The facts of a row are `gram` = Σ x xᵀ, `moment` = Σ y x and `times`; `inverse` = (I + gram)⁻¹ and `weight` =
inverse · moment follow from them, and only `update` and `refresh` write them. Row -1 has learned nothing.
"""

import math
from typing import NamedTuple

import numpy as np

from coterie.arrays import Bools, Floats, Ints
from coterie.models._kernels.given import given
from coterie.models._kernels.jit import jit
from coterie.models._kernels.probability import probability_of_best_together

# Rank-one updates of an inverse accumulate rounding; so it is recomputed from the facts after this many payoffs.
REFRESH = 1024


@given
class Rows(NamedTuple):
    """The arrays of all rows; the first axis is the row."""

    gram: Floats  # (room, pairs)
    moment: Floats  # (room, n_features)
    inverse: Floats  # (room, pairs)
    weight: Floats  # (room, n_features)
    times: Ints  # (room,) payoffs learned
    free: Ints  # (room,) a stack of released rows
    size: Ints  # rows ever taken, released rows


def make(n_features: int, room: int) -> Rows:
    """Return `room` rows, none of them taken."""
    pairs = n_features * (n_features + 1) // 2
    return Rows(
        np.zeros((room, pairs)),
        np.zeros((room, n_features)),
        np.zeros((room, pairs)),
        np.zeros((room, n_features)),
        np.zeros(room, dtype=np.int64),
        np.zeros(room, dtype=np.int64),
        np.zeros(2, dtype=np.int64),
    )


@jit
def clear(rows: Rows, row: int) -> None:
    """Reset a row to the prior."""
    n_features = rows.moment.shape[1]
    rows.gram[row], rows.moment[row], rows.inverse[row], rows.weight[row] = 0.0, 0.0, 0.0, 0.0
    rows.times[row] = 0
    at = 0
    for a in range(n_features):
        rows.inverse[row, at] = 1.0
        at += n_features - a


def grown(rows: Rows, room: int, entries: int) -> Rows:
    """Return the same rows in more room."""
    fresh = make(rows.moment.shape[1], room)
    for old, new in zip(rows[:-1], fresh[:-1], strict=True):
        new[: len(old)] = old
    return fresh._replace(size=rows.size)


@jit
def fits(rows: Rows, n_rows: int, entries: int) -> bool:
    """Return whether there is room for this total of rows."""
    return len(rows.times) >= n_rows


@jit
def used(rows: Rows) -> int:
    """Return 0: vectors need no entries."""
    return 0


@jit
def view(rows: Rows, row: int, items: Floats, which: Ints, estimate: Floats, spread: Floats) -> None:
    """Write w·x and √(xᵀM⁻¹x) of each x = items[which[k]]."""
    n_features = items.shape[1]
    square, w, v = np.eye(n_features), np.zeros(n_features), np.empty(n_features)
    if row >= 0:
        at = 0
        for a in range(n_features):
            for b in range(a, n_features):
                square[a, b] = square[b, a] = rows.inverse[row, at]
                at += 1
        w = rows.weight[row]
    for k in range(len(which)):
        x = items[which[k]]
        for a in range(n_features):
            v[a] = 0.0
        for a in range(n_features):
            part = x[a]
            for b in range(n_features):
                v[b] += part * square[a, b]
        own, total = 0.0, 0.0
        for a in range(n_features):
            own += w[a] * x[a]
            total += v[a] * x[a]
        estimate[k] = own
        spread[k] = math.sqrt(max(total, 0.0))


@jit
def factor(rows: Rows, row: int) -> Floats:
    """Return the lower Cholesky factor of M = I + gram."""
    n_features = rows.moment.shape[1]
    lower = np.zeros((n_features, n_features))
    at = 0
    for a in range(n_features):
        for b in range(a, n_features):
            lower[b, a] = rows.gram[row, at] + (1.0 if a == b else 0.0)
            at += 1
    for a in range(n_features):
        lower[a, a] = math.sqrt(lower[a, a])
        for b in range(a + 1, n_features):
            lower[b, a] /= lower[a, a]
        for c in range(a + 1, n_features):
            part = lower[c, a]
            for b in range(c, n_features):
                lower[b, c] -= part * lower[b, a]
    return lower


@jit
def refresh(rows: Rows, row: int) -> None:
    """Recompute a row's inverse and weight from its facts: O(d³)."""
    if rows.times[row] == 0:
        clear(rows, row)  # removes rounding left by subtractions
        return
    n_features = rows.moment.shape[1]
    lower = factor(rows, row)
    turned = np.zeros((n_features, n_features))  # the inverse of `lower`
    for c in range(n_features):
        turned[c, c] = 1.0 / lower[c, c]
        for a in range(c + 1, n_features):
            total = 0.0
            for b in range(c, a):
                total += lower[a, b] * turned[b, c]
            turned[a, c] = -total / lower[a, a]
    square = np.zeros((n_features, n_features))  # turnedᵀ · turned
    for c in range(n_features):
        for a in range(c + 1):
            part = turned[c, a]
            for b in range(c + 1):
                square[a, b] += part * turned[c, b]
    at = 0
    for a in range(n_features):
        for b in range(a, n_features):
            rows.inverse[row, at] = square[a, b]
            at += 1
    for a in range(n_features):
        total = 0.0
        for b in range(n_features):
            total += square[a, b] * rows.moment[row, b]
        rows.weight[row, a] = total


@jit
def update(rows: Rows, row: int, items: Floats, position: int, payoff: float) -> None:
    """Update a row with the payoff of items[position]."""
    x = items[position]
    n_features = len(x)
    gram, inverse, w = rows.gram[row], rows.inverse[row], rows.weight[row]
    v = np.zeros(n_features)  # M⁻¹x
    at = 0
    for a in range(n_features):
        v[a] += inverse[at] * x[a]
        at += 1
        for b in range(a + 1, n_features):
            v[a] += inverse[at] * x[b]
            v[b] += inverse[at] * x[a]
            at += 1
    s, miss = 1.0, payoff
    for a in range(n_features):
        s += v[a] * x[a]
        miss -= w[a] * x[a]
    at = 0
    for a in range(n_features):
        part, near = x[a], v[a] / s
        for b in range(a, n_features):
            gram[at] += part * x[b]
            inverse[at] -= near * v[b]  # rank one (Sherman–Morrison): O(d²) where inverting would be O(d³)
            at += 1
    for a in range(n_features):
        rows.moment[row, a] += payoff * x[a]
        w[a] += v[a] * miss / s
    rows.times[row] += 1
    if rows.times[row] % REFRESH == 0:
        refresh(rows, row)


@jit
def fade(rows: Rows, row: int, keep: float) -> None:
    """Reduce the weight of all that a row has learned. O(d³), because the prior does not fade."""
    rows.gram[row] *= keep
    rows.moment[row] *= keep
    refresh(rows, row)


@jit
def add_facts(rows: Rows, row: int, source: Rows, source_row: int, sign: int) -> None:
    """Add another row's facts, or subtract them (sign -1); `refresh` must follow."""
    if source.times[source_row] == 0:
        return
    for at in range(rows.gram.shape[1]):
        rows.gram[row, at] += sign * source.gram[source_row, at]
    for a in range(rows.moment.shape[1]):
        rows.moment[row, a] += sign * source.moment[source_row, a]
    rows.times[row] += sign * source.times[source_row]


@jit
def pool(rows: Rows, row: int, source: Rows, source_row: int, sign: int) -> None:
    """Do as `add_facts`, and recompute the inverse."""
    if source.times[source_row] > 0:
        add_facts(rows, row, source, source_row, sign)
        refresh(rows, row)


@jit
def replace_by_last(rows: Rows, row: int) -> None:
    """Forget `row` and move the last row into its place; for rows that are never released."""
    last = rows.size[0] - 1
    if row != last:
        rows.gram[row], rows.moment[row] = rows.gram[last], rows.moment[last]
        rows.inverse[row], rows.weight[row] = rows.inverse[last], rows.weight[last]
        rows.times[row] = rows.times[last]
    clear(rows, last)
    rows.size[0] = last


@jit
def squared_distance(rows: Rows, row: int, others: Rows, other: int) -> float:
    """Return the squared distance of two profiles, ‖w − w'‖²."""
    total = 0.0
    for a in range(rows.weight.shape[1]):
        part = rows.weight[row, a] - others.weight[other, a]
        total += part * part
    return total


@jit
def distance(rows: Rows, row: int, others: Rows, other: int) -> float:
    """Return the distance of two profiles, exact up to rounding even if they are equal."""
    return math.sqrt(squared_distance(rows, row, others, other))


@jit
def chances(rows: Rows, row: int, items: Floats, which: Ints, scale: float, seed: int) -> Floats:
    """Return the probability that each candidate's w̃·x is the largest, for one w̃ ~ N(w, scale² M⁻¹)."""
    n = len(which)
    estimate, covariance = np.empty(n), np.zeros((n, n))
    view(rows, row, items, which, estimate, np.empty(n))
    add_covariance(rows, row, items, which, np.ones(n, dtype=np.bool_), covariance)
    return probability_of_best_together(estimate, scale * scale * covariance, seed)


@jit
def add_covariance(rows: Rows, row: int, items: Floats, which: Ints, near: Bools, out: Floats) -> None:
    """Add xᵀM⁻¹y of each pair of candidates in `near` to the lower triangle of `out`."""
    d = items.shape[1]
    v = np.empty(d)
    for k in range(len(which)):
        if not near[k]:
            continue
        x = items[which[k]]
        for a in range(d):
            v[a] = 0.0 if row >= 0 else x[a]
        at = 0
        for a in range(d if row >= 0 else 0):
            v[a] += rows.inverse[row, at] * x[a]
            at += 1
            for b in range(a + 1, d):
                v[a] += rows.inverse[row, at] * x[b]
                v[b] += rows.inverse[row, at] * x[a]
                at += 1
        for other in range(k + 1):
            if near[other]:
                y = items[which[other]]
                for a in range(d):
                    out[k, other] += v[a] * y[a]


@jit
def name(rows: Rows, items: Floats, position: int, named: Ints) -> None:
    """Do nothing: a vector needs no number."""
