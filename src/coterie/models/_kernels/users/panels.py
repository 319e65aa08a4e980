"""Products of panels with contexts. A panel has the same numbers of eight users: (length, 8).

The products of all users with all candidates are those of the panels with the candidates' columns, tile by tile.
"""

import numpy as np

from coterie.arrays import Floats, Ints
from coterie.models._kernels.jit import jit
from coterie.models._kernels.users.simd import PANEL, WIDEST, multiply, multiply_many


@jit
def tile_width(n: int, tile: int) -> int:
    """Return how many of n columns a tile of `multiply` has: tiles are as equal as possible, at most WIDEST."""
    tiles = (n + WIDEST - 1) // WIDEST
    return n // tiles + (1 if tile < n % tiles else 0)


@jit
def lay_columns(items: Floats, which: Ints) -> tuple[Floats, Floats]:
    """Lay out each x = items[which[k]]: the products xₐ·x_b (twice if a ≠ b), and x itself."""
    n, d = len(which), items.shape[1]
    size = d * (d + 1) // 2
    pairs, features = np.empty(n * size), np.empty(n * d)
    first = tile = 0
    while first < n:
        width = tile_width(n, tile)
        p, q = first * size, first * d
        for a in range(d):
            for k in range(first, first + width):
                features[q] = items[which[k], a]
                q += 1
            for b in range(a, d):
                for k in range(first, first + width):
                    x = items[which[k], a] * items[which[k], b]
                    pairs[p] = x if a == b else 2.0 * x
                    p += 1
        first += width
        tile += 1
    return pairs, features


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
