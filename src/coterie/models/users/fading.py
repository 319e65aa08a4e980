"""User models whose old payoffs count less: M = I + Σ λ^age·x xᵀ and b = Σ λ^age·y x.

The age of a payoff counts the later payoffs of the same user, whether the user learned them alone or with neighbours.
Payoffs of one age on one item are rare, so the classes of equal users of `one_hot` would have one member each. Here
every updated user has a row of ridge regressions, and every question reads all rows. Over vectors an update is O(d³),
because the prior does not fade; M stays well-conditioned, because its largest eigenvalue is at most 1 + 1/(1 − λ).
"""

from collections.abc import Hashable
from typing import final

import numpy as np

from coterie.arrays import Array
from coterie.models._kernels.users import fading as kernels
from coterie.models.actions import Actions, ActionsLike
from coterie.models.batches import Batch, Outcome, Rule
from coterie.models.files import Tensors
from coterie.models.rows.chunks import Items
from coterie.models.rows.ridge_rows import RidgeRows
from coterie.models.users.compiled_models import CompiledModels
from coterie.models.users.user_rows import UserRows


@final
class Fading(CompiledModels):
    """One ridge regression per user. `keep` is λ: each payoff multiplies the weight of older ones by it."""

    _kernels = kernels

    def __init__(self, ridges: RidgeRows, keep: float) -> None:
        super().__init__()
        self.ridges = ridges
        self.keep = keep

    def read(self, contexts: ActionsLike) -> Actions:
        """Check candidates and return them as the rows take them."""
        return self.ridges.read(contexts)

    def _state(self) -> kernels.FadingRows:
        return kernels.FadingRows(self.ridges.rows, self.keep)

    def _numbers(self, contexts: Actions) -> Array:
        return self.ridges.numbers(contexts)

    def _learnable(self, context: Actions) -> Array:
        return self.ridges.learnable([context])

    def _reserve(self, users: int, payoffs: int) -> None:
        self.ridges.fit(users, self.ridges.entries + payoffs)

    def run(self, batch: Batch, rule: Rule, rng: np.random.Generator) -> Outcome:
        """Play checked rounds of CAB in one compiled loop."""
        table, candidates = batch.items, batch.candidates
        if self.ridges.one_hot and len(set(table)) < len(table):  # an item has one number
            once = {item: k for k, item in enumerate(dict.fromkeys(table))}
            candidates = np.array([once[item] for item in table], dtype=np.int64)[candidates]
            table = list(once)
        items = Items(self.ridges, table)
        outcome = self.play(batch._replace(candidates=candidates), items.numbers, items.named, rule, rng)
        items.settle()
        return outcome

    def drop(self, user: Hashable) -> None:
        """Forget a user; the last row moves into the gap."""
        row = self._known.drop(user)
        if row >= 0:
            self.ridges.replace(row)

    def tensors(self) -> Tensors:
        """Return all users."""
        rows, names = self._known.pack(self.users)
        return {**names, **self.ridges.tensors("model", rows)}

    def restore(self, tensors: Tensors) -> None:
        """Replace all users."""
        known = UserRows()
        names, idle = known.unpack(tensors)
        self.ridges.rows = self.ridges.restore("model", tensors, len(names))
        known.put(names, idle)
        self._known = known
