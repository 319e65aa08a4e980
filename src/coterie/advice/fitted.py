"""The ridge regressions of all users from part of a log, for the analyses of `advise`."""

from typing import final

import numpy as np

from coterie.advice.records import Records
from coterie.arrays import Bools, Floats, Ints

CHUNK = 20_000


@final
class Fitted:
    """M = I + Σ x xᵀ and b = Σ y x of each user of a log, over the records added so far.

    For items without features M is diagonal, and only counts and sums are stored.
    """

    def __init__(self, records: Records) -> None:
        self.records = records
        n = records.n_users
        self.n_records = np.zeros(n, dtype=np.int64)
        if records.vectors is None:
            self.counts, self.sums = np.zeros((n, records.n_items)), np.zeros((n, records.n_items))
        else:
            d = records.vectors.shape[1]
            self.upper = np.triu_indices(d)
            self.moments, self.sums = np.zeros((n, len(self.upper[0]))), np.zeros((n, d))

    def add(self, rows: Bools | Ints) -> "Fitted":
        """Learn from the log's records at `rows`, and return itself."""
        records = self.records
        users, items, payoffs = records.users[rows], records.items[rows], records.payoffs[rows]
        np.add.at(self.n_records, users, 1)
        if records.vectors is None:
            np.add.at(self.counts, (users, items), 1.0)
            np.add.at(self.sums, (users, items), payoffs)
            return self
        order = np.argsort(users, kind="stable")
        for first in range(0, len(order), CHUNK):
            part = order[first : first + CHUNK]
            x, who = records.vectors[items[part]], users[part]
            starts = np.flatnonzero(np.diff(who, prepend=-1))
            pairs = x[:, self.upper[0]] * x[:, self.upper[1]]
            self.moments[who[starts]] += np.add.reduceat(pairs, starts, axis=0)
            self.sums[who[starts]] += np.add.reduceat(x * payoffs[part][:, None], starts, axis=0)
        return self

    def solve(self, ridge: float = 1.0) -> None:
        """Compute `weights` (n_users, n_features) and, with features, packed `inverses` from the added records."""
        if self.records.vectors is None:
            self.weights = self.sums / (ridge + self.counts)
            self.spreads = 1 / np.sqrt(ridge + self.counts)
            return
        d = self.sums.shape[1]
        inverse = np.linalg.inv(self._square(self.moments) + ridge * np.eye(d))
        self.weights = np.einsum("jab,jb->ja", inverse, self.sums)
        twice = np.where(self.upper[0] == self.upper[1], 1.0, 2.0)
        self.inverses = inverse[:, self.upper[0], self.upper[1]] * twice

    def everyone(self) -> Floats:
        """Return the weights of one regression on all users' records: (n_features,)."""
        if self.records.vectors is None:
            pooled: Floats = self.sums.sum(axis=0) / (1 + self.counts.sum(axis=0))
            return pooled
        d = self.sums.shape[1]
        moment = self._square(self.moments.sum(axis=0)[None])[0]
        return np.asarray(np.linalg.solve(moment + np.eye(d), self.sums.sum(axis=0)), dtype=np.float64)

    def predict(self, items: Ints, weights: Floats) -> Floats:
        """Return w·x for each item and each row of `weights`: (items, rows)."""
        if self.records.vectors is None:
            return np.ascontiguousarray(weights[:, items].T)
        return np.asarray(self.records.vectors[items] @ weights.T)

    def spread(self, items: Ints, users: Ints) -> Floats:
        """Return √(xᵀM⁻¹x) for each item and user: (items, users)."""
        if self.records.vectors is None:
            return np.ascontiguousarray(self.spreads[np.ix_(users, items)].T)
        x = self.records.vectors[items]
        pairs = x[:, self.upper[0]] * x[:, self.upper[1]]
        return np.sqrt(np.maximum(pairs @ self.inverses[users].T, 0))

    def _square(self, packed: Floats) -> Floats:
        d = self.sums.shape[1]
        full = np.zeros((len(packed), d, d))
        full[:, self.upper[0], self.upper[1]] = packed
        full[:, self.upper[1], self.upper[0]] = packed
        return full
