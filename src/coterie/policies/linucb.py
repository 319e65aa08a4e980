"""LinUCB (Chu et al., 2011), one model for all users or one for each.

`shared=True` is the paper's LinUCB-SINGLE, `shared=False` its LinUCB-MULTIPLE. The bound is the same as
CAB's, α·√(xᵀM⁻¹x·log(1+t)), with t counting the payoffs of all users.
"""

from collections.abc import Hashable, Sequence
from typing import Any, final

import numpy as np

from coterie.errors import ParameterError, UserError
from coterie.models import make_models
from coterie.models.checks import check_user, read_payoff
from coterie.models.files import Tensors, pack_ids, unpack_ids
from coterie.policies.clock import Alpha, check_alpha, scale_at
from coterie.policies.decision import Decision
from coterie.policies.policy import Policy

EVERYBODY = "everybody"  # the one name in the models when they are shared


@final
class LinUCB(Policy):
    """Ridge regression with an upper confidence bound: all users together, or each user alone."""

    name = "linucb"
    reference = "Chu, Li, Reyzin, Schapire 2011: Contextual bandits with linear payoff functions"

    def __init__(
        self,
        *,
        n_features: int | None = None,
        one_hot: bool = False,
        alpha: Alpha = 0.1,
        shared: bool = False,
    ) -> None:
        self.n_features = n_features
        self.one_hot = one_hot
        self.alpha = check_alpha(alpha)
        if shared is not True and shared is not False:
            raise ParameterError(f"shared is {shared!r}, expected True or False")
        self.shared = shared
        self.models = make_models(n_features, one_hot)
        self._known: dict[Hashable, None] = {}

    def decide(self, user: Hashable, contexts: Any) -> Decision:
        """Score each candidate by estimate and bound."""
        check_user(user)
        contexts = self.models.read(contexts)
        estimate, spread = self.models.view(EVERYBODY if self.shared else user, contexts)
        width = scale_at(self.alpha, self.learned) * spread
        pooled = len(self._known) + (user not in self._known) if self.shared else 1
        members = np.full(len(estimate), pooled, dtype=np.int64)
        return Decision(user, contexts, estimate, width, members, estimate, width, estimate + width)

    def learn(self, user: Hashable, context: Any, payoff: float) -> int:
        """Update the one model concerned."""
        check_user(user)
        contexts = self.models.read([context])
        payoff = read_payoff(payoff)
        scale_at(self.alpha, self.learned)  # an alpha that fails must fail before anything changes
        self._known.setdefault(user)
        self.learned += 1
        return self.models.update(EVERYBODY if self.shared else user, contexts[0], payoff)

    def add(self, user: Hashable) -> None:
        """Register a user."""
        check_user(user)
        self._known.setdefault(user)

    def drop(self, user: Hashable) -> None:
        """Forget a user; what the shared model learned from the user stays."""
        check_user(user)
        if user not in self._known:
            raise UserError(f"user {user!r} is not known, so cannot be dropped")
        del self._known[user]
        if not self.shared and user in self.models.users:
            self.models.drop(user)

    @property
    def users(self) -> Sequence[Hashable]:
        """The known users."""
        return list(self._known)

    def tensors(self) -> Tensors:
        """Return all that was learned, as arrays."""
        return {"known": pack_ids(self._known), **self.models.tensors()}

    def restore(self, tensors: Tensors) -> None:
        """Take over what `tensors` returned."""
        known = unpack_ids(tensors, "known")
        self.models.restore(tensors)
        self._known = dict.fromkeys(known)
