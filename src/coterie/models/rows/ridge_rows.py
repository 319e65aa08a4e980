"""Numbered ridge regressions that can be pooled: the models of LinUCB, CLUB, SCLUB, DynUCB, COFIBA and fading CAB.

Every row starts from the prior M = I, b = 0, and row -1 is the prior itself. `read` checks contexts, and
`numbers` converts them to the kernels' format. The rows are arrays of compiled code. This base class is the same
for vectors and items; the subclasses define contexts and the format of files.
"""

from abc import ABC, abstractmethod
from collections.abc import Hashable
from typing import Any, Self

import numpy as np

from coterie.arrays import Array, Floats, Ints
from coterie.models._kernels.rows import dispatch
from coterie.models.actions import Actions, ActionsLike
from coterie.models.files import Tensors
from coterie.models.protocol import View

SOUND = 1e-6  # a file whose numbers contradict each other by more than this is damaged


class RidgeRows(ABC):
    """Rows of M = I + Σ x xᵀ, b = Σ y x, w = M⁻¹b."""

    one_hot: bool
    _kernels: Any  # the module of compiled functions
    rows: Any  # the kernels' arrays
    items: dict[Hashable, int]  # each learned item and its number, shared by siblings; vectors have none

    @abstractmethod
    def sibling(self) -> Self:
        """Return empty rows for the same contexts, which can be pooled with these."""

    @abstractmethod
    def read(self, contexts: ActionsLike) -> Actions:
        """Check a candidate list and return it in the format of decisions; `[0]` is its first context."""

    @abstractmethod
    def numbers(self, contexts: Actions) -> Array:
        """Return checked candidates in the format of the methods below. Changes nothing."""

    def learnable(self, contexts: Actions) -> Array:
        """The same for contexts to be learned: new items get a number."""
        return self.numbers(contexts)

    @property
    def entries(self) -> int:
        """The total number of entries of all rows; vectors have none."""
        return 0

    @abstractmethod
    def fit(self, n_rows: int, entries: int) -> None:
        """Make room for this total of rows and, for items, entries."""

    @abstractmethod
    def keep(self, rows: Ints) -> None:
        """Forget all rows but these, which get the numbers from 0 on."""

    @abstractmethod
    def views(self, rows: Ints | slice, items: Array) -> View:
        """Return the estimates and spreads of several rows: (rows, candidates) each."""

    @abstractmethod
    def pooled(self, rows: Ints, items: Array) -> View:
        """Return the estimates and spreads of the sum of some rows: M = I + Σ (M_j − I), b = Σ b_j."""

    @abstractmethod
    def tensors(self, prefix: str, rows: Ints) -> Tensors:
        """Return these rows as arrays, renumbered from 0."""

    @abstractmethod
    def restore(self, prefix: str, tensors: Tensors, n_rows: int) -> Any:
        """Return the `rows` that `tensors` wrote, if they are consistent."""

    def take(self) -> int:
        """Return an unused row."""
        self.fit(int(self.rows.size[0]) + 1, 0)
        return int(dispatch.take(self.rows))

    def release(self, row: int) -> None:
        """Release a row and clear it."""
        dispatch.release(self.rows, row)

    def replace(self, row: int) -> None:
        """Forget a row and move the last one into its place; for rows that are never released."""
        self._kernels.replace_by_last(self.rows, row)

    def times(self, row: int) -> int:
        """Return how many payoffs a row has learned."""
        return int(self.rows.times[row])

    def view(self, row: int, items: Array) -> View:
        """Return a row's estimates and spreads."""
        found = View(np.empty(len(items)), np.empty(len(items)))
        self._kernels.view(self.rows, row, items, np.arange(len(items)), *found)
        return found

    def chances(self, row: int, items: Array, scale: float, seed: int) -> Floats:
        """Return the probability that each candidate's w̃·x is the largest, w̃ ~ N(w, scale² M⁻¹)."""
        found: Floats = self._kernels.chances(self.rows, row, items, np.arange(len(items)), scale, seed)
        return found

    def update(self, row: int, items: Array, payoff: float) -> None:
        """Update a row with the payoff of the first of `items`."""
        self.fit(0, self.entries + 1)
        self._kernels.update(self.rows, row, items, 0, payoff)

    def fade(self, row: int, keep: float) -> None:
        """Reduce the weight of all that a row has learned."""
        self._kernels.fade(self.rows, row, keep)

    def pool(self, row: int, source: Self, source_row: int, sign: int = 1) -> None:
        """Add another row's statistics, or subtract them."""
        self.fit(0, self.entries + source.entries)
        self._kernels.pool(self.rows, row, source.rows, source_row, sign)

    def pool_all(self, row: int, source: Self, source_rows: Ints) -> None:
        """Add many rows' statistics."""
        self.fit(0, self.entries + source.entries)
        for source_row in source_rows.tolist():
            self._kernels.add_facts(self.rows, row, source.rows, source_row, 1)
        self._kernels.refresh(self.rows, row)

    def clear(self, row: int) -> None:
        """Reset a row to the prior."""
        self._kernels.clear(self.rows, row)

    def distance(self, row: int, others: Self, other: int) -> float:
        """Return ‖w − w'‖ of two rows, 0 up to rounding if they are equal."""
        return float(self._kernels.distance(self.rows, row, others.rows, other))
