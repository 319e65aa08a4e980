"""SparseCAB: CAB for user models with few nonzeros (spCAB; Gentile et al., 2017, "Extending CAB to Sparse User
Models").

paper            here
w_{i,t-1}        found by `coterie.sparse_recovery` on user i's whole history, starting from the last support
Ŝ_{i,t-1}        the features where it is not zero: at most `sparsity` of them
sCB_j(x)         scale * spread
M^Ŝ              I + XᵀX between the features of Ŝ
α_sp(t)          scale: alpha·√log(1+t), or alpha(t) if alpha is a function

Neighbourhoods, averages and the γ/4 rule are CAB's. Here M has the identity that the ridge objective implies;
the appendix leaves it out of the bound, whose inverse would not exist for a short history. As in the appendix
the bound uses only the estimated support: features outside it affect neither the estimate nor the bound.
Other features enter through the recovery, which considers all of them after every payoff.
"""

from collections.abc import Hashable, Sequence
from typing import Any, final, get_args

from coterie.errors import ParameterError
from coterie.models import Eligible
from coterie.models.checks import check_count, check_number, check_user, read_payoff
from coterie.models.files import Tensors
from coterie.models.users.recovery import Method, check_sparsity
from coterie.models.users.sparse import Sparse
from coterie.policies.base.decision import Decision
from coterie.policies.base.exploration import Alpha, check_alpha, scale_at
from coterie.policies.base.policy import Policy


@final
class SparseCAB(Policy):
    """CAB for thousands of features, of which a few matter, different ones for each user.

    n_features
        How many features a context has. Contexts are arrays (candidates, n_features), norms at most 1.
    sparsity
        How many features a user's model may use.
    alpha, gamma, eligible
        As in CAB.
    method
        How the features are found: "cosamp" or "subspace-pursuit".

    Raises ParameterError if a setting is not valid.

    >>> policy = SparseCAB(n_features=4, sparsity=1)
    >>> policy.learn("ann", [1.0, 0.0, 0.0, 0.0], 1.0)
    1
    >>> policy.choose("ann", [[0.0, 1.0, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0]])
    1

    The bound uses only the support, so it is about √(sparsity/n_features) of CAB's, and so are payoffs if
    contexts use all features equally: hence the smaller `alpha`. For the same reason updates are not shared
    by default: any `gamma` that is large relative to the payoffs would treat all users as certain neighbours
    before their models differ, permanently.

    A user without history, or whose support is empty because every payoff was 0, has the estimate 0 and the
    bound of CAB's prior, scale·‖x‖: such a user explores contexts with a large norm, decides with all users
    whose estimates are small, and shares only if scale·‖x‖ is below γ/4. With the first nonzero payoff the
    support is filled, at first with features that happen to be large, and from then on the user explores
    candidates with large values on the support.
    """

    name = "sparse-cab"
    finds_neighbours = True
    reference = (
        "Gentile, Li, Kar, Karatzoglou, Etrue, Zappella 2017: On context-dependent clustering of bandits, "
        "appendix on sparse user models"
    )

    def __init__(
        self,
        *,
        n_features: int | None = None,
        sparsity: int = 5,
        alpha: Alpha = 0.01,
        gamma: float = 0.0,
        eligible: Eligible = "updated",
        method: Method = "cosamp",
    ) -> None:
        if n_features is None:
            raise ParameterError(
                "n_features is None, expected a number: SparseCAB takes feature vectors only; "
                "for item ids there is CAB(one_hot=True)"
            )
        self.n_features = check_count("n_features", n_features)
        self.sparsity = check_sparsity(sparsity, self.n_features)
        self.alpha = check_alpha(alpha)
        self.gamma = check_number("gamma", gamma)
        if eligible not in get_args(Eligible):
            raise ParameterError(f"eligible is {eligible!r}, expected 'updated' or 'all'")
        self.eligible: Eligible = eligible
        self.method: Method = method
        self.models = Sparse(self.n_features, self.sparsity, method, self.eligible)

    def decide(self, user: Hashable, contexts: Any) -> Decision:
        """Score each candidate by its neighbourhood's average estimate and bound."""
        check_user(user)
        contexts = self.models.read(contexts)
        scale = scale_at(self.alpha, self.learned)
        own = self.models.view(user, contexts)
        near = self.models.gather(user, contexts, own, scale)  # sums, each (candidates,)
        estimate = near.estimate / near.members
        width = scale * near.spread / near.members
        return Decision(
            user, contexts, own.estimate, scale * own.spread, near.members, estimate, width, estimate + width
        )

    def learn(self, user: Hashable, context: Any, payoff: float) -> int:
        """Update the user alone, or with all certain neighbours if the user is certain."""
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

    def neighbours(self, user: Hashable, context: Any) -> list[Hashable]:
        """Return the users whose models decide for `user` on `context` now, including `user`."""
        check_user(user)
        contexts = self.models.read([context])
        scale = scale_at(self.alpha, self.learned)
        return self.models.neighbours(user, contexts, self.models.view(user, contexts), scale)

    def add(self, user: Hashable) -> None:
        """Register a user; with `eligible="all"` the user can be a neighbour of others from now on."""
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
