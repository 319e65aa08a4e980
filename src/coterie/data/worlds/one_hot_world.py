"""A synthetic world of items that have ids but no features."""

import math
from collections.abc import Hashable
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal, final

import numpy as np

from coterie.arrays import Floats
from coterie.data.worlds.population import is_whole
from coterie.data.worlds.world import FamilyWorld
from coterie.errors import ContextError, ParameterError
from coterie.models.actions import Actions

# Values are whole multiples of 2⁻³⁰: floats hold them and their differences without rounding.
GRID = 2**30


@final
@dataclass(frozen=True, kw_only=True)
class OneHotWorld(FamilyWorld):
    """Items without features: item k belongs to family k mod n_families.

    Each item has one value per cluster of its family, and the values are at least `gap` apart. With
    `noise="clicks"` payoffs are 0 or 1 and the value is the probability of a 1; with a number they are the
    value plus uniform noise in [-noise, noise], and values stay within ±(1 - noise).

    The paper has ‖u_i‖ = 1. With many items that leaves no room for a gap (the squares of all values would
    sum to 1), so this world only keeps |u_i·x| ≤ 1.
    """

    kind: ClassVar[str] = "one-hot"
    one_hot: ClassVar[bool] = True
    n_users: int = 300
    n_items: int = 20
    n_families: int = 4
    gap: float = 0.3
    noise: float | Literal["clicks"] = "clicks"

    def __post_init__(self) -> None:
        self.check("n_items")
        for name, wanted in (("n_families", self.n_families), ("n_candidates", self.n_candidates)):
            if wanted > self.n_items:
                raise ParameterError(
                    f"{name} is {wanted} and n_items is {self.n_items}: ask for at most {self.n_items}, "
                    "or for more items"
                )
        if self.noise != "clicks":
            self.check_noise(also=' or "clicks"')
        low, high = self._range
        steps = self.clusters_per_family - 1
        if steps * math.ceil(self.gap * GRID) > high - low:
            self.refuse_gap((high - low) // steps / GRID)

    @property
    def n_features(self) -> None:
        return None

    @property
    def _range(self) -> tuple[int, int]:
        """The lowest and the highest value, in units of 1/GRID."""
        if self.noise == "clicks":
            return 0, GRID
        high = math.floor((1 - self.noise) * GRID)
        return -high, high

    @cached_property
    def _values(self) -> Floats:
        """The expected payoff of each item in each cluster: (n_items, clusters_per_family)."""
        rng = np.random.default_rng([self.seed, 0])
        low, high = self._range
        ladder = math.ceil(self.gap * GRID) * np.arange(self.clusters_per_family)
        size = (self.n_items, self.clusters_per_family)
        slack = rng.integers(low, high - int(ladder[-1]), size=size, endpoint=True)
        values: Floats = rng.permuted(np.sort(slack, axis=1) + ladder, axis=1) / GRID
        return values

    def truth(self, user: Hashable) -> Floats:
        return self.expected(user, range(self.n_items))

    def expected(self, user: Hashable, contexts: Actions) -> Floats:
        items = [self._item(context) for context in contexts]
        clusters = self.population.clusters(user)
        return self._values[items, [clusters[item % self.n_families] for item in items]]

    def family(self, context: Actions) -> int:
        return self._item(context) % self.n_families

    def _item(self, context: Actions) -> int:
        if is_whole(context) and 0 <= context < self.n_items:
            return int(context)
        raise ContextError(
            f"item is {context!r}, this world's items are the integers 0 to {self.n_items - 1}"
        )

    def candidates(self, rng: np.random.Generator) -> list[int]:
        items: list[int] = rng.choice(self.n_items, self.n_candidates, replace=False).tolist()
        return items

    def payoffs(self, expected: Floats, rng: np.random.Generator) -> Floats:
        if self.noise == "clicks":
            return (rng.random(len(expected)) < expected).astype(np.float64)
        return expected + rng.uniform(-self.noise, self.noise, len(expected))
