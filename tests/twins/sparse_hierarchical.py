"""The sparse hierarchical model straight from its formulas: effects by name, with means and variances."""

import math
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np

Features = Mapping[str, float]


class NaiveSparseHierarchical:
    """Effects by (kind, names). Prior variances are fitted after a pass over all effects, a few with each payoff."""

    START, NOISE, WEAK, GROWTH, MEMORY, VISITS, CROSSED = 0.03, 0.1, 20, 1.05, 0.9, 8, 16

    def __init__(self, explore: float, gap: float, floor: float) -> None:
        self.explore, self.gap, self.floor = explore, gap, floor
        self.t = 0
        self.precision: dict[Any, float] = {}
        self.pull: dict[Any, float] = {}
        self.order: list[Any] = []  # effects in the order of first sight; None is a free place
        self.free: list[int] = []
        self.v0: dict[str, float] = {}
        self.lengths: dict[str, list[float]] = {}
        self.noise = self.NOISE
        self.residuals = [self.WEAK * self.NOISE, float(self.WEAK)]
        self.cursor, self.fitted = 0, 0
        self.squares: dict[str, float] = {}
        self.freedom: dict[str, float] = {}

    def list_effects(
        self, user: Hashable, item: Hashable, features: Features, context: Features
    ) -> list[Any]:
        """Return the effects of one candidate, with their values."""
        found: list[Any] = [(("population",), 1.0), (("user", user), 1.0)]
        named = [] if item is None else [("id", item, 1.0)]
        for kind, name, x in [*named, *(("feature", name, x) for name, x in features.items())]:
            found.append(((kind, name), x))
            found.append(((f"user × {kind}", user, name), x))
            found += [((f"context × {kind}", c, name), x * z) for c, z in context.items()]
            if kind == "id" and len(context) <= self.CROSSED:
                found += [(("user × context × id", user, c, name), x * z) for c, z in context.items()]
        return found

    def posterior(self, key: Any) -> tuple[float, float]:
        v = 1 / (1 / self.v0.get(key[0], self.START) + self.precision.get(key, 0.0))
        return self.pull.get(key, 0.0) * v, v

    def score(self, user: Hashable, item: Hashable, features: Features, context: Features) -> float:
        found = [(self.posterior(key), x) for key, x in self.list_effects(user, item, features, context)]
        estimate: float = sum(w * x for (w, _), x in found)
        return estimate + self.explore * math.sqrt(sum(v * x * x for (_, v), x in found))

    def chances(self, scores: Sequence[float]) -> list[float]:
        n = len(scores)
        best = int(np.argmax(max(scores) - np.array(scores) < 1e-9))
        gamma = self.gap * math.sqrt(1 + self.t)
        p = [1 / (n + gamma * (max(scores) - s)) for s in scores]
        p[best] = 1 - sum(p[k] for k in range(n) if k != best)
        return [(1 - self.floor) * chance + self.floor / n for chance in p]

    def learn(self, user: Hashable, item: Hashable, features: Features, context: Features, y: float) -> None:
        self.t += 1
        listed = self.list_effects(user, item, features, context)
        by_kind: dict[str, list[float]] = {}
        for key, x in listed:
            by_kind.setdefault(key[0], []).append(x * x)
            if key not in self.precision:
                self.precision[key] = self.pull[key] = 0.0
                if self.free:
                    self.order[self.free.pop()] = key
                else:
                    self.order.append(key)
        for kind, squares in by_kind.items():
            length = sum(squares) / math.sqrt(len(squares))
            if not length:
                continue
            self.v0.setdefault(kind, self.START / length)
            self.lengths.setdefault(kind, []).append(length)
        found = [(key, *self.posterior(key), x) for key, x in listed]
        s = sum(v * x * x for _, _, v, x in found)
        error = y - sum(w * x for _, w, _, x in found)
        for key, w, v, x in found:
            w += v * x * error / (s + self.noise)
            v -= (v * x) ** 2 / (s + self.noise)
            self.precision[key] = 1 / v - 1 / self.v0[key[0]]
            self.pull[key] = w / v
        share = self.noise / (s + self.noise)
        self.residuals[0] += (error * share) ** 2 + s * share
        self.residuals[1] += 1
        self.visit(self.VISITS * len(listed))

    def visit(self, most: int) -> None:
        for key in self.order[self.cursor : self.cursor + most]:
            if key is not None:
                w, v = self.posterior(key)
                self.squares[key[0]] = self.squares.get(key[0], 0.0) + w * w
                self.freedom[key[0]] = self.freedom.get(key[0], 0.0) + 1 - v / self.v0[key[0]]
        self.cursor = min(len(self.order), self.cursor + most)
        if self.cursor == len(self.order) and self.t >= self.fitted * self.GROWTH:
            for kind, lengths in self.lengths.items():
                start = self.START / np.mean(lengths)
                above = self.WEAK * start + self.squares.get(kind, 0.0)
                self.v0[kind] = float(above / (self.WEAK + self.freedom.get(kind, 0.0)))
            self.noise = max(self.residuals[0] / self.residuals[1], 1e-3)
            self.residuals = [part * self.MEMORY for part in self.residuals]
            self.squares, self.freedom, self.cursor, self.fitted = {}, {}, 0, self.t

    def drop(self, user: Hashable) -> None:
        """Forget a user. Places are freed in the order of the user's list; the last one is used again first."""
        mine = [e for e, key in enumerate(self.order) if key and key[0].startswith("user") and key[1] == user]
        head = [e for e in mine if self.order[e] == ("user", user)]
        # A new effect is inserted right after the user's own, at the front of the user's list.
        for e in [*head, *reversed([e for e in self.by_first_sight(mine) if e not in head])]:
            key, self.order[e] = self.order[e], None
            del self.precision[key], self.pull[key]
            self.free.append(e)

    def by_first_sight(self, places: list[int]) -> list[int]:
        """Return places in the order of their effects' first sight, which a dictionary keeps."""
        rank = {key: i for i, key in enumerate(self.precision)}
        return sorted(places, key=lambda e: rank[self.order[e]])
