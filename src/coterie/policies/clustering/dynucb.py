"""DynUCB: online k-means over the users' profiles (Nguyen and Lauw, 2014).

paper              here
u                  user
M_u, b_u, w_u      a row of user_rows
M̄_k, b̄_k, w̄_k      a row of pools: M̄ = I + Σ (M_u − I), b̄ = Σ b_u over the cluster's users
K, α               k, alpha

A round chooses by the cluster's bound, updates the user and the cluster, and moves the user to the cluster
with the nearest w̄: the user's statistics are subtracted from the old cluster and added to the new one. The
paper assigns all users at random before the first round. Here users are added when first seen, so the next
newcomer's cluster is drawn in advance: an unknown user decides with the cluster that the first payoff would
go to. The user's own cluster has learned the payoff before the nearest is searched, so it is slightly nearer
than without. Of equally near clusters the user's own is kept, else the first is taken. `thompson` is as in LinUCB.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import final

import numpy as np

from coterie.arrays import Ints
from coterie.errors import FileError, ParameterError
from coterie.models import RidgeRows
from coterie.models.actions import Actions
from coterie.models.checks import check_count, check_flag
from coterie.models.files import Tensors, take
from coterie.models.rows.chunks import Clusters, nearest, newcomers_cluster, play_dynucb
from coterie.policies.base.batch import Batch, Outcome, run_chunks
from coterie.policies.base.parameters import Seed, make_random
from coterie.policies.clustering.numbered_users import PooledRows

MOST_CLUSTERS = 10_000  # each has a model from the start


@final
@dataclass(kw_only=True, eq=False, repr=False)
class DynUCB(PooledRows):
    """Decides with the cluster whose profile is nearest to the user's; users move as their profiles change.

    k
        The number of clusters.
    thompson
        Rank by a draw from the cluster's posterior, not by the bound.
    seed
        Seed of the newcomers' clusters and the draws: an integer, or a numpy.random.Generator.

    n_features, one_hot and alpha are as in every `Policy`. Raises ParameterError if a setting is not valid.

    >>> policy = DynUCB(one_hot=True, k=1)
    >>> policy.learn("ann", "jazz", 1.0)
    1
    >>> policy.choose("bob", ["news", "jazz"])
    1
    """

    name = "dynucb"
    reference = "Nguyen, Lauw 2014: Dynamic clustering of contextual multi-armed bandits"
    item_tensors = ("user", "cluster")

    k: int = 10
    thompson: bool = False
    seed: Seed = 0

    def __post_init__(self) -> None:
        self.k = check_count("k", self.k)
        if self.k > MOST_CLUSTERS:
            raise ParameterError(f"k is {self.k!r}, expected at most {MOST_CLUSTERS}")
        super().__post_init__()
        check_flag("thompson", self.thompson)
        self.rng, self.seed_number = make_random(self.seed)
        self.pools = self.user_rows.sibling()
        for _ in range(self.k):
            self.pools.take()
        self._home = np.zeros(16, dtype=np.int64)  # (rows or more,) each user's cluster
        self._sizes = np.zeros(self.k, dtype=np.int64)  # (k,) how many users each cluster has

    def _pool(self, row: int) -> tuple[RidgeRows, int, int]:
        cluster = self._cluster_of(row)
        return self.pools, cluster, int(self._sizes[cluster]) + (row < 0)

    def _update(self, row: int, items: Ints, payoff: float) -> None:
        """Update the user and the cluster, then move the user to the nearest cluster."""
        cluster = self._cluster_of(row)
        self.user_rows.update(row, items, payoff)
        self.pools.update(cluster, items, payoff)
        better = nearest(self.user_rows.rows, row, self.pools.rows, self.k, cluster)
        if better != cluster:
            for c, sign in ((cluster, -1), (better, 1)):
                self.pools.pool(c, self.user_rows, row, sign)
                self._sizes[c] += sign
            self._home[row] = better

    def run(self, batch: Batch) -> Outcome:
        return run_chunks(
            self, self.user_rows, self._roster.row, batch, play_dynucb, self._state, self._roster.join
        )

    def _state(self, alpha: float) -> Clusters:
        self._fit()
        return Clusters(
            self.user_rows.rows, self.pools.rows, self._home, self._sizes, alpha, self.thompson,
            self.seed_number,
        )  # fmt: skip

    def _fit(self) -> None:
        """Make room for one more user and one more payoff."""
        n, pairs = int(self.user_rows.rows.size[0]) + 1, self.user_rows.entries
        self.user_rows.fit(n, pairs + 1)
        self.pools.fit(0, 2 * pairs + 4)
        if n > len(self._home):
            self._home = np.concatenate([self._home, np.zeros(n, dtype=np.int64)])

    def _cluster_of(self, row: int) -> int:
        """Return a user's cluster; for an unknown user, the one that the first payoff would go to."""
        if row >= 0:
            return int(self._home[row])
        return newcomers_cluster(self.seed_number, len(self._roster), self.k)

    def _deciding_together(self, row: int, contexts: Actions) -> Iterable[int]:
        """Return the rows of the user's cluster: the same for every context."""
        return map(int, np.flatnonzero(self._home[: len(self._roster)] == self._cluster_of(row)))

    def _arrive(self, row: int) -> None:
        """Put a user into a random cluster."""
        self._fit()
        self.user_rows.take()
        self._home[row] = newcomers_cluster(self.seed_number, row, self.k)
        self._sizes[self._home[row]] += 1

    def _leave(self, row: int) -> None:
        """Sum the user's cluster again from the others, so that nothing of the user remains."""
        cluster, last = int(self._home[row]), len(self._roster)
        self.user_rows.replace(row)
        self._home[row], self._home[last] = self._home[last], 0
        self._sizes[cluster] -= 1
        self.pools.clear(cluster)
        self.pools.pool_all(cluster, self.user_rows, np.flatnonzero(self._home[:last] == cluster))

    def _tensors(self, n: int) -> Tensors:
        return {
            "home": self._home[:n].copy(),
            **self.user_rows.tensors("user", np.arange(n)),
            **self.pools.tensors("cluster", np.arange(self.k)),
        }

    def _restore(self, tensors: Tensors, n: int) -> None:
        home = take(tensors, "home", "i", (n,))
        if not ((home >= 0) & (home < self.k)).all():
            raise FileError(f"the model file assigns a user to a cluster that is not one of {self.k}")
        self.user_rows.rows = self.user_rows.restore("user", tensors, n)
        self.pools.rows = self.pools.restore("cluster", tensors, self.k)
        together = np.bincount(home, self.user_rows.rows.times[:n], self.k)
        if not np.array_equal(together, self.pools.rows.times[: self.k]):
            raise FileError("the clusters in the model file have learned other payoffs than their users")
        self._home = np.concatenate([home, np.zeros(16, dtype=np.int64)])
        self._sizes = np.bincount(home, minlength=self.k)
