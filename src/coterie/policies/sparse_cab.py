"""SparseCAB: CAB for user models with few nonzeros (spCAB; Gentile et al., 2017, "Extending CAB to Sparse User
Models").

paper            here
w_{i,t-1}        found by `coterie.sparse_recovery` on user i's whole history, starting from the last support
Ŝ_{i,t-1}        the features where it is not zero: at most `sparsity` of them
sCB_j(x)         scale * spread
M^Ŝ              I + XᵀX between the features of Ŝ
α_sp(t)          scale: alpha·√log(1+t), or alpha(t) if alpha is a function

Neighbourhoods, averages and the γ/4 rule are CAB's: this is CAB over other models. Here M has the identity that the
ridge objective implies; the appendix leaves it out of the bound, whose inverse would not exist for a short history.
As in the appendix the bound uses only the estimated support: features outside it affect neither the estimate nor the
bound. Other features enter through the recovery, which considers all of them after every payoff.
"""

from typing import ClassVar, final

from coterie.errors import ParameterError
from coterie.models import make_sparse
from coterie.models.checks import check_count, check_number
from coterie.models.users.recovery import Method, check_sparsity
from coterie.policies.base.parameters import Alpha, check_alpha
from coterie.policies.cab import CAB


@final
class SparseCAB(CAB):
    """CAB for thousands of features, of which a few matter, different ones for each user.

    n_features
        How many features a context has. Contexts are arrays (candidates, n_features), norms at most 1.
    sparsity
        How many features a user's model may use.
    alpha, gamma
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
    not_saved: ClassVar[tuple[str, ...]] = ()
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
        self.method: Method = method
        self.models = make_sparse(self.n_features, self.sparsity, method)
