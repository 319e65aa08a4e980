"""Small symmetric positive definite matrices: factors and inverses.

All inner loops run along rows, so that the compiler can use vector instructions without changing the order of
any sum: the same input gives the same bits on every call.
"""

import math

import numpy as np

from coterie.arrays import Floats
from coterie.models._kernels.jit import jit
from coterie.models._kernels.users.simd import PANEL, add_scaled, dot_rows, weigh_rows


@jit
def invert(matrix: Floats, d: int, root: Floats, inverse: Floats) -> float:
    """Invert the first d × d entries of `matrix` and return log det(matrix).

    `matrix` is overwritten. `root` becomes the lower triangular R with RᵀR = matrix⁻¹, so Rᵀz has covariance
    `inverse` for standard normal z.
    """
    log_det = 0.0
    # Cholesky, matrix = UᵀU, row by row: after step j the rows below hold what is left to factor.
    for j in range(d):
        pivot = math.sqrt(matrix[j, j])
        log_det += math.log(pivot)
        top = matrix[j]
        for k in range(j, d):
            top[k] /= pivot
        for i in range(j + 1, d):
            factor, row = top[i], matrix[i]
            for k in range(i, d):
                row[k] -= factor * top[k]
    # R = (Uᵀ)⁻¹, row by row: each from the rows above.
    for i in range(d):
        row = root[i]
        for k in range(i + 1):
            row[k] = 0.0
        row[i] = 1.0
        for j in range(i):
            factor, above = matrix[j, i], root[j]
            for k in range(j + 1):
                row[k] -= factor * above[k]
        scale = matrix[i, i]
        for k in range(i + 1):
            row[k] /= scale
    for i in range(d):
        for k in range(d):
            inverse[i, k] = 0.0
    for j in range(d):
        row = root[j]
        for i in range(j + 1):
            factor, out = row[i], inverse[i]
            for k in range(i + 1):
                out[k] += factor * row[k]
    for i in range(d):
        for k in range(i):
            inverse[k, i] = inverse[i, k]
    return 2.0 * log_det


@jit
def invert_panel(matrices: Floats, d: int, roots: Floats, inverses: Floats, log_det: Floats) -> None:
    """Do as `invert` for eight matrices side by side, (d, d, PANEL) each; the lower triangles are not read.

    `matrices` are overwritten; `log_det` (PANEL,) becomes their logarithms.
    """
    one = 8 * PANEL  # bytes from an entry to the next
    line = d * one
    matrix, root, inverse = matrices.ctypes.data, roots.ctypes.data, inverses.ctypes.data
    scale = np.empty(PANEL)
    log_det[:] = 0.0
    for j in range(d):
        top = matrix + j * line
        for lane in range(PANEL):
            pivot = math.sqrt(matrices[j, j, lane])
            log_det[lane] += 2.0 * math.log(pivot)
            scale[lane] = 1.0 / pivot
        for k in range(j, d):
            for lane in range(PANEL):
                matrices[j, k, lane] *= scale[lane]
        for i in range(j + 1, d):
            add_scaled(matrix + i * line + i * one, top + i * one, top + i * one, d - i, 1)
    for i in range(d):
        row = root + i * line
        roots[i, :i] = 0.0
        roots[i, i] = 1.0
        for j in range(i):
            add_scaled(row, root + j * line, matrix + j * line + i * one, j + 1, 1)
        for lane in range(PANEL):
            scale[lane] = 1.0 / matrices[i, i, lane]
        for k in range(i + 1):
            for lane in range(PANEL):
                roots[i, k, lane] *= scale[lane]
    inverses[:] = 0.0
    for j in range(d):
        row = root + j * line
        for i in range(j + 1):
            add_scaled(inverse + i * line, row, row + i * one, i + 1, 0)
    for i in range(d):
        for k in range(i):
            for lane in range(PANEL):
                inverses[k, i, lane] = inverses[i, k, lane]


# The functions below take arrays, so that the arrays live until their addresses were used.


@jit
def times_panel(matrices: Floats, d: int, vectors: Floats, out: Floats) -> None:
    """Write matrix · vector for eight symmetric matrices and vectors, (d, d, PANEL) and (d, PANEL)."""
    out[:] = 0.0
    for i in range(d):
        row, factor = matrices.ctypes.data + 8 * PANEL * d * i, vectors.ctypes.data + 8 * PANEL * i
        add_scaled(out.ctypes.data, row, factor, d, 0)


@jit
def dot_panel(left: Floats, right: Floats, count: int, out: Floats) -> None:
    """Write eight sums of products over `count` rows."""
    dot_rows(left.ctypes.data, right.ctypes.data, out.ctypes.data, count)


@jit
def sum_panel(rows: Floats, weights: Floats, count: int, out: Floats) -> None:
    """Add each row's weighted sum over the eight to an entry of `out`."""
    weigh_rows(rows.ctypes.data, weights.ctypes.data, out.ctypes.data, count)


@jit
def times(matrix: Floats, d: int, x: Floats, out: Floats) -> None:
    """Write matrix · x for a symmetric matrix."""
    for i in range(d):
        out[i] = 0.0
    for i in range(d):
        factor, row = x[i], matrix[i]
        if factor != 0.0:
            for k in range(d):
                out[k] += factor * row[k]


@jit
def dot(x: Floats, y: Floats, d: int) -> float:
    """Return x·y over the first d entries."""
    total = 0.0
    for i in range(d):
        total += x[i] * y[i]
    return total


@jit
def add_outer(matrix: Floats, d: int, weight: float, x: Floats) -> None:
    """Add weight · x xᵀ."""
    for i in range(d):
        factor, row = weight * x[i], matrix[i]
        if factor != 0.0:
            for k in range(d):
                row[k] += factor * x[k]


@jit
def unpack(packed: Floats, d: int, full: Floats) -> None:
    """Write a packed lower triangle as a symmetric matrix."""
    at = 0
    for i in range(d):
        for k in range(i + 1):
            full[i, k] = full[k, i] = packed[at]
            at += 1


@jit
def add_packed(packed: Floats, d: int, weight: float, x: Floats) -> None:
    """Add weight · x xᵀ to a packed lower triangle."""
    at = 0
    for i in range(d):
        factor = weight * x[i]
        for k in range(i + 1):
            packed[at + k] += factor * x[k]
        at += i + 1
