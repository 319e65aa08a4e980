"""Hierarchical: each user is a draw from a population, and the prior of the population is learned from all payoffs.

All variances are fitted to the payoffs by likelihood, a little with each payoff; there is nothing to tune. A user
without payoffs is judged by the population, a user with many payoffs by these payoffs alone, and in between the data
decide how much each effect counts. `docs/hierarchical.md` derives the formulas.

Actions of any form: named features, ids, vectors and a context. Without a context, and with at most 32 features, the
model is that of declared actions, below. With a context (`effects.py`, `blocks.py`, `crosses.py` in
`models/hierarchy`):

    payoff = Σ x_j w_j + noise          j: each feature and cross of the action
    w_j ~ N(0, v₀ of j's kind)

| kind | the effect |
|---|---|
| population | the average payoff |
| user | how high this user's payoffs are |
| id, feature | of this action, and of actions with this feature, for all users |
| context × id, context × feature | the same in this context |
| user × id, user × feature | the same for this user |
| user × context × id | of the action for this user in this context; with at most 16 context features |

What all users share has a full covariance: an action's weights over the context features (a block per id, for up to
128 context features), and the weights of features and of their crosses with the context (up to 96 products). All
other effects have a variance each, and numbers count in units of their spread. The cost of a decision grows with the
number of features and crosses, not with the number of users. What was learned before the first context stays as an
offset.

Vectors, ids or both, without a context (`models/hierarchy/plain.py`). Users' weights have a full covariance, and
there may be groups of users:

    payoff = x·w_u + e_i + g_ui + noise       x: a constant 1, then the features
    w_u ~ Σ_k share_k N(mean_k, Σ),  e_i ~ N(0, τ²),  g_ui ~ N(0, φκ),  noise ~ N(0, (1−φ)κ)

With ids alone and up to 64 items, w has one entry per item and Σ is over items: it finds items that users like
together. With a half-life, a payoff has the weight λ^age in the statistics of its user, where age counts the user's
later payoffs and λ = 2^(−1/half_life). The population is fitted to these statistics, so it follows changes, too.
With a context all effects fade, those of all users too; there the age counts payoffs per known user.

Exploration is for what all users can learn together: with vp the variance of what all users share, the score is the
estimate + explore·√vp, and the choice is drawn by the probability that a score is the largest if each is uncertain
by ½·explore·√vp. What only this user's payoffs teach is not explored, with a context it counts by the share of one
user among all. Of an action's variance that is due to the context, as much counts as contexts have in common (the
mean squared cosine between two): so much a payoff in one teaches about another. All probabilities are mixed with a
share `floor` of uniform choices, so that no propensity is too small for off-policy evaluation. Draws spread while
payoffs are late, so decisions that wait for theirs need no count.
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import InitVar, dataclass
from typing import Any, ClassVar, final

import numpy as np

from coterie.errors import ParameterError, UserError
from coterie.models.actions import ActionLike, Actions, ActionsLike
from coterie.models.batches import names_of
from coterie.models.checks import check_count, check_flag, check_number, check_share, check_user
from coterie.models.context_kind import check_kind
from coterie.models.files import Tensors
from coterie.models.hierarchy.drift import LEARNED, HalfLife
from coterie.models.hierarchy.named import NamedModel
from coterie.models.hierarchy.plain import PlainModel
from coterie.models.hierarchy.representation import EffectPart, Exploration, Group, Representation
from coterie.models.parts import Parts
from coterie.models.ranges import LARGEST_PAYOFF
from coterie.policies.base.batch import Batch, Outcome, check_learned, read_batch, run_one_by_one
from coterie.policies.base.decision import Basis, Decision
from coterie.policies.base.parameters import Seed, make_rng, read_half_life
from coterie.policies.base.policy import Policy
from coterie.policies.social.social_graph import Graph, read_friends, read_graph

SLOTS = 1 << 22
MOST_SLOTS = 1 << 30


@final
@dataclass(kw_only=True, eq=False, repr=False)
class Hierarchical(Policy):
    """Learns the prior of the population together with each user's weights, so new users start with a good estimate.

    A candidate is an `Action(id, features, context)`, or short for one: an id, a vector, or a mapping of names to
    numbers and words. All candidates of one choice have the same context. A visitor whom nobody can recognise is user
    None: judged by the population, which learns from the payoff; nothing is kept of the visitor.

    Payoffs are of any origin and scale, up to 1e9 in size: what is chosen does not depend on either. After 32
    payoffs, one that is far beyond all others counts for less, until more of its size come.

    Parameters
    ----------
    n_features
        Declares that all actions are vectors of this length, of any scale, which are then learned with a full
        covariance: contexts are an array (candidates, n_features).
    one_hot
        Declares that all actions are ids: contexts are a sequence of ids. With `n_features` as well they are
        `Candidates(ids, features)`, and `learn` takes one of them.
    explore
        How much to explore. 1 was good on all data that we tried; 0 is greedy, but for `floor`.
    floor
        The share of choices that are uniform, so that each candidate has a probability above 0.
    half_life
        After how many further payoffs of the same user a payoff counts half: for tastes that change. "learned" finds
        it: nothing is forgotten until the errors of estimates show a change (`present_half_life`). None if all
        payoffs always count the same. In a context the age counts payoffs per known user, on average.
    friends
        The edges between users who are likely to be alike: (user, user) or (user, user, weight), {user: friends} or
        {(user, user): weight}. How much friends say is learned. `set_friends` changes them later.
    slots
        How many effects are kept, of actions that are not declared: 4,194,304 unless given. Each takes 53 bytes. If
        there are more, those that are unchanged for longest are removed.
    seed
        Seed of the draws: an integer, or a numpy.random.Generator.

    Raises ParameterError if a number is out of range, or if a parameter is not for such actions.

    Examples
    --------
    >>> from coterie import Action
    >>> policy = Hierarchical(seed=1)
    >>> now = {"time": "morning"}
    >>> shown = [Action("tea", {"hot": 1}, now), Action("juice", {"sweet": 1}, now)]
    >>> k = policy.choose("ann", shown)
    >>> policy.learn("ann", shown[k], 1.0)
    1
    >>> policy = Hierarchical(one_hot=True)
    >>> policy.learn_many(["ann", "bob", "carl"] * 2, ["jazz"] * 3 + ["news"] * 3, [1, 1, 1, 0, 0, 0])
    6
    >>> policy.choose("dora", ["news", "jazz"])
    1
    """

    name = "hierarchical"
    reference = (
        "linear mixed effects with a learned prior (empirical Bayes); variances by type-II maximum likelihood "
        "(MacKay 1992), names hashed (Weinberger et al. 2009); docs/hierarchical.md"
    )
    takes_both = True
    takes_names = True
    largest_payoff = LARGEST_PAYOFF
    finds_neighbours = True
    in_tensors: ClassVar[tuple[str, ...]] = ("friends",)

    n_features: int | None = None
    one_hot: bool = False
    explore: float = 1.0
    floor: float = 0.005
    half_life: HalfLife = LEARNED
    friends: InitVar[Graph] = ()
    slots: int | None = None
    seed: Seed = 0

    def __post_init__(self, friends: Graph) -> None:
        self.explore = check_number("explore", self.explore)
        self.floor = check_share("floor", self.floor)
        if isinstance(self.half_life, str) and self.half_life != LEARNED:
            raise ParameterError(
                f"half_life is {self.half_life!r}, expected a number of payoffs above 0, None, or {LEARNED!r}"
            )
        if self.half_life != LEARNED:
            self.half_life, _ = read_half_life(self.half_life)
        if self.slots is not None:
            self.slots = check_count("slots", self.slots, 64)
        self.rng: np.random.Generator = make_rng(self.seed)
        self._model: Representation = self._make_model()
        graph = read_graph(friends, None, "friends")
        edges: dict[Hashable, dict[Hashable, float]] = {user: {} for user in graph.users}
        for user, friend, weight in graph.edges:
            edges[user][friend] = weight
            edges[friend][user] = weight
        for user, found in edges.items():
            self.set_friends(user, found)

    def _make_model(self) -> Representation:
        if self.n_features is None and not check_flag("one_hot", self.one_hot):
            if (self.slots or 0) > MOST_SLOTS:
                raise ParameterError(f"slots is {self.slots!r}, expected at most {MOST_SLOTS}")
            return NamedModel(self.slots or SLOTS, self.half_life)
        kind = check_kind(self.n_features, self.one_hot)
        self.n_features, self.one_hot = kind
        if self.slots is not None:
            raise ParameterError(
                f"slots is {self.slots!r}, but declared actions have no table of effects; leave it out, or "
                "leave out n_features and one_hot"
            )
        return PlainModel(kind, self.half_life)

    def decide(self, user: Hashable, contexts: ActionsLike) -> Decision:
        """Score each candidate by its estimate and a bonus, and draw one by its probability of being best."""
        shown, candidates = self._model.read(contexts)
        scored = self._model.score(user, candidates, self.explore, self.floor)
        score, estimate = scored.score, scored.estimate
        return Decision(
            user, shown, score, scored.probability, estimate=estimate, width=scored.width,
            basis=Basis(
                scored.members, scored.shared, scored.shared_width, scored.parts, scored.groups,
                spread=(score - estimate) / 2,  # half of the bonus
            ),
        )  # fmt: skip

    def read(self, contexts: ActionsLike) -> Actions:
        """Check candidates, and return them in the model's format, which `decide` and `learn` take, too."""
        return self._model.read(contexts)[1]

    def contributions(
        self, user: Hashable, contexts: ActionsLike, k: int, most: int = 8
    ) -> Sequence[EffectPart]:
        check_user(user)
        return self._model.contributions(user, self.read(contexts), k, most)

    def learn(self, user: Hashable, context: ActionLike, payoff: float) -> int:
        """Update the user, the action and the population; return 1."""
        one, payoff = self._model.read_one(context), self.read_payoff(payoff)
        self._model.learn(user, one, payoff, self.learned + 1)
        self.learned += 1
        return 1

    def run(self, batch: Batch) -> Outcome:
        candidates, payoffs, served = read_batch(batch, self.largest_payoff)
        checked = Batch(names_of(batch.users), candidates, batch.items, payoffs, served)
        exploration = Exploration(self.explore, self.floor, self.rng)
        played = self._model.play(checked, exploration, self.learned) if len(candidates) else None
        if played is None:
            return run_one_by_one(self, batch)
        outcome, self.learned = played
        return check_learned(outcome)

    def add(self, user: Hashable) -> None:
        check_user(user)
        self._model.add(user)

    def drop(self, user: Hashable) -> None:
        """Forget a user. What the population learned from the user's payoffs stays."""
        check_user(user)
        self._model.drop(user)

    def set_friends(self, user: Hashable, friends: Iterable[Hashable] | Mapping[Hashable, float]) -> None:
        """Make these the friends of `user`, and no others: ids, or a mapping of ids to weights above 0.

        Friends are mutual: `user` becomes a friend of each of them. Users who are not known are added.

        >>> policy = Hierarchical()
        >>> policy.set_friends("ann", ["bob", "carl"])
        >>> policy.friends_of("bob")
        {'ann': 1.0}
        """
        found = read_friends(user, friends)
        for name in (user, *found):
            check_user(name)
            if name is None:
                raise UserError("None is an anonymous visitor, who has no friends; give an id")
        self._model.set_friends(user, found)

    def friends_of(self, user: Hashable) -> dict[Hashable, float]:
        """Return the friends of `user` and the weights of these edges; none for a user who is not known."""
        check_user(user)
        return self._model.friends_of(user)

    @property
    def parameters(self) -> dict[str, Any]:
        """The constructor's parameters, as given; `friends` are the present ones."""
        friends = {user: found for user in self._model.users if (found := self.friends_of(user))}
        return super().parameters | {"friends": friends}

    @property
    def users(self) -> Sequence[Hashable]:
        return self._model.users

    @property
    def variances(self) -> dict[str, float]:
        """The learned prior variance of each kind of effect: how large its effects are."""
        return self._model.variances

    def neighbours(self, user: Hashable, context: ActionLike) -> list[Hashable]:
        """Return the users whose payoffs for `context` are not clearly different from this user's, including `user`.

        Two users differ clearly if their estimates differ by more than the sum of their widths.
        """
        check_user(user)
        one = self._model.read_one(context)

        def seen(name: Hashable) -> tuple[float, float]:
            scored = self._model.score(name, one, self.explore, self.floor)
            return float(scored.estimate[0]), float(scored.width[0])

        estimate, spread = seen(user)
        near = []
        for name in self._model.users:
            theirs, doubt = seen(name)
            if name == user or abs(theirs - estimate) <= spread + doubt:
                near.append(name)
        return near if user in near else [user, *near]

    @property
    def present_half_life(self) -> float | None:
        """After how many further payoffs of a user one counts half at present; None if all count the same."""
        return self._model.present_half_life

    def groups(self, most: int = 5) -> list[Group]:
        """Return the groups that were found, in the order of `Decision.groups`.

        Each has its share, its users, and the `most` features (by position) or items on which its mean differs most
        from the mean of all.
        """
        return self._model.groups(most)

    def tensors(self) -> Tensors:
        return self._model.tensors()

    def restore(self, tensors: Tensors) -> None:
        self._model.restore(tensors)

    def parts(self) -> Mapping[str, Parts]:
        return self._model.parts()

    def head(self) -> Tensors:
        return self._model.head()

    def restore_parts(self, head: Tensors, parts: Mapping[str, Iterable[bytes]]) -> None:
        self._model.restore_parts(head, parts)
