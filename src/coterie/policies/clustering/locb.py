"""LOCB: clusters around seed users, which may overlap (Ban and He, 2021).

paper            here
i                user
s ∈ S            a position in _seeds, up to n_seeds
N_s              the users who have not left the seed's cluster: `s not in _left[row]`
A_i, b_i, T_i    a row of user_rows; θ_i = A_i⁻¹b_i
A_{N_s}, b_{N_s} row s of pools, which counts one payoff more than it learned
f(T)             `certainty`: √((1 + log(1 + T))/(1 + T))
β                √(d·log(1 + T/d) + 4·log t + log 2) + 1
γ                gamma

A cluster starts with everybody. After each payoff of i, for each seed s that is not final, i leaves the cluster if
‖θ_i − θ_s‖ > f(T_i) + f(T_s), and joins again if it is smaller. A seed with f(T_s) ≤ γ/4 is final. Over all clusters
that hold the user, the candidate with the largest θ·x + β·xᵀA⁻¹x is chosen, without a root, as in the authors' code;
a user whom no cluster holds decides alone.

There, seeds are drawn from all users. Here users are known when they first come, so the first users are the seeds.
If a seed is dropped, its cluster is final.
"""

import math
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import final

import numpy as np

from coterie.arrays import Floats, Ints
from coterie.errors import FileError
from coterie.models.actions import Actions
from coterie.models.bounds import certainty
from coterie.models.checks import check_count, check_number
from coterie.models.files import Tensors, take
from coterie.models.probability import first_best
from coterie.models.ranges import MOST_LEARNED, are_covariances
from coterie.models.rows.ridges import packing
from coterie.policies.base.decision import Basis, Decision
from coterie.policies.clustering.numbered_users import VectorUsers

DROPPED = -1  # in place of a seed's row


@final
@dataclass(kw_only=True, eq=False, repr=False)
class LOCB(VectorUsers):
    """Decides with the cluster that promises most among those around seed users that hold the user.

    n_seeds
        How many users have a cluster around them.
    gamma
        A cluster does not change any more once its seed is known to gamma/4.

    n_features is as in every `Policy`. Raises ParameterError if a number is out of range.

    >>> policy = LOCB(n_features=2)
    >>> policy.learn_many(["ann"] * 40, [[1.0, 0.0], [0.0, 1.0]] * 20, [1, 0] * 20)
    40
    >>> policy.choose("bob", [[0.0, 1.0], [1.0, 0.0]])
    1
    """

    name = "locb"
    reference = "Ban, He 2021: Local clustering in contextual multi-armed bandits"
    tuned = {"gamma": (0.1, 0.2, 0.4), "n_seeds": (5, 20, 50)}  # noqa: RUF012 (never changed)

    n_seeds: int = 20
    gamma: float = 0.2

    def __post_init__(self) -> None:
        super().__post_init__()
        self.n_seeds = check_count("n_seeds", self.n_seeds)
        self.gamma = check_number("gamma", self.gamma)
        self.pools = self.user_rows.sibling()  # a row per seed
        self._left: list[set[int]] = []  # by row: the clusters that the user has left
        self._seeds: list[int] = []  # rows, or DROPPED

    def _holding(self, row: int) -> list[int]:
        """Return the clusters that hold a user: for an unknown one, all."""
        left = self._left[row] if row >= 0 else ()
        return [s for s in range(len(self._seeds)) if s not in left]

    def _bound(self, times: int | Ints, spread: Floats) -> Floats:
        d, t = self.n_features, self.learned + 1
        beta = np.sqrt(d * np.log(1 + np.asarray(times) / d) + 4 * math.log(t) + math.log(2)) + 1
        return np.asarray(beta * spread**2, dtype=np.float64)

    def _alone(self, row: int, x: Floats) -> tuple[Floats, Floats]:
        """Return the estimates and bounds of the user alone."""
        own = self.user_rows.view(row, x)
        return own.estimate, self._bound(self.user_rows.times(row) if row >= 0 else 0, own.spread)

    def _deciding(self, row: int, contexts: Actions) -> tuple[int, Floats, Floats]:
        """Return the cluster that promises most, -1 for the user alone, with its estimates and bounds."""
        held, x = self._holding(row), self.user_rows.numbers(contexts)
        if not held:
            return -1, *self._alone(row, x)
        near = self.pools.views(np.array(held), x)
        bound = self._bound(self.pools.rows.times[held, None] + 1, near.spread)
        k = first_best((near.estimate + bound).max(axis=1))
        return held[k], near.estimate[k], bound[k]

    def _members(self, row: int, s: int) -> list[int]:
        """Return the known users of a cluster."""
        if s < 0:
            return [row] if row >= 0 else []
        return [one for one, left in enumerate(self._left) if s not in left]

    def _decide(self, user: Hashable, row: int, contexts: Actions, scale: float) -> Decision:
        """Score each candidate by the cluster that promises most."""
        s, estimate, width = self._deciding(row, contexts)
        own, bound = self._alone(row, self.user_rows.numbers(contexts))
        return Decision(
            user, contexts, estimate + width, estimate=own, width=bound,
            basis=Basis(len(self._members(row, s)) + (row < 0), estimate, width),
        )  # fmt: skip

    def _deciding_together(self, row: int, contexts: Actions) -> Iterable[int]:
        """Return the users of the cluster that decides for a user on a context."""
        s, *_ = self._deciding(row, contexts)
        return self._members(row, s)

    def _learn(self, row: int, contexts: Actions, payoff: float) -> None:
        """Update the user and the clusters that hold the user, then let the user leave and join clusters."""
        items = self.user_rows.learnable(contexts)
        self.user_rows.update(row, items, payoff)
        for s in self._holding(row):
            self.pools.update(s, items, payoff)
        sure = certainty(self.user_rows.times(row))
        for s, seed in enumerate(self._seeds):
            its = certainty(self.user_rows.times(seed)) if seed != DROPPED else 0.0
            if its <= self.gamma / 4:
                continue
            apart, left = self.user_rows.distance(row, self.user_rows, seed), s in self._left[row]
            if apart < sure + its if left else apart > sure + its:
                self.pools.pool(s, self.user_rows, row, 1 if left else -1)
                self._left[row] ^= {s}

    def _arrive(self, row: int) -> None:
        """Make the first `n_seeds` users seeds, with a cluster of everybody."""
        self.user_rows.take()
        self._left.append(set())
        if len(self._seeds) < self.n_seeds:
            self._seeds.append(row)
            self.pools.pool_all(self.pools.take(), self.user_rows, np.arange(row))

    def _leave(self, row: int) -> None:
        """Forget a user; what clusters learned from the user stays."""
        last = len(self._roster)
        self.user_rows.replace(row)
        self._left[row] = self._left[last]
        del self._left[last]
        self._seeds = [DROPPED if seed == row else row if seed == last else seed for seed in self._seeds]

    def _tensors(self, n: int) -> Tensors:
        """Return all that was learned, as arrays."""
        k = len(self._seeds)
        left = np.zeros((n, k), dtype=np.uint8)
        for row, those in enumerate(self._left):
            left[row, sorted(those)] = 1
        return {
            "left": left,
            "seeds": np.array(self._seeds, dtype=np.int64),
            **self.user_rows.tensors("user", np.arange(n)),
            **self.pools.tensors("cluster", np.arange(k)),
        }

    def _restore(self, tensors: Tensors, n: int) -> None:
        """Restore what `tensors` returned."""
        seeds = take(tensors, "seeds", "i", (None,))
        k = len(seeds)
        left = take(tensors, "left", "u", (n, k))
        if not ((seeds >= DROPPED) & (seeds < n)).all():
            raise FileError("the model file has a seed that is not a known user")
        rows, pools = (
            self.user_rows.restore("user", tensors, n), self.pools.restore("cluster", tensors, k)
        )  # fmt: skip
        # What users of a cluster learned, the cluster has learned: they may leave it.
        inside = (left == 0).T.astype(np.float64)
        rest = pools.gram[:k] - inside @ rows.gram[:n]
        if (pools.times[:k] < inside @ rows.times[:n]).any() or not are_covariances(
            rest[:, packing(self.n_features)], MOST_LEARNED
        ):
            raise FileError("a cluster in the model file has learned less than its users")
        self._seeds = seeds.tolist()
        self._left = [set(np.flatnonzero(those).tolist()) for those in left]
        self.user_rows.rows, self.pools.rows = rows, pools
