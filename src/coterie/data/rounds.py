"""A round: one visit of one user, with its candidates and what each of them would have paid."""

from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


class Round(NamedTuple):
    """One visit. The policy sees `user` and `contexts`; of `payoffs` it only ever learns the chosen one."""

    user: Hashable
    contexts: Any  # an array (candidates, n_features), a sequence of item ids, or `Candidates` with both
    payoffs: NDArray[np.float64]  # (candidates,) what each candidate pays now; NaN where a log does not say
    expected: NDArray[np.float64]  # (candidates,) what each pays on average; `payoffs` itself where unknown
    joined: Sequence[Hashable] = ()  # users who arrive before this visit
    left: Sequence[Hashable] = ()  # users who leave before this visit
