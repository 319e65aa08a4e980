"""SparseHierarchical: named features, crossed with the user, the action's id and the context, all of it learned.

    y = Σ x_j w_j + noise              j: every feature and cross of the action shown
    w_j ~ N(0, v₀ of j's kind)         the prior variance of each kind is learned from the payoffs

| kind | what it says |
|---|---|
| population | what anything pays on average |
| user | how generous the user is |
| id, feature | what this action, and actions with this feature, add for everybody |
| context × id, context × feature | what they add in this context |
| user × id, user × feature | what they add for this user |
| user × context × id | what the action adds for this user in this context; with at most 16 context features |

A kind that tells nothing gets a small variance, so its effects stay near 0; one that tells much is followed at once.
`models/hierarchy/effects.py` has the formulas. A decision costs the number of features and crosses, whatever the
number of users.

Choices are drawn: with score = estimate + explore·sd and t payoffs learned, a candidate that is not the best has

    p = 1 / (candidates + gap·√(1 + t)·(best score − score))

and the best has the rest (inverse gaps: Abe & Long 1999, Foster & Rakhlin 2020, there over the estimate alone). All
are mixed with the share `floor` of uniform choices, so that no propensity is too small for later evaluation.
"""

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, final

import numpy as np

from coterie.errors import ContextError, ParameterError, UserError
from coterie.models.checks import (
    check_count,
    check_flag,
    check_number,
    check_user,
    read_items,
    read_payoff,
    read_vectors,
)
from coterie.models.encoded import Encoded, check_features, encode, encode_items, encode_vectors, name_of
from coterie.models.files import Tensors
from coterie.models.hierarchy.effects import Effects, Part, make_rounds, pick
from coterie.models.parts import Parts
from coterie.policies.base.batch import Batch, Outcome, read_batch, run_one_by_one
from coterie.policies.base.decision import Decision
from coterie.policies.base.policy import Policy
from coterie.policies.random import Seed, make_rng

MOST_SLOTS = 1 << 30


@final
@dataclass(frozen=True)
class Action:
    """One thing that could be shown: its id, its features, and the context in which it would be shown.

    `id` names it, or is None. `features` and `context` map names to numbers: a word goes into the name, as in
    {"genre=jazz": 1}.

    >>> Action("blue train", {"genre=jazz": 1}, {"hour": 21}).features
    {'genre=jazz': 1}
    """

    id: Hashable = None
    features: Mapping[str, float] = field(default_factory=dict)
    context: Mapping[str, float] = field(default_factory=dict)


@final
class SparseHierarchical(Policy):
    """Named features of actions and contexts, ids and users together, with priors that are learned; nothing to tune.

    A candidate is an `Action`, or a plain mapping of names to numbers: the features of an action without id. All
    candidates of one choice share their context. With `one_hot=True` candidates are ids, with `n_features`
    vectors, whose numbers get the names f0, f1, …

    `slots` is how many effects the table holds. In a full table the effects untouched for longest make room.
    `explore`, `gap` and `floor` say how choices are drawn; `explore=0, gap=inf, floor=0` takes the best estimate.
    `drop` clears all effects that only this user has; what everybody learned from the user's payoffs stays.
    Raises ParameterError if a number is out of range, or if both kinds of plain contexts are asked for.

    >>> policy = SparseHierarchical(seed=1)
    >>> now = {"time=morning": 1}
    >>> shown = [Action("tea", {"hot": 1}, now), Action("juice", {"sweet": 1}, now)]
    >>> k = policy.choose("ann", shown)
    >>> policy.learn("ann", shown[k], 1.0)
    1
    """

    name = "sparse-hierarchical"
    reference = (
        "a mixed-effects model with variances by type-II maximum likelihood (MacKay 1992), diagonal, over "
        "hashed features (Weinberger et al. 2009)"
    )
    takes_names = True
    rng: np.random.Generator

    def __init__(
        self,
        *,
        n_features: int | None = None,
        one_hot: bool = False,
        slots: int = 1 << 22,
        explore: float = 0.5,
        gap: float = 30.0,
        floor: float = 0.02,
        seed: Seed = 0,
    ) -> None:
        self.n_features = None if n_features is None else check_count("n_features", n_features)
        self.one_hot = check_flag("one_hot", one_hot)
        if self.one_hot and n_features is not None:
            raise ParameterError(
                f"n_features is {n_features!r} and one_hot is True, expected at most one; for ids with "
                "features leave both out, and give Actions"
            )
        self.slots = check_count("slots", slots, 64)
        if self.slots > MOST_SLOTS:
            raise ParameterError(f"slots is {slots!r}, expected at most {MOST_SLOTS}")
        self.explore = check_number("explore", explore)
        self.gap = gap if gap == math.inf else check_number("gap", gap)
        self.floor = check_number("floor", floor)
        if self.floor > 1:
            raise ParameterError(f"floor is {floor!r}, expected a share between 0 and 1")
        self.seed = seed
        self.rng = make_rng(seed)
        self.effects = Effects(self.slots)

    def decide(self, user: Hashable, contexts: Any) -> Decision:
        """Score each candidate by its estimate and its uncertainty, and draw one."""
        check_user(user)
        encoded = self.read(contexts)
        shown = contexts if isinstance(contexts, np.ndarray | Encoded) else list(contexts)
        decision = self.weigh(user, encoded, shown)
        assert decision.probability is not None
        return replace(decision, drawn=pick(decision.probability, self.rng.random()))

    def weigh(self, user: Hashable, encoded: Encoded, shown: Any, floor: float | None = None) -> Decision:
        """Return scores and probabilities, without a draw; `floor` instead of the policy's own, if given."""
        gamma = self.gap * math.sqrt(1.0 + self.learned)
        settings = (self.explore, gamma, self.floor if floor is None else floor)
        scored = self.effects.score(user, encoded, settings)
        estimate, width, population, action, context, own, score, chances = scored
        alone = np.ones(len(score), dtype=np.int64)
        parts = {"population": population, "action": action, "context": context, "user": own}
        return Decision(
            user, shown, estimate, width, alone, estimate, width, score, probability=chances, parts=parts
        )

    def contributions(self, user: Hashable, contexts: Any, k: int, most: int = 8) -> list[Part]:
        """Return the largest parts of candidate k's estimate, by kind and by the positions of its features."""
        check_user(user)
        return self.effects.largest(user, self.read(contexts), k, most)

    def learn(self, user: Hashable, context: Any, payoff: float) -> int:
        """Learn from one payoff, and return 1: only this user has effects that changed."""
        check_user(user)
        encoded = context if isinstance(context, Encoded) else self.read([context])
        payoff = read_payoff(payoff)
        self.effects.learn(user, encoded, payoff, self.learned + 1)
        self.learned += 1
        return 1

    def run(self, batch: Batch) -> Outcome:
        """Play many rounds; compiled for ids and vectors."""
        if not (self.one_hot or self.n_features) or not len(batch.users):
            return run_one_by_one(self, batch)
        candidates, payoffs, served = read_batch(batch)
        encoded = self.read(batch.items)
        users = batch.users.tolist() if isinstance(batch.users, np.ndarray) else list(batch.users)
        rounds = make_rounds(candidates, payoffs, served, self.rng.random(len(users)))
        settings = (self.explore, self.gap, self.floor)
        self.learned += self.effects.play(users, encoded, rounds, settings, self.learned)
        alone = np.ones(len(users), dtype=np.int64)
        return Outcome(rounds.choice, rounds.kept, alone, rounds.kept.astype(np.int64))

    def read(self, contexts: Any) -> Encoded:
        """Return candidates as the model reads them, or say what is wrong with them."""
        if isinstance(contexts, Encoded):
            return contexts
        if self.n_features is not None:
            return encode_vectors(read_vectors(contexts, self.n_features))
        if self.one_hot:
            return encode_items(read_items(contexts))
        return encode(*_named(contexts))

    def add(self, user: Hashable) -> None:
        """Register a user."""
        check_user(user)
        self.effects.add(user)

    def drop(self, user: Hashable) -> None:
        """Forget a user: all effects of this user alone are cleared."""
        check_user(user)
        if user not in self.effects.users:
            raise UserError(f"user {user!r} is not known, so cannot be dropped")
        self.effects.drop(user)

    @property
    def users(self) -> Sequence[Hashable]:
        """The known users."""
        return list(self.effects.users)

    @property
    def variances(self) -> dict[str, float]:
        """The learned prior variance of each kind of effect: how much that kind tells."""
        return self.effects.variances

    def tensors(self) -> Tensors:
        """Return all that was learned, as arrays."""
        return self.effects.tensors()

    def restore(self, tensors: Tensors) -> None:
        """Take over what `tensors` returned."""
        self.effects.restore(tensors)

    def parts(self) -> dict[str, Parts]:
        """Return what grows with what was learned, to be copied part by part; `head` has the rest."""
        return self.effects.parts

    def head(self) -> Tensors:
        """Return the arrays that do not grow."""
        return self.effects.head()

    def restore_parts(self, head: Tensors, parts: Mapping[str, Iterable[bytes]]) -> None:
        """Take over what `head` and all of `parts` told."""
        self.effects.restore_parts(head, parts)


def _named(contexts: Any) -> tuple[Mapping[str, float], list[tuple[str | None, Mapping[str, float]]]]:
    """Return the shared context and each candidate's id and features, checked."""
    if isinstance(contexts, str | bytes | Mapping | Action):
        raise ContextError(f"contexts is {contexts!r}, expected a list of Actions")
    try:
        actions = list(contexts)
    except TypeError as error:
        raise ContextError(f"contexts is {contexts!r}, expected a list of Actions") from error
    if not actions:
        raise ContextError("the candidate list is empty; give at least one Action")
    found: list[tuple[str | None, Mapping[str, float]]] = []
    context: Mapping[str, float] = actions[0].context if isinstance(actions[0], Action) else {}
    check_features("the context", context)
    for k, action in enumerate(actions):
        if not isinstance(action, Action):
            found.append((None, check_features(f"candidate {k}", action)))
            if context:
                raise ContextError(f"candidate {k} has no context, but the first has; all must share one")
            continue
        if action.context is not context and action.context != context:
            raise ContextError(f"candidate {k} has another context than the first; all must share one")
        found.append((_id(action.id), check_features(f"candidate {k}", action.features)))
    return context, found


def _id(item: Hashable) -> str | None:
    if item is None:
        return None
    try:
        hash(item)
    except TypeError as error:
        raise ContextError(f"item id {item!r} is unhashable; use a string, an integer or a tuple") from error
    return name_of(item)
