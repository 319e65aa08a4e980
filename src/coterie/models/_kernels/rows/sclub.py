"""SCLUB's search for a cluster to merge with."""

from typing import Any

from coterie.arrays import Bools, Floats, Ints
from coterie.models._kernels.jit import jit
from coterie.models._kernels.rows.dispatch import squared_distance


@jit
def partner(pools: Any, c: int, whole: Bools, age: Ints, rate: Floats, near: Floats, alike: float) -> int:
    """Return the oldest pool that is similar to pool c and `whole`, or -1.

    Two pools are similar if their `rate` differs by less than `alike`, and their profiles by less than the sum of
    their `near`.
    """
    found = -1
    for d in range(len(whole)):
        if d == c or not whole[d] or (found >= 0 and age[d] > age[found]):
            continue
        limit = near[c] + near[d]
        if abs(rate[c] - rate[d]) < alike and squared_distance(pools, c, pools, d) < limit * limit:
            found = d
    return found
