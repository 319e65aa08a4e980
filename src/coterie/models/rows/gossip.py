"""DCCB's statistics, Σ x xᵀ and Σ y x, laid out flat so that they can be averaged; and the averages of peers.

Not rows of `ridge_rows`: every round averages every peer's statistics, so a stored inverse would never be used twice.
A peer's own statistics have the same layout, because the peer restarts from them.
Over vectors a row of `gram` is the upper triangle of Σ x xᵀ. Over items Σ x xᵀ is diagonal, and a row has one number
per item: how often it was shown.
"""

from collections.abc import Hashable, Sequence
from typing import NamedTuple, TypeAlias, final

import numpy as np

from coterie.arrays import Floats, Ints
from coterie.models._kernels.rows.sums import add_outer, average
from coterie.models.actions import ActionsLike
from coterie.models.checks import read_items, read_vectors
from coterie.models.context_kind import check_one_kind
from coterie.models.files import Tensors, pack_ids, unpack_ids
from coterie.models.protocol import View
from coterie.models.ranges import MOST_SET, ROUNDED, are_covariances
from coterie.models.rows.ridges import packing, solve_view


def make_sums(n_features: int | None, one_hot: bool) -> "Sums":
    """Return the columns for vectors of `n_features`, or for item ids."""
    kind = check_one_kind(n_features, one_hot)
    return ItemSums() if kind.n_features is None else VectorSums(kind.n_features)


@final
class VectorSums:
    """How feature vectors become columns of `gram` and `moment`."""

    def __init__(self, n_features: int) -> None:
        self.n_features = n_features
        self._upper = np.triu_indices(n_features)

    @property
    def widths(self) -> tuple[int, int]:
        """How many columns `gram` and `moment` have now."""
        return len(self._upper[0]), self.n_features

    def read(self, contexts: ActionsLike) -> Floats:
        """Check candidates and return them as (candidates, n_features)."""
        return read_vectors(contexts, self.n_features)

    def column(self, context: Floats) -> Floats:
        """Return a checked context as numbers that a file can hold: a copy of the vector."""
        return context.copy()

    def add(self, gram: Floats, moment: Floats, share: Floats, column: Floats, payoff: float) -> None:
        """Add a payoff to rows, to each as much as its share: (rows,)."""
        add_outer(gram, share, column[self._upper[0]] * column[self._upper[1]])
        add_outer(moment, share, payoff * column)

    def view(self, gram: Floats, moment: Floats, contexts: Floats) -> View:
        """Return estimates and spreads of M = I + gram and b = moment, one row of each."""
        return solve_view(gram, moment, contexts)

    def weights(self, gram: Floats, moment: Floats) -> Floats:
        """Return w = M⁻¹b of one row."""
        M = np.eye(self.n_features) + gram[packing(self.n_features)]
        return np.asarray(np.linalg.solve(M, moment), dtype=np.float64)

    def are_sound(self, gram: Floats) -> bool:
        """Return whether rows of `gram` can be sums of x xᵀ."""
        return are_covariances(gram[:, packing(self.n_features)], MOST_SET)

    def tensors(self) -> Tensors:
        """Return nothing: `n_features` says what the columns are."""
        return {}

    def restore(self, tensors: Tensors) -> None:
        """Do nothing."""


@final
class ItemSums:
    """The same for item ids: one column per learned item."""

    def __init__(self) -> None:
        self.items: dict[Hashable, int] = {}

    @property
    def widths(self) -> tuple[int, int]:
        return len(self.items), len(self.items)

    def read(self, contexts: ActionsLike) -> list[Hashable]:
        return read_items(contexts)

    def column(self, context: Hashable) -> Floats:
        """Return the item's number; a new item gets the next columns."""
        return np.array([self.items.setdefault(context, len(self.items))], dtype=np.float64)

    def add(self, gram: Floats, moment: Floats, share: Floats, column: Floats, payoff: float) -> None:
        gram[:, int(column[0])] += share
        moment[:, int(column[0])] += payoff * share

    def view(self, gram: Floats, moment: Floats, contexts: Sequence[Hashable]) -> View:
        columns = [self.items.get(item, -1) for item in contexts]
        times = np.array([gram[k] if k >= 0 else 0.0 for k in columns])
        total = np.array([moment[k] if k >= 0 else 0.0 for k in columns])
        return View(total / (1 + times), 1 / np.sqrt(1 + times))

    def weights(self, gram: Floats, moment: Floats) -> Floats:
        return moment / (1 + gram)

    def are_sound(self, gram: Floats) -> bool:
        """Return whether rows of `gram` can be counts."""
        return bool(((gram >= -ROUNDED) & (gram <= MOST_SET)).all())

    def tensors(self) -> Tensors:
        return {"items": pack_ids(self.items)}

    def restore(self, tensors: Tensors) -> None:
        self.items = {item: k for k, item in enumerate(unpack_ids(tensors, "items"))}


Sums: TypeAlias = VectorSums | ItemSums


@final
class Gossip:
    """Rows that are averaged in pairs; the old array is reused."""

    def __init__(self, rows: Floats) -> None:
        self.rows = rows
        self._before = np.empty_like(rows)

    def average(self, meets: Ints) -> None:
        """Replace each row by its average with the row that it meets."""
        if self._before.shape != self.rows.shape:
            self._before = np.empty_like(self.rows)
        average(self.rows, meets, self._before)
        self.rows, self._before = self._before, self.rows


class WaitingPayoff(NamedTuple):
    """A payoff that waits."""

    column: Floats  # the context
    payoff: float


@final
class Buffers:
    """Waiting payoffs, the oldest first, and every peer's share of each."""

    def __init__(self) -> None:
        self.payoffs: list[WaitingPayoff] = []
        self._shares = Gossip(np.zeros((0, 16)))  # (peers, places): a ring buffer of payoffs
        self._oldest = 0

    def __len__(self) -> int:
        return len(self.payoffs)

    @property
    def shares(self) -> Floats:
        """Every peer's share of each payoff: (payoffs, peers)."""
        rows = self._shares.rows
        return rows[:, (self._oldest + np.arange(len(self))) % rows.shape[1]].T

    def put(self, payoff: WaitingPayoff, share: Floats) -> None:
        """Add a payoff with the peers' shares of it."""
        room = self._shares.rows.shape[1]
        if len(self) == room:
            self.restore(self.payoffs, self.shares, 2 * room)
        self._shares.rows[:, (self._oldest + len(self)) % self._shares.rows.shape[1]] = share
        self.payoffs.append(payoff)

    def pop(self) -> tuple[WaitingPayoff, Floats]:
        """Remove and return the oldest payoff and the peers' shares of it."""
        place = self._shares.rows[:, self._oldest]
        share = place.copy()
        place[:] = 0.0
        self._oldest = (self._oldest + 1) % self._shares.rows.shape[1]
        return self.payoffs.pop(0), share

    def average(self, meets: Ints) -> None:
        """Average every peer's shares with those of the peer that it meets."""
        self._shares.average(meets)

    def clear(self, peers: list[int]) -> None:
        """Set the shares of some peers to 0."""
        self._shares.rows[peers] = 0.0

    def add_peer(self) -> None:
        """Add a peer without shares."""
        self._shares.rows = np.pad(self._shares.rows, ((0, 1), (0, 0)))

    def drop_peer(self, peer: int) -> None:
        """Forget a peer, and payoffs that only this peer had."""
        shares = np.delete(self.shares, peer, axis=1)
        kept = np.flatnonzero(shares.any(axis=1))
        self.restore([self.payoffs[k] for k in kept], shares[kept])

    def restore(self, payoffs: list[WaitingPayoff], shares: Floats, room: int = 16) -> None:
        """Set payoffs and shares."""
        room = max(room, len(payoffs))
        self.payoffs, self._oldest = payoffs, 0
        rows = np.ascontiguousarray(shares.T)  # contiguous per peer, for averaging
        self._shares.rows = np.pad(rows, ((0, 0), (0, room - len(payoffs))))
