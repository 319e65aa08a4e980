"""CLUB: clusters of bandits by a graph that loses edges (Gentile, Li, Zappella, 2014, Figure 1).

paper                  here
i_t                    user
M_i, b_i, w_i          a row of graph.user_rows
M̄_j, b̄_j, w̄_j          a row of graph.pools: M̄ = I + Σ (M_i − I), b̄ = Σ b_i over the component's users
α, α₂                  alpha, alpha2
CB̃_i                   α₂·√((1 + log(1+T_i)) / (1+T_i)), T_i the payoffs of i

A round chooses by the component's bound, updates the user, and cuts each of the user's edges (i, l) with
‖w_i − w_l‖ > CB̃_i + CB̃_l. Edges never come back.

The paper has all users from the start, in a random graph with p = 3·log(n)/n or in the complete one. Here
users are added when first seen: a newcomer gets an edge to each known user with probability `p`, where None
means 3·log(n)/n for the n users known then, and joins the components that these edges touch into one, since
no data distinguishes them from the newcomer yet. `p=1` is the complete graph. Before the first payoff, or
`add`, an unknown user belongs to the component of all users, as at the start of the paper's algorithm, and
decides with all learned data; with `p=0`, where there are no edges, alone. Dropping a user removes the user's
edges and statistics: the component is summed again without them, and splits if only that user connected it.
`thompson` is as in LinUCB.

Two more differences. Edges are tested with statistics that include the new payoff; Figure 1 tests with those
before it, which delays a cut by one visit. And newcomers' edges make a denser graph than one draw of
G(n, 3·log(n)/n): the n-th user has 3·log(n) edges to earlier users and gets more from later ones, twice as many
in total. If the number of users is known in advance, set `p` to 3·log(n)/n: that gives the paper's graph.
"""

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import final

import numpy as np

from coterie.arrays import Ints
from coterie.errors import ParameterError
from coterie.models import RidgeRows
from coterie.models.actions import Actions
from coterie.models.checks import check_flag, check_number
from coterie.models.files import Tensors
from coterie.models.rows.chunks import Club, play_club
from coterie.models.rows.user_graph import UserGraph
from coterie.policies.base.batch import Batch, Outcome, run_chunks
from coterie.policies.base.parameters import Seed, make_random
from coterie.policies.clustering.numbered_users import PooledRows


@final
@dataclass(kw_only=True, eq=False, repr=False)
class CLUB(PooledRows):
    """Decides with all users whom the data so far does not distinguish from this user.

    alpha2
        How far apart two users' models may be, in units of their uncertainty, before their edge is cut.
    p
        The probability of an edge between a newcomer and a known user; None for 3·log(n)/n, 1 for the complete graph.
    thompson
        Rank by a draw from the component's posterior, not by the bound.
    seed
        Seed of the edges and draws: an integer, or a numpy.random.Generator.

    n_features, one_hot and alpha are as in every `Policy`. Raises ParameterError if a setting is not valid.

    >>> policy = CLUB(one_hot=True)
    >>> policy.learn_many(["ann", "bob"], ["jazz", "jazz"], [1, 1])
    2
    >>> policy.neighbours("ann", "jazz")
    ['ann', 'bob']
    >>> policy.choose("a stranger", ["news", "jazz"])
    1
    """

    name = "club"
    reference = "Gentile, Li, Zappella 2014: Online clustering of bandits"
    item_tensors = ("user", "component", "everybody")

    alpha2: float = 0.3
    p: float | None = None
    thompson: bool = False
    seed: Seed = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.alpha2 = check_number("alpha2", self.alpha2)
        if self.p is not None and check_number("p", self.p) > 1:
            raise ParameterError(f"p is {self.p!r}, expected a probability in [0, 1], or None for 3·log(n)/n")
        self.p = None if self.p is None else check_number("p", self.p)
        check_flag("thompson", self.thompson)
        self.rng, self.seed_number = make_random(self.seed)
        self.graph = UserGraph(self.user_rows, self.p)

    def _pool(self, row: int) -> tuple[RidgeRows, int, int]:
        """Return the component's pool; for an unknown user that of all users, or nothing if there are no edges."""
        if row >= 0:
            component = self.graph.component(row)
            return self.graph.pools, component, self.graph.members(component)
        return (self.graph.everybody, 0, len(self._roster) + 1) if self.p != 0 else (self.user_rows, -1, 1)

    def _update(self, row: int, items: Ints, payoff: float) -> None:
        """Update the user and the component, then cut the user's edges to users who are too far away."""
        self.user_rows.update(row, items, payoff)
        self.graph.learn(row, items, payoff)
        self.graph.cut_edges(row, self.alpha2)

    def run(self, batch: Batch) -> Outcome:
        return run_chunks(
            self, self.user_rows, self._roster.row, batch, play_club, self._state, self._roster.join
        )

    def _state(self, alpha: float) -> Club:
        graph = self.graph
        graph.fit()
        return Club(
            self.user_rows.rows, graph.pools.rows, graph.everybody.rows, graph.rows, graph.p, alpha, self.alpha2,
            self.thompson, self.seed_number,
        )  # fmt: skip

    def _deciding_together(self, row: int, contexts: Actions) -> Iterable[int]:
        """Return the rows of the user's component: the same for every context."""
        if row >= 0:
            return map(int, self.graph.component_rows(row))
        return range(len(self._roster)) if self.p != 0 else ()

    def edges(self) -> list[tuple[Hashable, Hashable]]:
        """Return the pairs of users that are still connected by an edge."""
        return [(self._roster.names[a], self._roster.names[b]) for a, b in self.graph.edges().tolist()]

    def _arrive(self, row: int) -> None:
        """Draw a user's edges."""
        self.user_rows.take()
        self.graph.arrive(self.seed_number)

    def _leave(self, row: int) -> None:
        """Forget a user's edges and statistics, including those in the component's pool."""
        self.graph.leave(row)
        self.user_rows.replace(row)

    def _tensors(self, n: int) -> Tensors:
        return {
            **self.user_rows.tensors("user", np.arange(n)),
            **self.graph.tensors(),
        }

    def _restore(self, tensors: Tensors, n: int) -> None:
        self.user_rows.rows = self.user_rows.restore("user", tensors, n)
        self.graph.restore(tensors, n)
