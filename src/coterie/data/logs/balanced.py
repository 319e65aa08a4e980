"""Balanced candidate lists by systematic sampling, compiled; see `coterie.data.logs.lists`."""

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from numba import njit

from coterie.arrays import Floats, Ints

Compiled = TypeVar("Compiled", bound=Callable[..., Any])


def _compile(function: Compiled) -> Compiled:
    try:
        compiled: Compiled = njit(cache=True, error_model="numpy")(function)
    except RuntimeError:  # no folder for the machine code: each process compiles it again
        compiled = njit(error_model="numpy")(function)
    return compiled


@_compile
def walk(
    rng: np.random.Generator, items: Ints, shares: Floats, n_candidates: int, stretch: int
) -> tuple[Ints, Ints]:
    """Return each record's candidate list, and the served item's position in it.

    A list holds the items at every whole step around the circle, from a random point of the served item. The
    order of the circle is drawn again every `stretch` records. Lists are shuffled.
    """
    n_records, n_items = len(items), len(shares)
    lists = np.empty((n_records, n_candidates), dtype=np.int64)
    served = np.empty(n_records, dtype=np.int64)
    seen = np.full(n_items, -1, dtype=np.int64)  # the last record in whose list each item is
    order = np.arange(n_items)
    place = np.empty(n_items, dtype=np.int64)
    ends = np.empty(n_items)
    for t in range(n_records):
        if t % stretch == 0:
            for k in range(n_items - 1, 0, -1):
                other = int(rng.random() * (k + 1))
                order[k], order[other] = order[other], order[k]
            total = 0.0
            for k in range(n_items):
                total += shares[order[k]]
                ends[k] = total
                place[order[k]] = k
            for k in range(n_items):
                ends[k] *= n_candidates / total
        own = place[items[t]]
        start = ends[own - 1] if own > 0 else 0.0
        point = start + rng.random() * (ends[own] - start)
        lists[t, 0] = items[t]
        seen[items[t]] = t
        for step in range(1, n_candidates):
            at = point + step
            if at >= n_candidates:
                at -= n_candidates
            low, high = 0, n_items - 1  # the first item that ends beyond `at`
            while low < high:
                middle = (low + high) // 2
                if ends[middle] > at:
                    high = middle
                else:
                    low = middle + 1
            item = order[low]
            while seen[item] == t:  # an item of length one step, met twice by rounding: take any other
                item = int(rng.random() * n_items)
            lists[t, step] = item
            seen[item] = t
        served[t] = 0
        for k in range(n_candidates - 1, 0, -1):
            other = int(rng.random() * (k + 1))
            lists[t, k], lists[t, other] = lists[t, other], lists[t, k]
            if served[t] == other:
                served[t] = k
            elif served[t] == k:
                served[t] = other
    return lists, served
