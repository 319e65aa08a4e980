"""M-CNB with a network as four plain arrays, and every payoff kept in one list."""

import math
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

from tests.twins.linucb import Vector, first_best


class Network:
    """W (hidden, d), c (hidden,), v (hidden,) and a number b: answers v·max(Wx + c, 0) + b."""

    def __init__(self, W: Vector, c: Vector, v: Vector, b: float) -> None:
        self.W, self.c, self.v, self.b = W, c, v, b

    @classmethod
    def drawn(cls, rng: np.random.Generator, d: int, hidden: int) -> "Network":
        first = rng.uniform(-1, 1, (hidden, d + 1)) / math.sqrt(d)
        second = rng.uniform(-1, 1, hidden + 1) / math.sqrt(hidden)
        return cls(first[:, :-1], first[:, -1], second[:-1], second[-1])

    def answer(self, x: Vector) -> float:
        return float(self.v @ np.maximum(self.W @ x + self.c, 0) + self.b)

    def gradient(self, x: Vector) -> tuple[Vector, Vector, Vector, float]:
        """Return the derivative of the answer by W, c, v and b."""
        on = (self.W @ x + self.c > 0).astype(float)
        return np.outer(self.v * on, x), self.v * on, np.maximum(self.W @ x + self.c, 0), 1.0

    def moved(self, steps: Sequence[Any]) -> "Network":
        return Network(
            *(now - step for now, step in zip((self.W, self.c, self.v, self.b), steps, strict=True))
        )


class NaiveMCNB:
    def __init__(self, d: int, gamma: float, nu: float, hidden: int, seed: int) -> None:
        self.d, self.gamma, self.nu, self.hidden, self.seed = d, gamma, nu, hidden, seed
        self.seen: list[tuple[Hashable, Vector, float]] = []
        self.meta = self.fresh(0)
        self.nets: dict[Hashable, Network] = {}
        self.adapted = self.meta

    def rng(self, *what: int) -> np.random.Generator:
        return np.random.default_rng([self.seed, *what])

    def fresh(self, number: int) -> Network:
        return Network.drawn(self.rng(0, number), self.d, self.hidden)

    def train(self, net: Network, rows: Any, rng: Any, rate: float, limit: int, adam: bool) -> Network:
        m = [np.zeros_like(part) for part in (net.W, net.c, net.v, 0.0)]
        v = [np.zeros_like(part) for part in (net.W, net.c, net.v, 0.0)]
        t = 0
        while rows:
            losses = []
            for k in rng.permutation(len(rows)):
                _, x, y = rows[k]
                t += 1
                error = net.answer(x) - y
                slopes = [2 * error * part for part in net.gradient(x)]
                if adam:
                    m = [0.9 * a + 0.1 * g for a, g in zip(m, slopes, strict=True)]
                    v = [0.999 * a + 0.001 * g**2 for a, g in zip(v, slopes, strict=True)]
                    steps = [
                        rate * (a / (1 - 0.9**t)) / (np.sqrt(s / (1 - 0.999**t)) + 1e-8)
                        for a, s in zip(m, v, strict=True)
                    ]
                else:
                    steps = [rate * g for g in slopes]
                net = net.moved(steps)
                losses.append(error**2)
                if t >= limit:
                    return net
            if np.mean(losses) <= 1e-3:
                return net
        return net

    def choose(self, user: Hashable, contexts: Sequence[Vector]) -> int:
        own = self.nets.get(user) or self.fresh(1 + len(self.nets))
        net, rng, scores = self.meta, self.rng(1, len(self.seen)), []
        visits = 1 + sum(one == user for one, _, _ in self.seen)
        for x in contexts:
            if len(self.seen) % 10 == 0 and self.seen:
                names = list(self.nets)
                group = [
                    k
                    for k, name in enumerate(names)
                    if name == user or abs(self.nets[name].answer(x) - own.answer(x)) < self.gamma
                ]
                if len(group) > len(names) // 5:
                    group = [*rng.choice(group, len(names) // 5)]
                    group += [names.index(user)] if user in names else []
                members = {names[k] for k in group}
                net = self.train(net, [row for row in self.seen if row[0] in members], rng, 1e-2, 100, False)
            length = sum(float(np.sum(np.square(part))) for part in net.gradient(x))
            scores.append(net.answer(x) + math.sqrt(self.nu * length) + self.nu * math.sqrt(1 / visits))
        self.adapted = net  # kept with the payoff
        return first_best(np.array(scores))

    def learn(self, user: Hashable, x: Vector, payoff: float) -> None:
        t, self.meta = len(self.seen), self.adapted
        if user not in self.nets:
            self.nets[user] = self.fresh(1 + len(self.nets))
        self.seen.append((user, np.array(x), payoff))
        if t % (10 if t < 1000 else 100) == 0:
            rng = self.rng(2, t)
            own = [row for row in self.seen if row[0] == user]
            self.nets[user] = self.train(self.nets[user], own, rng, 1e-3, 500, True)
            self.meta = self.train(self.meta, self.seen, rng, 1e-3, 1000, True)
        self.adapted = self.meta


def twin_of(policy: Any, d: int) -> NaiveMCNB:
    """Return the twin of a policy over d features. The contract suite compares their choices."""
    return NaiveMCNB(d, policy.gamma, policy.nu, policy.hidden, policy.seed_number)
