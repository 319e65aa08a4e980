"""CAB: context-aware clustering of bandits (Gentile et al., 2017, Algorithm 1).

paper          here
i_t            user
x_{t,k}        contexts[k]
w_j·x          estimate
CB_j(x)        scale * spread
N_{i,t}(x)     near, neighbours
α, γ           alpha, gamma

As in the paper's experiments, only users that were updated at least once may be neighbours of others; the served user
is always in its own neighbourhood, as in the paper's definition.

With `half_life`, M = I + Σ λ^age·x xᵀ and b = Σ λ^age·y x, where age counts the later payoffs that the same user
learned, alone or with neighbours, and λ = 2^(−1/half_life). In the paper users do not change.

With `engine`, the models are outside this process.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

import numpy as np

from coterie.arrays import Floats
from coterie.errors import ParameterError
from coterie.models import UserModels, make_fading, make_models
from coterie.models.actions import ActionLike, Actions, ActionsLike
from coterie.models.batches import Batch, Outcome, Rule
from coterie.models.checks import check_flag, check_number, check_pairs, check_user, read_payoff
from coterie.models.files import Tensors
from coterie.models.forget import without_item
from coterie.models.protocol import Batched, Drawable, Look, Runnable
from coterie.policies.base.batch import read_batch, run_one_by_one
from coterie.policies.base.decision import Basis, Decision
from coterie.policies.base.parameters import Alpha, Seed, check_alpha, make_rng, read_half_life, scale_at
from coterie.policies.base.policy import Policy


class Engine(Protocol):
    """Keeps users' models outside this process."""

    def models(self, n_features: int | None, one_hot: bool) -> UserModels:
        """Return empty models."""


@dataclass(kw_only=True, eq=False, repr=False)
class CAB(Policy):
    """Decides with the users who, as far as is known, react to a candidate as this user would.

    For each candidate, a user's neighbours are the users whose estimate is so close that the two confidence bounds
    overlap. The candidate with the highest average estimate plus average bound is chosen. Users with small enough
    bounds for a candidate learn from each other's payoffs.

    n_features
        How many features a context has. Contexts are then arrays (candidates, n_features), norms at most 1.
    one_hot
        True if contexts are item ids. Give either this or `n_features`.
    alpha
        The width of the confidence bound: a number, or a function of t in place of α·√log(1+t).
    gamma
        The gap that the theory assumes between groups of users. Users whose bound is under a quarter of it learn
        together; 0 turns this off.
    thompson
        Choose by the probability that the neighbourhood's average of draws from the users' posteriors, N(w,
        scale²·M⁻¹), is the largest, not by bounds: exact over ids, and the share in 256 draws over vectors.
    half_life
        After how many more payoffs of the same user a payoff counts half; None if all payoffs count equally.
        For tastes that change. A decision then compares users one by one, which is slower (see the docs), and there
        can be no `engine`.
    seed
        Seeds the draws: an integer, or a numpy.random.Generator.
    engine
        Keeps the users' models outside this process (see `coterie.engines`); every choice stays the same.

    Raises ParameterError if a setting is not valid.

    >>> policy = CAB(one_hot=True, alpha=0.5)
    >>> policy.learn("ann", "jazz", 1.0)
    1
    >>> policy.choose("bob", ["news", "jazz"])
    1
    >>> policy.neighbours("bob", "jazz")
    ['ann', 'bob']
    """

    name = "cab"
    not_saved: ClassVar[tuple[str, ...]] = ("engine",)
    finds_neighbours = True
    reference = (
        "Gentile, Li, Kar, Karatzoglou, Etrue, Zappella 2017: On context-dependent clustering of bandits"
    )

    n_features: int | None = None
    one_hot: bool = False
    alpha: Alpha = 0.1
    gamma: float = 0.2
    thompson: bool = False
    half_life: float | None = None
    seed: Seed = 0
    engine: Engine | None = None
    models: UserModels = field(init=False)

    def __post_init__(self) -> None:
        self.alpha = check_alpha(self.alpha)
        self.gamma = check_number("gamma", self.gamma)
        half_life, self.thompson = self.half_life, check_flag("thompson", self.thompson)
        self.half_life, keep = read_half_life(half_life)
        self.rng = make_rng(self.seed) if self.thompson else None
        if self.engine is None:
            kind = self.n_features, self.one_hot
            self.models = make_models(*kind) if half_life is None else make_fading(*kind, keep)
        elif half_life is not None:
            raise ParameterError(
                f"half_life is {half_life!r}, but a device does not forget; leave out `half_life` or `engine`"
            )
        elif self.thompson:
            raise ParameterError(
                "thompson=True needs all users' covariances, which a device does not send; leave out `engine`"
            )
        else:
            self.models = self.engine.models(self.n_features, self.one_hot)

    def decide(self, user: Hashable, contexts: ActionsLike) -> Decision:
        """Score each candidate by its neighbourhood's average estimate and bound."""
        if self.engine is not None and isinstance(self.models, Batched):  # one call is faster than two
            return self.decide_many([user], [contexts])[0]
        contexts = self.models.read(contexts)
        scale = scale_at(self.alpha, self.learned)
        own = self.models.view(user, contexts)
        if self.thompson and isinstance(self.models, Drawable):
            near, chances = self.models.chances(user, contexts, own, scale, self.learned)
            return self._decision(user, contexts, Look(own, near), scale, chances)
        near = self.models.gather(user, contexts, own, scale)  # sums, each (candidates,)
        return self._decision(user, contexts, Look(own, near), scale)

    def _decision(
        self,
        user: Hashable,
        contexts: Actions,
        look: Look,
        scale: float,
        chances: Floats | None = None,
    ) -> Decision:
        own, near = look
        estimate = near.estimate / near.members
        width = scale * near.spread / near.members
        score = estimate + width if chances is None else estimate
        bound = scale * own.spread
        return Decision(
            user, contexts, score, chances, estimate=own.estimate, width=bound,
            basis=Basis(near.members, estimate, width),
        )  # fmt: skip

    def learn(self, user: Hashable, context: ActionLike, payoff: float) -> int:
        """Update the user alone, or with all certain neighbours if the user is certain; return how many learned."""
        contexts = self.models.read([context])
        payoff = read_payoff(payoff)
        scale = scale_at(self.alpha, self.learned)
        own = self.models.view(user, contexts)
        limit = self.gamma / 4
        if scale * own.spread[0] >= limit:
            updated = self.models.update(user, contexts[0], payoff)
        else:
            updated = self.models.share(user, contexts[0], payoff, own, scale, limit)
        self.learned += 1
        return updated

    def decide_many(self, users: Sequence[Hashable], contexts: Sequence[ActionsLike]) -> list[Decision]:
        """Decide for many users at once, each among their own candidates."""
        if self.thompson or not isinstance(self.models, Batched):
            return super().decide_many(users, contexts)
        check_pairs(users, contexts)
        if not len(users):
            return []
        for user in users:
            check_user(user)
        lists = [self.models.read(shown) for shown in contexts]
        scale = scale_at(self.alpha, self.learned)
        looks = self.models.look_many(users, lists, scale)
        return [self._decision(*one, scale) for one in zip(users, lists, looks, strict=True)]

    @property
    def runs_compiled(self) -> bool:
        """Whether `run` is one compiled loop: alpha is a number, and the models can run it."""
        return not callable(self.alpha) and isinstance(self.models, Runnable)

    def run(self, batch: Batch) -> Outcome:
        """Play many rounds."""
        if callable(self.alpha) or not isinstance(self.models, Runnable):
            return run_one_by_one(self, batch)
        candidates, payoffs, served = read_batch(batch)
        checked = Batch(batch.users, candidates, self.models.read(batch.items), payoffs, served)
        rule = Rule(self.alpha, self.gamma, self.learned, self.thompson)
        outcome = self.models.run(checked, rule, self.rng or np.random.default_rng(0))
        self.learned += int(outcome.kept.sum())
        return outcome

    def neighbours(self, user: Hashable, context: ActionLike) -> list[Hashable]:
        """Return the users whose models decide for `user` on `context` now, including `user`."""
        contexts = self.models.read([context])
        scale = scale_at(self.alpha, self.learned)
        return self.models.neighbours(user, contexts, self.models.view(user, contexts), scale)

    def drop_item(self, item: Hashable) -> None:
        """Forget an item of all users, if items are ids and the users are in this process."""
        if not self.one_hot or self.engine is not None:
            super().drop_item(item)  # raises
        self.models.read([item])
        banks = () if self.half_life is None else ("model",)
        self.models.restore(without_item(self.models.tensors(), item, banks))

    def add(self, user: Hashable) -> None:
        """Register a user; the first update makes the user a neighbour of others."""
        self.models.add(user)

    def drop(self, user: Hashable) -> None:
        """Forget a user. Only updates that were shared with neighbours stay."""
        self.models.drop(user)

    @property
    def users(self) -> Sequence[Hashable]:
        """The known users."""
        return self.models.users

    def tensors(self) -> Tensors:
        """Return all that was learned, as arrays."""
        return self.models.tensors()

    def restore(self, tensors: Tensors) -> None:
        """Restore what `tensors` returned."""
        self.models.restore(tensors)
