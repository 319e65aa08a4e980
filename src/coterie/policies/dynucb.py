"""DynUCB: k-means over the users' profiles as they are learned (Nguyen and Lauw, 2014).

paper              here
u                  user
M_u, b_u, w_u      a row of people
M̄_k, b̄_k, w̄_k      a row of pools: M̄ = I + Σ (M_u − I), b̄ = Σ b_u over the cluster's users
K, α               k, alpha

A round chooses by the cluster's bound, updates the user and the cluster, and sends the user to the cluster
with the nearest w̄: the user's statistics are subtracted from the old cluster and added to the new one.
The paper assigns all users at random before the first round. Users appear on first sight here, so where the
next newcomer will go is drawn ahead: a stranger decides with the cluster that a first payoff would lead to.
The user's own cluster has absorbed the payoff before the nearest is sought, so it is a little nearer than without;
`seek_first=True` seeks first.
Of equally near clusters the user's own stays, else the first is taken. `thompson` is as in LinUCB.
"""

from collections.abc import Hashable, Sequence
from typing import Any, final

import numpy as np

from coterie.errors import FileError, ParameterError
from coterie.models import make_bank
from coterie.models.checks import check_count, check_flag, check_user, read_payoff
from coterie.models.files import Tensors, pack_ids, take, unpack_ids
from coterie.models.forget import without_item
from coterie.models.rows.loops import Chunk, Items, entries, nearest, play
from coterie.policies.base.batch import Batch, Outcome
from coterie.policies.base.compiled import run_chunks
from coterie.policies.base.decision import Decision
from coterie.policies.base.exploration import Alpha, check_alpha, scale_at
from coterie.policies.base.policy import Policy
from coterie.policies.base.roster import Roster
from coterie.policies.random import Seed, make_rng

MOST_CLUSTERS = 10_000  # each has a model of its own from the start


@final
class DynUCB(Policy):
    """Decides with the cluster whose profile is nearest to the user's; users move as they are learned.

    n_features
        How many features a context has. Contexts are then arrays (candidates, n_features), norms at most 1.
    one_hot
        True if contexts are item ids. Give either this or `n_features`.
    alpha
        How wide the confidence bound is: a number, or a function of t that replaces α·√log(1+t) whole.
    k
        The number of clusters.
    seek_first
        Seek the nearest cluster before the user's own has absorbed the payoff, not after.
    thompson
        Rank by a draw from the cluster's posterior, not by the bound.
    seed
        Starts the stream that newcomers' clusters and draws come from: an integer, or a numpy.random.Generator.

    Raises ParameterError if a setting cannot be.

    >>> policy = DynUCB(one_hot=True, k=1)
    >>> policy.learn("ann", "jazz", 1.0)
    1
    >>> policy.choose("bob", ["news", "jazz"])
    1
    """

    name = "dynucb"
    finds_neighbours = True
    reference = "Nguyen, Lauw 2014: Dynamic clustering of contextual multi-armed bandits"
    rng: np.random.Generator

    def __init__(
        self,
        *,
        n_features: int | None = None,
        one_hot: bool = False,
        k: int = 10,
        alpha: Alpha = 0.1,
        seek_first: bool = False,
        thompson: bool = False,
        seed: Seed = 0,
    ) -> None:
        self.n_features = n_features
        self.one_hot = one_hot
        self.k = check_count("k", k)
        if self.k > MOST_CLUSTERS:
            raise ParameterError(f"k is {k!r}, expected at most {MOST_CLUSTERS}")
        self.alpha = check_alpha(alpha)
        self.seek_first = check_flag("seek_first", seek_first)
        self.thompson = check_flag("thompson", thompson)
        self.seed = seed
        self.rng = make_rng(seed)
        self.people = make_bank(n_features, one_hot)
        self.pools = self.people.sibling()
        for _ in range(self.k):
            self.pools.take()
        self._roster = Roster()
        self._home = np.zeros(16, dtype=np.int64)  # (rows or more,) each user's cluster
        self._sizes = np.zeros(self.k, dtype=np.int64)  # (k,) how many users each cluster has
        self._upcoming = self._draw_cluster()  # where the next newcomer goes

    def decide(self, user: Hashable, contexts: Any) -> Decision:
        """Score each candidate by the cluster's estimate and bound, or by a draw."""
        check_user(user)
        contexts = self.people.read(contexts)
        items = self.people.numbers(contexts)
        scale = scale_at(self.alpha, self.learned)
        row = self._roster.row(user)
        cluster = self._cluster_of(row)
        own, near = self.people.view(row, items), self.pools.view(cluster, items)
        width = scale * near.spread
        score = self.pools.draw(cluster, items, scale, self.rng) if self.thompson else near.estimate + width
        members = np.full(len(score), self._sizes[cluster] + (row < 0), dtype=np.int64)
        return Decision(
            user, contexts, own.estimate, scale * own.spread, members, near.estimate, width, score
        )

    def learn(self, user: Hashable, context: Any, payoff: float) -> int:
        """Update the user and the cluster, then send the user to the nearest cluster."""
        check_user(user)
        contexts = self.people.read([context])
        payoff = read_payoff(payoff)
        scale_at(self.alpha, self.learned)  # an alpha that fails must fail before anything changes
        self.add(user)
        items = self.people.learnable(contexts)
        row = self._roster.row(user)
        cluster = self._cluster_of(row)
        self.people.update(row, items, payoff)
        better = self._nearest(row, cluster) if self.seek_first else cluster
        self.pools.update(cluster, items, payoff)
        if not self.seek_first:
            better = self._nearest(row, cluster)
        if better != cluster:
            self._move(row, better)
        self.learned += 1
        return 1

    def _nearest(self, row: int, cluster: int) -> int:
        return nearest(self.people, row, self.pools, self.k, cluster)

    def _move(self, row: int, cluster: int) -> None:
        """Send a user to another cluster, statistics and all."""
        for c, sign in ((self._home[row], -1), (cluster, 1)):
            self.pools.pool(c, self.people, row, sign)
            self._sizes[c] += sign
        self._home[row] = cluster

    def run(self, batch: Batch) -> Outcome:
        """Play many rounds in a compiled loop."""
        return run_chunks(self, self.people, self._roster.row, batch, self._play)

    def _play(self, chunk: Chunk, items: Items) -> None:
        so_far = np.array([0, self.learned, self._upcoming])

        def arguments() -> tuple[Any, ...]:
            self._fit()
            return (
                self.people.rows, self.pools.rows, self._home, self._sizes, items.numbers, items.named,
                chunk.rounds, chunk.people, so_far, self.alpha, self.seek_first, self.thompson, self.rng,
            )  # fmt: skip

        play("play_dynucb", arguments, so_far, len(chunk.rounds.who))
        self.learned, self._upcoming = int(so_far[1]), int(so_far[2])
        for user in chunk.joined:
            self._roster.join(user)

    def _fit(self) -> None:
        """Make room for one more user and one more payoff."""
        n, pairs = int(self.people.rows.size[0]) + 1, entries(self.people)
        self.people.fit(n, pairs + 1)
        self.pools.fit(0, 2 * pairs + 4)
        if n > len(self._home):
            self._home = np.concatenate([self._home, np.zeros(n, dtype=np.int64)])

    def _cluster_of(self, row: int) -> int:
        """Return a user's cluster: for a stranger, the one that a first payoff would lead to."""
        return int(self._home[row]) if row >= 0 else self._upcoming

    def neighbours(self, user: Hashable, context: Any) -> list[Hashable]:
        """Return the users of the user's cluster, the user among them: the same for every context."""
        check_user(user)
        self.people.read([context])
        row = self._roster.row(user)
        rows = np.flatnonzero(self._home[: len(self._roster)] == self._cluster_of(row))
        return [self._roster.names[r] for r in rows] + ([user] if row < 0 else [])

    def drop_item(self, item: Hashable) -> None:
        """Forget an item: what was learned of it goes, and so does what it said about users."""
        if not self.one_hot:
            super().drop_item(item)
        self.people.read([item])
        self.restore(without_item(self.tensors(), item, ("user", "cluster")))

    def add(self, user: Hashable) -> None:
        """Register a user in a random cluster."""
        check_user(user)
        if user in self._roster:
            return
        self._fit()
        self.people.take()
        row = self._roster.join(user)
        self._home[row] = self._upcoming
        self._sizes[self._upcoming] += 1
        self._upcoming = self._draw_cluster()

    def drop(self, user: Hashable) -> None:
        """Forget a user: the cluster is summed anew from those who stay, so nothing of the user remains."""
        check_user(user)
        row = self._roster.leave(user)
        cluster, last = int(self._home[row]), len(self._roster)
        self.people.replace(row)
        self._home[row], self._home[last] = self._home[last], 0
        self._sizes[cluster] -= 1
        self.pools.clear(cluster)
        self.pools.pool_all(cluster, self.people, np.flatnonzero(self._home[:last] == cluster))

    @property
    def users(self) -> Sequence[Hashable]:
        """The known users."""
        return list(self._roster.names)

    def tensors(self) -> Tensors:
        """Return all that was learned, as arrays."""
        n = len(self._roster)
        return {
            "users": pack_ids(self._roster.names),
            "home": self._home[:n].copy(),
            "upcoming": np.array([self._upcoming]),
            **self.people.tensors("user", np.arange(n)),
            **self.pools.tensors("cluster", np.arange(self.k)),
        }

    def restore(self, tensors: Tensors) -> None:
        """Take over what `tensors` returned."""
        names = unpack_ids(tensors, "users")
        home = take(tensors, "home", "i", (len(names),))
        upcoming = int(take(tensors, "upcoming", "i", (1,))[0])
        if not ((home >= 0) & (home < self.k)).all() or not 0 <= upcoming < self.k:
            raise FileError(f"the model file assigns a user to a cluster that is not one of {self.k}")
        self.people.rows = self.people.restore("user", tensors, len(names))
        self.pools.rows = self.pools.restore("cluster", tensors, self.k)
        self._roster, self._upcoming = Roster(names), upcoming
        self._home = np.concatenate([home, np.zeros(16, dtype=np.int64)])
        self._sizes = np.bincount(home, minlength=self.k)

    def _draw_cluster(self) -> int:
        return int(self.rng.random() * self.k)
