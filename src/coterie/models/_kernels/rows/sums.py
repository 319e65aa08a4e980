"""Loops that sum or average rows without copying them."""

import numpy as np

from coterie.arrays import Floats, Ints
from coterie.models._kernels.jit import jit


@jit
def total(rows: Floats, chosen: Ints) -> Floats:
    """Return the sum of some rows."""
    found = np.zeros(rows.shape[1])
    for row in chosen:
        for k in range(rows.shape[1]):
            found[k] += rows[row, k]
    return found


@jit
def average(rows: Floats, meets: Ints, into: Floats) -> None:
    """Write each row's average with the row that it meets."""
    for row in range(rows.shape[0]):
        other = meets[row]
        for k in range(rows.shape[1]):
            into[row, k] = (rows[row, k] + rows[other, k]) / 2


@jit
def add_outer(rows: Floats, share: Floats, column: Floats) -> None:
    """Add to each row its share of a column."""
    for row in range(rows.shape[0]):
        if share[row] != 0.0:
            for k in range(rows.shape[1]):
                rows[row, k] += share[row] * column[k]
