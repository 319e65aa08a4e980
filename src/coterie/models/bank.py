"""A bank: numbered ridge regressions that can be pooled. What cluster policies ask of their models.

Row -1 is whoever has learned nothing: M = I and b = 0. Contexts come in twice: `read` checks what a caller
gave, `numbers` turns it into what the rows work on.
"""

from collections.abc import Hashable
from importlib import import_module
from typing import Any, Protocol, Self

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from coterie.models.files import Tensors
from coterie.models.protocol import Floats, View


class Bank(Protocol):
    """Rows of M = I + Σ x xᵀ, b = Σ y x, w = M⁻¹b."""

    one_hot: bool
    rows: Any  # what the kernels work on

    def sibling(self) -> Self:
        """Return an empty bank for the same contexts, whose rows can be pooled with this one's."""

    def read(self, contexts: Any) -> Any:
        """Check a candidate list and return it as a decision shows it; `[0]` is its first context."""

    def numbers(self, contexts: Any) -> NDArray[Any]:
        """Return checked candidates as the calls below take them. Changes nothing."""

    def learnable(self, contexts: Any) -> NDArray[Any]:
        """The same for contexts that are about to be learned: items get a number if they have none."""

    def items_named(self, names: list[Hashable]) -> None:
        """Give these items the next numbers."""

    def fit(self, n_rows: int, entries: int) -> None:
        """Make room for so many rows, and entries where there are any, in all."""

    def take(self) -> int:
        """Return a row that nobody uses."""

    def give(self, row: int) -> None:
        """Take a row back; nothing of it stays."""

    def replace(self, row: int) -> None:
        """Forget a row and let the last one take its place: for rows that are never given back."""

    def times(self, row: int) -> int:
        """Return how many payoffs a row has learned."""

    def view(self, row: int, items: NDArray[Any]) -> View:
        """Return a row's estimates and spreads."""

    def draw(self, row: int, items: NDArray[Any], scale: float, rng: Generator) -> Floats:
        """Return w̃·x for each candidate, one w̃ ~ N(w, scale² M⁻¹) for all."""

    def update(self, row: int, items: NDArray[Any], payoff: float) -> None:
        """Let a row learn what the first of `items` paid."""

    def pool(self, row: int, source: Self, source_row: int, sign: int = 1) -> None:
        """Add another row's statistics, or subtract them."""

    def pool_all(self, row: int, source: Self, source_rows: NDArray[np.int64]) -> None:
        """Add many rows' statistics."""

    def clear(self, row: int) -> None:
        """Let a row have learned nothing."""

    def gap(self, row: int, others: Self, other: int) -> float:
        """Return ‖w − w'‖² of two rows."""

    def apart(self, row: int, others: Self, other: int) -> float:
        """Return ‖w − w'‖ of two rows, 0 to rounding where they are equal."""

    def tensors(self, prefix: str, rows: NDArray[np.int64]) -> Tensors:
        """Return these rows as arrays, renumbered from 0."""

    def restore(self, prefix: str, tensors: Tensors, n_rows: int) -> Any:
        """Return the `rows` that `tensors` had written, if they are sound."""


def kernels(name: str) -> Any:
    """Return a module of compiled functions, imported late: Numba takes its time."""
    return import_module(f"coterie.models._kernels.{name}")
