"""SCLUB: clusters as sets that split and merge (Li, Chen, Li, Leung, 2019).

paper                    here
i, τ                     user, the number of payoffs learned
S_j, b_j, T_j, C_j       a row of pools, its times, and clusters[j]
p̂_i, p̂_j                 T_i / τ, and the average of p̂_i over the cluster
F(T)                     √((1 + log(1+T)) / (1+T))
α_θ, α_p                 alpha_theta, alpha_p

All users start in one cluster. A round chooses by the cluster's bound and updates the user. The user leaves
the cluster, for one of its own, if ‖w_i − w_j‖ > α_θ·(F(T_i) + F(T_j)) or |p̂_i − p̂_j| > 2·α_p·F(τ). Time is
divided into phases of 2, 4, 8, … rounds. A user who was served in this phase is checked, and so is a cluster
of checked users. Two checked clusters merge if ‖w_j − w_l‖ < α_θ/2·(F(T_j) + F(T_l)) and |p̂_j − p̂_l| <
α_p·F(τ).

Whether a user leaves depends on the current statistics; the paper uses those at the start of the phase, which
would need a second copy for every cluster, through splits, merges and files, so it is not offered. A user is
compared with the cluster as a whole, not with each of its members: so the cost of a round does not depend on
the cluster's size. Only clusters changed in this round look for a partner, the user's cluster first, and take
the oldest that fits; other pairs were compared when they changed. A newcomer joins the oldest cluster, and an
unknown user decides with it. Dropping a user removes the user's statistics: the cluster is summed again.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple, final

import numpy as np

from coterie.arrays import Bools, Floats, Ints
from coterie.errors import FileError
from coterie.models import RidgeRows
from coterie.models.actions import Actions
from coterie.models.bounds import certainty
from coterie.models.checks import check_number
from coterie.models.files import Tensors, take
from coterie.models.protocol import ROUNDING
from coterie.models.rows.chunks import partner
from coterie.policies.clustering.numbered_users import PooledRows


class Summaries(NamedTuple):
    """What a search for a partner compares, per pool; `_note` computes it."""

    whole: Bools  # whether all members were checked in this phase
    age: Ints  # how many clusters were created before
    rate: Floats  # payoffs per member
    near: Floats  # α_θ/2·F(T)


@final
@dataclass(kw_only=True, eq=False, repr=False)
class SCLUB(PooledRows):
    """Decides with a cluster that the user leaves if too different, and that merges with similar clusters.

    alpha_theta
        How far apart profiles may be, in units of their uncertainty, before a user leaves or clusters stay apart.
    alpha_p
        The same for how often users visit.

    n_features, one_hot and alpha are as in every `Policy`. Raises ParameterError if a setting is not valid.

    >>> policy = SCLUB(one_hot=True).fit({"user": ["ann", "bob"], "item": ["jazz", "jazz"], "payoff": [1, 1]})
    >>> policy.neighbours("bob", "news")
    ['ann', 'bob']
    """

    name = "sclub"
    reference = "Li, Chen, Li, Leung 2019: Improved algorithm on online clustering of bandits"
    item_tensors = ("user", "cluster")

    alpha_theta: float = 1.0
    alpha_p: float = 0.7

    def __post_init__(self) -> None:
        super().__post_init__()
        self.alpha_theta = check_number("alpha_theta", self.alpha_theta)
        self.alpha_p = check_number("alpha_p", self.alpha_p)
        self.pools = self.user_rows.sibling()
        self._home: list[int] = []  # each row's cluster
        self._checked: set[int] = set()  # the rows served in this phase
        self._clusters: dict[int, set[int]] = {}  # each pool's rows, the oldest first
        self._born = 0  # clusters created so far
        self._summaries = Summaries(
            np.zeros(16, dtype=np.bool_), np.zeros(16, dtype=np.int64), np.zeros(16), np.zeros(16)
        )
        self._unchecked: dict[int, int] = {}  # rows of each pool that are not checked

    def _cluster_of(self, row: int) -> int:
        """Return a user's cluster, for an unknown user the oldest; -1 if there is none."""
        return self._home[row] if row >= 0 else next(iter(self._clusters), -1)

    def _pool(self, row: int) -> tuple[RidgeRows, int, int]:
        c = self._cluster_of(row)
        return self.pools, c, len(self._clusters.get(c, ())) + (row < 0)

    def _update(self, row: int, items: Ints, payoff: float) -> None:
        """Update the user and the cluster, then test whether the user leaves it and clusters merge."""
        t = self.learned + 1
        if (t + 1).bit_count() == 1:  # rounds 1, 3, 7, 15, … begin a phase
            self._begin_phase()
        c = self._home[row]
        self.user_rows.update(row, items, payoff)
        self.pools.update(c, items, payoff)
        self._check(row)
        changed = [c]
        if len(self._clusters[c]) > 1 and self._unlike(row, c, t):
            self._split(row)
            changed = [self._home[row], c]
        for c in changed:
            self._note(c)
        for c in changed:
            self._merge(c, t)

    def _unlike(self, row: int, c: int, t: int) -> bool:
        """Return whether a user's profile or frequency is too far from the cluster's."""
        times, pooled = self.user_rows.times(row), self.pools.times(c)
        distance = self.user_rows.distance(row, self.pools, c)
        if distance > self.alpha_theta * (certainty(times) + certainty(pooled)) + ROUNDING:
            return True
        rate = abs(times - pooled / len(self._clusters[c])) / t
        return rate > 2 * self.alpha_p * certainty(t) + ROUNDING

    def _split(self, row: int) -> None:
        """Move a user to a new cluster."""
        old, new = self._home[row], self._found()
        self.pools.pool(old, self.user_rows, row, -1)
        self.pools.pool(new, self.user_rows, row)
        self._withdraw(row)
        self._enter(row, new)

    def _merge(self, c: int, t: int) -> None:
        """Merge a cluster with the oldest similar one, and the result again, until there is none."""
        while c in self._clusters and self._summaries.whole[c]:
            alike = self.alpha_p * certainty(t) * t
            other = partner(self.pools.rows, c, *self._summaries, alike)
            if other < 0:
                return
            age = self._summaries.age
            c, gone = (c, other) if age[c] < age[other] else (other, c)
            self.pools.pool(c, self.pools, gone)
            for row in self._clusters[gone]:
                self._home[row] = c
            self._clusters[c] |= self._clusters[gone]
            self._close(gone)
            self._note(c)

    def _found(self) -> int:
        """Return a new, empty cluster."""
        c = self.pools.take()
        if c >= len(self._summaries.age):
            self._summaries = Summaries(*(np.concatenate([a, np.zeros_like(a)]) for a in self._summaries))
        self._clusters[c], self._unchecked[c], self._summaries.age[c] = set(), 0, self._born
        self._born += 1
        return c

    def _close(self, c: int) -> None:
        del self._clusters[c], self._unchecked[c]
        self._summaries.whole[c] = False
        self.pools.release(c)

    def _enter(self, row: int, c: int) -> None:
        self._home[row] = c
        self._clusters[c].add(row)
        self._unchecked[c] += row not in self._checked

    def _withdraw(self, row: int) -> None:
        c = self._home[row]
        self._clusters[c].remove(row)
        self._unchecked[c] -= row not in self._checked

    def _check(self, row: int) -> None:
        if row not in self._checked:
            self._checked.add(row)
            self._unchecked[self._home[row]] -= 1

    def _begin_phase(self) -> None:
        self._checked.clear()
        self._unchecked = {c: len(rows) for c, rows in self._clusters.items()}
        self._summaries.whole[:] = False

    def _note(self, c: int) -> None:
        """Update the input of `partner` after a cluster has changed."""
        times = self.pools.times(c)
        self._summaries.whole[c] = not self._unchecked[c]
        self._summaries.rate[c] = times / len(self._clusters[c])
        self._summaries.near[c] = self.alpha_theta / 2 * certainty(times)

    def _deciding_together(self, row: int, contexts: Actions) -> Iterable[int]:
        """Return the rows of the user's cluster: the same for every context."""
        return sorted(self._clusters.get(self._cluster_of(row), ()))

    def _arrive(self, row: int) -> None:
        """Put a user into the oldest cluster."""
        self.user_rows.take()
        self._home.append(-1)
        c = next(iter(self._clusters)) if self._clusters else self._found()
        self._enter(row, c)
        self._note(c)

    def _leave(self, row: int) -> None:
        """Sum the user's cluster again from the others, so that nothing of the user remains."""
        c, last = self._home[row], len(self._home) - 1
        self._withdraw(row)
        self.user_rows.replace(row)
        moved = self._home.pop()
        if row != last:
            self._clusters[moved].remove(last)
            self._clusters[moved].add(row)
            self._home[row] = moved
        self._checked = {row if r == last else r for r in self._checked if r != row}
        if not self._clusters[c]:
            self._close(c)
            return
        self.pools.clear(c)
        self.pools.pool_all(c, self.user_rows, np.array(sorted(self._clusters[c]), dtype=np.int64))
        self._note(c)

    def _tensors(self, n: int) -> Tensors:
        """Return all that was learned, as arrays, the clusters by age."""
        order = {c: number for number, c in enumerate(self._clusters)}
        checked = np.zeros(n, dtype=np.uint8)
        checked[sorted(self._checked)] = 1
        return {
            "home": np.array([order[c] for c in self._home], dtype=np.int64),
            "checked": checked,
            **self.user_rows.tensors("user", np.arange(n)),
            **self.pools.tensors("cluster", np.array(list(order), dtype=np.int64)),
        }

    def _restore(self, tensors: Tensors, n: int) -> None:
        home = take(tensors, "home", "i", (n,))
        checked = take(tensors, "checked", "u", (n,))
        n_clusters = int(home.max(initial=-1)) + 1
        if n_clusters > n or not np.array_equal(np.unique(home), np.arange(n_clusters)):
            raise FileError("the clusters in the model file are not numbered without gaps")
        self.user_rows.rows = self.user_rows.restore("user", tensors, n)
        pools = self.pools.restore("cluster", tensors, n_clusters)
        together = np.bincount(home, self.user_rows.rows.times[:n], n_clusters)
        if not np.array_equal(together, pools.times[:n_clusters]):
            raise FileError("the clusters in the model file have learned other payoffs than their users")
        self._home = [-1] * n
        self._checked = set(np.flatnonzero(checked).tolist())
        self.pools, self._clusters, self._unchecked, self._born = self.user_rows.sibling(), {}, {}, 0
        self._summaries.whole[:] = False
        for _ in range(n_clusters):
            self._found()
        self.pools.rows = pools
        for row, c in enumerate(home.tolist()):
            self._enter(row, c)
        for c in self._clusters:
            self._note(c)
