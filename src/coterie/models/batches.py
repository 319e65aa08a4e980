"""Batches as compiled loops take them: ids become positions, and everything is checked before any round."""

from collections.abc import Hashable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie.errors import ContextError, PayoffError
from coterie.models.checks import check_user
from coterie.models.protocol import Floats

Ints = NDArray[np.int64]


def distinct(values: NDArray[Any]) -> tuple[NDArray[Any], Ints]:
    """Return the different integers in an array, sorted, and for each entry which of them it is."""
    low, high = (int(values.min()), int(values.max())) if values.size else (0, 0)
    if high - low > 4 * values.size + 1_000_000:
        found, where = np.unique(values, return_inverse=True)
        return found, where.reshape(values.shape)
    # A table is ten times faster than sorting, where it is not too long.
    seen = np.zeros(high - low + 1, dtype=np.bool_)
    shifted = values.astype(np.int64) - low
    seen[shifted] = True
    place = np.cumsum(seen) - 1
    return np.flatnonzero(seen) + low, place[shifted]


def positions(users: Any) -> tuple[list[Hashable], Ints]:
    """Return the different ids and, for each round, which of them it is."""
    if isinstance(users, np.ndarray) and users.dtype.kind in "iu" and users.ndim == 1:
        found, where = distinct(users)
        return found.tolist(), where
    names = users.tolist() if isinstance(users, np.ndarray) else list(users)
    for name in names:
        check_user(name)
    place: dict[Hashable, int] = {}
    where = np.array([place.setdefault(name, len(place)) for name in names], dtype=np.int64)
    return list(place), where


def read_rounds(batch: Any, n_items: int) -> tuple[Ints, Floats, Ints]:
    """Return a batch's candidates, payoffs (rounds, 1 or candidates) and served positions, if any."""
    rounds = len(batch.users)
    candidates = np.ascontiguousarray(batch.candidates, dtype=np.int64)
    if candidates.ndim != 2 or candidates.shape[0] != rounds or candidates.shape[1] == 0:
        raise ContextError(f"candidates have shape {candidates.shape}, expected ({rounds}, candidates)")
    if rounds and not (candidates.min() >= 0 and candidates.max() < n_items):
        raise ContextError(f"a candidate is not a position in the list of {n_items} items")
    payoffs = np.ascontiguousarray(batch.payoffs, dtype=np.float64)
    shape = candidates.shape if batch.served is None else (rounds,)
    if payoffs.shape != shape:
        raise PayoffError(f"payoffs have shape {payoffs.shape}, expected {shape}")
    if rounds and not (payoffs.min() >= -1 and payoffs.max() <= 1):  # NaN fails both
        raise PayoffError("payoffs must be numbers in [-1, 1]; scale payoffs before learning")
    if batch.served is None:
        return candidates, payoffs, np.empty(0, dtype=np.int64)
    served = np.ascontiguousarray(batch.served, dtype=np.int64)
    if served.shape != (rounds,):
        raise ContextError(f"served has shape {served.shape}, expected ({rounds},)")
    return candidates, payoffs[:, None], served
