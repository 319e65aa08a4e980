"""When old payoffs mislead, straight from the description: all products, with their present weights."""

import math
from collections.abc import Mapping
from typing import NamedTuple

SLOTS, SHORTEN, LENGTHEN, FAR, STEP, MOST = 1024, 5.0, 3.0, 3.0, 0.25, 512
EVERYBODY, OWN = "everybody", "own"


def mix(z: int) -> int:
    """SplitMix64's last steps."""
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
    return z ^ (z >> 31)


class Seen(NamedTuple):
    """The place and the value of x·error of one feature in one payoff."""

    place: int
    value: float


class NaiveDrift:
    """The half-life in payoffs of a user, 0 if nothing is forgotten; found by two tests for each kind of average."""

    def __init__(self) -> None:
        self.half_life = 0.0
        self.past: dict[str, list[list[Seen]]] = {EVERYBODY: [], OWN: []}
        self.recent: dict[str, list[float]] = {
            EVERYBODY: [],
            OWN: [],
        }  # the factors of fading after each payoff
        self.products: dict[tuple[str, bool], list[float]] = {
            (kind, up): [] for kind in self.past for up in (True, False)
        }

    def memory(self, kind: str, learned: int, users: int) -> float:
        if self.half_life:
            return max(self.half_life * users / 4, users if kind == OWN else 1)
        return max(4 * users if kind == OWN else 20, learned / 50)

    def watch(
        self, kind: str, owner: int, features: Mapping[int, float], error: float, learned: int, users: int
    ) -> None:
        error = min(max(error, -FAR), FAR)
        memory = self.memory(kind, learned, users)
        here = []
        for key, x in features.items():
            h = mix((owner + 1) * 0x9E3779B97F4A7C15 % 2**64 ^ key)
            here.append(Seen(h % SLOTS, x if h >> 63 else -x))
        averages = []
        for longer in (1.0, 10.0):
            total, weight, weights = 0.0, 1.0, 0.0
            for seen, span in zip(reversed(self.past[kind]), reversed(self.recent[kind]), strict=True):
                total += weight * sum(a.value * b.value for a in here for b in seen if a.place == b.place)
                weights += weight
                weight *= 0.5 ** (1 / (longer * span))
            averages.append(total / max(weights, 1))
        p = error * (averages[0] - averages[1])
        for up in (True, False):
            products = self.products[kind, up]
            products.append(p)
            if (sum(products) < 0) == up:
                products.clear()
        self.past[kind].append([Seen(place, x * error) for place, x in here])
        self.recent[kind].append(memory)

    def sure(self, up: bool, limit: float) -> bool:
        """Whether a sum of products is so many standard deviations away from 0."""
        found = [products for (_, way), products in self.products.items() if way == up and any(products)]
        return any(abs(sum(one)) > limit * math.sqrt(sum(p * p for p in one)) for one in found)

    def decide(self, learned: int, users: int) -> None:
        new = self.half_life
        if self.half_life and self.sure(False, LENGTHEN):
            new = 2 * self.half_life if 2 * self.half_life * users <= learned else 0.0
        if self.sure(True, SHORTEN):
            new = max(STEP * (self.half_life or learned / users), 2.0, 20 / users)
        if new != self.half_life:
            self.half_life = new
            for products in self.products.values():
                products.clear()

    @property
    def keep(self) -> float:
        return 0.5 ** (1 / self.half_life) if self.half_life else 1.0
