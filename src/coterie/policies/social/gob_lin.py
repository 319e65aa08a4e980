"""GOB.Lin: a gang of bandits on a social graph (Cesa-Bianchi, Gentile, Zappella, 2013).

paper            here
G = (V, E), L    graph and its Laplacian; weights on edges are allowed
A = I + L        the inverse of `kernel`
φ̃_{i,t}(x)       A⊗^{-1/2}(e_i ⊗ x)
M_t, w_t         M⁻¹ is `covariance` and w is `weights`, both multiplied with A⊗^{-1/2}
φ̃ᵀM⁻¹φ̃           spread²: xᵀC_ii x, because A⊗^{-1/2}M⁻¹A⊗^{-1/2} = (A⊗ + Σ φφᵀ)⁻¹ = C
CB               scale * spread with scale = α·√log(1+t), as in the paper's experiments

The (n·d)² matrix of a whole graph is never formed. C splits into the graph's connected components, so for
components of up to `largest` users the algorithm is exact; larger ones follow one of the paper's variants:

variant    what it does with a component of more than `largest` users
"block"    GOB.Lin.BLOCK: cuts it into clusters of up to `largest` users and ignores the edges between them
"macro"    GOB.Lin.MACRO: users of a cluster share one model, a node of a graph whose edges weigh as many edges
           as there are between the clusters (smaller components are one node each)
"exact"    nothing: it is one block, if its matrix has no more than `limit` rows; else an error

The paper clusters with Graclus; here `clusters` are given, or found by seeded normalised cuts. A user who is
not in the graph is a block of one, which is LinUCB. A dropped user is removed from the joint posterior by
marginalisation: the others keep all that they learned. A dropped user who returns is new, and outside the
graph. `estimate` and `near_estimate` are the same: there is no model of the user alone.
"""

from collections.abc import Hashable, Iterable
from typing import ClassVar, Literal, final

import numpy as np

from coterie.arrays import Floats
from coterie.errors import ParameterError
from coterie.models.checks import check_count
from coterie.models.rows.joint import Block, Joint
from coterie.policies.base.parameters import Alpha, Seed, make_rng
from coterie.policies.social.joint_policy import JointPolicy
from coterie.policies.social.social_graph import (
    Graph,
    SocialGraph,
    check_size,
    components,
    cut,
    label_users,
    read_groups,
)

Variant = Literal["block", "macro", "exact"]


@final
class GOBLin(JointPolicy):
    """Neighbours in a given social graph learn from each other's payoffs.

    graph
        Edges (user, user) or (user, user, weight), {user: neighbours} or {(user, user): weight}. Its users are known
        from the start.
    users
        All users who may be in the graph; None for no restriction.
    variant
        What to do with parts of more than `largest` users: "block", "macro" or "exact" (see above).
    clusters
        A list of groups of users to cut large parts into; None to find them.
    largest
        The most users of a part that is kept whole.
    limit
        The most rows a matrix may have.
    seed
        Seed of the search for clusters: an integer, or a numpy.random.Generator.

    n_features, one_hot and alpha are as in every `Policy`. Raises ParameterError if a setting is not valid, or if a
    part of the graph is too large.

    >>> policy = GOBLin(one_hot=True, graph=[("ann", "bob")])
    >>> policy.learn("ann", "jazz", 1.0)
    2
    >>> policy.choose("bob", ["news", "jazz"])
    1
    >>> policy.neighbours("bob", "jazz")
    ['ann', 'bob']
    """

    name = "gob-lin"
    reference = "Cesa-Bianchi, Gentile, Zappella 2013: A gang of bandits"
    in_tensors: ClassVar[tuple[str, ...]] = ("graph", "users", "clusters")

    def __init__(
        self,
        *,
        n_features: int | None = None,
        one_hot: bool = False,
        alpha: Alpha = 0.1,
        graph: Graph = (),
        users: Iterable[Hashable] | None = None,
        variant: Variant = "block",
        clusters: Iterable[Iterable[Hashable]] | None = None,
        largest: int = 20,
        limit: int = 5000,
        seed: Seed = 0,
    ) -> None:
        social = self._read_graph(n_features, one_hot, alpha, graph, users, limit)
        if variant not in ("block", "macro", "exact"):
            raise ParameterError(f"variant is {variant!r}, expected 'block', 'macro' or 'exact'")
        if variant == "exact" and clusters is not None:
            raise ParameterError("clusters are for the variants 'block' and 'macro'; 'exact' uses every edge")
        self.variant: Variant = variant
        self.largest = check_count("largest", largest)
        self.seed = seed
        self.clusters = None if clusters is None else read_groups(clusters)
        rng = make_rng(seed)
        self.models = Joint(n_features, self._blocks(social, rng))

    def _blocks(self, social: SocialGraph, rng: np.random.Generator) -> list[Block]:
        """Return the blocks in which the joint matrix is stored."""
        from scipy.sparse import csr_array  # imported late: it is slow to import

        weights = social.matrix()
        n = len(social.users)
        if self.variant == "exact":
            label = np.zeros(n, dtype=np.int64)
        elif self.clusters is not None:
            label = label_users(self.clusters, social.users)
        else:
            label = cut(weights, self.largest, rng)
        if self.variant != "macro":
            edges = weights.tocoo()
            kept = label[edges.row] == label[edges.col]
            weights = csr_array((edges.data[kept], (edges.row[kept], edges.col[kept])), shape=(n, n))
            label = np.arange(n)
        # From here on a node is the set of users with one number in `label`.
        groups: dict[int, list[Hashable]] = {}
        for user, number in zip(social.users, label.tolist(), strict=True):
            groups.setdefault(number, []).append(user)
        node = {number: k for k, number in enumerate(groups)}
        edges = weights.tocoo()
        a, b = (
            np.array([node[number] for number in label[side]], dtype=np.int64)
            for side in (edges.row, edges.col)
        )
        between = csr_array((edges.data * (a != b), (a, b)), shape=(len(groups), len(groups)))
        between.eliminate_zeros()
        members = list(groups.values())
        found = components(between)
        way_out = "use variant='block' with smaller clusters, or raise limit"
        check_size(max(map(len, found), default=0), self.n_features, self.limit, way_out)
        return [
            Block(laplacian_kernel(between[nodes][:, nodes].toarray()), [members[k] for k in nodes])
            for nodes in found
        ]


def laplacian_kernel(weights: Floats) -> Floats:
    """Return (I + L)⁻¹ for the Laplacian L of symmetric weights."""
    a = np.eye(len(weights)) + np.diag(weights.sum(axis=1)) - weights
    inverse = np.linalg.inv(a)
    kernel: Floats = (inverse + inverse.T) / 2
    return kernel
