"""What peers average with each other: rows of numbers, one a peer, and payoffs that still travel between them."""

from typing import NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from coterie.models._kernels.rows.sums import average
from coterie.models.protocol import Floats

Numbers = NDArray[np.int64]


@final
class Gossip:
    """Rows that are averaged in pairs; the room of the rows before is used again."""

    def __init__(self, rows: Floats) -> None:
        self.rows = rows
        self._before = np.empty_like(rows)

    def average(self, meets: Numbers) -> None:
        """Let each row become its average with the one that it meets."""
        if self._before.shape != self.rows.shape:
            self._before = np.empty_like(self.rows)
        average(self.rows, meets, self._before)
        self.rows, self._before = self._before, self.rows


class Payoff(NamedTuple):
    """A payoff that travels."""

    column: Floats  # the context
    payoff: float


@final
class Buffers:
    """Payoffs that wait, the oldest first, and how much of each every peer has."""

    def __init__(self) -> None:
        self.payoffs: list[Payoff] = []
        self._shares = Gossip(np.zeros((0, 16)))  # (peers, places): the payoffs' places go round
        self._oldest = 0

    def __len__(self) -> int:
        return len(self.payoffs)

    @property
    def shares(self) -> Floats:
        """How much of each payoff every peer has: (payoffs, peers)."""
        rows = self._shares.rows
        return rows[:, (self._oldest + np.arange(len(self))) % rows.shape[1]].T

    def put(self, payoff: Payoff, share: Floats) -> None:
        """Let a payoff wait, of which every peer has its share."""
        room = self._shares.rows.shape[1]
        if len(self) == room:
            self.restore(self.payoffs, self.shares, 2 * room)
        self._shares.rows[:, (self._oldest + len(self)) % self._shares.rows.shape[1]] = share
        self.payoffs.append(payoff)

    def pop(self) -> tuple[Payoff, Floats]:
        """Return the oldest payoff, which waits no more, and how much of it every peer has."""
        place = self._shares.rows[:, self._oldest]
        share = place.copy()
        place[:] = 0.0
        self._oldest = (self._oldest + 1) % self._shares.rows.shape[1]
        return self.payoffs.pop(0), share

    def average(self, meets: Numbers) -> None:
        """Let every peer average its shares with those of the peer that it meets."""
        self._shares.average(meets)

    def clear(self, peers: list[int]) -> None:
        """Let some peers have nothing."""
        self._shares.rows[peers] = 0.0

    def add_peer(self) -> None:
        """Add a peer who has nothing."""
        self._shares.rows = np.pad(self._shares.rows, ((0, 1), (0, 0)))

    def drop_peer(self, peer: int) -> None:
        """Forget a peer, and what only this one had."""
        shares = np.delete(self.shares, peer, axis=1)
        kept = np.flatnonzero(shares.any(axis=1))
        self.restore([self.payoffs[k] for k in kept], shares[kept])

    def restore(self, payoffs: list[Payoff], shares: Floats, room: int = 16) -> None:
        """Take over payoffs and shares."""
        room = max(room, len(payoffs))
        self.payoffs, self._oldest = payoffs, 0
        rows = np.ascontiguousarray(shares.T)  # a peer after the other, as they are averaged
        self._shares.rows = np.pad(rows, ((0, 0), (0, room - len(payoffs))))
