"""User models over feature vectors: the inverses of eight users side by side, packed.

Why compensate: a rank-one update rounds every entry of M⁻¹, and in directions that no context explores nothing
corrects the error. After a million updates the error, relative to the largest entry, is up to 6e-14; inverting a
summed M is far worse (1e-5: the sum is rounded too, and M is ill-conditioned); with compensation M⁻¹ is right to the
last bit, without any d³ step (tests/models/test_dense.py).

A candidate is x = items[which[k]]. Row -1 has learned nothing: M = I and w = 0.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from coterie.arrays import Bools, Floats, Ints
from coterie.models._kernels.bounds import is_near
from coterie.models._kernels.given import given
from coterie.models._kernels.jit import jit
from coterie.models._kernels.probability import probability_of_best_average
from coterie.models._kernels.spd import dot
from coterie.models._kernels.users.panels import lay_columns, multiply_panel, multiply_panels
from coterie.models._kernels.users.simd import PANEL, PANELS, apply_symmetric, subtract_outer
from coterie.models.protocol import ROUNDING

CHUNK = 512  # panels per thread at a time; sums are made chunk by chunk for any number of threads
GROUP = 8  # panels whose neighbours are counted together, so that vector instructions pay off


@given
class Panels(NamedTuple):
    """The models of users with a row, eight per panel."""

    inverses: Floats  # (panels, pairs, 8) M⁻¹, its upper triangle row by row
    weights: Floats  # (panels, features, 8) w = M⁻¹b
    lost: NDArray[np.float32]  # like inverses: what rounding took from each entry, to be added back (Kahan)
    missed: NDArray[np.float32]  # like weights: the same for w


@jit
def has_room(panels: Panels, n: int) -> bool:
    """Return whether there is room for one more than n users."""
    return n < PANEL * len(panels.weights)


@jit
def name(panels: Panels, items: Floats, position: int, named: Ints) -> None:
    """Do nothing: a vector needs no number."""


@jit
def view(panels: Panels, row: int, items: Floats, which: Ints, estimate: Floats, spread: Floats) -> None:
    """Write a user's estimates and spreads."""
    panel, lane, d = row // PANEL, row % PANEL, items.shape[1]
    for k in range(len(which)):
        at, total, square, p = which[k], 0.0, 0.0, 0
        for a in range(d):
            if row < 0:
                square += items[at, a] * items[at, a]
                continue
            total += panels.weights[panel, a, lane] * items[at, a]
            inner = 0.5 * panels.inverses[panel, p, lane] * items[at, a]
            p += 1
            for b in range(a + 1, d):
                inner += panels.inverses[panel, p, lane] * items[at, b]
                p += 1
            square += 2.0 * items[at, a] * inner
        estimate[k] = total
        spread[k] = math.sqrt(max(square, 0.0))


@jit
def _add_near(
    squares: Floats, estimates: Floats, lanes: int, own_estimate: Floats, own_spread: Floats, scale: float,
    members: Floats, estimate: Floats, spread: Floats,
) -> None:  # fmt: skip
    """Add neighbours to lane-wise sums (n, lanes), so that no order of summation depends on the machine."""
    for k in range(own_estimate.shape[0]):
        e, s = own_estimate[k], own_spread[k]
        for j in range(lanes):
            width = math.sqrt(max(squares[k, j], 0.0))
            near = abs(e - estimates[k, j]) <= scale * (s + width) + ROUNDING  # written out, to be vectorised
            members[k, j] += 1.0 if near else 0.0
            estimate[k, j] += estimates[k, j] if near else 0.0
            spread[k, j] += width if near else 0.0


@jit
def gather_part(
    panels: Panels, rows: int, items: Floats, which: Ints, own_estimate: Floats, own_spread: Floats, scale: float,
    first: int, last: int,
) -> Floats:  # fmt: skip
    """Sum over the neighbours among the panels [first, last): members, estimates, spreads (3, candidates)."""
    n, lanes, out = len(which), GROUP * PANEL, np.zeros((3, len(which)))
    pairs, features = lay_columns(items, which)
    squares, estimates = np.empty((n, lanes)), np.empty((n, lanes))
    members, estimate, spread = np.zeros((n, lanes)), np.zeros((n, lanes)), np.zeros((n, lanes))
    for start in range(first, last, GROUP):
        stop = min(start + GROUP, last)
        whole = stop - (stop - start) % PANELS
        for panel in range(start, whole, PANELS):
            lane = (panel - start) * PANEL
            multiply_panels(panels.inverses, panel, pairs, n, squares, lane)
            multiply_panels(panels.weights, panel, features, n, estimates, lane)
        for panel in range(whole, stop):
            lane = (panel - start) * PANEL
            multiply_panel(panels.inverses, panel, pairs, n, squares, lane)
            multiply_panel(panels.weights, panel, features, n, estimates, lane)
        used = min(stop * PANEL, rows) - start * PANEL
        _add_near(squares, estimates, used, own_estimate, own_spread, scale, members, estimate, spread)
    for k in range(n):
        for j in range(lanes):
            out[0, k] += members[k, j]
            out[1, k] += estimate[k, j]
            out[2, k] += spread[k, j]
    return out


@jit
def gather(
    panels: Panels, rows: int, items: Floats, which: Ints, estimate: Floats, spread: Floats, scale: float
) -> Floats:
    """Sum over all neighbours, chunk by chunk, as several threads would."""
    total, n_panels = np.zeros((3, len(which))), (rows + PANEL - 1) // PANEL
    for first in range(0, n_panels, CHUNK):
        last = min(first + CHUNK, n_panels)
        total += gather_part(panels, rows, items, which, estimate, spread, scale, first, last)
    return total


@jit
def chances(
    panels: Panels, rows: int, items: Floats, which: Ints, own_estimate: Floats, own_spread: Floats, scale: float,
    alone: bool, seed: int,
) -> tuple[Floats, Floats]:  # fmt: skip
    """Return members, estimates and spreads of all neighbours (3, n), and how likely each candidate is best.

    Each user draws w̃ⱼ from N(wⱼ, scale²·Mⱼ⁻¹), and best is the largest average over a candidate's neighbours:
    so the covariance of two candidates is a sum over the users who are neighbours for both. `alone` says that the
    user has learned nothing, and so has no row.
    """
    n, d = len(which), items.shape[1]
    total, covariance, near = np.zeros((3, n)), np.zeros((n, n)), np.zeros(n, dtype=np.bool_)
    v, bare = np.empty((n, d)), np.empty(n)
    for k in range(n):
        bare[k] = math.sqrt(dot(items[which[k]], items[which[k]], d))
    for row in range(rows + alone):
        panel, lane, at = row // PANEL, row % PANEL, 0
        for k in range(n):
            for a in range(d):
                v[k, a] = 0.0 if row < rows else items[which[k], a]
        if row < rows:
            for a in range(d):
                for b in range(a, d):
                    part = panels.inverses[panel, at, lane]
                    at += 1
                    for k in range(n):
                        v[k, a] += part * items[which[k], b]
                        v[k, b] += part * items[which[k], a] if b > a else 0.0
        for k in range(n):
            estimate, width = 0.0, bare[k]
            if row < rows:
                width = math.sqrt(max(dot(v[k], items[which[k]], d), 0.0))
                for a in range(d):
                    estimate += panels.weights[panel, a, lane] * items[which[k], a]
            near[k] = is_near(own_estimate[k], own_spread[k], estimate, width, scale)
            if near[k]:
                total[0, k] += 1.0
                total[1, k] += estimate
                total[2, k] += width
                for other in range(k + 1):
                    if near[other]:
                        covariance[k, other] += dot(v[k], items[which[other]], d)
    return total, probability_of_best_average(total, covariance, scale, seed)


@jit
def near_rows(
    panels: Panels,
    rows: int,
    items: Floats,
    position: int,
    own_estimate: float,
    own_spread: float,
    scale: float,
) -> Bools:
    """Return which rows are neighbours on one context."""
    pairs, features = lay_columns(items, np.array([position]))
    squares, estimates = np.empty((1, PANEL)), np.empty((1, PANEL))
    near = np.zeros(rows, dtype=np.bool_)
    for panel in range((rows + PANEL - 1) // PANEL):
        multiply_panel(panels.inverses, panel, pairs, 1, squares, 0)
        multiply_panel(panels.weights, panel, features, 1, estimates, 0)
        for j in range(min(PANEL, rows - panel * PANEL)):
            width = math.sqrt(max(squares[0, j], 0.0))
            near[panel * PANEL + j] = is_near(own_estimate, own_spread, estimates[0, j], width, scale)
    return near


@jit
def look(panels: Panels, panel: int, context: Floats, v: Floats, estimates: Floats, squares: Floats) -> None:
    """Fill v (features, 8) with M⁻¹x, estimates (8,) with w·x and squares (8,) with x·v for a panel."""
    d = context.shape[0]
    v[:] = 0.0
    at = panel * panels.inverses.shape[1] * PANEL  # where the panel starts
    apply_symmetric(panels.inverses.ctypes.data + 8 * at, context.ctypes.data, v.ctypes.data, d)
    squares[:] = 0.0
    estimates[:] = 0.0
    for a in range(d):
        for j in range(PANEL):
            squares[j] += context[a] * v[a, j]
            estimates[j] += panels.weights[panel, a, j] * context[a]


@jit
def learn_panel(
    panels: Panels, panel: int, on: Floats, payoff: float, v: Floats, squares: Floats, estimates: Floats
) -> None:
    """Update the users of a panel with on ≠ 0; the others keep every bit.

    Rank one (Sherman–Morrison), for eight users at once: v = M⁻¹x, s = 1 + x·v, M⁻¹ −= v vᵀ/s,
    w += v (y − w·x)/s: O(d²), where inverting again would be O(d³).
    """
    d, gain = v.shape[0], np.empty(v.shape)
    for a in range(d):
        for j in range(PANEL):
            gain[a, j] = v[a, j] / (1.0 + squares[j])
            if on[j]:
                old = panels.weights[panel, a, j]
                step = gain[a, j] * (payoff - estimates[j]) + panels.missed[panel, a, j]
                new = old + step
                panels.weights[panel, a, j] = new
                panels.missed[panel, a, j] = step - (new - old)
    at = panel * panels.inverses.shape[1] * PANEL
    inverses, lost = panels.inverses.ctypes.data + 8 * at, panels.lost.ctypes.data + 4 * at
    subtract_outer(inverses, lost, v.ctypes.data, gain.ctypes.data, on.ctypes.data, d)


@jit
def learn_one(panels: Panels, rows: int, row: int, items: Floats, position: int, payoff: float) -> None:
    """Update a user, or a newcomer in the next row."""
    panel, lane, d = row // PANEL, row % PANEL, items.shape[1]
    if row == rows:
        panels.lost[panel, :, lane] = panels.missed[panel, :, lane] = 0.0
        p = 0
        for a in range(d):
            panels.weights[panel, a, lane] = 0.0
            for b in range(a, d):
                panels.inverses[panel, p, lane] = 1.0 if a == b else 0.0
                p += 1
    v, estimates, squares, on = np.empty((d, PANEL)), np.empty(PANEL), np.empty(PANEL), np.zeros(PANEL)
    look(panels, panel, items[position], v, estimates, squares)
    on[lane] = 1.0
    learn_panel(panels, panel, on, payoff, v, squares, estimates)


@jit
def learn_together(
    panels: Panels, rows: int, own_row: int, items: Floats, position: int, payoff: float,
    own_estimate: float, own_spread: float, scale: float, limit: float,
) -> int:  # fmt: skip
    """Update the rows that are neighbours with a bound below `limit`, and always `own_row`; return how many.

    Panel by panel, so that each is read once: v = M⁻¹x gives the spread, √(x·v), and then the update.
    """
    d, learners = items.shape[1], 0
    v, estimates, squares, on = np.empty((d, PANEL)), np.empty(PANEL), np.empty(PANEL), np.zeros(PANEL)
    for panel in range((rows + PANEL - 1) // PANEL):
        look(panels, panel, items[position], v, estimates, squares)
        before = learners
        for j in range(PANEL):
            width = math.sqrt(max(squares[j], 0.0))
            near = is_near(own_estimate, own_spread, estimates[j], width, scale)
            row = panel * PANEL + j
            learns = row < rows and ((near and scale * width < limit) or row == own_row)
            on[j] = 1.0 if learns else 0.0
            learners += learns
        if learners > before:
            learn_panel(panels, panel, on, payoff, v, squares, estimates)
    return learners
