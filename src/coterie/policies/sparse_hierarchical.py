"""SparseHierarchical: named features, crossed with the user, the action's id and the context, with learned priors.

    y = Σ x_j w_j + noise              j: each feature and cross of the action
    w_j ~ N(0, v₀ of j's kind)         the prior variance of each kind is learned from the payoffs

| kind | the effect |
|---|---|
| population | the average payoff |
| user | how high this user's payoffs are |
| id, feature | of this action, and of actions with this feature, for all users |
| context × id, context × feature | the same in this context |
| user × id, user × feature | the same for this user |
| user × context × id | of the action for this user in this context; with at most 16 context features |

An action's weights over the context features have a full covariance (a block per id, for up to 128 context
features); all other effects have a variance each. A kind without influence gets a small variance, so its effects stay
near 0; one with much influence is learned fast. `models/hierarchy/effects.py` and `blocks.py` have the formulas. The
cost of a decision grows with the number of features and crosses, not with the number of users.

Exploration is for what all users can learn together: with vp the variance of the effects that all users share, the
score is the estimate + explore·√vp, and the choice is drawn by the probability that a score is the largest if each is
uncertain by ½·explore·√vp. What only this user's payoffs teach is not explored. All probabilities are mixed with a
share `floor` of uniform choices, so that no propensity is too small for off-policy evaluation. Draws spread while
payoffs are late, so decisions that wait for theirs need no count.
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from coterie.errors import ContextError, ParameterError, UserError
from coterie.models.actions import Action, named_features
from coterie.models.batches import names_of
from coterie.models.checks import (
    check_count,
    check_flag,
    check_number,
    check_share,
    check_user,
    read_items,
    read_payoff,
    read_vectors,
)
from coterie.models.encoded import Encoded, encode, encode_items, encode_vectors, name_of
from coterie.models.files import Tensors
from coterie.models.hierarchy.effects import EffectPart, Effects, Settings
from coterie.models.parts import Parts
from coterie.policies.base.batch import Batch, Outcome, check_learned, read_batch, run_one_by_one
from coterie.policies.base.decision import Decision
from coterie.policies.base.parameters import Seed, make_rng
from coterie.policies.base.policy import Policy

MOST_SLOTS = 1 << 30


@final
@dataclass(kw_only=True, eq=False, repr=False)
class SparseHierarchical(Policy):
    """Learns effects of named features, ids, contexts and users together, with learned priors; nothing to tune.

    A candidate is an `Action`, or short for one: a mapping of names to numbers and words, an id or a vector. All
    candidates of one choice have the same context. With `one_hot=True` candidates are ids; with `n_features` they
    are vectors, whose features get the names f0, f1, …

    `slots` is how many effects the table holds. In a full table, effects that are unchanged for long are removed.
    `explore` and `floor` set how choices are drawn; `explore=0, floor=0` takes the best estimate.
    `drop` clears all effects of this user alone; what all users learned from the user's payoffs stays.
    Raises ParameterError if a number is out of range, or if both `one_hot` and `n_features` are given.

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

    n_features: int | None = None
    one_hot: bool = False
    slots: int = 1 << 22
    explore: float = 1.0
    floor: float = 0.01
    seed: Seed = 0

    def __post_init__(self) -> None:
        if self.n_features is not None:
            self.n_features = check_count("n_features", self.n_features)
        if check_flag("one_hot", self.one_hot) and self.n_features is not None:
            raise ParameterError(
                f"n_features is {self.n_features!r} and one_hot is True, expected at most one; for ids with "
                "features leave both out, and give Actions"
            )
        self.slots = check_count("slots", self.slots, 64)
        if self.slots > MOST_SLOTS:
            raise ParameterError(f"slots is {self.slots!r}, expected at most {MOST_SLOTS}")
        self.explore = check_number("explore", self.explore)
        self.floor = check_share("floor", self.floor)
        self.rng: np.random.Generator = make_rng(self.seed)
        self.effects = Effects(self.slots)

    def decide(self, user: Hashable, contexts: Any) -> Decision:
        """Score each candidate by its estimate and its uncertainty, and draw one."""
        encoded = self.read(contexts)
        shown = contexts if isinstance(contexts, np.ndarray | Encoded) else list(contexts)
        return self.score(user, encoded, shown)

    def score(self, user: Hashable, encoded: Encoded, shown: Any, floor: float | None = None) -> Decision:
        """Return scores and probabilities, without a draw; `floor` replaces the policy's own."""
        settings = Settings(self.explore, self.floor if floor is None else floor)
        scored = self.effects.score(user, encoded, settings)
        estimate, width, population, action, context, own, score, chances = scored
        parts = {"population": population, "action": action, "context": context, "user": own}
        spread = (score - estimate) / 2  # half of the bonus
        return Decision(
            user, shown, score, chances, estimate=estimate, width=width, parts=parts, spread=spread
        )

    def contributions(self, user: Hashable, contexts: Any, k: int, most: int = 8) -> list[EffectPart]:
        """Return the largest parts of candidate k's estimate, with kinds and positions of features."""
        check_user(user)
        return self.effects.largest(user, self.read(contexts), k, most)

    def learn(self, user: Hashable, context: Any, payoff: float) -> int:
        """Learn one payoff, and return 1: effects of no other user change."""
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
        checked = Batch(names_of(batch.users), candidates, self.read(batch.items), payoffs, served)
        settings = Settings(self.explore, self.floor)
        certain = candidates.shape[1] == 1 or self.explore == self.floor == 0
        draws = np.zeros(len(candidates)) if certain else self.rng.random(len(candidates))
        outcome = self.effects.play(checked, draws, settings, self.learned)
        self.learned += int(outcome.kept.sum())
        return check_learned(outcome)

    def read(self, contexts: Any) -> Encoded:
        """Check candidates, and return them in the model's format."""
        if isinstance(contexts, Encoded):
            return contexts
        if self.n_features is not None:
            return encode_vectors(read_vectors(contexts, self.n_features))
        if self.one_hot:
            return encode_items(read_items(contexts))
        return encode(*_named(contexts))

    def add(self, user: Hashable) -> None:
        check_user(user)
        self.effects.add(user)

    def drop(self, user: Hashable) -> None:
        """Forget a user: clear all effects of this user alone."""
        check_user(user)
        if user not in self.effects.users:
            raise UserError(f"user {user!r} is not known, so cannot be dropped")
        self.effects.drop(user)

    @property
    def users(self) -> Sequence[Hashable]:
        return list(self.effects.users)

    @property
    def variances(self) -> dict[str, float]:
        """The learned prior variance of each kind of effect: how large its effects are."""
        return self.effects.variances

    def tensors(self) -> Tensors:
        return self.effects.tensors()

    def restore(self, tensors: Tensors) -> None:
        self.effects.restore(tensors)

    def parts(self) -> dict[str, Parts]:
        """Return the arrays that grow, to be copied part by part; `head` has the others."""
        return self.effects.parts

    def head(self) -> Tensors:
        """Return the arrays that do not grow."""
        return self.effects.head()

    def restore_parts(self, head: Tensors, parts: Mapping[str, Iterable[bytes]]) -> None:
        """Restore what `head` and all of `parts` returned."""
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
    context: Mapping[str, Any] = actions[0].context if isinstance(actions[0], Action) else {}
    for k, given in enumerate(actions):
        action = given if isinstance(given, Action) else _as_action(given)
        if action.context is not context and action.context != context:
            raise ContextError(f"action {k} has another context than the first; all must share one")
        found.append((_id(action.id), _named_or_numbered(f"action {k}", action.features)))
    return named_features("the context", context), found


def _as_action(given: Any) -> Action:
    """Return the action that a mapping, a vector or an id is short for."""
    return Action(features=given) if isinstance(given, Mapping | np.ndarray | list) else Action(given)


def _named_or_numbered(what: str, features: Any) -> dict[str, float]:
    """Return named features; those of a vector have the names f0, f1, …"""
    if not isinstance(features, Mapping):
        features = {f"f{i}": value for i, value in enumerate(features) if value}
    return named_features(what, features)


def _id(item: Hashable) -> str | None:
    if item is None:
        return None
    try:
        hash(item)
    except TypeError as error:
        raise ContextError(f"item id {item!r} is unhashable; use a string, an integer or a tuple") from error
    return name_of(item)
