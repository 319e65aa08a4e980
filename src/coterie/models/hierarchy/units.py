"""Numbers in units of their own spread, around their own mean, for effects that are learned independently.

A diagonal posterior needs that: if all temperatures are near 20, then what a user likes per degree and what the user
likes in any weather would be told apart slowly, and a feature in other units would count a thousand times more.

A feature is counted from the first value that is not 1: words and flags are 1 where they are present. The mean and
the spread are those over the payoffs so far where it was present. A feature that is often absent, where it counts as
0, keeps its origin.
"""

from typing import NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from coterie.arrays import Floats
from coterie.errors import FileError
from coterie.models.files import Tensors, take
from coterie.models.hierarchy.blocks import UNEQUAL, median
from coterie.models.ranges import MOST_STORED

MOST = 1024  # features with units of their own
# With so many times as many payoffs with a feature as without, what is absent is not known; else it is 0.
OFTEN = 9.0
COUNT, ABSENT, MEAN, SQUARES = range(4)  # the rows of `seen`; SQUARES is the sum of squares around the mean

Hashes = NDArray[np.uint64]


class Counted(NamedTuple):
    """What is known of the features with units: their hashes in order, and their numbers in the same order."""

    hashes: Hashes
    seen: Floats  # (4, features)


@final
class Units:
    """The means and spreads of features. An object never changes: a payoff that is refused leaves no trace."""

    def __init__(self, counted: Counted | None = None) -> None:
        self.counted = counted or Counted(np.empty(0, np.uint64), np.empty((4, 0)))
        count, absent, mean, squares = self.counted.seen
        often = count > OFTEN * absent
        around = squares / np.maximum(count, 1.0)
        spread = np.sqrt(np.where(often, around, around + mean * mean))
        varied = squares > 0.0
        middle = median(spread[varied]) if varied.any() else 1.0
        self._origin = np.where(often, mean, 0.0)
        self._scale = np.where(varied, spread, np.inf)  # a number that has not varied is left out
        self._weight = np.clip(np.where(varied, spread, middle) / middle, 1.0 / UNEQUAL, UNEQUAL)
        self._reach = np.sqrt(np.maximum(count, 1.0))  # none of so many is farther from their mean

    def count(self, hashes: Hashes, values: Floats) -> "Units":
        """Return the units after one more payoff, with these features."""
        known, old = self.counted
        at, here = _find(known, hashes)
        new = np.unique(hashes[(values != 1.0) & ~here])[: MOST - len(known)]
        if not len(known) and not len(new):
            return self
        names, seen = known, old.copy()
        if len(new):
            names, seen = np.concatenate([known, new]), np.concatenate([old, np.zeros((4, len(new)))], axis=1)
            order = np.argsort(names)
            names, seen = names[order], seen[:, order]
            at, here = _find(names, hashes)
        at, given = at[here], values[here]
        seen[ABSENT] += 1.0
        seen[ABSENT, at] -= 1.0
        seen[COUNT, at] += 1.0
        off = given - seen[MEAN, at]
        seen[MEAN, at] += off / seen[COUNT, at]
        seen[SQUARES, at] += off * (given - seen[MEAN, at])
        return Units(Counted(names, seen))

    def convert(self, hashes: Hashes, values: Floats) -> Floats:
        """Return the values in these units. A number that is not known is left out: it counts as 0."""
        known = self.counted.hashes
        others = values if len(known) == MOST else np.where(values == 1.0, 1.0, 0.0)
        if not len(known):
            return others
        at, here = _find(known, hashes)
        apart = np.clip((values - self._origin[at]) / self._scale[at], -self._reach[at], self._reach[at])
        return np.where(here, apart * self._weight[at], others)

    def tensors(self, name: str) -> Tensors:
        """Return everything as arrays, with names that begin with this one."""
        return {f"{name}_hashes": self.counted.hashes.copy(), f"{name}_seen": self.counted.seen.copy()}

    @classmethod
    def restored(cls, name: str, tensors: Tensors) -> "Units":
        """Return what `tensors` returned, if it is consistent."""
        hashes = take(tensors, f"{name}_hashes", "u", (None,))
        seen = take(tensors, f"{name}_seen", "f", (4, len(hashes)))
        sound = (
            len(hashes) <= MOST
            and (hashes[1:] > hashes[:-1]).all()
            and (np.abs(seen) <= MOST_STORED).all()
            and (seen[[ABSENT, SQUARES]] >= 0).all()
            and (seen[COUNT] >= 1).all()
        )
        if not sound:
            raise FileError("the units of features in the model file contradict each other")
        return cls(Counted(hashes.copy(), seen.copy()))


def _find(known: Hashes, hashes: Hashes) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return the place of each hash among the known ones, which are in order, and whether it is there."""
    if not len(known):
        return np.zeros(len(hashes), np.int64), np.zeros(len(hashes), np.bool_)
    at = np.minimum(known.searchsorted(hashes), len(known) - 1)
    return at, known[at] == hashes
