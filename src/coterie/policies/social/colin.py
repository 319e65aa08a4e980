"""CoLin: contextual bandits in a collaborative environment (Wu, Wang, Gu, Wang, 2016, Algorithm 1).

paper                 here
Θ = (θ_1 … θ_N)       not stored: only w_u = Θ·(column u of W), on which payoffs and scores depend
W, column u           how much every user's θ counts for user u: `self_weight` for the user's own, the edge's weight
                      for each neighbour's, divided by their sum, so that a column sums to 1
A_t, λ                λI + Σ z zᵀ with z = vec(x ⊗ column u); its inverse, seen through W, is `covariance`; `ridge`
zᵀA_t⁻¹z              spread²: xᵀC_uu x, because Wᵀ⊗A⁻¹W⊗ = ((WᵀW ⊗ I/λ)⁻¹ + Σ φφᵀ)⁻¹ = C with φ = e_u ⊗ x
α_t √(zᵀA_t⁻¹z)       scale * spread with scale = α·√log(1+t) instead of the theory's α_t

C splits into the graph's connected components; each has its own matrix of (m·d)² numbers for m users, created
with the first payoff. That is exact. The authors give no cheaper variant, so a component that needs more than
`limit` rows is an error: with d = 25 the default allows components of 200 users, and any number of
components. With item ids a component has one m × m matrix per item, and the default allows m = 5,000.

A user who is not in the graph has W = 1, which is LinUCB. A dropped user is removed from the joint posterior:
the others keep all that they learned. A dropped user who returns is new, and outside the graph. `estimate`
and `near_estimate` are the same: the model of a user is the mixture over the user's neighbours.
"""

from collections.abc import Hashable, Iterable
from typing import ClassVar, final

import numpy as np

from coterie.arrays import Floats
from coterie.errors import ParameterError
from coterie.models.checks import check_number
from coterie.models.rows.joint import Block, Joint
from coterie.policies.base.parameters import Alpha
from coterie.policies.social.joint_policy import JointPolicy
from coterie.policies.social.social_graph import (
    Graph,
    SocialGraph,
    check_size,
    components,
)


@final
class CoLin(JointPolicy):
    """A user's payoff is a mixture of the user's own model and the neighbours', with given weights.

    self_weight
        The weight of a user's own model, relative to an edge of weight 1.
    ridge
        The ridge parameter λ: larger values shrink estimates more.

    graph, users and limit are as in `GOBLin`, n_features, one_hot and alpha as in every `Policy`.
    Raises ParameterError if a setting is not valid, or if a part of the graph is too large.

    >>> policy = CoLin(one_hot=True, graph=[("ann", "bob")])
    >>> policy.learn("ann", "jazz", 1.0)
    2
    >>> policy.choose("bob", ["news", "jazz"])
    1
    """

    name = "colin"
    reference = "Wu, Wang, Gu, Wang 2016: Contextual bandits in a collaborative environment"
    in_tensors: ClassVar[tuple[str, ...]] = ("graph", "users")

    def __init__(
        self,
        *,
        n_features: int | None = None,
        one_hot: bool = False,
        alpha: Alpha = 0.1,
        graph: Graph = (),
        users: Iterable[Hashable] | None = None,
        self_weight: float = 1.0,
        ridge: float = 1.0,
        limit: int = 5000,
    ) -> None:
        social = self._read_graph(n_features, one_hot, alpha, graph, users, limit)
        self.self_weight = check_number("self_weight", self_weight)
        self.ridge = check_number("ridge", ridge)
        for name in ("self_weight", "ridge"):
            if getattr(self, name) <= 0:
                raise ParameterError(f"{name} is 0, expected a number above 0")
        self.models = Joint(n_features, self._blocks(social), alone=1 / self.ridge)

    def _blocks(self, social: SocialGraph) -> list[Block]:
        """Return one block per connected component."""
        weights = social.matrix()
        found = components(weights)
        check_size(max(map(len, found), default=0), self.n_features, self.limit, "raise limit")
        return [
            Block(
                mixture_kernel(weights[nodes][:, nodes].toarray(), self.self_weight) / self.ridge,
                [[social.users[k]] for k in nodes],
            )
            for nodes in found
        ]


def mixture_kernel(weights: Floats, self_weight: float) -> Floats:
    """Return WᵀW for the W of symmetric weights between users."""
    w = weights + self_weight * np.eye(len(weights))
    w /= w.sum(axis=0)  # columns sum to 1
    kernel: Floats = w.T @ w
    return kernel
