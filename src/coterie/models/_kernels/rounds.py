"""The rounds of a batch as arrays, and the settings of CAB, as compiled loops take them."""

from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

# A NamedTuple as a plain tuple: Numba takes ten times longer to recognise the type of a NamedTuple.
Plain: TypeAlias = tuple[Any, ...]


class Rounds(NamedTuple):
    """The rounds to play, and their outcomes; the first axis is the round."""

    who: NDArray[np.int64]  # (rounds,) a number for each user of these rounds
    candidates: NDArray[np.int64]  # (rounds, candidates) positions in the items
    payoffs: NDArray[np.float64]  # (rounds, candidates), or (rounds, 1) for a log
    served: NDArray[np.int64]  # (rounds,) the logged position, -1 if all payoffs are known
    choice: NDArray[np.int64]
    kept: NDArray[np.bool_]
    members: NDArray[np.int64]
    updated: NDArray[np.int64]


class Rule(NamedTuple):
    """How CAB decides and learns."""

    alpha: float
    gamma: float
    learned: int  # payoffs, before the first round
    thompson: bool
