"""The sparse hierarchical model straight from its formulas: effects by name, with means and variances."""

import math
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np

from coterie.models.encoded import name_of
from coterie.models.features import hash_name
from coterie.models.hierarchy.drift import HalfLife
from coterie.models.probability import probability_of_best
from tests.twins.drift import EVERYBODY, MOST, OWN, NaiveDrift, mix
from tests.twins.payoffs import within_reach

Features = Mapping[str, float]
UNEQUAL = 3


class NaiveEffects:
    """Effects by (kind, names). Prior variances are fitted after a pass over all effects, a few with each payoff."""

    START, NOISE, LEAST, WEAK, GROWTH, MEMORY, VISITS, CROSSED = 0.15, 0.5, 0.005, 5, 1.05, 0.9, 8, 16

    RARE = 8

    def __init__(self, explore: float, floor: float, half_life: HalfLife = None) -> None:
        self.explore, self.floor = explore, floor
        self.drift = NaiveDrift() if half_life == "learned" else None
        self.half_life = None if half_life is None or half_life == "learned" else float(half_life)
        self.numbers: dict[Hashable, int] = {}
        self.next = 0
        self.users: set[Hashable] = set()
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
        self.payoffs: list[float] = []
        self.variance, self.origin = 0.0, 0.0  # of payoffs; 0 while all are equal
        self.blocks, self.crosses = NaiveBlocks(), NaiveCrosses()
        self.units = NaiveUnits(), NaiveUnits()  # of the context's features, and of actions'
        self.squares: dict[str, float] = {}
        self.freedom: dict[str, float] = {}
        self.touched: dict[str, int] = {}  # by kind: how often its effects learned, and how many there are
        self.members: dict[str, int] = {}

    def list_effects(
        self, user: Hashable, item: Hashable, features: Features, context: Features
    ) -> list[Any]:
        """Return the effects of one candidate, with their values."""
        found: list[Any] = [(("population",), 1.0), (("user", user), 1.0)]
        named = [] if item is None else [("id", item, 1.0)]
        inside = self.blocks.covers(item)
        around, own = self.crosses.names
        context, features = self.units[0].convert(context), self.units[1].convert(features)
        for kind, name, x in [*named, *(("feature", name, x) for name, x in features.items())]:
            block, crossed = kind == "id" and inside, kind == "feature" and name in own
            if not block and not crossed:
                found.append(((kind, name), x))
            found.append(((f"user × {kind}", user, name), x))
            found += [
                ((f"context × {kind}", c, name), x * z)
                for c, z in context.items()
                if not (block and c in self.blocks.names) and not (crossed and c in around)
            ]
            if kind == "id" and len(context) <= self.CROSSED:
                found += [(("user × context × id", user, c, name), x * z) for c, z in context.items()]
        return found

    def posterior(self, key: Any) -> tuple[float, float]:
        v = 1 / (1 / self.v0.get(key[0], self.START * (self.variance or 1)) + self.precision.get(key, 0.0))
        return self.pull.get(key, 0.0) * v, v

    def score(
        self, user: Hashable, item: Hashable, features: Features, context: Features
    ) -> tuple[float, float]:
        """Return the score, and the standard deviation of what all users share, times `explore`."""
        found = [(self.posterior(key), x) for key, x in self.list_effects(user, item, features, context)]
        estimate = self.origin + sum(w * x for (w, _), x in found)
        listed = self.list_effects(user, item, features, context)
        alone = 1 / max(self.members.get("user", 0), 1)  # the share of one user among all
        variance = sum(
            self.again(key[0]) * v * x * x * (alone if key[0].startswith("user") else 1)
            for ((_, v), x), (key, _) in zip(found, listed, strict=True)
            if key[0] not in ("user", "population")
        )
        mean, _ = self.blocks.view(item, context)
        more = self.blocks.worth_exploring(item, context)
        paid = len(self.blocks.contexts)
        often = paid / max(len(self.blocks.paid), 1)
        rate = (often + self.RARE * self.RARE / (self.RARE + paid)) / (often + self.RARE)
        shared, _, apart = self.crosses.view(features, context)
        sd = self.explore * math.sqrt(variance + more * rate + apart)
        return float(estimate + mean + shared + sd), sd

    def again(self, kind: str) -> float:
        """How much of an effect's variance is worth exploring, by how often effects of its kind come back."""
        if kind not in self.members:
            return 1.0
        often = self.touched[kind] / self.members[kind]
        return often / (often + self.RARE)

    def chances(self, scores: Sequence[float], sds: Sequence[float]) -> list[float]:
        p = probability_of_best(np.array(scores), np.array(sds) / 2)
        return [float((1 - self.floor) * chance + self.floor / len(scores)) for chance in p]

    def noise_at(self, estimate: float) -> float:
        low, high, values = min(self.payoffs), max(self.payoffs), set(self.payoffs)
        if not self.variance or len(values) > 2:
            return self.noise
        share = (float(np.mean(self.payoffs)) - low) / (high - low)
        rare = min(share, 1 - share)
        p = min(max((estimate - low) / (high - low), rare / 2), 1 - rare / 2)
        return max(self.noise, p * (1 - p) / 2 * (high - low) ** 2)

    def learn(self, user: Hashable, item: Hashable, features: Features, context: Features, y: float) -> None:
        self.t += 1
        y = within_reach(self.payoffs, y)
        self.payoffs.append(y)
        if self.t == 1:
            self.origin = y
        y -= self.origin
        self.blocks.add(item, context, self.variance or 1)
        self.crosses.add(features, context, self.variance or 1)
        for units, given in zip(self.units, (context, features), strict=True):
            units.count(given)
        listed = [(key, x) for key, x in self.list_effects(user, item, features, context) if x]
        every = len(self.list_effects(user, item, features, context))
        by_kind: dict[str, list[float]] = {}
        for key, x in listed:
            by_kind.setdefault(key[0], []).append(x * x)
            self.touched[key[0]] = self.touched.get(key[0], 0) + 1
            if key not in self.precision:
                self.members[key[0]] = self.members.get(key[0], 0) + 1
                self.precision[key] = self.pull[key] = 0.0
                if self.free:
                    self.order[self.free.pop()] = key
                else:
                    self.order.append(key)
        for kind, squares in by_kind.items():
            length = sum(squares) / math.sqrt(len(squares))
            if not length:
                continue
            self.v0.setdefault(kind, self.start(kind) * (self.variance or 1) / length)
            self.lengths.setdefault(kind, []).append(length)
        found = [(key, *self.posterior(key), x) for key, x in listed]
        mean, more = self.blocks.view(item, context)
        shared, doubt, _ = self.crosses.view(features, context)
        rest = y - sum(w * x for _, w, _, x in found)
        noise = self.noise_at(self.origin + y - rest + mean + shared)
        blur = sum(v * x * x for _, _, v, x in found) + noise
        s, error = blur - noise + more + doubt, rest - mean - shared
        tail = max(error * error / (9 * (s + noise)), 1) if len(set(self.payoffs)) > 2 else 1
        for key, w, v, x in found:
            total = s + noise
            if key[0].startswith("user"):  # an outlier says less of one user
                total = (total - v * x * x) * tail + v * x * x
            w += v * x * error / total
            v -= (v * x) ** 2 / total
            self.precision[key] = 1 / v - 1 / self.v0[key[0]]
            self.pull[key] = w / v
        share = noise / (s + noise)
        before, fitted = self.variance, self.noise
        if before:  # else residuals and weights are not yet in units of payoffs
            self.residuals[0] += (error * share) ** 2 + s * share
            self.residuals[1] += 1
            self.visit(self.VISITS * every)
        varied = len(set(self.payoffs)) > 1
        if varied and (not before or self.t in (2, 4, 8, 16)):
            self.rescale()
        if self.blocks.covers(item):
            self.blocks.learn(item, context, rest - shared, blur + doubt, before)
        self.crosses.learn(features, context, rest - mean, blur + more, before)
        for part in (self.blocks, self.crosses):
            if self.variance != before and (self.t <= 16 or not before):
                part.rescale(self.variance, self.variance / (before or 1))
            elif self.noise != fitted:
                part.reweigh(self.variance, fitted / self.noise)
        known = self.numbers.get(user)
        if known is None:
            self.numbers[user], self.next = self.next, self.next + 1
        self.users.add(user)
        if self.drift is not None and self.t > 1:
            self.watch(self.drift, known, item, features, context, error / math.sqrt(s + noise))
            self.half_life = self.drift.half_life or None
        if self.half_life is not None:
            self.fade(self.half_life)

    def fade(self, half_life: float) -> None:
        """All old payoffs count less, each time that a twentieth of a half-life has passed."""
        every = max(round(0.05 * half_life * len(self.users)), 1)
        if self.t % every == 0:
            factor = 0.5 ** (every / half_life / len(self.users))
            self.precision = {key: p * factor for key, p in self.precision.items()}
            self.pull = {key: p * factor for key, p in self.pull.items()}
            for part in (self.blocks, self.crosses):
                part.reweigh(self.variance or 1, factor)

    def watch(
        self,
        drift: NaiveDrift,
        owner: int | None,
        item: Hashable,
        features: Features,
        context: Features,
        error: float,
    ) -> None:
        """Look whether the last payoff says that something changes: for all, and for this user."""
        values = {} if item is None else {hash_name(name_of(item)): 1.0}
        values |= {hash_name(name): x for name, x in self.units[1].convert(features).items()}
        around = {hash_name(name): z for name, z in self.units[0].convert(context).items()}
        crosses = {mix(f) ^ c: x * z for f, x in values.items() for c, z in around.items()}
        crosses = {} if len(crosses) > MOST else crosses
        drift.watch(EVERYBODY, -1, values | crosses, error, self.t, len(self.users))
        if owner is not None:
            drift.watch(OWN, owner, values, error, self.t, len(self.users))
        drift.decide(self.t, len(self.users))

    def start(self, kind: str) -> float:
        return 4.0 if kind == "population" else self.START

    def rescale(self) -> None:
        """Set the payoffs' variance and origin; what was learned keeps its weight."""
        ratio = float(np.var(self.payoffs)) / (self.variance or 1)
        self.variance = float(np.var(self.payoffs))
        self.noise, self.residuals[0] = self.noise * ratio, self.residuals[0] * ratio
        self.v0 = {kind: v * ratio for kind, v in self.v0.items()}
        self.squares = {kind: w * ratio for kind, w in self.squares.items()}
        self.precision = {key: p / ratio for key, p in self.precision.items()}
        self.pull = {key: p / ratio for key, p in self.pull.items()}
        _, v = self.posterior(("population",))
        self.pull[("population",)] -= (float(np.mean(self.payoffs)) - self.origin) / v
        self.origin = float(np.mean(self.payoffs))

    def visit(self, most: int) -> None:
        for key in self.order[self.cursor : self.cursor + most]:
            if key is not None:
                w, v = self.posterior(key)
                self.squares[key[0]] = self.squares.get(key[0], 0.0) + w * w
                self.freedom[key[0]] = self.freedom.get(key[0], 0.0) + 1 - v / self.v0[key[0]]
        self.cursor = min(len(self.order), self.cursor + most)
        if self.cursor == len(self.order) and self.t >= self.fitted * self.GROWTH and self.variance:
            self.variance = float(np.var(self.payoffs))
            for kind, lengths in self.lengths.items():
                start = self.start(kind) * self.variance / np.mean(lengths)
                above = self.WEAK * start + self.squares.get(kind, 0.0)
                self.v0[kind] = float(above / (self.WEAK + self.freedom.get(kind, 0.0)))
            self.noise = max(self.residuals[0] / self.residuals[1], self.LEAST * self.variance)
            self.residuals = [part * self.MEMORY for part in self.residuals]
            self.squares, self.freedom, self.cursor, self.fitted = {}, {}, 0, self.t

    def drop(self, user: Hashable) -> None:
        """Forget a user. Places are freed in the order of the user's list; the last one is used again first."""
        self.users.discard(user)
        del self.numbers[user]
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


def centre_and_share(seen: Any) -> tuple[Any, Any]:
    """The mean of each column, and its share in the variance of all, per unit of its own."""
    centre = seen.mean(axis=0) if len(seen) else np.zeros(seen.shape[1])
    spread = seen.std(axis=0) if len(seen) else np.zeros(seen.shape[1])
    spread[[len(set(column)) <= 1 for column in seen.T]] = 0.0
    middle = np.median(spread[spread > 0]) if (spread > 0).any() else 1.0
    spread[spread == 0] = middle
    counted = np.clip(spread, middle / UNEQUAL, middle * UNEQUAL)
    return centre, (counted / spread) ** 2 / (counted @ counted)


class NaiveBlocks:
    """Weights of each id over a constant and the context features, by inverting matrices each time."""

    START, WEAK, GROWTH = 0.25, 5, 1.15

    def __init__(self) -> None:
        self.names: dict[str, int] = {}
        self.paid: dict[Hashable, list[tuple[dict[str, float], float, float]]] = {}  # context, payoff, noise
        self.contexts: list[dict[str, float]] = []
        self.constant = self.context = self.START
        self.prior = np.eye(1)
        self.fitted = 0
        self.centre = np.ones(1)
        self.widest = 0.0  # the largest variance of payoffs
        self.side = 1.0

    def covers(self, item: Hashable) -> bool:
        return item is not None and bool(self.names)

    def add(self, item: Hashable, context: Features, variance: float) -> None:
        if item is None or not (context or self.names):
            return
        new = [name for name in context if name not in self.names]
        for name in new:
            self.names[name] = 1 + len(self.names)
        if new:
            self.fit(variance, learn=False)
        self.paid.setdefault(item, [])

    def x(self, context: Features) -> Any:
        found = np.zeros(1 + len(self.names))
        found[0] = 1
        for name, value in context.items():
            if name in self.names:
                found[self.names[name]] = value
        return found

    def posterior(self, item: Hashable) -> tuple[Any, Any]:
        precision, pull = np.linalg.inv(self.prior), np.zeros(len(self.prior))
        for context, y, noise in self.paid.get(item, []):
            precision = precision + np.outer(self.x(context), self.x(context)) / noise
            pull = pull + self.x(context) * y / noise
        spread = np.linalg.inv(precision)
        return spread @ pull, spread

    def view(self, item: Hashable, context: Features) -> tuple[float, float]:
        if not self.covers(item):
            return 0.0, 0.0
        mean, spread = self.posterior(item)
        x = self.x(context)
        return float(mean @ x), float(x @ spread @ x)

    def worth_exploring(self, item: Hashable, context: Features) -> float:
        """All of the variance at the mean context, and a part of what the context adds to it."""
        if not self.covers(item):
            return 0.0
        _, total = self.view(item, context)
        middle = min(float(self.centre @ self.posterior(item)[1] @ self.centre), total)
        return middle + self.side * (total - middle)

    def learn(self, item: Hashable, context: Features, y: float, noise: float, variance: float) -> None:
        self.contexts.append(dict(context))
        self.paid[item].append((dict(context), y, noise))
        if len(self.contexts) >= self.fitted * self.GROWTH:
            self.fit(variance or 1, learn=variance > 0)
            self.fitted = len(self.contexts)

    def rescale(self, variance: float, ratio: float) -> None:
        self.paid = {item: [(c, y, noise * ratio) for c, y, noise in own] for item, own in self.paid.items()}
        self.constant, self.context = self.constant * ratio, self.context * ratio
        self.prior, self.widest = self.prior * ratio, self.widest * ratio
        self.fit(variance)

    def reweigh(self, variance: float, ratio: float) -> None:
        self.paid = {item: [(c, y, noise / ratio) for c, y, noise in own] for item, own in self.paid.items()}
        self.fit(variance, learn=False)

    def fit(self, variance: float, learn: bool = True) -> None:
        seen = np.array([self.x(context)[1:] for context in self.contexts]).reshape(-1, len(self.names))
        centre, relative = centre_and_share(seen)
        turn = np.eye(1 + len(self.names))
        turn[0, 1:] = -centre
        back = np.linalg.inv(turn)
        weights = np.array([1 / noise for own in self.paid.values() for _, _, noise in own])
        away = np.array([self.x(c)[1:] - centre for own in self.paid.values() for c, _, _ in own])
        common = sum(w * np.outer(x, x) for w, x in zip(weights, away, strict=True))
        self.side = 1.0
        if len(away) and (scaled := common * np.sqrt(np.outer(relative, relative))).trace() > 0:
            self.side = min(max((scaled**2).sum() / scaled.trace() ** 2, 0.01), 1.0)
        if learn:
            self.widest = max(self.widest, variance)
        if self.paid and learn:
            found = [self.posterior(item) for item in self.paid]
            means = np.array([back[:, : len(m)] @ m for m, _ in found]).reshape(len(found), -1)
            doubts = np.array([np.diag(back @ s @ back.T) for _, s in found]).reshape(len(found), -1)
            weak = self.WEAK * self.START * self.widest
            free = np.clip(1 - doubts[:, 0] / self.constant, 0, 1).sum()
            self.constant = ((means[:, 0] ** 2).sum() + weak) / (free + self.WEAK)
            free = np.clip(1 - doubts[:, 1:] / (self.context * relative), 0, 1).sum()
            self.context = ((means[:, 1:] ** 2 / relative).sum() + weak) / (free + self.WEAK)
        if not self.paid:
            self.constant = self.context = self.START * variance
        self.centre = np.array([1.0, *centre])
        self.prior = turn @ np.diag([self.constant, *(self.context * relative)]) @ turn.T
        if learn:
            self.fitted = len(self.contexts)


class NaiveUnits:
    """All values of each feature since the first that was not 1; numbers in units of their spread."""

    OFTEN = 9

    def __init__(self) -> None:
        self.values: dict[str, list[float]] = {}
        self.absent: dict[str, int] = {}

    def count(self, given: Features) -> None:
        for name in self.values:
            self.absent[name] += name not in given
        for name, value in given.items():
            if name in self.values or value != 1:
                self.values.setdefault(name, []).append(value)
                self.absent.setdefault(name, 0)

    def spread(self, name: str) -> float:
        values = self.values[name]
        return float(np.std(values) if self.dense(name) else np.sqrt(np.mean(np.square(values))))

    def dense(self, name: str) -> bool:
        return len(self.values[name]) > self.OFTEN * self.absent[name]

    def convert(self, given: Features) -> Features:
        spreads = [self.spread(name) for name, values in self.values.items() if len(set(values)) > 1]
        middle = float(np.median(spreads)) if spreads else 1.0
        found = {}
        for name, value in given.items():
            values = self.values.get(name, [])
            if not values:
                found[name] = float(value == 1)
            elif len(set(values)) == 1:
                found[name] = 0.0
            else:
                far = (value - (np.mean(values) if self.dense(name) else 0)) / self.spread(name)
                reach = math.sqrt(len(values))
                weight = np.clip(self.spread(name) / middle, 1 / UNEQUAL, UNEQUAL)
                found[name] = float(np.clip(far, -reach, reach) * weight)
        return found


class NaiveCrosses:
    """Weights of all products of a context feature and an action's feature, by inverting matrices each time."""

    START, WEAK, GROWTH, MOST = 0.25, 5, 1.15, 96

    def __init__(self) -> None:
        self.names: tuple[dict[str, float], dict[str, float]] = {}, {}  # what is taken from each
        self.paid: list[tuple[Features, Features, float, float]] = []
        self.variances = [self.START] * 3  # of features, of the context, and of crosses
        self.prior: Any = np.eye(1)
        self.known: tuple[Any, Any] | None = None  # the posterior, until something changes
        self.fitted, self.widest, self.before = 0, 0.0, 0

    def add(self, features: Features, context: Features, variance: float) -> None:
        around, own = self.names
        if not (own or features):
            return
        new = [name for name in features if name not in own]
        new = new[: max(self.MOST // (1 + len(around)) - 1 - len(own), 0)]
        more = [name for name in context if name not in around]
        more = more[: max(self.MOST // (1 + len(own) + len(new)) - 1 - len(around), 0)]
        for names, given, found in ((own, features, new), (around, context, more)):
            for name in found:
                names[name] = 0.0 if self.before + len(self.paid) or given[name] == 1 else given[name]
        if new or more:
            self.fit(variance, learn=False)

    def side(self, i: int, given: Features) -> Any:
        return np.array([1, *(given.get(name, 0.0) - first for name, first in self.names[i].items())])

    def z(self, features: Features, context: Features) -> Any:
        return np.kron(self.side(0, context), self.side(1, features))

    def posterior(self) -> tuple[Any, Any]:
        z = np.array([self.z(features, context) for features, context, _, _ in self.paid])
        z = z.reshape(len(self.paid), len(self.prior))
        noise = np.array([noise for *_, noise in self.paid])
        spread = np.linalg.inv(np.linalg.inv(self.prior) + (z.T / noise) @ z)
        return spread @ (z.T / noise) @ np.array([y for _, _, y, _ in self.paid]), spread

    def mean(self, i: int) -> Any:
        """The mean of one side's features, after the constant."""
        return np.append(1.0, self.seen(i).sum(axis=0) / max(len(self.seen(i)), 1))

    def seen(self, i: int) -> Any:
        """The features of one side, a row per payoff; before there were features, all were 0."""
        rows = [self.side(i, (c, f)[i])[1:] for f, c, _, _ in self.paid]
        return np.array([np.zeros(len(self.names[i]))] * self.before + rows).reshape(-1, len(self.names[i]))

    def view(self, features: Features, context: Features) -> tuple[float, float, float]:
        """The estimate, its variance, and the variance of what an action adds to the mean action in this context."""
        if not self.names[1]:
            return 0.0, 0.0, 0.0
        (mean, spread), z = self.known or self.posterior(), self.z(features, context)
        self.known = mean, spread
        apart = z - np.kron(self.side(0, context), self.mean(1))
        return float(mean @ z), float(z @ spread @ z), float(apart @ spread @ apart)

    def learn(self, features: Features, context: Features, y: float, noise: float, variance: float) -> None:
        if not self.names[1]:
            self.before += 1
            return
        self.paid.append((dict(features), dict(context), y, noise))
        self.known = None
        if self.before + len(self.paid) >= self.fitted * self.GROWTH:
            self.fit(variance or 1, learn=variance > 0)
            self.fitted = self.before + len(self.paid)

    def rescale(self, variance: float, ratio: float) -> None:
        self.prior, self.widest, self.known = self.prior * ratio, self.widest * ratio, None
        self.variances = [v * ratio for v in self.variances]
        self.paid = [(f, c, y, noise * ratio) for f, c, y, noise in self.paid]
        self.fit(variance)

    def reweigh(self, variance: float, ratio: float) -> None:
        self.paid = [(f, c, y, noise / ratio) for f, c, y, noise in self.paid]
        self.fit(variance, learn=False)

    def fit(self, variance: float, learn: bool = True) -> None:
        shares, turns = [], []
        for i, names in enumerate(self.names):
            centre, relative = centre_and_share(self.seen(i))
            shares.append(np.array([1, *relative]))
            turn = np.eye(1 + len(names))
            turn[1:, 0] = -centre
            turns.append(turn)
        share, turn = np.kron(*shares), np.asarray(np.kron(*turns))
        group = [
            -1 if i == j == 0 else 0 if i == 0 else 1 if j == 0 else 2
            for i in range(1 + len(self.names[0]))
            for j in range(1 + len(self.names[1]))
        ]
        if learn:
            self.widest = max(self.widest, variance)
        if learn and self.paid:
            mean, spread = self.posterior()
            back = np.linalg.inv(turn)
            means, doubts = back.T @ mean, np.diag(back.T @ spread @ back)
            for g in range(3):
                of = np.array(group) == g
                free = np.clip(1 - doubts[of] / (self.variances[g] * share[of]), 0, 1).sum()
                above = (means[of] ** 2 / share[of]).sum() + self.WEAK * self.START * self.widest
                self.variances[g] = float(above / (free + self.WEAK))
        if not self.paid:
            self.variances = [self.START * variance] * 3
        of_each = np.array([*self.variances, self.START * variance])[group]
        self.prior, self.known = turn.T @ np.diag(share * of_each) @ turn, None
        if learn:
            self.fitted = self.before + len(self.paid)
