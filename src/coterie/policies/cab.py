"""CAB: context-aware clustering of bandits (Gentile et al., 2017, Algorithm 1).

paper          here
i_t            user
x_{t,k}        contexts[k]
w_j·x          estimate
CB_j(x)        scale * spread
N_{i,t}(x)     near, neighbours
α, γ           alpha, gamma

With `eligible="updated"`, the paper's experimental version, only users who were updated at least once are
considered for others' neighbourhoods; the served user is always in its own, as in the paper's definition.
"""

from collections.abc import Hashable, Sequence
from typing import Any, final

from coterie.models import Eligible, make_models
from coterie.models.checks import check_flag, check_number, check_user, read_payoff
from coterie.models.files import Tensors
from coterie.policies.batch import Batch, Outcome, read_batch, run_one_by_one
from coterie.policies.clock import Alpha, check_alpha, scale_at
from coterie.policies.decision import Decision, first_best
from coterie.policies.policy import Policy
from coterie.policies.random import Seed, make_rng


@final
class CAB(Policy):
    """Decides with the users who, as far as can be known, react to a candidate as this user would.

    `alpha` widens the confidence bounds: a number, or a function of t that replaces α·√log(1+t) whole.
    `gamma` is the gap the theory assumes between groups: surer than a quarter of it, users learn together;
    0 turns sharing off. `eligible` is "updated" or "all" (Algorithm 1 as printed). With `thompson`, candidates
    are ranked by the neighbourhood's average of draws from the users' posteriors, N(w, scale²·M⁻¹), instead of
    by its estimate and width; `seed` starts the draws.
    """

    name = "cab"
    reference = (
        "Gentile, Li, Kar, Karatzoglou, Etrue, Zappella 2017: On context-dependent clustering of bandits"
    )

    def __init__(
        self,
        *,
        n_features: int | None = None,
        one_hot: bool = False,
        alpha: Alpha = 0.1,
        gamma: float = 0.2,
        eligible: Eligible = "updated",
        thompson: bool = False,
        seed: Seed = 0,
    ) -> None:
        self.n_features = n_features
        self.one_hot = one_hot
        self.alpha = check_alpha(alpha)
        self.gamma = check_number("gamma", gamma)
        self.eligible: Eligible = eligible
        self.thompson = check_flag("thompson", thompson)
        self.seed = seed
        self.rng = make_rng(seed) if thompson else None
        self.models = make_models(n_features, one_hot, eligible)
        self.learned = 0

    def decide(self, user: Hashable, contexts: Any) -> Decision:
        """Score each candidate by its neighbourhood's average estimate and bound (lines 7 to 12)."""
        check_user(user)
        contexts = self.models.read(contexts)
        scale = scale_at(self.alpha, self.learned)
        own = self.models.view(user, contexts)
        if self.rng is None:
            near = self.models.gather(user, contexts, own, scale)  # sums, each (candidates,)
        else:
            near, drawn = self.models.draw(user, contexts, own, scale, self.rng)
        estimate = near.estimate / near.members
        width = scale * near.spread / near.members
        score = estimate + width if self.rng is None else drawn / near.members
        return Decision(
            user, contexts, own.estimate, scale * own.spread, near.members, estimate, width, score
        )

    def learn(self, user: Hashable, context: Any, payoff: float) -> int:
        """Update the user alone, or with all sure neighbours if sure (lines 14 to 24)."""
        check_user(user)
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

    def choose_many(self, users: Sequence[Hashable], contexts: Sequence[Any]) -> list[int]:
        """Choose for many users at once, each among their own candidates, with one product for all."""
        if self.rng is not None:
            return super().choose_many(users, contexts)
        for user in users:
            check_user(user)
        lists = [self.models.read(shown) for shown in contexts]
        scale = scale_at(self.alpha, self.learned)
        views = [self.models.view(user, shown) for user, shown in zip(users, lists, strict=True)]
        many = self.models.gather_many(users, lists, views, scale)
        return [
            first_best(near.estimate / near.members + scale * near.spread / near.members) for near in many
        ]

    def run(self, batch: Batch) -> Outcome:
        """Play many rounds, in one compiled loop if α is a number."""
        if callable(self.alpha):
            return run_one_by_one(self, batch)
        candidates, payoffs, served = read_batch(batch)
        items = self.models.read(batch.items)
        rule = self.alpha, self.gamma, self.learned, self.rng
        outcome = Outcome(*self.models.run(batch.users, candidates, items, payoffs, served, *rule))
        self.learned += int(outcome.kept.sum())
        return outcome

    def neighbours(self, user: Hashable, context: Any) -> list[Hashable]:
        """Return the users who decide with `user` on `context` now, `user` among them."""
        check_user(user)
        contexts = self.models.read([context])
        scale = scale_at(self.alpha, self.learned)
        return self.models.neighbours(user, contexts, self.models.view(user, contexts), scale)

    def add(self, user: Hashable) -> None:
        """Register a user; with `eligible="all"` others count the user as a neighbour from now on."""
        self.models.add(user)

    def drop(self, user: Hashable) -> None:
        """Forget a user: nothing of the user stays in memory or in any neighbourhood."""
        self.models.drop(user)

    @property
    def users(self) -> Sequence[Hashable]:
        """The known users."""
        return self.models.users

    def tensors(self) -> Tensors:
        """Return all that was learned, as arrays."""
        return self.models.tensors()

    def restore(self, tensors: Tensors) -> None:
        """Take over what `tensors` returned."""
        self.models.restore(tensors)
