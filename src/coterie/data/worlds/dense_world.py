"""A synthetic world of items with features."""

import math
from collections.abc import Hashable
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, final

import numpy as np

from coterie.arrays import Floats, Ints
from coterie.data.worlds.world import FamilyWorld
from coterie.errors import ContextError, ParameterError
from coterie.models.actions import Actions

# The rotation rounds payoffs, so gaps and lengths keep this distance from their limits.
MARGIN = 1e-9
# The part of ‖u_i‖² that all users share, if there are features left for it.
COMMON = 0.2


@final
@dataclass(frozen=True, kw_only=True)
class DenseWorld(FamilyWorld):
    """Items with features: u_i and every context mix all of them, and ‖u_i‖ = 1, ‖x‖ ≤ 1 as in the paper.

    Before a random rotation, each family has one axis per cluster, and the remaining axes are common to all
    users. A user's vector is r on the axis of the user's cluster in each family, plus a common part that is
    the same for all users. A context has `clusters_per_family` numbers on the axes of one family, any two at
    least gap/r apart and in random order, plus a random direction on the common axes. Contexts never repeat.
    So u_i·x = r·(the number on i's axis) + (the payoff of the common axes). Payoffs add uniform noise in
    [-noise, noise]; contexts are short enough to keep payoffs in [-1, 1].
    """

    kind: ClassVar[str] = "dense"
    n_features: int = 12
    n_families: int = 3
    gap: float = 0.4
    noise: float = 0.2

    def __post_init__(self) -> None:
        self.check("n_features")
        if self.n_features < self._n_axes:
            raise ParameterError(
                f"n_features is {self.n_features}, expected at least {self._n_axes}: one for each of "
                f"{self.clusters_per_family} clusters in {self.n_families} families"
            )
        self.check_noise()
        if self._shortest > self._length:
            self.refuse_gap(self.gap * self._length / self._shortest - 2 * MARGIN)

    @property
    def _n_axes(self) -> int:
        return self.n_families * self.clusters_per_family

    @property
    def _common(self) -> float:
        return COMMON if self.n_features > self._n_axes else 0.0

    @property
    def _r(self) -> float:
        return math.sqrt((1 - self._common) / self.n_families)

    @property
    def _length(self) -> float:
        """‖x‖: as long as |u_i·x| ≤ √(r² + common)·‖x‖ ≤ 1 - noise allows."""
        return min(1.0, (1 - self.noise) / math.sqrt(self._r**2 + self._common)) - MARGIN

    @property
    def _steps(self) -> Floats:
        """The smallest numbers that keep the gap: (clusters_per_family,), ascending, centred on 0."""
        steps = np.arange(self.clusters_per_family) - (self.clusters_per_family - 1) / 2
        return np.asarray((self.gap + MARGIN) / self._r * steps, dtype=np.float64)

    @property
    def _shortest(self) -> float:
        return float(np.linalg.norm(self._steps))

    @cached_property
    def _rotation(self) -> Floats:
        rng = np.random.default_rng([self.seed, 0])
        square = rng.standard_normal((self.n_features, self.n_features))
        return np.asarray(np.linalg.qr(square).Q, dtype=np.float64)

    @cached_property
    def _ground(self) -> Floats:
        """The common part of all users: (n_features - n_axes,)."""
        rng = np.random.default_rng([self.seed, 3])
        ground: Floats = _directions(rng, 1, self.n_features - self._n_axes)[0]
        return math.sqrt(self._common) * ground

    def truth(self, user: Hashable) -> Floats:
        plain = np.zeros(self.n_features)
        axes = np.arange(self.n_families) * self.clusters_per_family + self.population.clusters(user)
        plain[axes] = self._r
        plain[self._n_axes :] = self._ground
        return self._rotation @ plain

    def expected(self, user: Hashable, contexts: Actions) -> Floats:
        plain = self._plain(contexts)
        families = self._families(plain)
        axes = families * self.clusters_per_family + self.population.clusters(user)[families]
        paid: Floats = self._r * plain[np.arange(len(plain)), axes] + plain[:, self._n_axes :] @ self._ground
        return paid

    def family(self, context: Actions) -> int:
        return int(self._families(self._plain(np.asarray(context)[None]))[0])

    def _plain(self, contexts: Actions) -> Floats:
        """Undo the rotation: (candidates, n_features)."""
        return self._rows(contexts) @ self._rotation

    def _families(self, plain: Floats) -> Ints:
        """Return the family of each context, the one whose axes it uses: (candidates,)."""
        blocks = plain[:, : self._n_axes].reshape(-1, self.n_families, self.clusters_per_family)
        used = np.abs(blocks).max(axis=2) > MARGIN  # (candidates, n_families)
        if not (used.sum(axis=1) == 1).all():
            k = int(np.argmax(used.sum(axis=1) != 1))
            raise ContextError(
                f"context {k} belongs to {used[k].sum()} families, expected one; "
                "use only contexts that this world generated"
            )
        families: Ints = np.argmax(used, axis=1)
        return families

    def candidates(self, rng: np.random.Generator) -> Floats:
        n_candidates, n_axes = self.n_candidates, self._n_axes
        n_common = self.n_features - n_axes
        square = np.full(n_candidates, self._length**2)  # of the length on the family's axes
        if n_common:
            square = rng.uniform(self._shortest**2, square)
        # Ascending steps plus ascending offsets keep the gaps between the steps. Scale the offsets until
        # ‖steps + stretch·offsets‖² is `square`: the positive root of a quadratic.
        offsets = np.sort(rng.standard_normal((n_candidates, self.clusters_per_family)), axis=1)
        a, b, c = (offsets**2).sum(axis=1), offsets @ self._steps, self._shortest**2 - square
        stretch = (np.sqrt(b**2 - a * np.minimum(c, 0)) - b) / a
        numbers = rng.permuted(self._steps + stretch[:, None] * offsets, axis=1)
        families = rng.integers(self.n_families, size=n_candidates)
        axes = families[:, None] * self.clusters_per_family + np.arange(self.clusters_per_family)
        plain = np.zeros((n_candidates, self.n_features))
        np.put_along_axis(plain, axes, numbers, axis=1)
        common = np.sqrt(np.maximum(self._length**2 - square, 0))
        plain[:, n_axes:] = common[:, None] * _directions(rng, n_candidates, n_common)
        return plain @ self._rotation.T

    def payoffs(self, expected: Floats, rng: np.random.Generator) -> Floats:
        return expected + rng.uniform(-self.noise, self.noise, len(expected))


def _directions(rng: np.random.Generator, n: int, n_features: int) -> Floats:
    """Draw `n` vectors of length 1, uniform over the sphere: (n, n_features); n_features may be 0."""
    drawn = rng.standard_normal((n, n_features))
    return drawn / np.linalg.norm(drawn, axis=1, keepdims=True) if n_features else drawn
