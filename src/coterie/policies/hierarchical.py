"""Hierarchical: each user is a draw from a population, and the prior of the population is learned from all payoffs.

Users' weights w come from one or more groups with a common covariance. Means, covariance, groups, the variance of
items' effects and the noise are all fitted to the payoffs by likelihood, a little with each payoff; there is nothing
to tune. A user without payoffs is judged by the population, a user with many payoffs by these payoffs alone, and in
between the data decide how much each direction of w counts. `docs/hierarchical.md` derives the formulas.

    payoff = x·w_u + e_i + g_ui + noise       x: a constant 1, then the features
    w_u ~ Σ_k share_k N(mean_k, Σ),  e_i ~ N(0, τ²),  g_ui ~ N(0, φκ),  noise ~ N(0, (1−φ)κ)

With ids alone and up to 64 items, w has one entry per item and Σ is over items: it finds items that users like
together.

Exploration is for what all users can learn together: with vp the variance of the population's mean and of the item's
effect, the score is the estimate + explore·√vp, and the choice is drawn by the probability that a score is the
largest if each is uncertain by ½·explore·√vp. What only this user's payoffs teach is not explored.

With `half_life`, a payoff has the weight λ^age in the statistics of its user, where age counts the user's later
payoffs and λ = 2^(−1/half_life). The population is fitted to these statistics, so it follows changes, too.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, final

import numpy as np

from coterie.errors import NumberError
from coterie.models.batches import TOO_LARGE, names_of
from coterie.models.checks import check_number, check_share, check_user, read_payoff
from coterie.models.context_kind import check_kind
from coterie.models.files import Tensors, pack_ids, unpack_ids
from coterie.models.hierarchy.model import Exploration, HierarchicalModel
from coterie.models.ranges import MOST_LEARNED
from coterie.models.roster import Roster
from coterie.models.rows.chunks import Chunk, Items
from coterie.policies.base.batch import Batch, Outcome, check_learned, play_chunks, read_batch, run_one_by_one
from coterie.policies.base.decision import Decision
from coterie.policies.base.parameters import Seed, check_half_life, keep_of, make_rng
from coterie.policies.base.policy import Policy

PARTS = ("population", "own", "effect", "pair")  # the parts of an estimate


class Group(NamedTuple):
    """A group of users, as `Hierarchical.groups` returns it."""

    share: float  # of the population
    users: list[Hashable]  # those who are most likely in this group
    # Features (by position) or items, with the difference from the mean of all.
    differs: list[tuple[Hashable, float]]


@final
@dataclass(kw_only=True, eq=False, repr=False)
class Hierarchical(Policy):
    """Learns the prior of the population together with each user's weights, so new users start with a good estimate.

    A visitor whom nobody can recognise is user None: judged by the population, which learns from the payoff; nothing
    is kept of the visitor. Raises ParameterError if no kind of context is given, or a number is out of range.

    Parameters
    ----------
    n_features
        How many features an item has: contexts are then an array (candidates, n_features), of any scale.
    one_hot
        Items have ids: contexts are a sequence of ids. With `n_features` as well they are
        `Candidates(ids, features)`, and `learn` takes one of them.
    explore
        How much to explore. 1 was good on all data that we tried; 0 is greedy, but for `floor`.
    floor
        The share of choices that are uniform, so that each candidate has a probability above 0.
    half_life
        After how many further payoffs of the same user a payoff counts half; None if all count the same. For tastes
        that change.
    seed
        Seed of the draws: an integer, or a numpy.random.Generator.

    Examples
    --------
    >>> policy = Hierarchical(one_hot=True)
    >>> policy.learn_many(["ann", "bob", "carl"] * 2, ["jazz"] * 3 + ["news"] * 3, [1, 1, 1, 0, 0, 0])
    6
    >>> policy.choose("dora", ["news", "jazz"])
    1
    """

    name = "hierarchical"
    reference = "linear mixed effects with a learned prior (empirical Bayes); docs/hierarchical.md"
    takes_both = True
    finds_neighbours = True

    n_features: int | None = None
    one_hot: bool = False
    explore: float = 1.0
    floor: float = 0.01
    half_life: float | None = None
    seed: Seed = 0

    def __post_init__(self) -> None:
        self._kind = check_kind(self.n_features, self.one_hot)
        self.n_features, self.one_hot = self._kind
        self.explore = check_number("explore", self.explore)
        self.floor = check_share("floor", self.floor)
        self.half_life = check_half_life(self.half_life)
        self.rng: np.random.Generator = make_rng(self.seed)
        self._roster = Roster()
        self._model = HierarchicalModel(self._kind, keep_of(self.half_life))

    def decide(self, user: Hashable, contexts: Any) -> Decision:
        """Score each candidate by its estimate and a bonus, and draw one by its probability of being best."""
        contexts = self._kind.read(contexts)
        row = self._roster.row(user)
        parts, groups = self._model.view(row, self._model.contexts(contexts))
        score, chances = self._model.scores(parts, self.explore, self.floor)
        members = np.full(len(parts), self._model.n_rows + (row < 0), dtype=np.int64)
        with_items = self.one_hot and not self._model.few_decides
        shown = {name: parts[:, i] for i, name in enumerate(PARTS) if i < 2 or with_items}
        sd = np.sqrt(parts[:, 4] + parts[:, 5])
        return Decision(
            user, contexts, score, chances, estimate=parts[:, :4].sum(axis=1), width=sd, members=members,
            near_estimate=parts[:, 0], near_width=np.sqrt(parts[:, 4]), parts=shown | {"sd": sd}, groups=groups,
            spread=(score - parts[:, :4].sum(axis=1)) / 2,  # half of the bonus
        )  # fmt: skip

    def learn(self, user: Hashable, context: Any, payoff: float) -> int:
        """Update the user, the item and the population; return 1."""
        one = self._kind.read_one(context)
        payoff = read_payoff(payoff)
        self._check_range(user, one)
        self.add(user)
        self._model.learn(self._roster.row(user), self._model.learnable(one), payoff)
        self.learned += 1
        return 1

    def _check_range(self, user: Hashable, one: Any) -> None:
        """Raise if the estimate of a context is so large that its payoff cannot be learned."""
        parts, _ = self._model.view(self._roster.row(user), self._model.contexts(one))
        if not (np.abs(parts) <= MOST_LEARNED).all():
            raise NumberError(f"a payoff of user {user!r} cannot be learned: {TOO_LARGE}")

    runs_compiled = True

    def _learn_all(self, batch: Batch) -> int:
        return int(self.run(batch).updated.sum()) if len(batch.users) else 0

    def run(self, batch: Batch) -> Outcome:
        candidates, payoffs, served = read_batch(batch)
        contexts = self._kind.read(batch.items)
        names = self._kind.ids(contexts)
        if not len(candidates) or len(set(names)) < len(names) or None in names_of(batch.users):
            return run_one_by_one(self, batch)
        features = self._model.contexts(contexts).features
        exploration = Exploration(self.explore, self.floor, self.rng)

        def play(chunk: Chunk, items: Items) -> None:
            self.learned = self._model.play(chunk, features, items, self.learned, exploration)
            for user in chunk.joined:
                self._roster.join(user)

        checked = Batch(batch.users, candidates, contexts, payoffs, served)
        return check_learned(play_chunks(checked, Items(self._model.pairs, names), self._roster.row, play))

    def add(self, user: Hashable) -> None:
        check_user(user)
        if user not in self._roster:
            self._model.add_row()
            self._roster.join(user)

    def drop(self, user: Hashable) -> None:
        """Forget a user. What the population learned from the user's payoffs stays."""
        check_user(user)
        self._model.drop_row(self._roster.leave(user))

    @property
    def users(self) -> Sequence[Hashable]:
        return list(self._roster.names)

    def neighbours(self, user: Hashable, context: Any) -> list[Hashable]:
        """Return the users whose payoffs for `context` are not clearly different from this user's, including `user`.

        Two users differ clearly if their estimates differ by more than the sum of their standard deviations.
        """
        check_user(user)
        one = self._model.contexts(self._kind.read_one(context))

        def seen(row: int) -> tuple[float, float]:
            parts, _ = self._model.view(row, one)
            return float(parts[0, :4].sum()), float(np.sqrt(parts[0, 4:].sum()))

        own = self._roster.row(user)
        estimate, spread = seen(own)
        near = []
        for row, name in enumerate(self._roster.names):
            theirs, doubt = seen(row)
            if name == user or abs(theirs - estimate) <= spread + doubt:
                near.append(name)
        return near if own >= 0 else [user, *near]

    def groups(self, most: int = 5) -> list[Group]:
        """Return the groups that were found, in the order of `Decision.groups`.

        Each has its share, its users, and the `most` features (by position) or items on which its mean differs most
        from the mean of all.
        """
        population = self._model.population
        prior, k, d = population.model.prior, population.n_groups, population.n_used
        share, means = prior.share[:k] / prior.share[:k].sum(), prior.means[:k, :d]
        apart = means - share @ means
        items = self._model.pairs.items
        names: list[Hashable] = list(items) if self._model.few_decides else list(range(d - 1))
        members: list[list[Hashable]] = [[] for _ in range(k)]
        for row, name in enumerate(self._roster.names):
            members[self._model.group_of(row)].append(name)
        found = []
        for g in range(k):
            places = np.argsort(-np.abs(apart[g, 1:]), kind="stable")[:most].tolist()
            differs = [(names[place], float(apart[g, 1 + place])) for place in places]
            found.append(Group(float(share[g]), members[g], differs))
        return found

    def tensors(self) -> Tensors:
        return {"users": pack_ids(self._roster.names), **self._model.tensors()}

    def restore(self, tensors: Tensors) -> None:
        names = unpack_ids(tensors, "users")
        self._model.restore(tensors, len(names))
        self._roster = Roster(names)
