"""Numbered ridge regressions over feature vectors, to be pooled, split and drawn from.

A row's facts are M − I and b; M⁻¹ and w are caches, updated by rank-one updates and recomputed by `refresh`.
"""

from functools import cache
from typing import Any, Self, final

import numpy as np
from numpy.typing import NDArray

from coterie.arrays import Floats, Ints
from coterie.errors import FileError
from coterie.models._kernels.rows import ridges
from coterie.models._kernels.rows.sums import total
from coterie.models.actions import ActionsLike
from coterie.models.checks import read_vectors
from coterie.models.files import Tensors, take
from coterie.models.protocol import View
from coterie.models.ranges import MOST_LEARNED, ROUNDED, are_covariances
from coterie.models.rows.ridge_rows import SOUND, RidgeRows


@cache
def packing(n_features: int) -> NDArray[np.intp]:
    """Return where each entry of a symmetric matrix is in its packed upper triangle: (n_features, n_features)."""
    place, upper = np.zeros((n_features, n_features), dtype=np.intp), np.triu_indices(n_features)
    place[upper] = place.T[upper] = np.arange(len(upper[0]))
    return place


def solve_view(gram: Floats, moment: Floats, contexts: Floats) -> View:
    """Return estimates and spreads of M = I + gram, packed, and b = moment."""
    d = len(moment)
    solved = np.linalg.solve(np.eye(d) + gram[packing(d)], np.column_stack([moment, contexts.T]))
    squares = np.einsum("kf,fk->k", contexts, solved[:, 1:])
    return View(contexts @ solved[:, 0], np.sqrt(np.maximum(squares, 0)))


@final
class Ridges(RidgeRows):
    """Rows over vectors of `n_features`."""

    one_hot = False
    _kernels = ridges

    def __init__(self, n_features: int) -> None:
        self.n_features = n_features
        self.items = {}
        self.rows = self._kernels.make(n_features, 16)

    def sibling(self) -> Self:
        return type(self)(self.n_features)

    def read(self, contexts: ActionsLike) -> Floats:
        return read_vectors(contexts, self.n_features)

    def numbers(self, contexts: Floats) -> Floats:
        """Return the vectors, contiguous in memory."""
        return np.require(contexts, requirements=["C", "W"])

    def products(self, rows: Ints | list[int]) -> Floats:
        """Return M of some rows: (rows, n_features, n_features)."""
        return np.asarray(np.eye(self.n_features) + self.rows.gram[rows][:, packing(self.n_features)])

    def fit(self, n_rows: int, entries: int) -> None:
        if len(self.rows.times) < n_rows:
            self.rows = self._kernels.grown(self.rows, max(n_rows, 2 * len(self.rows.times)), entries)

    def keep(self, rows: Ints) -> None:
        fresh = self._kernels.make(self.n_features, max(16, len(rows)))
        for old, new in zip(self.rows[:5], fresh[:5], strict=True):
            new[: len(rows)] = old[rows]
        fresh.size[0] = len(rows)
        self.rows = fresh

    def views(self, rows: Ints | slice, items: Floats) -> View:
        # One matrix product for all rows and contexts: xᵀM⁻¹x is M⁻¹ times x xᵀ, both packed.
        a, b = np.triu_indices(self.n_features)
        pairs = items[:, a] * items[:, b] * np.where(a == b, 1.0, 2.0)
        squares = self.rows.inverse[rows] @ pairs.T
        return View(self.rows.weight[rows] @ items.T, np.sqrt(np.maximum(squares, 0)))

    def pooled(self, rows: Ints, items: Floats) -> View:
        return solve_view(total(self.rows.gram, rows), total(self.rows.moment, rows), items)

    def tensors(self, prefix: str, rows: Ints) -> Tensors:
        """Return rows as arrays: facts and caches, so that a loaded row continues bit for bit."""
        names = ("gram", "moment", "inverse", "weight", "times")
        return {f"{prefix}_{name}": getattr(self.rows, name)[rows] for name in names}

    def restore(self, prefix: str, tensors: Tensors, n_rows: int) -> Any:
        """Return rows from a file, if the caches agree with the facts."""
        d = self.n_features
        fresh = self._kernels.make(d, max(16, n_rows))
        shapes = {"gram": d * (d + 1) // 2, "moment": d, "inverse": d * (d + 1) // 2, "weight": d}
        for name, width in shapes.items():
            getattr(fresh, name)[:n_rows] = take(tensors, f"{prefix}_{name}", "f", (n_rows, width))
        fresh.times[:n_rows] = take(tensors, f"{prefix}_times", "i", (n_rows,))
        fresh.size[0] = n_rows
        if (fresh.times < 0).any() or not self._sound(fresh, n_rows):
            raise FileError(f"the models under {prefix!r} in the file contradict each other")
        return fresh

    def _sound(self, rows: Any, n_rows: int) -> bool:
        """Return whether M·w = b and M·M⁻¹ = I, the latter on one vector, a thousand rows at a time."""
        square, probe = packing(self.n_features), np.linspace(0.5, 1.5, self.n_features)
        for start in range(0, n_rows, 1000):
            part = slice(start, min(start + 1000, n_rows))
            M, inverse = np.eye(self.n_features) + rows.gram[part][:, square], rows.inverse[part][:, square]
            if (np.diagonal(M, axis1=1, axis2=2) < 1 - SOUND).any():
                return False
            if not are_covariances(M, MOST_LEARNED) or not are_covariances(inverse, 1 + ROUNDED):
                return False
            off = np.abs(np.einsum("rij,rj->ri", M, rows.weight[part]) - rows.moment[part])
            turned = np.abs(np.einsum("rij,rj->ri", M, inverse @ probe) - probe)
            size = 1 + rows.times[part, None]
            if (off > SOUND * size).any() or (turned > SOUND * size).any():
                return False
        return True
