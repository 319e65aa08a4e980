"""HD and spHD as defined: every round, every user, every sequence of choices, every eigenvalue."""

from collections.abc import Hashable, Sequence
from itertools import combinations, product
from typing import Any

import numpy as np


def brute_force_hardness(
    users: Sequence[Hashable],
    contexts: Sequence[Any],
    eta: float,
    everyone: Sequence[Hashable],
    ridge: float = 1.0,
    sparsity: int | None = None,
) -> int:
    d = np.asarray(contexts[0]).shape[1]
    blocks = list(combinations(range(d), min(sparsity or d, d)))
    worst = 0
    for t in range(1, len(users) + 1):
        for j in everyone:
            rounds = [s for s in range(t) if users[s] == j]
            for choice in product(*(range(len(contexts[s])) for s in rounds)):
                M = ridge * np.eye(d)
                for s, k in zip(rounds, choice, strict=True):
                    x = np.asarray(contexts[s][k])
                    M = M + np.outer(x, x)
                if min(np.linalg.eigvalsh(M[np.ix_(S, S)])[0] for S in blocks) <= eta + 1e-9:
                    worst = t
    return worst
