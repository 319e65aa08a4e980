"""A round: one visit of one user, with the candidates and the payoff of each."""

from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


class Round(NamedTuple):
    """One visit. The policy sees `user` and `contexts`; of `payoffs` it learns only the chosen one's."""

    user: Hashable
    contexts: Any  # an array (candidates, n_features), a sequence of item ids, `Candidates` or `InContext`
    payoffs: NDArray[np.float64]  # (candidates,) each candidate's payoff; NaN where a log does not know it
    expected: NDArray[np.float64]  # (candidates,) the expected payoffs; `payoffs` itself where unknown
    joined: Sequence[Hashable] = ()  # users who arrive before this visit
    left: Sequence[Hashable] = ()  # users who leave before this visit
