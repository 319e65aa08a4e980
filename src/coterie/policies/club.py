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
before it, which delays a cut by one visit: `cut_late=True`. And newcomers' edges make a denser graph than one
draw of G(n, 3·log(n)/n): the n-th user has 3·log(n) edges to earlier users and gets more from later ones,
twice as many in total. If the number of users is known in advance, set `p` to 3·log(n)/n: that gives the
paper's graph.
"""

from collections.abc import Hashable, Sequence
from typing import Any, final

import numpy as np

from coterie.errors import ParameterError
from coterie.models import RidgeRows, make_rows
from coterie.models.checks import check_flag, check_number, check_user, read_payoff
from coterie.models.files import Tensors, pack_ids, unpack_ids
from coterie.models.roster import Roster
from coterie.models.rows.loops import Chunk, Items, play
from coterie.models.rows.user_graph import UserGraph
from coterie.policies.base.batch import Batch, Outcome
from coterie.policies.base.compiled import run_chunks
from coterie.policies.base.decision import Decision, decide_with
from coterie.policies.base.exploration import Alpha, check_alpha, scale_at
from coterie.policies.base.policy import Policy
from coterie.policies.random import Seed, make_rng


@final
class CLUB(Policy):
    """Decides with all users whom the data so far does not distinguish from this user.

    n_features
        How many features a context has. Contexts are then arrays (candidates, n_features), norms at most 1.
    one_hot
        True if contexts are item ids. Give either this or `n_features`.
    alpha
        How wide the confidence bound is: a number, or a function of t that replaces α·√log(1+t).
    alpha2
        How far apart two users' models may be, in units of their uncertainty, before their edge is cut.
    p
        The probability of an edge between a newcomer and a known user; None for 3·log(n)/n, 1 for the complete graph.
    cut_late
        Test a user's edges with the statistics before the payoff, as the paper's figure does, not with those after.
    thompson
        Rank by a draw from the component's posterior, not by the bound.
    seed
        Seed of the edges and draws: an integer, or a numpy.random.Generator.

    Raises ParameterError if a setting is not valid.

    >>> policy = CLUB(one_hot=True)
    >>> policy.learn_many(["ann", "bob"], ["jazz", "jazz"], [1, 1])
    2
    >>> policy.neighbours("ann", "jazz")
    ['ann', 'bob']
    >>> policy.choose("a stranger", ["news", "jazz"])
    1
    """

    name = "club"
    finds_neighbours = True
    reference = "Gentile, Li, Zappella 2014: Online clustering of bandits"
    item_tensors = ("user", "component", "everybody")
    rng: np.random.Generator

    def __init__(
        self,
        *,
        n_features: int | None = None,
        one_hot: bool = False,
        alpha: Alpha = 0.1,
        alpha2: float = 0.3,
        p: float | None = None,
        cut_late: bool = False,
        thompson: bool = False,
        seed: Seed = 0,
    ) -> None:
        self.n_features = n_features
        self.one_hot = one_hot
        self.alpha = check_alpha(alpha)
        self.alpha2 = check_number("alpha2", alpha2)
        self.p = None if p is None else check_number("p", p)
        if self.p is not None and self.p > 1:
            raise ParameterError(f"p is {p!r}, expected a probability in [0, 1], or None for 3·log(n)/n")
        self.cut_late = check_flag("cut_late", cut_late)
        self.thompson = check_flag("thompson", thompson)
        self.seed = seed
        self.rng = make_rng(seed)
        self.user_rows = make_rows(n_features, one_hot)
        self.graph = UserGraph(self.user_rows, self.p)
        self._roster = Roster()

    def decide(self, user: Hashable, contexts: Any) -> Decision:
        """Score each candidate by the component's estimate and bound, or by a draw."""
        check_user(user)
        contexts = self.user_rows.read(contexts)
        items = self.user_rows.numbers(contexts)
        scale = scale_at(self.alpha, self.learned)
        row = self._roster.row(user)
        pools, pool, size = self._deciding_rows(row)
        own, near = self.user_rows.view(row, items), pools.view(pool, items)
        score = pools.draw(pool, items, scale, self.rng) if self.thompson else None
        return decide_with(user, contexts, own, near, scale, size, score)

    def _deciding_rows(self, row: int) -> tuple[RidgeRows, int, int]:
        """Return the rows, and the one of them, that decide for a user, and how many users that is."""
        if row >= 0:
            component = self.graph.component(row)
            return self.graph.pools, component, self.graph.members(component)
        return (self.graph.everybody, 0, len(self._roster) + 1) if self.p != 0 else (self.user_rows, -1, 1)

    def learn(self, user: Hashable, context: Any, payoff: float) -> int:
        """Update the user and the component, then cut the user's edges to users who are too far away."""
        check_user(user)
        contexts = self.user_rows.read([context])
        payoff = read_payoff(payoff)
        scale_at(self.alpha, self.learned)  # raises for a bad alpha before anything changes
        self.add(user)
        items, row = self.user_rows.learnable(contexts), self._roster.row(user)
        if self.cut_late:
            self.graph.serve(row, self.alpha2)
        self.user_rows.update(row, items, payoff)
        self.graph.learn(row, items, payoff)
        if not self.cut_late:
            self.graph.serve(row, self.alpha2)
        self.learned += 1
        return 1

    def run(self, batch: Batch) -> Outcome:
        """Play many rounds in a compiled loop."""
        return run_chunks(self, self.user_rows, self._roster.row, batch, self._play)

    def _play(self, chunk: Chunk, items: Items) -> None:
        so_far = np.array([0, self.learned])

        def arguments() -> tuple[Any, ...]:
            self.graph.fit()
            return (
                self.user_rows.rows, self.graph.pools.rows, self.graph.everybody.rows, self.graph.rows,
                items.numbers, items.named, chunk.rounds, chunk.people, so_far, self.graph.p, self.alpha,
                self.alpha2, self.cut_late, self.thompson, self.rng,
            )  # fmt: skip

        play("play_club", arguments, so_far, len(chunk.rounds.who))
        self.learned = int(so_far[1])
        for user in chunk.joined:
            self._roster.join(user)

    def neighbours(self, user: Hashable, context: Any) -> list[Hashable]:
        """Return the users of the user's component, including the user: the same for every context."""
        check_user(user)
        self.user_rows.read([context])
        row = self._roster.row(user)
        if row >= 0:
            return [self._roster.names[i] for i in self.graph.component_rows(row)]
        return [*self._roster.names, user] if self.p != 0 else [user]

    def edges(self) -> list[tuple[Hashable, Hashable]]:
        """Return the pairs of users that are still connected by an edge."""
        return [(self._roster.names[a], self._roster.names[b]) for a, b in self.graph.edges().tolist()]

    def add(self, user: Hashable) -> None:
        """Register a user and draw the user's edges."""
        check_user(user)
        if user not in self._roster:
            self._roster.join(user)
            self.user_rows.take()
            self.graph.arrive(self.rng)

    def drop(self, user: Hashable) -> None:
        """Forget a user, with edges and statistics, including those in the component's pool."""
        check_user(user)
        row = self._roster.leave(user)
        self.graph.leave(row)
        self.user_rows.replace(row)

    @property
    def users(self) -> Sequence[Hashable]:
        """The known users."""
        return list(self._roster.names)

    def tensors(self) -> Tensors:
        """Return all that was learned, as arrays."""
        return {
            "users": pack_ids(self._roster.names),
            **self.user_rows.tensors("user", np.arange(len(self._roster))),
            **self.graph.tensors(),
        }

    def restore(self, tensors: Tensors) -> None:
        """Restore what `tensors` returned."""
        names = unpack_ids(tensors, "users")
        self.user_rows.rows = self.user_rows.restore("user", tensors, len(names))
        self.graph.restore(tensors, len(names))
        self._roster = Roster(names)
