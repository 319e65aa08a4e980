"""LinUCB (Chu et al., 2011), one model for all users or one per user.

`shared=True` is the paper's LinUCB-SINGLE, `shared=False` its LinUCB-MULTIPLE. The bound is the same as
CAB's, α·√(xᵀM⁻¹x·log(1+t)), with t counting the payoffs of all users. With `thompson=True` a candidate is chosen with
the probability that its w̃·x is the largest, for one draw w̃ ~ N(w, α²·log(1+t)·M⁻¹): exact over ids, whose scores are
independent; over vectors, the share in 256 draws that t decides.

With `half_life`, M = I + Σ λ^age·x xᵀ and b = Σ λ^age·y x, where age counts the later payoffs of the same model and
λ = 2^(−1/half_life): old payoffs fade, the prior does not (discounted LinUCB, Russac, Vernade, Cappé 2019).
"""

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import final

import numpy as np

from coterie.errors import FileError
from coterie.models import make_rows
from coterie.models.actions import ActionLike, ActionsLike
from coterie.models.checks import check_flag, read_payoff
from coterie.models.files import Tensors, pack_ids, unpack_ids
from coterie.models.roster import Roster
from coterie.models.rows.chunks import Linear, play_linucb
from coterie.policies.base.batch import Batch, Outcome, run_chunks
from coterie.policies.base.decision import Basis, Decision
from coterie.policies.base.parameters import Alpha, Seed, check_alpha, make_rng, read_half_life, scale_at
from coterie.policies.base.policy import Policy

EVERYBODY = 0  # the one row when the model is shared


@final
@dataclass(kw_only=True, eq=False, repr=False)
class LinUCB(Policy):
    """Ridge regression with an upper confidence bound: all users together, or each user alone.

    shared
        True for one model of all users, False for one per user.
    half_life
        The number of later payoffs of the same model (the user's, or the shared one) after which a payoff
        counts half; None if all payoffs always count the same. For users whose preferences change.
    thompson
        Choose by the probability of being best under the posterior, N(w, scale²·M⁻¹), not by the bound.
    seed
        Seed of the draws: an integer, or a numpy.random.Generator.

    n_features, one_hot and alpha are as in every `Policy`. Raises ParameterError if a setting is not valid.

    >>> policy = LinUCB(n_features=2, shared=True)
    >>> policy.learn("ann", [1.0, 0.0], 1.0)
    1
    >>> policy.choose("bob", [[0.0, 1.0], [1.0, 0.0]])
    1
    """

    name = "linucb"
    reference = "Chu, Li, Reyzin, Schapire 2011: Contextual bandits with linear payoff functions"
    item_tensors = ("model",)

    n_features: int | None = None
    one_hot: bool = False
    alpha: Alpha = 0.1
    shared: bool = False
    thompson: bool = False
    half_life: float | None = None
    seed: Seed = 0
    rng: np.random.Generator = field(init=False)

    def __post_init__(self) -> None:
        self.alpha = check_alpha(self.alpha)
        check_flag("shared", self.shared)
        check_flag("thompson", self.thompson)
        self.half_life, self._keep = read_half_life(self.half_life)
        self.rng = make_rng(self.seed)
        self.rows = make_rows(self.n_features, self.one_hot)
        if self.shared:
            self.rows.take()
        self._learners = Roster()  # the users with a row of their own: none if the model is shared

    def decide(self, user: Hashable, contexts: ActionsLike) -> Decision:
        """Score each candidate by estimate and bound, or give it the probability of being best."""
        contexts = self.rows.read(contexts)
        items = self.rows.numbers(contexts)
        row = EVERYBODY if self.shared else self._learners.row(user)
        scale = scale_at(self.alpha, self.learned)
        estimate, spread = self.rows.view(row, items)
        width = scale * spread
        chances = self.rows.chances(row, items, scale, self.learned) if self.thompson else None
        score = estimate if self.thompson else estimate + width
        members = len(self._known) + (user not in self._known) if self.shared else 1
        return Decision(user, contexts, score, chances, estimate=estimate, width=width, basis=Basis(members))

    def learn(self, user: Hashable, context: ActionLike, payoff: float) -> int:
        """Update the user's model, or the shared one."""
        contexts = self.rows.read([context])
        payoff = read_payoff(payoff)
        scale_at(self.alpha, self.learned)  # raises for a bad alpha before anything changes
        self._known.setdefault(user)
        if not self.shared and user not in self._learners:
            self._learners.join(user)
            self.rows.take()
        row = EVERYBODY if self.shared else self._learners.row(user)
        if self._keep < 1:
            self.rows.fade(row, self._keep)
        self.rows.update(row, self.rows.learnable(contexts), payoff)
        self.learned += 1
        return 1

    def run(self, batch: Batch) -> Outcome:
        return run_chunks(self, self.rows, self._row, batch, play_linucb, self._state, self._join)

    def _row(self, user: Hashable) -> int:
        if self.shared:
            return EVERYBODY if user in self._known else -1
        return self._learners.row(user)

    def _state(self, alpha: float) -> Linear:
        self.rows.fit(int(self.rows.rows.size[0]) + 1, self.rows.entries + 1)
        return Linear(self.rows.rows, self.shared, self._keep, alpha, self.thompson)

    def _join(self, user: Hashable) -> None:
        self._known.setdefault(user)
        if not self.shared:
            self._learners.join(user)

    def neighbours(self, user: Hashable, context: ActionLike) -> list[Hashable]:
        """Return the users whose payoffs decide for `user`: all, including `user`, or `user` alone."""
        self.rows.read([context])
        return list(self._known | {user: None}) if self.shared else [user]

    def drop(self, user: Hashable) -> None:
        """Forget a user; what the shared model learned from the user stays."""
        super().drop(user)
        if user in self._learners:
            self.rows.replace(self._learners.leave(user))

    def tensors(self) -> Tensors:
        rows = np.arange(1 if self.shared else len(self._learners))
        return {
            "known": pack_ids(self._known),
            "learners": pack_ids(self._learners.names),
            **self.rows.tensors("model", rows),
        }

    def restore(self, tensors: Tensors) -> None:
        known, learners = (unpack_ids(tensors, name) for name in ("known", "learners"))
        if not set(learners) <= set(known) or (self.shared and learners):
            raise FileError("the model file names a user who learned but is not known")
        self.rows.rows = self.rows.restore("model", tensors, 1 if self.shared else len(learners))
        self._known, self._learners = dict.fromkeys(known), Roster(learners)
