"""The rounds of a batch as arrays, and the settings of CAB, as compiled loops take them."""

from typing import Any, NamedTuple, TypeAlias

from coterie.arrays import Bools, Floats, Ints
from coterie.models._kernels.given import given

# A NamedTuple as a plain tuple: Numba takes ten times longer to recognise the type of a NamedTuple.
Plain: TypeAlias = tuple[Any, ...]
REFUSED = -1  # in `updated`: the payoff was not learned, because a number would not have been finite


@given
class Rounds(NamedTuple):
    """The rounds to play, and their outcomes; the first axis is the round."""

    who: Ints  # (rounds,) a number for each user of these rounds
    candidates: Ints  # (rounds, candidates) positions in the items
    payoffs: Floats  # (rounds, candidates), or (rounds, 1) for a log
    served: Ints  # (rounds,) the logged position, -1 if all payoffs are known
    choice: Ints
    kept: Bools
    members: Ints
    updated: Ints


@given
class Rule(NamedTuple):
    """How CAB decides and learns."""

    alpha: float
    gamma: float
    learned: int  # payoffs, before the first round
    thompson: bool
