"""LinUCB (Chu et al., 2011), one model for all users or one per user.

`shared=True` is the paper's LinUCB-SINGLE, `shared=False` its LinUCB-MULTIPLE. The bound is the same as
CAB's, α·√(xᵀM⁻¹x·log(1+t)), with t counting the payoffs of all users. With `thompson=True` the score is w̃·x
for one draw w̃ ~ N(w, α²·log(1+t)·M⁻¹) per decision, shared by all its candidates.

With `half_life`, M = I + Σ λ^age·x xᵀ and b = Σ λ^age·y x, where age counts the later payoffs of the same model and
λ = 2^(−1/half_life): old payoffs fade, the prior does not (discounted LinUCB, Russac, Vernade, Cappé 2019).
"""

from collections.abc import Hashable
from typing import Any, final

import numpy as np

from coterie.errors import FileError
from coterie.models import make_rows
from coterie.models.checks import check_flag, check_user, read_payoff
from coterie.models.files import Tensors, pack_ids, unpack_ids
from coterie.models.roster import Roster
from coterie.models.rows.loops import Chunk, Items, play
from coterie.policies.base.batch import Batch, Outcome
from coterie.policies.base.compiled import run_chunks
from coterie.policies.base.decision import Decision
from coterie.policies.base.exploration import Alpha, check_alpha, check_half_life, keep_of, scale_at
from coterie.policies.base.known_users import KnownUsers
from coterie.policies.random import Seed, make_rng

EVERYBODY = 0  # the one row when the model is shared


@final
class LinUCB(KnownUsers):
    """Ridge regression with an upper confidence bound: all users together, or each user alone.

    n_features
        How many features a context has. Contexts are then arrays (candidates, n_features), norms at most 1.
    one_hot
        True if contexts are item ids. Give either this or `n_features`.
    alpha
        How wide the confidence bound is: a number, or a function of t that replaces α·√log(1+t).
    shared
        True for one model of all users, False for one per user.
    half_life
        The number of later payoffs of the same model (the user's, or the shared one) after which a payoff
        counts half; None if all payoffs always count the same. For users whose preferences change.
    thompson
        Rank by a draw from the posterior, N(w, scale²·M⁻¹), not by the bound.
    seed
        Seed of the draws: an integer, or a numpy.random.Generator.

    Raises ParameterError if a setting is not valid.

    >>> policy = LinUCB(n_features=2, shared=True)
    >>> policy.learn("ann", [1.0, 0.0], 1.0)
    1
    >>> policy.choose("bob", [[0.0, 1.0], [1.0, 0.0]])
    1
    """

    name = "linucb"
    reference = "Chu, Li, Reyzin, Schapire 2011: Contextual bandits with linear payoff functions"
    item_tensors = ("model",)
    rng: np.random.Generator

    def __init__(
        self,
        *,
        n_features: int | None = None,
        one_hot: bool = False,
        alpha: Alpha = 0.1,
        shared: bool = False,
        thompson: bool = False,
        half_life: float | None = None,
        seed: Seed = 0,
    ) -> None:
        self.n_features = n_features
        self.one_hot = one_hot
        self.alpha = check_alpha(alpha)
        self.shared = check_flag("shared", shared)
        self.thompson = check_flag("thompson", thompson)
        self.half_life = check_half_life(half_life)
        self._keep = keep_of(self.half_life)
        self.seed = seed
        self.rng = make_rng(seed)
        self.ridges = make_rows(n_features, one_hot)
        if shared:
            self.ridges.take()
        self._known: dict[Hashable, None] = {}
        self._learners = Roster()  # the users with a row of their own: none if the model is shared

    def decide(self, user: Hashable, contexts: Any) -> Decision:
        """Score each candidate by estimate and bound, or by a draw."""
        check_user(user)
        contexts = self.ridges.read(contexts)
        items = self.ridges.numbers(contexts)
        row = EVERYBODY if self.shared else self._learners.row(user)
        scale = scale_at(self.alpha, self.learned)
        estimate, spread = self.ridges.view(row, items)
        width = scale * spread
        score = self.ridges.draw(row, items, scale, self.rng) if self.thompson else estimate + width
        pooled = len(self._known) + (user not in self._known) if self.shared else 1
        members = np.full(len(estimate), pooled, dtype=np.int64)
        return Decision(user, contexts, estimate, width, members, estimate, width, score)

    def learn(self, user: Hashable, context: Any, payoff: float) -> int:
        """Update the user's model, or the shared one."""
        check_user(user)
        contexts = self.ridges.read([context])
        payoff = read_payoff(payoff)
        scale_at(self.alpha, self.learned)  # raises for a bad alpha before anything changes
        self._known.setdefault(user)
        if not self.shared and user not in self._learners:
            self._learners.join(user)
            self.ridges.take()
        row = EVERYBODY if self.shared else self._learners.row(user)
        if self._keep < 1:
            self.ridges.fade(row, self._keep)
        self.ridges.update(row, self.ridges.learnable(contexts), payoff)
        self.learned += 1
        return 1

    def run(self, batch: Batch) -> Outcome:
        """Play many rounds in a compiled loop."""
        return run_chunks(self, self.ridges, self._row, batch, self._play)

    def _row(self, user: Hashable) -> int:
        if self.shared:
            return EVERYBODY if user in self._known else -1
        return self._learners.row(user)

    def _play(self, chunk: Chunk, items: Items) -> None:
        so_far = np.array([0, self.learned, len(self._known)])

        def arguments() -> tuple[Any, ...]:
            self.ridges.fit(int(self.ridges.rows.size[0]) + 1, self.ridges.entries + 1)
            return (
                self.ridges.rows, items.numbers, items.named, chunk.rounds, chunk.people, so_far,
                self.shared, self._keep, self.alpha, self.thompson, self.rng,
            )  # fmt: skip

        play("play_linucb", arguments, so_far, len(chunk.rounds.who))
        self.learned = int(so_far[1])
        for user in chunk.joined:
            self._known.setdefault(user)
            if not self.shared:
                self._learners.join(user)

    def neighbours(self, user: Hashable, context: Any) -> list[Hashable]:
        """Return the users whose payoffs decide for `user`: all, including `user`, or `user` alone."""
        check_user(user)
        self.ridges.read([context])
        return list(self._known | {user: None}) if self.shared else [user]

    def drop(self, user: Hashable) -> None:
        """Forget a user; what the shared model learned from the user stays."""
        super().drop(user)
        if user in self._learners:
            self.ridges.replace(self._learners.leave(user))

    def tensors(self) -> Tensors:
        """Return all that was learned, as arrays."""
        rows = np.arange(1 if self.shared else len(self._learners))
        return {
            "known": pack_ids(self._known),
            "learners": pack_ids(self._learners.names),
            **self.ridges.tensors("model", rows),
        }

    def restore(self, tensors: Tensors) -> None:
        """Restore what `tensors` returned."""
        known, learners = (unpack_ids(tensors, name) for name in ("known", "learners"))
        if not set(learners) <= set(known) or (self.shared and learners):
            raise FileError("the model file names a user who learned but is not known")
        self.ridges.rows = self.ridges.restore("model", tensors, 1 if self.shared else len(learners))
        self._known, self._learners = dict.fromkeys(known), Roster(learners)
