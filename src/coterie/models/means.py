"""Numbered ridge regressions over item ids, to be pooled, split and drawn from.

On one-hot contexts a ridge regression is a shrunken mean for each item: w = total / (1 + times). A row holds
an entry for each item it was shown, and nothing for the others, so memory follows the touched pairs.
"""

from collections.abc import Hashable, Sequence
from typing import Any, Self, final

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from coterie.errors import FileError
from coterie.models.bank import kernels
from coterie.models.checks import read_items
from coterie.models.files import Tensors, pack_ids, take, unpack_ids
from coterie.models.protocol import Floats, View

Numbers = NDArray[np.int64]
SOUND = 1e-6  # how far rounding may have taken a sum from what its parts allow


@final
class Means:
    """A bank over item ids."""

    one_hot = True

    def __init__(self, items: dict[Hashable, int] | None = None) -> None:
        self.items = {} if items is None else items  # each learned item and its number; siblings share it
        self._kernels = kernels("means")
        self.rows = self._kernels.make(16)

    def sibling(self) -> Self:
        """Return an empty bank for the same items."""
        return type(self)(self.items)

    def read(self, contexts: Any) -> list[Hashable]:
        """Check candidates and return them as a list of ids."""
        return read_items(contexts)

    def numbers(self, contexts: Sequence[Hashable]) -> Numbers:
        """Return the items' numbers; one that nobody has learned gets a negative number, for this call."""
        strangers: dict[Hashable, int] = {}
        return np.array(
            [
                self.items[item] if item in self.items else strangers.setdefault(item, -1 - len(strangers))
                for item in contexts
            ],
            dtype=np.int64,
        )

    def learnable(self, contexts: Sequence[Hashable]) -> Numbers:
        """Return the items' numbers, given where there are none."""
        return np.array([self.items.setdefault(item, len(self.items)) for item in contexts], dtype=np.int64)

    def items_named(self, names: list[Hashable]) -> None:
        """Give these items the next numbers."""
        for name in names:
            self.items[name] = len(self.items)

    def fit(self, n_rows: int, entries: int) -> None:
        """Make room for so many rows and entries in all."""
        rows, room = len(self.rows.head), len(self.rows.row)
        if rows >= n_rows and room >= entries:
            return
        while room < entries:
            room *= 2
        self.rows = self._kernels.grown(self.rows, rows if rows >= n_rows else max(n_rows, 2 * rows), room)

    def take(self) -> int:
        """Return a row that nobody uses."""
        self.fit(int(self.rows.size[0]) + 1, 0)
        return int(self._kernels.take(self.rows))

    def give(self, row: int) -> None:
        """Take a row back."""
        self._kernels.give(self.rows, row)

    def replace(self, row: int) -> None:
        """Forget a row and let the last one take its place."""
        self._kernels.swap_in(self.rows, row)

    def times(self, row: int) -> int:
        """Return how many payoffs a row has learned."""
        return int(self.rows.times[row])

    def view(self, row: int, items: Numbers) -> View:
        """Return a row's estimates and spreads."""
        found = View(np.empty(len(items)), np.empty(len(items)))
        self._kernels.view(self.rows, row, items, np.arange(len(items)), *found)
        return found

    def draw(self, row: int, items: Numbers, scale: float, rng: Generator) -> Floats:
        """Return the candidates' payoffs under one draw; an item listed twice gets one draw."""
        score = np.empty(len(items))
        self._kernels.draw(self.rows, row, items, np.arange(len(items)), scale, rng, score)
        return score

    def update(self, row: int, items: Numbers, payoff: float) -> None:
        """Let a row learn."""
        self.fit(0, int(self.rows.size[4]) + 1)
        self._kernels.update(self.rows, row, items, 0, payoff)

    def pool(self, row: int, source: Self, source_row: int, sign: int = 1) -> None:
        """Add another row's statistics, or subtract them."""
        self.fit(0, int(self.rows.size[4] + source.rows.size[4]))
        self._kernels.pool(self.rows, row, source.rows, source_row, sign)

    def pool_all(self, row: int, source: Self, source_rows: NDArray[np.int64]) -> None:
        """Add many rows' statistics."""
        self.fit(0, int(self.rows.size[4] + source.rows.size[4]))
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

    def tensors(self, prefix: str, rows: Numbers) -> Tensors:
        """Return rows as arrays: one entry a touched (row, item) pair."""
        row, item, count, total = self._kernels.dump(self.rows, rows)
        return {
            "items": pack_ids(self.items),
            f"{prefix}_row": row,
            f"{prefix}_item": item,
            f"{prefix}_count": count,
            f"{prefix}_total": total,
            f"{prefix}_square": self.rows.square[rows],
            f"{prefix}_times": self.rows.times[rows],
        }

    def restore(self, prefix: str, tensors: Tensors, n_rows: int) -> Any:
        """Return rows from a file, if sums and counts agree; the items' numbers are taken over at once."""
        items = unpack_ids(tensors, "items")
        row = take(tensors, f"{prefix}_row", "i", (None,))
        item, count = (take(tensors, f"{prefix}_{name}", "i", row.shape) for name in ("item", "count"))
        total = take(tensors, f"{prefix}_total", "f", row.shape)
        square = take(tensors, f"{prefix}_square", "f", (n_rows,))
        times = take(tensors, f"{prefix}_times", "i", (n_rows,))
        sound = (row >= 0) & (row < n_rows) & (item >= 0) & (item < len(items))
        sound &= (count >= 1) & (count < 2**31) & (np.abs(total) <= count + SOUND)
        if not sound.all():
            raise FileError(f"the models under {prefix!r} in the file contradict each other")
        weights = total / (1 + count)
        agree = (np.bincount(row, count, n_rows) == times) & (
            np.abs(np.bincount(row, weights * weights, n_rows) - square) <= SOUND
        )
        fresh = self._kernels.make(max(16, n_rows), 1 << max(4, (len(row) - 1).bit_length()))
        for _ in range(n_rows):
            self._kernels.take(fresh)
        differ = self._kernels.fill(fresh, row, item, count, total.astype(np.float64))
        if not (agree.all() and differ):
            raise FileError(f"the models under {prefix!r} in the file contradict each other")
        fresh.square[:n_rows], fresh.times[:n_rows] = square, times
        self.items.clear()
        self.items.update({name: number for number, name in enumerate(items)})
        return fresh
