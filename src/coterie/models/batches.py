"""Ids as compiled loops take them: positions in a list of the different ones."""

from collections.abc import Hashable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


def distinct(values: NDArray[Any]) -> tuple[NDArray[Any], Ints]:
    """Return the different integers in an array, sorted, and for each entry which of them it is."""
    low, high = (int(values.min()), int(values.max())) if values.size else (0, 0)
    if high - low > 4 * values.size + 1_000_000:
        found, where = np.unique(values, return_inverse=True)
        return found, where.reshape(values.shape)
    # A table is ten times faster than sorting, where it is not too long.
    seen = np.zeros(high - low + 1, dtype=np.bool_)
    wide = np.uint64 if values.dtype.kind == "u" else np.int64  # unsigned ids may lie beyond what int64 holds
    shifted = (values.astype(wide) - wide(low)).astype(np.int64)
    seen[shifted] = True
    place = np.cumsum(seen) - 1
    return np.flatnonzero(seen).astype(wide) + wide(low), place[shifted]


def positions(users: Any) -> tuple[list[Hashable], Ints]:
    """Return the different ids and, for each round, which of them it is."""
    if isinstance(users, np.ndarray) and users.dtype.kind in "iu" and users.ndim == 1:
        found, where = distinct(users)
        return found.tolist(), where
    names = users.tolist() if isinstance(users, np.ndarray) else list(users)
    place: dict[Hashable, int] = {}
    where = np.array([place.setdefault(name, len(place)) for name in names], dtype=np.int64)
    return list(place), where
