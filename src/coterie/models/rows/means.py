"""Numbered ridge regressions over item ids, to be pooled, split and drawn from.

On one-hot contexts a ridge regression is a shrunken mean per item: w = total / (1 + times). A row has an
entry for each item with data and nothing for the others, so memory grows with these pairs.
"""

from collections.abc import Hashable, Sequence
from typing import Any, Self, final

import numpy as np

from coterie.arrays import Ints
from coterie.errors import FileError
from coterie.models._kernels.rows import means
from coterie.models._kernels.rows.dispatch import take as take_row
from coterie.models.actions import ActionsLike
from coterie.models.checks import read_items
from coterie.models.files import Tensors, pack_ids, take, unpack_ids
from coterie.models.protocol import View
from coterie.models.rows.ridge_rows import SOUND, RidgeRows


@final
class Means(RidgeRows):
    """Rows over item ids."""

    one_hot = True
    _kernels = means

    def __init__(self, items: dict[Hashable, int] | None = None, largest: float = 1.0) -> None:
        self.items = {} if items is None else items
        self.largest = largest  # a payoff, in a file
        self.rows = self._kernels.make(16)

    def sibling(self) -> Self:
        return type(self)(self.items, self.largest)

    def read(self, contexts: ActionsLike) -> list[Hashable]:
        return read_items(contexts)

    def numbers(self, contexts: Sequence[Hashable]) -> Ints:
        """Return the items' numbers; unlearned items get a negative number for this call."""
        found = [*map(self.items.get, contexts)]
        if None in found:
            new = dict.fromkeys(item for item, number in zip(contexts, found, strict=True) if number is None)
            strangers = dict(zip(new, range(-1, -1 - len(new), -1), strict=True))
            found = [
                strangers[item] if number is None else number
                for item, number in zip(contexts, found, strict=True)
            ]
        return np.array(found, dtype=np.int64)

    def learnable(self, contexts: Sequence[Hashable]) -> Ints:
        """Return the items' numbers; new items get one."""
        return np.array([self.items.setdefault(item, len(self.items)) for item in contexts], dtype=np.int64)

    @property
    def entries(self) -> int:
        return int(self.rows.size[4])

    def fit(self, n_rows: int, entries: int) -> None:
        rows, room = len(self.rows.head), len(self.rows.row)
        if rows >= n_rows and room >= entries:
            return
        while room < entries:
            room *= 2
        self.rows = self._kernels.grown(self.rows, rows if rows >= n_rows else max(n_rows, 2 * rows), room)

    def _make(self, n_rows: int, entries: int = 0) -> Any:
        """Return `n_rows` empty rows, with room for these entries."""
        fresh = self._kernels.make(max(16, n_rows), 1 << max(4, (entries - 1).bit_length()))
        for _ in range(n_rows):
            take_row(fresh)
        return fresh

    def keep(self, rows: Ints) -> None:
        fresh = self._make(len(rows), self.entries)
        self._kernels.fill(fresh, *self._kernels.dump(self.rows, rows))
        for old, new in ((self.rows.square, fresh.square), (self.rows.times, fresh.times)):
            new[: len(rows)] = old[rows]
        self.rows = fresh

    def views(self, rows: Ints | slice, items: Ints) -> View:
        chosen = np.arange(len(self.rows.head))[rows]
        found = View(np.empty((len(chosen), len(items))), np.empty((len(chosen), len(items))))
        self._kernels.views(self.rows, chosen, items, *found)
        return found

    def pooled(self, rows: Ints, items: Ints) -> View:
        found = View(np.empty(len(items)), np.empty(len(items)))
        self._kernels.pooled(self.rows, rows, items, *found)
        return found

    def tensors(self, prefix: str, rows: Ints) -> Tensors:
        """Return rows as arrays: one entry per row and item with data."""
        row, item, count, total = self._kernels.dump(self.rows, rows)
        if (count == np.floor(count)).all():
            count = count.astype(np.int64)  # fractions occur only with fading
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
        """Return rows from a file, if sums and counts agree; also restores the items' numbers."""
        items = unpack_ids(tensors, "items")
        row = take(tensors, f"{prefix}_row", "i", (None,))
        item = take(tensors, f"{prefix}_item", "i", row.shape)
        faded = tensors.get(f"{prefix}_count", row).dtype.kind == "f"
        count = take(tensors, f"{prefix}_count", "f" if faded else "i", row.shape)
        total = take(tensors, f"{prefix}_total", "f", row.shape)
        square = take(tensors, f"{prefix}_square", "f", (n_rows,))
        times = take(tensors, f"{prefix}_times", "i", (n_rows,))
        sound = (row >= 0) & (row < n_rows) & (item >= 0) & (item < len(items))
        sound &= (
            (count > 0 if faded else count >= 1)
            & (count < 2**31)
            & (np.abs(total) <= self.largest * count + SOUND)
        )
        if not sound.all():
            raise FileError(f"the models under {prefix!r} in the file contradict each other")
        weights = total / (1 + count)
        counted = np.bincount(row, count, n_rows)
        agree = (counted <= times + SOUND if faded else counted == times) & (
            np.abs(np.bincount(row, weights * weights, n_rows) - square) <= SOUND * np.maximum(square, 1.0)
        )
        fresh = self._make(n_rows, len(row))
        differ = self._kernels.fill(fresh, row, item, count.astype(np.float64), total.astype(np.float64))
        if not (agree.all() and differ):
            raise FileError(f"the models under {prefix!r} in the file contradict each other")
        fresh.square[:n_rows], fresh.times[:n_rows] = square, times
        self.items.clear()
        self.items.update({name: number for number, name in enumerate(items)})
        return fresh
