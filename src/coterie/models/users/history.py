"""One user's history, and the sums over it that sparse recovery needs.

XᵀX has d² entries, of which recovery reads few: the columns of the support, and the block between the support
and the features that compete for it. So only columns and entries that were read before are kept, and every
update adds to them; an entry that is read for the first time is summed over the history. An update then costs
O(s·d) for any length of history, as long as the same features are read again. Which features are kept affects only
the speed: a kept sum and a new one are equal to the last bit, since both add up the history in its order.
"""

from typing import final

import numpy as np

from coterie.arrays import Floats, Ints
from coterie.models._kernels.users.sparse import add_column, add_context, add_products, add_pull
from coterie.models.users.records import RecordStore


@final
class History:
    """The records a user has learned from, and parts of XᵀX: room for `n_columns` columns and, between
    `n_block` features, single entries. There must be room for all that one call reads."""

    def __init__(self, records: RecordStore, n_columns: int, n_block: int) -> None:
        d = records.n_features
        self._records = records
        self._numbers: Ints = np.empty(8, dtype=np.int64)  # (length or more,)
        self.length = 0
        self.total = 0.0
        self.pull: Floats = np.zeros(d)
        self._wide = KeptFeatures(min(n_columns, d))  # the features whose columns are kept
        self._columns = np.zeros((0, d))  # (wide, n_features)
        self._hot = KeptFeatures(min(n_block, d))  # the features between which entries are kept
        self._block = np.zeros((0, 0))  # (hot, hot)

    @property
    def numbers(self) -> Ints:
        """The records, in the order they were learned."""
        return self._numbers[: self.length]

    def learn(self, number: int, context: Floats, payoff: float) -> None:
        """Append a record, and add it to all sums."""
        self._append(number)
        self.total += payoff * payoff
        add_context(
            context, payoff, self.pull, self._wide.features, self._columns, self._hot.features, self._block
        )

    def replay(self, numbers: Ints) -> None:
        """Learn many records of an empty history."""
        for number in numbers.tolist():
            self._append(number)
        for contexts, payoffs, rows in self._records.runs(numbers):
            add_pull(contexts, payoffs, rows, self.pull)
            for payoff in payoffs[rows].tolist():
                self.total += payoff * payoff

    def columns(self, features: Ints) -> Floats:
        """Return columns of XᵀX, as rows: (features, n_features)."""
        slots, new = self._wide.place(features)
        if len(self._wide.features) > len(self._columns):
            more = len(self._wide.features) - len(self._columns)
            self._columns = np.concatenate([self._columns, np.zeros((more, self._columns.shape[1]))])
        for slot in new:
            self._columns[slot] = 0.0
            for contexts, _, rows in self._records.runs(self.numbers):
                add_column(contexts, rows, int(self._wide.features[slot]), self._columns[slot])
        return self._columns[slots]

    def block(self, features: Ints) -> Floats:
        """Return XᵀX between some features: (features, features)."""
        slots, new = self._hot.place(features)
        n_hot = len(self._hot.features)
        if n_hot > len(self._block):
            more = n_hot - len(self._block)
            self._block = np.pad(self._block, ((0, more), (0, more)))
        if new:
            fresh = np.zeros((len(new), n_hot))
            for contexts, _, rows in self._records.runs(self.numbers):
                add_products(contexts, rows, self._hot.features[new], self._hot.features, fresh)
            self._block[new], self._block[:, new] = fresh, fresh.T
        return self._block[np.ix_(slots, slots)]

    def _append(self, number: int) -> None:
        if self.length == len(self._numbers):
            self._numbers = np.concatenate([self._numbers, np.empty(self.length, dtype=np.int64)])
        self._numbers[self.length] = number
        self.length += 1


@final
class KeptFeatures:
    """A limited number of features, each in a slot; a new one replaces the least recently used."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.features: Ints = np.empty(0, dtype=np.int64)  # (slots,)
        self._slots: dict[int, int] = {}  # the slot of each feature, the most recently used last

    def place(self, features: Ints) -> tuple[list[int], list[int]]:
        """Return the slots of some features, and those slots among them that hold a new feature."""
        wanted = features.tolist()
        missing = []
        for feature in wanted:
            if feature in self._slots:
                self._slots[feature] = self._slots.pop(feature)
            else:
                missing.append(feature)
        new = []
        for feature in missing:
            if len(self._slots) < self.limit:
                slot = len(self._slots)
                self.features = np.append(self.features, feature)
            else:
                slot = self._slots.pop(next(iter(self._slots)))
                self.features[slot] = feature
            self._slots[feature] = slot
            new.append(slot)
        return [self._slots[feature] for feature in wanted], new
