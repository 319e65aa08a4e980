"""DCCB: distributed clustering of confidence balls, peers that gossip (Korda, Szörényi, Li, 2016).

paper                 here
agent i of V          a user; all peers are simulated in this process
V^i_t                 i's local cluster: all peers except those it has separated from, `_parted`, one bit per peer
A_local, b_local      `local`: the peer's own payoffs, all of them
Ã^i_t, b̃^i_t          `shared`: what gossip has brought, averaged, so a peer's payoffs weigh about 1/m with m sharers
A^i_t, B^i_t          the buffers: payoffs that still wait, and each peer's `share` of them
t − τ(t)              how many rounds they wait: delay·log₂(n^{3/2}·t), the paper's delay being 4
σ                     a random cycle through all peers, drawn each round
c_thresh              alpha2·√((1 + log(1+T))/(1 + T)) with T the peer's own payoffs, summed over both: CLUB's form,
                      since peers are not served equally often here
confidence ball       scale * spread with scale = α·√log(1+t), for M = I + m·shared, b = m·shared

A round is one payoff, by one peer; then all gossip. Each peer is tested against the next on the cycle, if that one
is in its local cluster; if their local estimates are further apart than the threshold, each removes the other
and restarts from its own payoffs. Then each takes the average of its own and another's shared statistics and
buffers: the next on the cycle with the same local cluster, so that averaging loses nothing. Then the
new payoff enters its peer's buffer, and payoffs that have waited long enough enter `shared`. Multiplying the
averages with m, the number of peers that have the same local cluster, makes them the sums that perfect gossip
would give.

A peer is simulated in O(d²) per round, so a round costs O(n·d²): this is for thousands of users. With item
ids every peer finally stores every learned item: n × items numbers. Local clusters take n²/8 bytes.

A user is a peer from the first payoff, or `add`, on; a newcomer is separated from no peer. Before that, an
unknown user belongs to the component of all peers, as at the start of the paper's algorithm, and decides with
the sum of the peers' shared statistics. Dropping a user removes the user's own statistics; what has reached
other peers stays.
"""

import math
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import final

import numpy as np

from coterie.arrays import Floats, Ints
from coterie.errors import FileError
from coterie.models.actions import Actions, ActionsLike
from coterie.models.checks import check_number
from coterie.models.files import Tensors, take
from coterie.models.ranges import MOST_SET, ROUNDED
from coterie.models.roster import Roster
from coterie.models.rows.gossip import Buffers, Gossip, WaitingPayoff, make_sums
from coterie.policies.base.decision import Decision, decide_with
from coterie.policies.base.parameters import Alpha, Seed, check_alpha, make_random
from coterie.policies.clustering.numbered_users import NumberedUsers

STATISTICS = ("local_gram", "local_moment", "shared_gram", "shared_moment")


@final
@dataclass(kw_only=True, eq=False, repr=False)
class DCCB(NumberedUsers):
    """Peers average their statistics with one other peer per round, and separate from those too different.

    alpha2
        How far apart two peers' models may be, in units of their uncertainty, before they separate.
    delay
        How long payoffs wait before they are used: delay·log₂(n^1.5·t) rounds.
    seed
        Seed of the random meetings of peers: an integer, or a numpy.random.Generator.

    n_features, one_hot and alpha are as in every `Policy`. Raises ParameterError if a setting is not valid.

    >>> policy = DCCB(one_hot=True, delay=0).fit({"user": ["ann"], "item": ["jazz"], "payoff": [1]})
    >>> policy.choose("bob", ["news", "jazz"])
    1
    """

    name = "dccb"
    keeps_order = True
    reference = "Korda, Szörényi, Li 2016: Distributed clustering of linear bandits in peer to peer networks"

    n_features: int | None = None
    one_hot: bool = False
    alpha: Alpha = 0.1
    alpha2: float = 1.0
    delay: float = 4.0
    seed: Seed = 0

    def __post_init__(self) -> None:
        self.alpha = check_alpha(self.alpha)
        self.alpha2 = check_number("alpha2", self.alpha2)
        self.delay = check_number("delay", self.delay)
        _, self.seed_number = make_random(self.seed)
        self.sums = make_sums(self.n_features, self.one_hot)
        self._roster = Roster()
        self._times: Ints = np.empty(0, dtype=np.int64)  # each peer's own payoffs
        self._local = [np.empty((0, width)) for width in self.sums.widths]  # gram, moment: (peers, columns)
        self._shared = [Gossip(np.empty((0, width))) for width in self.sums.widths]
        # Follows from `_local`; `_learn_locally` writes both.
        self._weights = np.empty((0, self.sums.widths[1]))
        self._parted: list[int] = []  # bit j of the i-th: i and j are separated
        self._buffers = Buffers()
        self._sharers: tuple[Ints, Ints] | None = None  # each peer's group and its size; None: to be found

    def _read(self, contexts: ActionsLike) -> Actions:
        return self.sums.read(contexts)

    def _decide(self, user: Hashable, row: int, contexts: Actions, scale: float) -> Decision:
        """Score each candidate by the user's shared statistics."""
        if row < 0:
            gram, moment = (np.zeros(width) for width in self.sums.widths)
            own = self.sums.view(gram, moment, contexts)
            gram, moment = (shared.rows.sum(axis=0) for shared in self._shared)
            sharers = len(self._roster) + 1
        else:
            sharers = int(self._groups()[1][row])
            own = self.sums.view(self._local[0][row], self._local[1][row], contexts)
            gram, moment = (sharers * shared.rows[row] for shared in self._shared)
        return decide_with(user, contexts, own, self.sums.view(gram, moment, contexts), scale, sharers)

    def _learn(self, row: int, contexts: Actions, payoff: float) -> None:
        """Update the peer, then make all peers gossip."""
        column = self.sums.column(contexts[0])
        self._widen()
        self._learn_locally(row, column, payoff)
        cycle = np.random.default_rng([self.seed_number, self.learned]).permutation(len(self._roster))
        restarted = self._part(cycle)
        self._share(cycle)
        share = np.zeros(len(self._roster))
        share[row] = row not in restarted  # a restarted peer already has it
        self._buffers.put(WaitingPayoff(column, payoff), share)
        self._release()

    def _learn_locally(self, row: int, column: Floats, payoff: float) -> None:
        gram, moment = (array[row : row + 1] for array in self._local)
        self.sums.add(gram, moment, np.ones(1), column, payoff)
        self._weights[row] = self.sums.weights(gram[0], moment[0])
        self._times[row] += 1

    def _part(self, cycle: Ints) -> set[int]:
        """Separate peers from the next on the cycle if they are too different; return the restarted peers."""
        following = np.roll(cycle, -1)
        radius = self.alpha2 * np.sqrt((1 + np.log1p(self._times)) / (1 + self._times))
        gap = np.linalg.norm(self._weights[cycle] - self._weights[following], axis=1)
        far = np.flatnonzero(gap > radius[cycle] + radius[following])
        restarted: set[int] = set()
        for i, j in zip(cycle[far].tolist(), following[far].tolist(), strict=True):
            if not self._parted[i] >> j & 1:
                self._parted[i] |= 1 << j
                self._parted[j] |= 1 << i
                restarted |= {i, j}
        if restarted:
            self._sharers = None
            rows = sorted(restarted)
            for shared, local in zip(self._shared, self._local, strict=True):
                shared.rows[rows] = local[rows]
            self._buffers.clear(rows)
        return restarted

    def _share(self, cycle: Ints) -> None:
        """Average with the next peer on the cycle that has the same local cluster."""
        group = self._groups()[0][cycle]
        order = np.argsort(group, kind="stable")
        grouped = cycle[order]  # group by group, each in the order of the cycle
        partner = np.roll(grouped, -1)
        ends = np.flatnonzero(np.append(np.diff(group[order]), 1))
        starts = np.append(0, ends[:-1] + 1)
        partner[ends] = grouped[starts]
        meets = np.empty_like(cycle)
        meets[grouped] = partner
        for shared in self._shared:
            shared.average(meets)
        self._buffers.average(meets)

    def _release(self) -> None:
        """Add payoffs that have waited long enough."""
        t = self.learned + 1
        length = math.ceil(self.delay * math.log2(len(self._roster) ** 1.5 * t))
        while len(self._buffers) > length:
            (column, payoff), share = self._buffers.pop()
            self.sums.add(self._shared[0].rows, self._shared[1].rows, share, column, payoff)

    def _groups(self) -> tuple[Ints, Ints]:
        """Return for each peer the group of those with the same local cluster, and the group's size."""
        if self._sharers is None:
            number = {parted: row for row, parted in enumerate(self._parted)}
            found = np.array([number[parted] for parted in self._parted], dtype=np.int64)
            self._sharers = found, np.bincount(found, minlength=1)[found]
        return self._sharers

    def _widen(self) -> None:
        """Add columns for new items to every peer."""
        for k, width in enumerate(self.sums.widths):
            self._local[k] = _with_columns(self._local[k], width)
            self._shared[k].rows = _with_columns(self._shared[k].rows, width)
        self._weights = _with_columns(self._weights, self.sums.widths[1])

    def _arrive(self, row: int) -> None:
        """Make a user a peer without data, separated from no other."""
        more = ((0, 1), (0, 0))
        for k, shared in enumerate(self._shared):
            self._local[k], shared.rows = np.pad(self._local[k], more), np.pad(shared.rows, more)
        self._weights = np.pad(self._weights, more)
        self._times = np.append(self._times, 0)
        self._parted.append(0)
        self._buffers.add_peer()
        self._sharers = None

    def _leave(self, row: int) -> None:
        """Forget a peer; what has reached other peers stays with them."""
        for k, shared in enumerate(self._shared):
            self._local[k], shared.rows = (np.delete(a, row, axis=0) for a in (self._local[k], shared.rows))
        self._weights = np.delete(self._weights, row, axis=0)
        self._times = np.delete(self._times, row)
        below = (1 << row) - 1
        del self._parted[row]
        self._parted = [parted & below | parted >> 1 & ~below for parted in self._parted]
        self._buffers.drop_peer(row)
        self._sharers = None

    def _deciding_together(self, row: int, contexts: Actions) -> Iterable[int]:
        """Return the peers who share with this one now: the same for every context."""
        if row < 0:
            return range(len(self._roster))
        group = self._groups()[0]
        return map(int, np.flatnonzero(group == group[row]))

    def _tensors(self, n: int) -> Tensors:
        size = (n + 7) // 8
        bits = b"".join(parted.to_bytes(size, "little") for parted in self._parted)
        waiting = self._buffers.payoffs
        width = self.n_features or 1
        return {
            "times": self._times,
            **dict(zip(STATISTICS, [*self._local, *(shared.rows for shared in self._shared)], strict=True)),
            "local_weights": self._weights,
            "parted": np.frombuffer(bits, dtype=np.uint8).reshape(n, size),
            "waiting_context": np.array([x for x, _ in waiting], dtype=np.float64).reshape(-1, width),
            "waiting_payoff": np.array([y for _, y in waiting], dtype=np.float64),
            "waiting_share": self._buffers.shares,
            **self.sums.tensors(),
        }

    def _restore(self, tensors: Tensors, n: int) -> None:
        sums = make_sums(self.n_features, self.one_hot)
        sums.restore(tensors)
        gram, moment = sums.widths
        times = take(tensors, "times", "i", (n,)).astype(np.int64)
        shapes = dict(zip(STATISTICS, (gram, moment, gram, moment), strict=True))
        arrays = [take(tensors, name, "f", (n, width)).astype(np.float64) for name, width in shapes.items()]
        weights = take(tensors, "local_weights", "f", (n, moment)).astype(np.float64)
        parted = take(tensors, "parted", "u", (n, (n + 7) // 8))
        bits = np.unpackbits(parted, axis=1, bitorder="little")
        contexts = take(tensors, "waiting_context", "f", (None, self.n_features or 1))
        payoffs = take(tensors, "waiting_payoff", "f", (len(contexts),))
        shares = take(tensors, "waiting_share", "f", (len(contexts), n))
        sound = (times >= 0).all() and not bits[:, n:].any()
        sound = sound and (bits[:, :n] == bits[:, :n].T).all() and not np.diagonal(bits).any()
        sound = sound and (shares >= 0).all() and (np.abs(payoffs) <= 1).all()
        if self.one_hot:
            sound = sound and ((contexts >= 0) & (contexts < gram)).all()
        sound = sound and all(map(sums.are_sound, arrays[::2])) and (shares <= 1 + ROUNDED).all()
        sound = sound and all((np.abs(a) <= MOST_SET).all() for a in (*arrays[1::2], weights, contexts))
        if not sound:
            raise FileError("the peers in the model file contradict each other")
        self.sums, self._times = sums, times
        self._local, self._shared = arrays[:2], [Gossip(rows) for rows in arrays[2:]]
        self._weights = weights
        self._parted = [int.from_bytes(row.tobytes(), "little") for row in parted]
        waiting = [
            WaitingPayoff(x.astype(np.float64), y) for x, y in zip(contexts, payoffs.tolist(), strict=True)
        ]
        self._buffers = Buffers()
        self._buffers.restore(waiting, shares.astype(np.float64))
        self._sharers = None


def _with_columns(array: Floats, width: int) -> Floats:
    """Return the array with zeros up to `width` columns."""
    missing = width - array.shape[1]
    return np.pad(array, ((0, 0), (0, missing))) if missing else array
