"""A synthetic world of items with thousands of features; only a few affect a user's payoff."""

import math
from collections.abc import Hashable
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, final

import numpy as np

from coterie.arrays import Floats
from coterie.data.worlds.world import World, check_number
from coterie.errors import ParameterError
from coterie.models.actions import Actions

# Noise is normal, clipped at this many standard deviations so that payoffs stay in [-1, 1].
CUT = 4.0


@final
@dataclass(frozen=True, kw_only=True)
class SparseWorld(World):
    """Items with many features: u_i has `sparsity` nonzeros of equal size, the same for all users of a cluster.

    Contexts are uniform over the sphere ‖x‖ = 1 (normal features, normalised) and never repeat; payoffs add
    noise of standard deviation `noise`; ‖u_i‖ is as large as payoffs in [-1, 1] allow. There is one family of
    items, and no gap: u_i·x is continuous, so two clusters may pay nearly the same for some x. In most rounds
    they differ by about ‖u_i‖·√(2/n_features), which is small.
    """

    kind: ClassVar[str] = "sparse"
    n_users: int = 20
    n_features: int = 2000
    sparsity: int = 5
    noise: float = 0.005
    n_candidates: int = 20

    def __post_init__(self) -> None:
        self.check("n_features", "sparsity")
        for name, limit in (("sparsity", "n_features"), ("clusters_per_family", "n_users")):
            if getattr(self, name) > getattr(self, limit):
                raise ParameterError(
                    f"{name} is {getattr(self, name)} and {limit} is {getattr(self, limit)}; "
                    f"expected at most as many"
                )
        check_number("noise", self.noise, lambda noise: 0 <= noise < 1 / CUT, "a number from 0 to below 0.25")

    @cached_property
    def _models(self) -> Floats:
        """u of each cluster: (clusters_per_family, n_features)."""
        rng = np.random.default_rng([self.seed, 0])
        size = (1 - CUT * self.noise) / math.sqrt(self.sparsity)
        models = np.zeros((self.clusters_per_family, self.n_features))
        for model in models:
            support = rng.choice(self.n_features, self.sparsity, replace=False)
            model[support] = size * rng.choice([-1.0, 1.0], self.sparsity)
        return models

    def truth(self, user: Hashable) -> Floats:
        model: Floats = self._models[self.population.clusters(user)[0]]
        return model.copy()

    def expected(self, user: Hashable, contexts: Actions) -> Floats:
        paid: Floats = self._rows(contexts) @ self._models[self.population.clusters(user)[0]]
        return paid

    def family(self, context: Actions) -> int:
        return 0

    def candidates(self, rng: np.random.Generator) -> Floats:
        drawn = rng.standard_normal((self.n_candidates, self.n_features))
        unit: Floats = drawn / np.linalg.norm(drawn, axis=1, keepdims=True)
        return unit

    def payoffs(self, expected: Floats, rng: np.random.Generator) -> Floats:
        drawn = rng.standard_normal(len(expected)).clip(-CUT, CUT)
        # ‖x‖ may exceed 1 by a rounding.
        return np.clip(expected + self.noise * drawn, -1.0, 1.0)
