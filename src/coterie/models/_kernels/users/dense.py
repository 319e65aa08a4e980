"""Compiled loops over packed inverses, eight users a panel.

inverses   (panels, pairs, 8)      M⁻¹, its upper triangle row by row
weights    (panels, features, 8)   w = M⁻¹b
lost       like inverses, float32  what rounding took from each entry, to be added back (Kahan)
missed     like weights, float32   the same for w

Why compensate: a rank-one step rounds every entry of M⁻¹, and in directions that no context explores nothing ever
corrects it. After a million updates the error, relative to the largest entry, is up to 6e-14; computing M⁻¹ afresh
from a summed up M is far worse (1e-5: the sum has rounded too, and M is ill-conditioned); with compensation M⁻¹ is
right to the last bit, and no d³ is ever paid (tests/models/test_dense.py).
"""

import math

import numpy as np
from numpy.typing import NDArray

from coterie.models._kernels.jit import jit
from coterie.models._kernels.users.simd import (
    PANEL,
    PANELS,
    WIDEST,
    apply_symmetric,
    multiply,
    multiply_many,
    subtract_outer,
)
from coterie.models.protocol import ROUNDING, TIE, Floats

Residues = NDArray[np.float32]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

TINY = 1e-300  # in place of a pivot that rounding made zero
CHUNK = 512  # panels a thread takes at a time; sums are made chunk by chunk whatever the number of threads
GROUP = 8  # panels whose neighbours are counted together, so that the loop is worth vectorising


@jit
def lay_columns(contexts: Floats, flat_pairs: Floats, flat_features: Floats) -> None:
    """Write contexts as the tiles of `multiply` take them: products xₐ·x_b (twice if a ≠ b), and x itself."""
    n, d = contexts.shape
    tiles = (n + WIDEST - 1) // WIDEST
    first = 0
    pairs = d * (d + 1) // 2
    for tile in range(tiles):
        width = n // tiles + (1 if tile < n % tiles else 0)
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


@jit
def lay_out(columns: Floats, n: int, length: int) -> Floats:
    """Return n columns, each a row of `columns`, as `multiply_panel` takes them."""
    flat = np.empty(n * length)
    tiles = (n + WIDEST - 1) // WIDEST
    first = 0
    for tile in range(tiles):
        width = n // tiles + (1 if tile < n % tiles else 0)
        for k in range(width):
            for p in range(length):
                flat[first * length + p * width + k] = columns[first + k, p]
        first += width
    return flat


@jit
def multiply_panel(array: Floats, panel: int, flat: Floats, n: int, out: Floats, lane: int) -> None:
    """Fill out (n, lanes), from `lane` on, with the products of one panel of `array` and n laid out columns."""
    length, stride = array.shape[1], out.shape[1]
    tiles = (n + WIDEST - 1) // WIDEST
    first = 0
    for tile in range(tiles):
        width = n // tiles + (1 if tile < n % tiles else 0)
        multiply(
            array.ctypes.data + 8 * panel * length * PANEL,
            flat.ctypes.data + 8 * first * length,
            out.ctypes.data + 8 * (first * stride + lane),
            stride,
            length,
            width,
        )
        first += width


@jit
def multiply_panels(array: Floats, panel: int, flat: Floats, n: int, out: Floats, lane: int) -> None:
    """Do what `multiply_panel` does for PANELS panels, from `panel` on."""
    length, stride = array.shape[1], out.shape[1]
    tiles = (n + WIDEST - 1) // WIDEST
    first = 0
    for tile in range(tiles):
        width = n // tiles + (1 if tile < n % tiles else 0)
        multiply_many(
            array.ctypes.data + 8 * panel * length * PANEL,
            flat.ctypes.data + 8 * first * length,
            out.ctypes.data + 8 * (first * stride + lane),
            stride,
            length,
            width,
        )
        first += width


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
    """Fill the spreads of a user who never learned: M = I."""
    for k in range(contexts.shape[0]):
        square = 0.0
        for a in range(contexts.shape[1]):
            square += contexts[k, a] * contexts[k, a]
        spread[k] = math.sqrt(square)


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
            near = abs(e - estimates[k, j]) <= scale * (s + width) + ROUNDING
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
    """Sum over all neighbours, chunk after chunk, as several threads would."""
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
def draw_panel(
    inverses: Floats, weights: Floats, panel: int, normals: Floats, scale: float, drawn: Floats
) -> None:
    """Fill drawn (1, features, 8) with w + scale·Uᵀz for the users of a panel, where M⁻¹ = UᵀU: N(w, scale²·M⁻¹)."""
    d = weights.shape[1]
    u = inverses[panel].copy()  # becomes U in place; entry (a, b) lies at start[a] + b
    start = np.empty(d, dtype=np.int64)
    for a in range(d):
        start[a] = a * d - a * (a + 1) // 2
    for a in range(d):
        for j in range(PANEL):
            drawn[0, a, j] = weights[panel, a, j]
        for r in range(a):
            for b in range(a, d):
                for j in range(PANEL):
                    u[start[a] + b, j] -= u[start[r] + a, j] * u[start[r] + b, j]
        for b in range(d - 1, a - 1, -1):
            for j in range(PANEL):
                u[start[a] + b, j] /= math.sqrt(max(u[start[a] + a, j], TINY))
    for a in range(d):
        for j in range(min(PANEL, normals.shape[0] - panel * PANEL)):
            z = scale * normals[panel * PANEL + j, a]
            for b in range(a, d):
                drawn[0, b, j] += u[start[a] + b, j] * z


@jit
def draw_all(
    inverses: Floats,
    weights: Floats,
    rows: int,
    normals: Floats,
    contexts: Floats,
    own_estimate: Floats,
    own_spread: Floats,
    scale: float,
) -> Floats:
    """Sum over all neighbours: members, estimates, spreads, and what each of them draws (4, candidates)."""
    n, d = contexts.shape
    flat_pairs, flat_features = np.empty(n * inverses.shape[1]), np.empty(n * d)
    lay_columns(contexts, flat_pairs, flat_features)
    squares, estimates = np.empty((n, PANEL)), np.empty((n, PANEL))
    drawn, payoffs = np.empty((1, d, PANEL)), np.empty((n, PANEL))
    total = np.zeros((4, n))
    for panel in range((rows + PANEL - 1) // PANEL):
        multiply_panel(inverses, panel, flat_pairs, n, squares, 0)
        multiply_panel(weights, panel, flat_features, n, estimates, 0)
        draw_panel(inverses, weights, panel, normals, scale, drawn)
        multiply_panel(drawn, 0, flat_features, n, payoffs, 0)
        for k in range(n):
            for j in range(min(PANEL, rows - panel * PANEL)):
                width = math.sqrt(max(squares[k, j], 0.0))
                if abs(own_estimate[k] - estimates[k, j]) <= scale * (own_spread[k] + width) + ROUNDING:
                    total[0, k] += 1.0
                    total[1, k] += estimates[k, j]
                    total[2, k] += width
                    total[3, k] += payoffs[k, j]
    return total


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
            inside = abs(own_estimate - estimates[0, j]) <= scale * (own_spread + width) + ROUNDING
            near[panel * PANEL + j] = inside
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
    """Let the rows learn that are neighbours with a bound below `limit`, `own_row` always; return how many.

    Panel by panel, so that each is read once: v = M⁻¹x gives the spread, √(x·v), and then the update.
    """
    v, gain, estimates, on = buffers(context.shape[0])
    learners = 0
    for panel in range((rows + PANEL - 1) // PANEL):
        squares = look(inverses, weights, panel, context, v, estimates)
        before = learners
        for j in range(PANEL):
            width = math.sqrt(max(squares[j], 0.0))
            near = abs(own_estimate - estimates[j]) <= scale * (own_spread + width) + ROUNDING
            row = panel * PANEL + j
            learns = row < rows and ((near and scale * width < limit) or row == own_row)
            on[j] = 1.0 if learns else 0.0
            learners += learns
        if learners > before:
            learn_panel(inverses, weights, lost, missed, panel, on, payoff, v, gain, squares, estimates)
    return learners


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
    """Let one row learn."""
    v, gain, estimates, on = buffers(context.shape[0])
    squares = look(inverses, weights, row // PANEL, context, v, estimates)
    on[:] = 0.0
    on[row % PANEL] = 1.0
    learn_panel(inverses, weights, lost, missed, row // PANEL, on, payoff, v, gain, squares, estimates)


@jit
def buffers(d: int) -> tuple[Floats, Floats, Floats, Floats]:
    """Return room for v, v/s, the estimates and who is on, of one panel."""
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
    """Let the users of a panel with on ≠ 0 learn; the others keep every bit.

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
def open_row(inverses: Floats, weights: Floats, lost: Residues, missed: Residues, row: int) -> None:
    """Set a row to M = I, w = 0."""
    panel, lane = row // PANEL, row % PANEL
    d = weights.shape[1]
    p = 0
    for a in range(d):
        weights[panel, a, lane] = missed[panel, a, lane] = 0.0
        for b in range(a, d):
            inverses[panel, p, lane] = 1.0 if a == b else 0.0
            lost[panel, p, lane] = 0.0
            p += 1


@jit
def run_cab(
    inverses: Floats,
    weights: Floats,
    lost: Residues,
    missed: Residues,
    rows: int,
    users: Ints,
    row_of: Ints,
    known: Bools,
    everybody: bool,
    table: Floats,
    candidates: Ints,
    payoffs: Floats,
    served: Ints,
    alpha: float,
    gamma: float,
    learned: int,
    thompson: bool,
    rng: np.random.Generator,
    choice: Ints,
    kept: Bools,
    members: Ints,
    updated: Ints,
) -> int:
    """Play rounds of Algorithm 1 and return how many rows there are then.

    `users` are positions in `row_of` (-1: no row yet) and `known` (registered); `everybody` is eligible="all".
    There is room for a row for each of them. `served[t]` is -1 where payoffs (rounds, candidates) are all known.
    """
    c, d = candidates.shape[1], table.shape[1]
    contexts = np.empty((c, d))
    estimate, spread, bare = np.empty(c), np.empty(c), np.empty(c)
    limit = gamma / 4
    idle = 0
    for u in range(row_of.shape[0]):
        idle += known[u] and row_of[u] < 0
    for t in range(users.shape[0]):
        user = users[t]
        row = row_of[user]
        for k in range(c):
            for a in range(d):
                contexts[k, a] = table[candidates[t, k], a]
        scale = alpha * math.sqrt(math.log1p(learned + 1))
        norms(contexts, bare)
        if row < 0:
            estimate[:] = 0.0
            spread[:] = bare
        else:
            view(inverses, weights, row, contexts, estimate, spread)
        if thompson:
            normals = rng.standard_normal((rows, d))
            near = draw_all(inverses, weights, rows, normals, contexts, estimate, spread, scale)
        else:
            near = gather_all(inverses, weights, rows, contexts, estimate, spread, scale)
        waiting = (idle + (not known[user]) if everybody else (row < 0) * 1) * 1.0
        if thompson and waiting:
            together = rng.standard_normal(d)
        best = -np.inf
        for k in range(c):
            if abs(estimate[k]) <= scale * (spread[k] + bare[k]) + ROUNDING:
                near[0, k] += waiting
                near[2, k] += waiting * bare[k]
                if thompson and waiting:
                    near[3, k] += scale * math.sqrt(waiting) * (contexts[k] * together).sum()
            if thompson:
                near[1, k] = near[3, k] / near[0, k]
            else:
                near[1, k] = near[1, k] / near[0, k] + scale * near[2, k] / near[0, k]
            best = max(best, near[1, k])
        k = 0
        while best - near[1, k] >= TIE:
            k += 1
        choice[t] = k
        members[t] = int(near[0, k])
        kept[t] = served[t] < 0 or served[t] == k
        if not kept[t]:
            continue
        payoff = payoffs[t, k] if served[t] < 0 else payoffs[t, 0]
        context = contexts[k]
        if scale * spread[k] >= limit:
            if row < 0:
                row, rows = rows, rows + 1
                row_of[user] = row
                idle -= known[user]
                open_row(inverses, weights, lost, missed, row)
            learn_row(inverses, weights, lost, missed, row, context, payoff)
            updated[t] = 1
        else:
            updated[t] = share(
                inverses,
                weights,
                lost,
                missed,
                rows,
                row,
                context,
                payoff,
                estimate[k],
                spread[k],
                scale,
                limit,
            )
            before = rows
            if abs(estimate[k]) <= scale * (spread[k] + bare[k]) + ROUNDING and scale * bare[k] < limit:
                if everybody:
                    for u in range(row_of.shape[0]):
                        if known[u] and row_of[u] < 0:
                            row_of[u] = rows
                            rows += 1
                    idle = 0
                if row_of[user] < 0:
                    row_of[user] = rows
                    rows += 1
            for fresh in range(before, rows):
                open_row(inverses, weights, lost, missed, fresh)
                learn_row(inverses, weights, lost, missed, fresh, context, payoff)
            updated[t] += rows - before
        known[user] = True
        learned += 1
    return rows
