"""Hashed features as a table: each has a column."""

from collections.abc import Iterable
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from coterie.arrays import Bools, Floats, Ints
from coterie.models._kernels.hierarchy.effect_keys import HashedItems


def without_ids(hashed: HashedItems) -> Floats:
    """Return the values of all features, 0 for ids."""
    values = hashed.values.copy()
    values[hashed.starts[:-1][hashed.has_id]] = 0.0
    return values


@final
class Columns:
    """The features that have a column, by their hashes."""

    def __init__(self) -> None:
        self.hashes: list[int] = []
        self.add([])

    def __len__(self) -> int:
        return len(self.hashes)

    def add(self, hashes: Iterable[int]) -> None:
        """Give new features columns."""
        self.hashes += hashes
        found = np.array(self.hashes, dtype=np.uint64)
        self._order = np.argsort(found)
        self._sorted: NDArray[np.uint64] = found[self._order]

    def find(self, hashes: NDArray[np.uint64]) -> tuple[Bools, NDArray[Any]]:
        """Return which features have a column, and the columns; where there is none, some column."""
        if not self.hashes:
            return np.zeros(len(hashes), dtype=np.bool_), np.zeros(len(hashes), dtype=np.int64)
        at = np.minimum(np.searchsorted(self._sorted, hashes), len(self.hashes) - 1)
        return self._sorted[at] == hashes, self._order[at]

    def table(self, starts: Ints, hashes: NDArray[np.uint64], values: Floats) -> Floats:
        """Return a row for each candidate; candidate k has the features starts[k] to starts[k + 1]."""
        found = np.zeros((len(starts) - 1, len(self.hashes)))
        if self.hashes:
            known, column = self.find(hashes)
            rows = np.repeat(np.arange(len(found)), np.diff(starts))
            np.add.at(found, (rows[known], column[known]), values[known])
        return found
