"""The shared part of GOB.Lin and CoLin: a joint estimate for users coupled by a given graph."""

from collections.abc import Hashable, Iterable, Sequence

from coterie.models.actions import ActionLike, ActionsLike
from coterie.models.checks import check_count, read_payoff
from coterie.models.context_kind import check_one_kind
from coterie.models.files import Tensors
from coterie.models.rows.joint import Joint
from coterie.policies.base.decision import Basis, Decision
from coterie.policies.base.parameters import Alpha, check_alpha, scale_at
from coterie.policies.base.policy import Policy
from coterie.policies.social.social_graph import (
    Edge,
    Graph,
    SocialGraph,
    pack_graph,
    read_graph,
    unpack_graph,
)


class JointPolicy(Policy):
    """Decides by the user's part of the joint estimate and bound."""

    alpha: Alpha
    models: Joint
    graph: list[Edge]
    clusters: list[list[Hashable]] | None = None

    def _read_graph(
        self,
        n_features: int | None,
        one_hot: bool,
        alpha: Alpha,
        graph: Graph,
        users: Iterable[Hashable] | None,
        limit: int,
    ) -> SocialGraph:
        """Check and keep the parameters of every policy over a graph, and return the graph."""
        check_one_kind(n_features, one_hot)
        self.n_features, self.one_hot, self.alpha = n_features, one_hot, check_alpha(alpha)
        self.limit = check_count("limit", limit)
        social = read_graph(graph, users)
        self.graph = social.edges
        return social

    def decide(self, user: Hashable, contexts: ActionsLike) -> Decision:
        """Score each candidate by the user's part of the joint estimate and bound."""
        contexts = self.models.read(contexts)
        estimate, spread = self.models.view(user, contexts)
        width = scale_at(self.alpha, self.learned) * spread
        members = self.models.members(user)
        return Decision(
            user, contexts, estimate + width, estimate=estimate, width=width, basis=Basis(members)
        )

    def learn(self, user: Hashable, context: ActionLike, payoff: float) -> int:
        """Update the joint estimate of all users coupled with the user."""
        contexts = self.models.read([context])
        payoff = read_payoff(payoff)
        scale_at(self.alpha, self.learned)  # raises for a bad alpha before anything changes
        self.learned += 1
        return self.models.update(user, contexts[0], payoff)

    def neighbours(self, user: Hashable, context: ActionLike) -> list[Hashable]:
        """Return the users whose payoffs count for `user`, including `user`: the same for every context."""
        self.models.read([context])
        return self.models.coupled_with(user)

    def drop_item(self, item: Hashable) -> None:
        """Forget an item for all users, if items are ids."""
        if self.models.n_features is not None:
            super().drop_item(item)
        self.models.read([item])
        self.models.drop_item(item)

    def add(self, user: Hashable) -> None:
        """Register a user; users outside the graph are not coupled with others."""
        self.models.add(user)

    def drop(self, user: Hashable) -> None:
        """Forget a user, in the models and in the graph. What the others learned from the user stays."""
        self.models.drop(user)
        self.graph = [edge for edge in self.graph if user not in edge[:2]]
        if self.clusters is not None:
            self.clusters = [[name for name in group if name != user] for group in self.clusters]

    @property
    def users(self) -> Sequence[Hashable]:
        return self.models.users

    def tensors(self) -> Tensors:
        """Return all that was learned, and the graph, as arrays."""
        return {**pack_graph(self.users, self.graph, self.clusters), **self.models.tensors()}

    def restore(self, tensors: Tensors) -> None:
        self.models.restore(tensors)
        self.graph, self.clusters = unpack_graph(self.users, tensors)
