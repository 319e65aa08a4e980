"""Sums over neighbours, shared updates and the compiled loop of CAB, over panels of packed inverses."""

import math
from typing import NamedTuple

import numpy as np

from coterie.arrays import Bools, Floats, Ints
from coterie.models._kernels.bounds import is_near
from coterie.models._kernels.given import given
from coterie.models._kernels.jit import jit
from coterie.models._kernels.probability import probability_of_best_together
from coterie.models._kernels.rows.game import Game
from coterie.models._kernels.spd import dot
from coterie.models._kernels.users.panels import (
    Panels,
    Residues,
    buffers,
    lay_columns,
    learn_panel,
    learn_row,
    look,
    multiply_panel,
    multiply_panels,
    norms,
    open_row,
    view,
)
from coterie.models._kernels.users.simd import PANEL, PANELS
from coterie.models.protocol import ROUNDING

CHUNK = 512  # panels per thread at a time; sums are made chunk by chunk for any number of threads
GROUP = 8  # panels whose neighbours are counted together, so that vector instructions pay off


@jit
def _add_near(
    squares: Floats,
    estimates: Floats,
    lanes: int,
    own_estimate: Floats,
    own_spread: Floats,
    scale: float,
    members: Floats,
    estimate: Floats,
    spread: Floats,
) -> None:
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
def gather(
    inverses: Floats,
    weights: Floats,
    rows: int,
    contexts: Floats,
    own_estimate: Floats,
    own_spread: Floats,
    scale: float,
    first: int,
    last: int,
    out: Floats,
) -> None:
    """Sum over the neighbours among the panels [first, last): out (3, n) is members, estimates, spreads."""
    n, d = contexts.shape
    flat_pairs, flat_features = np.empty(n * inverses.shape[1]), np.empty(n * d)
    lay_columns(contexts, flat_pairs, flat_features)
    lanes = GROUP * PANEL
    squares, estimates = np.empty((n, lanes)), np.empty((n, lanes))
    members, estimate, spread = np.zeros((n, lanes)), np.zeros((n, lanes)), np.zeros((n, lanes))
    for start in range(first, last, GROUP):
        stop = min(start + GROUP, last)
        whole = stop - (stop - start) % PANELS
        for panel in range(start, whole, PANELS):
            lane = (panel - start) * PANEL
            multiply_panels(inverses, panel, flat_pairs, n, squares, lane)
            multiply_panels(weights, panel, flat_features, n, estimates, lane)
        for panel in range(whole, stop):
            lane = (panel - start) * PANEL
            multiply_panel(inverses, panel, flat_pairs, n, squares, lane)
            multiply_panel(weights, panel, flat_features, n, estimates, lane)
        used = min(stop * PANEL, rows) - start * PANEL
        _add_near(squares, estimates, used, own_estimate, own_spread, scale, members, estimate, spread)
    for k in range(n):
        for j in range(lanes):
            out[0, k] += members[k, j]
            out[1, k] += estimate[k, j]
            out[2, k] += spread[k, j]


@jit
def gather_all(
    inverses: Floats,
    weights: Floats,
    rows: int,
    contexts: Floats,
    own_estimate: Floats,
    own_spread: Floats,
    scale: float,
) -> Floats:
    """Sum over all neighbours, chunk by chunk, as several threads would."""
    n = contexts.shape[0]
    panels = (rows + PANEL - 1) // PANEL
    total = np.zeros((3, n))
    for first in range(0, panels, CHUNK):
        part = np.zeros((3, n))
        last = min(first + CHUNK, panels)
        gather(inverses, weights, rows, contexts, own_estimate, own_spread, scale, first, last, part)
        total += part
    return total


@jit
def chances(
    inverses: Floats,
    weights: Floats,
    rows: int,
    contexts: Floats,
    own_estimate: Floats,
    own_spread: Floats,
    scale: float,
    alone: bool,
    seed: int,
) -> tuple[Floats, Floats]:
    """Return members, estimates and spreads of all neighbours (3, n), and how likely each candidate is best.

    Each user draws w̃ⱼ from N(wⱼ, scale²·Mⱼ⁻¹), and best is the largest average over a candidate's neighbours:
    so the covariance of two candidates is a sum over the users who are neighbours for both. `alone` says that the
    user has learned nothing, and so has no row.
    """
    n, d = contexts.shape
    total, covariance, near = np.zeros((3, n)), np.zeros((n, n)), np.zeros(n, dtype=np.bool_)
    v, bare = np.empty((n, d)), np.empty(n)
    norms(contexts, bare)
    for row in range(rows + alone):
        panel, lane, at = row // PANEL, row % PANEL, 0
        for k in range(n):
            for a in range(d):
                v[k, a] = 0.0 if row < rows else contexts[k, a]
        if row < rows:
            for a in range(d):
                for b in range(a, d):
                    part = inverses[panel, at, lane]
                    at += 1
                    for k in range(n):
                        v[k, a] += part * contexts[k, b]
                        v[k, b] += part * contexts[k, a] if b > a else 0.0
        for k in range(n):
            estimate, width = 0.0, bare[k]
            if row < rows:
                width = math.sqrt(max(dot(v[k], contexts[k], d), 0.0))
                for a in range(d):
                    estimate += weights[panel, a, lane] * contexts[k, a]
            near[k] = is_near(own_estimate[k], own_spread[k], estimate, width, scale)
            if near[k]:
                total[0, k] += 1.0
                total[1, k] += estimate
                total[2, k] += width
                for other in range(k + 1):
                    if near[other]:
                        covariance[k, other] += dot(v[k], contexts[other], d)
    for k in range(n):
        for other in range(k + 1):
            covariance[k, other] *= scale * scale / (total[0, k] * total[0, other])
    return total, probability_of_best_together(total[1] / total[0], covariance, seed)


@jit
def near_rows(
    inverses: Floats,
    weights: Floats,
    rows: int,
    context: Floats,
    own_estimate: float,
    own_spread: float,
    scale: float,
) -> Bools:
    """Return which rows are neighbours on one context."""
    d = context.shape[0]
    flat_pairs, flat_features = np.empty(inverses.shape[1]), np.empty(d)
    lay_columns(context.reshape(1, d), flat_pairs, flat_features)
    squares, estimates = np.empty((1, PANEL)), np.empty((1, PANEL))
    near = np.zeros(rows, dtype=np.bool_)
    for panel in range((rows + PANEL - 1) // PANEL):
        multiply_panel(inverses, panel, flat_pairs, 1, squares, 0)
        multiply_panel(weights, panel, flat_features, 1, estimates, 0)
        for j in range(min(PANEL, rows - panel * PANEL)):
            width = math.sqrt(max(squares[0, j], 0.0))
            near[panel * PANEL + j] = is_near(own_estimate, own_spread, estimates[0, j], width, scale)
    return near


@jit
def share(
    inverses: Floats,
    weights: Floats,
    lost: Residues,
    missed: Residues,
    rows: int,
    own_row: int,
    context: Floats,
    payoff: float,
    own_estimate: float,
    own_spread: float,
    scale: float,
    limit: float,
) -> int:
    """Update the rows that are neighbours with a bound below `limit`, and always `own_row`; return how many.

    Panel by panel, so that each is read once: v = M⁻¹x gives the spread, √(x·v), and then the update.
    """
    v, gain, estimates, on = buffers(context.shape[0])
    learners = 0
    for panel in range((rows + PANEL - 1) // PANEL):
        squares = look(inverses, weights, panel, context, v, estimates)
        before = learners
        for j in range(PANEL):
            width = math.sqrt(max(squares[j], 0.0))
            near = is_near(own_estimate, own_spread, estimates[j], width, scale)
            row = panel * PANEL + j
            learns = row < rows and ((near and scale * width < limit) or row == own_row)
            on[j] = 1.0 if learns else 0.0
            learners += learns
        if learners > before:
            learn_panel(inverses, weights, lost, missed, panel, on, payoff, v, gain, squares, estimates)
    return learners


@given
class DenseModels(NamedTuple):
    """Models as the compiled loop of CAB takes them; it calls what follows."""

    panels: Panels
    contexts: Floats  # (candidates, features) of the round, overwritten


@jit
def has_room(models: DenseModels, game: Game) -> bool:
    """Return whether there is room for another user."""
    return game.so_far[2] < PANEL * len(models.panels.weights)  # type: ignore[no-any-return]


@jit
def see(models: DenseModels, row: int, game: Game, which: Ints, estimate: Floats, spread: Floats) -> None:
    """Read the candidates, and write the user's view."""
    inverses, weights, _, _ = models.panels
    contexts = models.contexts
    for k in range(len(which)):
        for a in range(contexts.shape[1]):
            contexts[k, a] = game.items[which[k], a]
    if row < 0:
        estimate[:] = 0.0
        norms(contexts, spread)
    else:
        view(inverses, weights, row, contexts, estimate, spread)


@jit
def sums(
    models: DenseModels, game: Game, which: Ints, estimate: Floats, spread: Floats, scale: float
) -> Floats:
    """Sum over the neighbours."""
    inverses, weights, _, _ = models.panels
    return gather_all(inverses, weights, game.so_far[2], models.contexts, estimate, spread, scale)


@jit
def draws(
    models: DenseModels, game: Game, which: Ints, estimate: Floats, spread: Floats, scale: float, alone: bool
) -> tuple[Floats, Floats]:
    """Sum over the neighbours, and return how likely each candidate is best."""
    inverses, weights, _, _ = models.panels
    _, learned, n = game.so_far
    return chances(inverses, weights, n, models.contexts, estimate, spread, scale, alone, learned)


@jit
def learn_one(models: DenseModels, row: int, game: Game, which: Ints, k: int, payoff: float) -> None:
    """Update a user, or a newcomer in the next row."""
    inverses, weights, lost, missed = models.panels
    if row == game.so_far[2]:
        open_row(inverses, weights, lost, missed, row)
    learn_row(inverses, weights, lost, missed, row, models.contexts[k], payoff)


@jit
def learn_together(
    models: DenseModels, row: int, game: Game, which: Ints, k: int, payoff: float,
    estimate: Floats, spread: Floats, scale: float, limit: float,
) -> int:  # fmt: skip
    """Update all neighbours with a bound below `limit`, and the user."""
    inverses, weights, lost, missed = models.panels
    return share(
        inverses, weights, lost, missed, game.so_far[2], row, models.contexts[k], payoff, estimate[k], spread[k],
        scale, limit,
    )  # fmt: skip
