"""The edges between users, by rows: undirected, each with a weight."""

from collections.abc import Mapping
from typing import Self, final

import numpy as np

from coterie.errors import FileError
from coterie.models._kernels.rows import means
from coterie.models._kernels.rows.means import Table, grown, insert, make, remove
from coterie.models.files import Tensors, take


@final
class Friends:
    """Each edge has two entries in `table`: the friend's row is the entry's `item`, and the weight its `tally`."""

    def __init__(self) -> None:
        self.table: Table = make(1)

    def of(self, row: int) -> dict[int, float]:
        """Return the rows of a user's friends, with the weights; none for row -1."""
        table, found = self.table, {}
        entry = table.head[row] if 0 <= row < len(table.head) else -1
        while entry >= 0:
            found[int(table.item[entry])] = float(table.tally[entry])
            entry = table.next[entry]
        return found

    def set(self, row: int, friends: Mapping[int, float]) -> None:
        """Give a user these friends and no others."""
        for other in self.of(row):
            if other not in friends:
                self._cut(row, other)
        self._fit(max([row, *friends]) + 1, int(self.table.size[4]) + 2 * len(friends))
        for other, weight in friends.items():
            for one, two in ((row, other), (other, row)):
                self.table.tally[insert(self.table, one, two)] = weight

    def replace(self, row: int, last: int) -> None:
        """Forget a user's edges; then the user of row `last` has this row."""
        for other in self.of(row):
            self._cut(row, other)
        for other, weight in reversed(self.of(last).items()):
            self._cut(last, other)
            for one, two in ((row, other), (other, row)):
                self.table.tally[insert(self.table, one, two)] = weight

    def _cut(self, row: int, other: int) -> None:
        for one, two in ((row, other), (other, row)):
            remove(self.table, means.find(self.table, one, two))

    def _fit(self, rows: int, entries: int) -> None:
        """Make room for this total of rows and entries."""
        old, room = len(self.table.head), len(self.table.row)
        if old >= rows and room >= entries:
            return
        while room < entries:
            room *= 2
        self.table = grown(self.table, old if old >= rows else max(rows, 2 * old), room)

    def tensors(self, first: int, last: int) -> Tensors:
        """Return the edges of the users in rows [first, last); the first of them is number 0 in `friend_row`."""
        rows = np.arange(first, min(last, len(self.table.head)))
        row, other, weight, _ = means.dump(self.table, rows)
        return {"friend_row": row, "friend_of": other, "friend_weight": weight}

    @classmethod
    def restore(cls, tensors: Tensors, n_rows: int) -> Self:
        """Return the edges from a file, if each has two entries that agree; none from an older file."""
        tensors = cls().tensors(0, 0) | tensors
        row = take(tensors, "friend_row", "i", (None,))
        other = take(tensors, "friend_of", "i", row.shape)
        weight = take(tensors, "friend_weight", "f", row.shape)
        ends, back = np.stack([row, other, weight]), np.stack([other, row, weight])
        sound = (ends[:2] >= 0) & (ends[:2] < n_rows)
        same = (ends[:, np.lexsort(ends[:2])] == back[:, np.lexsort(back[:2])]).all()
        found = cls()
        found._fit(max(n_rows, 1), len(row))
        if not (
            sound.all()
            and same
            and (row != other).all()
            and (weight > 0).all()
            and means.fill(found.table, row, other, weight, np.zeros(len(row)))
        ):
            raise FileError("the friends in the model file contradict each other")
        return found
