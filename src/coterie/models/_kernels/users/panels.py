"""Panels of packed inverses, eight users per panel: products with contexts, and updates.

inverses   (panels, pairs, 8)      M⁻¹, its upper triangle row by row
weights    (panels, features, 8)   w = M⁻¹b
lost       like inverses, float32  what rounding took from each entry, to be added back (Kahan)
missed     like weights, float32   the same for w

Why compensate: a rank-one update rounds every entry of M⁻¹, and in directions that no context explores nothing
corrects the error. After a million updates the error, relative to the largest entry, is up to 6e-14; inverting a
summed M is far worse (1e-5: the sum is rounded too, and M is ill-conditioned); with compensation M⁻¹ is right to the
last bit, without any d³ step (tests/models/test_dense.py).
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from coterie.arrays import Floats
from coterie.models._kernels.given import given
from coterie.models._kernels.jit import jit
from coterie.models._kernels.users.simd import (
    PANEL,
    WIDEST,
    apply_symmetric,
    multiply,
    multiply_many,
    subtract_outer,
)

Residues = NDArray[np.float32]


@given
class Panels(NamedTuple):
    """All rows, eight per panel."""

    inverses: Floats
    weights: Floats
    lost: Residues
    missed: Residues


@jit
def tile_width(n: int, tile: int) -> int:
    """Return how many of n columns a tile of `multiply` has: tiles are as equal as possible, at most WIDEST."""
    tiles = (n + WIDEST - 1) // WIDEST
    return n // tiles + (1 if tile < n % tiles else 0)


@jit
def lay_columns(contexts: Floats, flat_pairs: Floats, flat_features: Floats) -> None:
    """Write contexts in the format of `multiply`: products xₐ·x_b (twice if a ≠ b), and x itself."""
    n, d = contexts.shape
    pairs = d * (d + 1) // 2
    first = tile = 0
    while first < n:
        width = tile_width(n, tile)
        p = first * pairs
        for a in range(d):
            for b in range(a, d):
                for k in range(first, first + width):
                    x = contexts[k, a] * contexts[k, b]
                    flat_pairs[p] = x if a == b else 2.0 * x
                    p += 1
        p = first * d
        for a in range(d):
            for k in range(first, first + width):
                flat_features[p] = contexts[k, a]
                p += 1
        first += width
        tile += 1


@jit
def lay_out(columns: Floats, n: int, length: int) -> Floats:
    """Return n columns, each a row of `columns`, in the format of `multiply_panel`."""
    flat = np.empty(n * length)
    first = tile = 0
    while first < n:
        width = tile_width(n, tile)
        for k in range(width):
            for p in range(length):
                flat[first * length + p * width + k] = columns[first + k, p]
        first += width
        tile += 1
    return flat


@jit
def multiply_panel(array: Floats, panel: int, flat: Floats, n: int, out: Floats, lane: int) -> None:
    """Fill out (n, lanes), from `lane` on, with the products of one panel of `array` and n laid out columns."""
    _multiply(array, panel, flat, n, out, lane, False)


@jit
def multiply_panels(array: Floats, panel: int, flat: Floats, n: int, out: Floats, lane: int) -> None:
    """Do what `multiply_panel` does for PANELS panels, from `panel` on."""
    _multiply(array, panel, flat, n, out, lane, True)


@jit
def _multiply(array: Floats, panel: int, flat: Floats, n: int, out: Floats, lane: int, many: bool) -> None:
    length, stride = array.shape[1], out.shape[1]
    start = array.ctypes.data + 8 * panel * length * PANEL
    first = tile = 0
    while first < n:
        width = tile_width(n, tile)
        columns, sums = flat.ctypes.data + 8 * first * length, out.ctypes.data + 8 * (first * stride + lane)
        if many:
            multiply_many(start, columns, sums, stride, length, width)
        else:
            multiply(start, columns, sums, stride, length, width)
        first += width
        tile += 1


@jit
def view(
    inverses: Floats, weights: Floats, row: int, contexts: Floats, estimate: Floats, spread: Floats
) -> None:
    """Fill one user's estimates and spreads."""
    panel, lane = row // PANEL, row % PANEL
    n, d = contexts.shape
    for k in range(n):
        total = 0.0
        for a in range(d):
            total += weights[panel, a, lane] * contexts[k, a]
        estimate[k] = total
        square = 0.0
        p = 0
        for a in range(d):
            inner = 0.5 * inverses[panel, p, lane] * contexts[k, a]
            p += 1
            for b in range(a + 1, d):
                inner += inverses[panel, p, lane] * contexts[k, b]
                p += 1
            square += 2.0 * contexts[k, a] * inner
        spread[k] = math.sqrt(max(square, 0.0))


@jit
def norms(contexts: Floats, spread: Floats) -> None:
    """Fill the spreads of a user without updates: M = I."""
    for k in range(contexts.shape[0]):
        square = 0.0
        for a in range(contexts.shape[1]):
            square += contexts[k, a] * contexts[k, a]
        spread[k] = math.sqrt(square)


@jit
def buffers(d: int) -> tuple[Floats, Floats, Floats, Floats]:
    """Return arrays for v, v/s, the estimates and the switches `on` of one panel."""
    return np.empty((d, PANEL)), np.empty((d, PANEL)), np.empty(PANEL), np.empty(PANEL)


@jit
def look(
    inverses: Floats, weights: Floats, panel: int, context: Floats, v: Floats, estimates: Floats
) -> Floats:
    """Fill v (features, 8) with M⁻¹x and estimates (8,) with w·x for a panel, and return x·v (8,)."""
    d = context.shape[0]
    v[:] = 0.0
    at = panel * inverses.shape[1] * PANEL  # where the panel starts
    apply_symmetric(inverses.ctypes.data + 8 * at, context.ctypes.data, v.ctypes.data, d)
    squares = np.zeros(PANEL)
    estimates[:] = 0.0
    for a in range(d):
        for j in range(PANEL):
            squares[j] += context[a] * v[a, j]
            estimates[j] += weights[panel, a, j] * context[a]
    return squares


@jit
def learn_panel(
    inverses: Floats,
    weights: Floats,
    lost: Residues,
    missed: Residues,
    panel: int,
    on: Floats,
    payoff: float,
    v: Floats,
    gain: Floats,
    squares: Floats,
    estimates: Floats,
) -> None:
    """Update the users of a panel with on ≠ 0; the others keep every bit.

    Rank one (Sherman–Morrison), for eight users at once: v = M⁻¹x, s = 1 + x·v, M⁻¹ −= v vᵀ/s,
    w += v (y − w·x)/s: O(d²), where inverting again would be O(d³).
    """
    d = v.shape[0]
    for a in range(d):
        for j in range(PANEL):
            gain[a, j] = v[a, j] / (1.0 + squares[j])
            if on[j]:
                old = weights[panel, a, j]
                step = gain[a, j] * (payoff - estimates[j]) + missed[panel, a, j]
                new = old + step
                weights[panel, a, j] = new
                missed[panel, a, j] = step - (new - old)
    at = panel * inverses.shape[1] * PANEL
    subtract_outer(
        inverses.ctypes.data + 8 * at,
        lost.ctypes.data + 4 * at,
        v.ctypes.data,
        gain.ctypes.data,
        on.ctypes.data,
        d,
    )


@jit
def learn_row(
    inverses: Floats,
    weights: Floats,
    lost: Residues,
    missed: Residues,
    row: int,
    context: Floats,
    payoff: float,
) -> None:
    """Update one row."""
    v, gain, estimates, on = buffers(context.shape[0])
    squares = look(inverses, weights, row // PANEL, context, v, estimates)
    on[:] = 0.0
    on[row % PANEL] = 1.0
    learn_panel(inverses, weights, lost, missed, row // PANEL, on, payoff, v, gain, squares, estimates)


@jit
def open_row(inverses: Floats, weights: Floats, lost: Residues, missed: Residues, row: int) -> None:
    """Set a row to M = I, w = 0."""
    panel, lane = row // PANEL, row % PANEL
    d = weights.shape[1]
    lost[panel, :, lane] = missed[panel, :, lane] = 0.0
    p = 0
    for a in range(d):
        weights[panel, a, lane] = 0.0
        for b in range(a, d):
            inverses[panel, p, lane] = 1.0 if a == b else 0.0
            p += 1
