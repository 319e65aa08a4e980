"""The data that peers average with each other: one row of numbers per peer, and payoffs that still wait."""

from typing import NamedTuple, final

import numpy as np

from coterie.arrays import Floats, Ints
from coterie.models._kernels.rows.sums import average


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


class Payoff(NamedTuple):
    """A payoff that waits."""

    column: Floats  # the context
    payoff: float


@final
class Buffers:
    """Waiting payoffs, the oldest first, and every peer's share of each."""

    def __init__(self) -> None:
        self.payoffs: list[Payoff] = []
        self._shares = Gossip(np.zeros((0, 16)))  # (peers, places): a ring buffer of payoffs
        self._oldest = 0

    def __len__(self) -> int:
        return len(self.payoffs)

    @property
    def shares(self) -> Floats:
        """Every peer's share of each payoff: (payoffs, peers)."""
        rows = self._shares.rows
        return rows[:, (self._oldest + np.arange(len(self))) % rows.shape[1]].T

    def put(self, payoff: Payoff, share: Floats) -> None:
        """Add a payoff with the peers' shares of it."""
        room = self._shares.rows.shape[1]
        if len(self) == room:
            self.restore(self.payoffs, self.shares, 2 * room)
        self._shares.rows[:, (self._oldest + len(self)) % self._shares.rows.shape[1]] = share
        self.payoffs.append(payoff)

    def pop(self) -> tuple[Payoff, Floats]:
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

    def restore(self, payoffs: list[Payoff], shares: Floats, room: int = 16) -> None:
        """Set payoffs and shares."""
        room = max(room, len(payoffs))
        self.payoffs, self._oldest = payoffs, 0
        rows = np.ascontiguousarray(shares.T)  # contiguous per peer, for averaging
        self._shares.rows = np.pad(rows, ((0, 0), (0, room - len(payoffs))))
