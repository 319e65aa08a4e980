"""A bank: numbered ridge regressions that can be pooled. What cluster policies ask of their models.

Row -1 is whoever has learned nothing: M = I and b = 0. Contexts come in twice: `read` checks what a caller
gave, `numbers` turns it into what the rows work on. The rows themselves are compiled code's; this is the same
for vectors and for items, but for what their contexts are and how rows are kept in files.
"""

from abc import ABC, abstractmethod
from collections.abc import Hashable
from importlib import import_module
from typing import Any, Self

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from coterie.models.files import Tensors
from coterie.models.protocol import Floats, View


class Compiled:
    """Holds a module of compiled functions. A module cannot be copied or pickled, so its name is."""

    def __init__(self, kind: str) -> None:
        self._kernels = kernels(kind)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_kernels": self._kernels.__name__}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _kernels=import_module(state["_kernels"]))


class Bank(Compiled, ABC):
    """Rows of M = I + Σ x xᵀ, b = Σ y x, w = M⁻¹b."""

    one_hot: bool
    rows: Any  # what the kernels work on

    @abstractmethod
    def sibling(self) -> Self:
        """Return an empty bank for the same contexts, whose rows can be pooled with this one's."""

    @abstractmethod
    def read(self, contexts: Any) -> Any:
        """Check a candidate list and return it as a decision shows it; `[0]` is its first context."""

    @abstractmethod
    def numbers(self, contexts: Any) -> NDArray[Any]:
        """Return checked candidates as the calls below take them. Changes nothing."""

    @abstractmethod
    def learnable(self, contexts: Any) -> NDArray[Any]:
        """The same for contexts that are about to be learned: items get a number if they have none."""

    @abstractmethod
    def items_named(self, names: list[Hashable]) -> None:
        """Give these items the next numbers."""

    @property
    @abstractmethod
    def entries(self) -> int:
        """How many entries the rows have in all; vectors have none."""

    @abstractmethod
    def fit(self, n_rows: int, entries: int) -> None:
        """Make room for so many rows, and entries where there are any, in all."""

    @abstractmethod
    def tensors(self, prefix: str, rows: NDArray[np.int64]) -> Tensors:
        """Return these rows as arrays, renumbered from 0."""

    @abstractmethod
    def restore(self, prefix: str, tensors: Tensors, n_rows: int) -> Any:
        """Return the `rows` that `tensors` had written, if they are sound."""

    def take(self) -> int:
        """Return a row that nobody uses."""
        self.fit(int(self.rows.size[0]) + 1, 0)
        return int(self._kernels.take(self.rows))

    def give(self, row: int) -> None:
        """Take a row back; nothing of it stays."""
        self._kernels.give(self.rows, row)

    def replace(self, row: int) -> None:
        """Forget a row and let the last one take its place: for rows that are never given back."""
        self._kernels.swap_in(self.rows, row)

    def times(self, row: int) -> int:
        """Return how many payoffs a row has learned."""
        return int(self.rows.times[row])

    def view(self, row: int, items: NDArray[Any]) -> View:
        """Return a row's estimates and spreads."""
        found = View(np.empty(len(items)), np.empty(len(items)))
        self._kernels.view(self.rows, row, items, np.arange(len(items)), *found)
        return found

    def draw(self, row: int, items: NDArray[Any], scale: float, rng: Generator) -> Floats:
        """Return w̃·x for each candidate, one w̃ ~ N(w, scale² M⁻¹) for all; an item listed twice gets one draw."""
        score = np.empty(len(items))
        self._kernels.draw(self.rows, row, items, np.arange(len(items)), scale, rng, score)
        return score

    def update(self, row: int, items: NDArray[Any], payoff: float) -> None:
        """Let a row learn what the first of `items` paid."""
        self.fit(0, self.entries + 1)
        self._kernels.update(self.rows, row, items, 0, payoff)

    def fade(self, row: int, keep: float) -> None:
        """Let all that a row has learned count less."""
        self._kernels.fade(self.rows, row, keep)

    def pool(self, row: int, source: Self, source_row: int, sign: int = 1) -> None:
        """Add another row's statistics, or subtract them."""
        self.fit(0, self.entries + source.entries)
        self._kernels.pool(self.rows, row, source.rows, source_row, sign)

    def pool_all(self, row: int, source: Self, source_rows: NDArray[np.int64]) -> None:
        """Add many rows' statistics."""
        self.fit(0, self.entries + source.entries)
        for source_row in source_rows.tolist():
            self._kernels.move(self.rows, row, source.rows, source_row, 1)
        self._kernels.refresh(self.rows, row)

    def clear(self, row: int) -> None:
        """Let a row have learned nothing."""
        self._kernels.clear(self.rows, row)

    def gap(self, row: int, others: Self, other: int) -> float:
        """Return ‖w − w'‖² of two rows."""
        return float(self._kernels.gap(self.rows, row, others.rows, other))

    def apart(self, row: int, others: Self, other: int) -> float:
        """Return ‖w − w'‖ of two rows, 0 to rounding where they are equal."""
        return float(self._kernels.apart(self.rows, row, others.rows, other))


def kernels(name: str) -> Any:
    """Return a module of compiled functions, imported late: Numba takes its time."""
    return import_module(f"coterie.models._kernels.{name}")
