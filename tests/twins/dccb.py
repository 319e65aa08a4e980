"""DCCB peer by peer: every peer's sets, buffers of full matrices, an inverse whenever one is needed."""

import math
from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import NDArray

from tests.twins.probability import seed_number

Vector = NDArray[np.float64]


class Peer:
    """One agent. Its buffer has an entry for every payoff that anybody still waits for, oldest first."""

    def __init__(self, d: int, waiting: int) -> None:
        self.times = 0
        self.A_local, self.b_local = np.zeros((d, d)), np.zeros(d)  # without the identity
        self.A, self.b = np.zeros((d, d)), np.zeros(d)
        self.buffer = [(np.zeros((d, d)), np.zeros(d)) for _ in range(waiting)]
        self.strangers: set[Hashable] = set()  # V without the local cluster

    def estimate(self) -> Vector:
        found: Vector = np.linalg.inv(np.eye(len(self.b)) + self.A_local) @ self.b_local
        return found


class NaiveDCCB:
    """The network; items are vectors."""

    def __init__(self, d: int, alpha: float, alpha2: float, delay: float, seed: int) -> None:
        self.d, self.alpha, self.alpha2, self.delay = d, alpha, alpha2, delay
        self.seed = seed_number(seed)
        self.peers: dict[Hashable, Peer] = {}
        self.waiting = 0
        self.t = 1

    def sharers(self, user: Hashable) -> int:
        return sum(peer.strangers == self.peers[user].strangers for peer in self.peers.values())

    def scores(self, user: Hashable, contexts: Sequence[Vector]) -> Vector:
        M, b = np.eye(self.d), np.zeros(self.d)
        if user in self.peers:
            m = self.sharers(user)
            M, b = M + m * self.peers[user].A, m * self.peers[user].b
        else:
            M, b = (
                M + sum(peer.A for peer in self.peers.values()),
                b + sum(peer.b for peer in self.peers.values()),
            )
        inverse = np.linalg.inv(M)
        scale = self.alpha * math.sqrt(math.log(1 + self.t))
        return np.array([x @ inverse @ b + scale * math.sqrt(x @ inverse @ x) for x in contexts])

    def threshold(self, peer: Peer) -> float:
        return self.alpha2 * math.sqrt((1 + math.log(1 + peer.times)) / (1 + peer.times))

    def learn(self, user: Hashable, x: Vector, y: float) -> None:
        if user not in self.peers:
            self.peers[user] = Peer(self.d, self.waiting)
        me = self.peers[user]
        me.A_local = me.A_local + np.outer(x, x)
        me.b_local = me.b_local + y * x
        me.times += 1

        names = list(self.peers)
        cycle = [names[k] for k in np.random.default_rng([self.seed, self.t - 1]).permutation(len(names))]
        over = []
        for k, i in enumerate(cycle):
            j = cycle[(k + 1) % len(cycle)]
            one, two = self.peers[i], self.peers[j]
            gap = np.linalg.norm(one.estimate() - two.estimate())
            if gap > self.threshold(one) + self.threshold(two) and j not in one.strangers:
                one.strangers.add(j)
                two.strangers.add(i)
                over += [i, j]
        for i in over:
            peer = self.peers[i]
            peer.A, peer.b = peer.A_local, peer.b_local
            peer.buffer = [(np.zeros((self.d, self.d)), np.zeros(self.d)) for _ in peer.buffer]

        before = {i: (peer.A, peer.b, peer.buffer) for i, peer in self.peers.items()}
        for k, i in enumerate(cycle):
            peer = self.peers[i]
            j = next(
                other
                for other in cycle[k + 1 :] + cycle[: k + 1]
                if self.peers[other].strangers == peer.strangers
            )
            A, b, buffer = before[j]
            peer.A, peer.b = (before[i][0] + A) / 2, (before[i][1] + b) / 2
            peer.buffer = [
                ((a1 + a2) / 2, (b1 + b2) / 2)
                for (a1, b1), (a2, b2) in zip(before[i][2], buffer, strict=True)
            ]

        for i, peer in self.peers.items():
            new = i == user and user not in over
            peer.buffer.append((np.outer(x, x) * new, y * x * new))
        self.waiting += 1
        length = math.ceil(self.delay * math.log2(len(self.peers) ** 1.5 * self.t))
        while self.waiting > length:
            for peer in self.peers.values():
                A, b = peer.buffer.pop(0)
                peer.A, peer.b = peer.A + A, peer.b + b
            self.waiting -= 1
        self.t += 1
