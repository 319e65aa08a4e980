"""What features of actions add in a context, for all users: weights over crosses, with a full covariance.

    z = (1, context) ⊗ (1, features)        all products of a context feature and an action's feature
    what all users share = z·w              w ~ N(0, P⁻¹)

A diagonal posterior would need features around 0, in units of their spread, and independent of each other. Here the
sums keep the products as they are, so P can be written anew at each fit, for features minus their means, in units of
their spread: no origin matters, and units hardly. One variance each is learned for the weights of features, of the
context, and of crosses. There is room for MOST products. What has no place has effects of its own (`effects.py`).
"""

from typing import Any, final

import numpy as np

from coterie.arrays import Bools, Floats
from coterie.errors import FileError
from coterie.models._kernels.hierarchy.blocks import Blocks, learn_block
from coterie.models._kernels.hierarchy.effect_keys import HashedItems
from coterie.models._kernels.spd import invert
from coterie.models.files import Tensors, take
from coterie.models.hierarchy.blocks import GROWTH, START, WEAK, make_blocks, relative_scale
from coterie.models.hierarchy.columns import Columns, without_ids

# For larger matrices NumPy would start threads, which wait for each other on a busy machine.
MOST = 96  # products
ROWS = 64  # candidates at a time
# Elements of `fitted`: payoffs, payoffs at the last fit, the largest variance of payoffs, and the variances of
# features, of the context, and of crosses.
LEARNED, LAST, WIDEST, GROUPS = 0, 1, 2, slice(3, 6)


@final
class Side:
    """The features on one side of the crosses: those of the context, or those of actions."""

    def __init__(self) -> None:
        self.columns = Columns()
        self.first = np.zeros(0)  # what is taken from each, so that sums of numbers far from 0 stay precise
        # The mean of each column, and its sum of squares around it; the constant is first.
        self.seen = np.zeros((2, 1))

    def __len__(self) -> int:
        return len(self.columns)

    def add(self, hashes: list[int], first: list[float]) -> None:
        """Give new features columns; `first` is what is taken from each."""
        self.columns.add(hashes)
        self.first = np.concatenate([self.first, first])
        self.seen = np.concatenate([self.seen, np.zeros((2, len(hashes)))], axis=1)

    def centring(self, sign: float) -> Floats:
        """Return the matrix that takes the means from features (sign −1), or adds them (1)."""
        found = np.eye(1 + len(self))
        found[1:, 0] = sign * self.seen[0, 1:]
        return found


@final
class Crosses:
    """The weights of products, in one block."""

    def __init__(self) -> None:
        self.context, self.actions = Side(), Side()
        self.block = make_blocks(1, 1)
        self.fitted = np.array([0.0, 0.0, 0.0, START, START, START])
        self._last: tuple[HashedItems, Floats, Floats] | None = None  # what `_sides` said last

    def covers(self, hashed: HashedItems) -> tuple[Bools, Bools]:
        """Return which features of the context, and which of the actions, have a place."""
        if not len(self.actions):
            return np.zeros(len(hashed.context), np.bool_), np.zeros(len(hashed.features), np.bool_)
        return self.context.columns.find(hashed.context)[0], self.actions.columns.find(hashed.features)[0]

    def knows(self, hashed: HashedItems) -> bool:
        """Return whether `add` would add nothing."""
        return not any(map(len, self._new(hashed)))

    def _new(self, hashed: HashedItems) -> tuple[dict[int, float], dict[int, float]]:
        around, own = self.covers(hashed)
        own = own.copy()
        own[hashed.starts[:-1][hashed.has_id]] = True
        if own.all() and around.all():
            return {}, {}
        pairs = zip(hashed.context[~around].tolist(), hashed.context_values[~around].tolist(), strict=True)
        mine = zip(hashed.features[~own].tolist(), hashed.values[~own].tolist(), strict=True)
        context, actions = dict(pairs), dict(mine)
        if not (actions or len(self.actions)):
            return {}, {}
        rows, columns = 1 + len(self.context), 1 + len(self.actions)
        actions = dict(list(actions.items())[: max(MOST // rows - columns, 0)])
        return dict(list(context.items())[: max(MOST // (columns + len(actions)) - rows, 0)]), actions

    def add(self, hashed: HashedItems, variance: float) -> None:
        """Give the features of an action and its context places, while there is room."""
        new = self._new(hashed)
        if not any(map(len, new)):
            return
        self._last = None
        old = 1 + len(self.context), 1 + len(self.actions)
        for side, found in zip((self.context, self.actions), new, strict=True):
            start = not self.fitted[LEARNED]  # later, all earlier payoffs had 0
            side.add(list(found), [value if start and value != 1.0 else 0.0 for value in found.values()])
        shape = 1 + len(self.context), 1 + len(self.actions)
        gram, pull = np.zeros((*shape, *shape)), np.zeros(shape)
        gram[: old[0], : old[1], : old[0], : old[1]] = self.block.gram[0].reshape(*old, *old)
        pull[: old[0], : old[1]] = self.block.pull[0].reshape(old)
        d = pull.size
        self.block = make_blocks(1, d)
        self.block.gram[0], self.block.pull[0] = gram.reshape(d, d), pull.ravel()
        self._compute(variance)

    def _sides(self, hashed: HashedItems) -> tuple[Floats, Floats]:
        """Return the context's features, and each candidate's, both after a constant 1."""
        if self._last is not None and self._last[0] is hashed:
            return self._last[1:]
        starts = np.array([0, len(hashed.context)])
        own = np.ones((len(hashed.has_id), 1 + len(self.actions)))
        own[:, 1:] = self.actions.columns.table(hashed.starts, hashed.features, without_ids(hashed))
        own[:, 1:] -= self.actions.first
        around = np.ones(1 + len(self.context))
        around[1:] = self.context.columns.table(starts, hashed.context, hashed.context_values)[0]
        around[1:] -= self.context.first
        self._last = hashed, around, own
        return around, own

    def view(self, hashed: HashedItems) -> Floats:
        """Return a row per candidate: what all candidates have in common, the part of the features, that of the
        crosses, the variance of their sum, and the variance that is worth exploring, of what they differ in.
        """
        found = np.zeros((len(hashed.has_id), 5))
        if not len(self.actions):
            return found
        context, actions = self._sides(hashed)
        usual = context.copy()
        usual[1:] = self.context.seen[0, 1:]
        middle = np.append(1.0, self.actions.seen[0, 1:])
        mean, spread = self.block.mean[0], self.block.spread[0]
        apart = np.multiply.outer(actions - middle, context).transpose(0, 2, 1).reshape(len(actions), -1)
        features = np.multiply.outer(actions - middle, usual).transpose(0, 2, 1).reshape(len(actions), -1)
        common = np.outer(context, middle).ravel()
        found[:, 0] = common @ mean
        found[:, 1] = features @ mean
        found[:, 2] = apart @ mean - found[:, 1]
        whole = apart + common
        for column, rows in ((3, whole), (4, apart)):
            for k in range(0, len(rows), ROWS):
                part = rows[k : k + ROWS]
                found[k : k + ROWS, column] = ((part @ spread) * part).sum(axis=1).clip(0)
        return found

    def learn(self, hashed: HashedItems, residual: float, noise: float, variance: float) -> None:
        """Learn a payoff minus all other effects. `variance` is that of the payoffs, 0 while all are equal."""
        self.fitted[LEARNED] += 1  # before there are features, all were 0
        if not len(self.actions):
            return
        context, actions = self._sides(hashed)
        for side, x in ((self.context, context), (self.actions, actions[0])):
            off = x - side.seen[0]
            side.seen[0] += off / self.fitted[LEARNED]
            side.seen[1] += off * (x - side.seen[0])
        z = np.outer(context, actions[0]).ravel()
        learn_block(self.block, 0, np.arange(1, len(z)), z[1:], np.zeros(len(z)), residual, noise)
        if self.fitted[LEARNED] >= self.fitted[LAST] * GROWTH:
            self.fit(variance or 1.0, learn=variance > 0)

    def rescale(self, variance: float, ratio: float) -> None:
        """Take over a new variance of payoffs, `ratio` times the old one: what was learned keeps its weight."""
        self.fitted[GROUPS] *= ratio
        self.fitted[WIDEST] *= ratio
        self.block.gram[:] /= ratio
        self.block.pull[:] /= ratio
        self.block.spread[:] *= ratio
        self.fit(variance)

    def reweigh(self, variance: float, ratio: float) -> None:
        """Multiply the weight of all payoffs."""
        self.block.gram[:] *= ratio
        self.block.pull[:] *= ratio
        self._compute(variance)

    def fit(self, variance: float, learn: bool = True) -> None:
        """Fit the variances to what was learned (MacKay's step), unless payoffs have no scale, and the posterior."""
        if learn:
            self.fitted[WIDEST] = max(self.fitted[WIDEST], variance)
        if self.block.gram.any() and learn:
            back = np.kron(self.context.centring(1.0), self.actions.centring(1.0))
            means, scale = back.T @ self.block.mean[0], self._scale()
            doubts = np.diag(back.T @ self.block.spread[0] @ back)
            groups = self._groups()
            for g in range(3):
                of = groups == g
                squares = (np.square(means[of]) / scale[of]).sum()
                free = (1 - doubts[of] / (self.fitted[3 + g] * scale[of])).clip(0, 1).sum()
                self.fitted[3 + g] = (squares + WEAK * START * self.fitted[WIDEST]) / (free + WEAK)
        self.fitted[LAST] = self.fitted[LEARNED]
        self._compute(variance)

    def _groups(self) -> Floats:
        """Return the group of each product; -1 of the constant."""
        found = np.full((1 + len(self.context), 1 + len(self.actions)), 2)
        found[0], found[:, 0], found[0, 0] = 0, 1, -1
        return found.ravel()

    def _scale(self) -> Floats:
        """Return the share of each product in its group's variance, per unit of its own."""
        shares = [
            relative_scale(side.seen, float(self.fitted[LEARNED])) for side in (self.context, self.actions)
        ]
        return np.outer(*shares).ravel()

    def _compute(self, variance: float) -> None:
        """Compute the prior and the posterior."""
        if not self.block.gram.any():
            self.fitted[GROUPS] = START * variance
        groups, d = self._groups(), self.block.mean.shape[1]
        variances = self._scale() * np.append(self.fitted[GROUPS], START * variance)[groups]
        back = np.kron(self.context.centring(1.0), self.actions.centring(1.0))
        root, spread = np.empty((d, d)), np.empty((d, d))
        invert((back / variances) @ back.T + self.block.gram[0], d, root, spread)
        mean = spread @ self.block.pull[0]
        if np.isfinite(spread).all() and np.isfinite(mean).all():  # else rounding: what was learned stays
            self.block.spread[0], self.block.mean[0] = spread, mean

    def parts(self, hashed: HashedItems, k: int) -> list[tuple[int, int, float]]:
        """Return the parts of candidate k's estimate: the places of its feature and of the context's, -1 for none.

        What all candidates have in common, and what the absence of features says, is in one part of neither.
        """
        around, own = self.covers(hashed)
        if not own.any():
            return []
        context, actions = self._sides(hashed)
        mean = self.block.mean[0].reshape(len(context), -1)
        total = float(context @ mean @ actions[k])
        weights = mean.copy()  # of features minus their means
        weights[0] += self.context.seen[0, 1:] @ mean[1:]
        weights[:, 0] += weights[:, 1:] @ self.actions.seen[0, 1:]
        around_mean = context - np.append(0.0, self.context.seen[0, 1:])
        mine = actions[k] - np.append(0.0, self.actions.seen[0, 1:])
        first, last = hashed.starts[k : k + 2].tolist()
        places, rows = self._found(self.context, hashed.context, around)
        features, columns = self._found(self.actions, hashed.features[first:last], own[first:last])
        places, rows = [-1, *places], [0, *rows]
        values = weights[np.ix_(rows, columns)] * around_mean[rows, None] * mine[columns]
        found = [
            (first + a, c, value)
            for a, column in zip(features, values.T.tolist(), strict=True)
            for c, value in zip(places, column, strict=True)
        ]
        return [(-1, -1, total - sum(value for *_, value in found)), *found]

    @staticmethod
    def _found(side: Side, hashes: Any, known: Bools) -> tuple[list[int], list[int]]:
        """Return the places of the features that have a column, and their places after the constant."""
        return np.flatnonzero(known).tolist(), (1 + side.columns.find(hashes)[1][known]).tolist()

    def tensors(self) -> Tensors:
        """Return everything as arrays."""
        sides = {"context": self.context, "actions": self.actions}
        return {
            **{
                f"cross_{name}": np.array(side.columns.hashes, dtype=np.uint64)
                for name, side in sides.items()
            },
            **{f"cross_{name}_first": side.first.copy() for name, side in sides.items()},
            **{f"cross_{name}_seen": side.seen.copy() for name, side in sides.items()},
            "cross_fitted": self.fitted.copy(),
            **{f"cross_{name}": array.copy() for name, array in self.block._asdict().items()},
        }

    @classmethod
    def restored(cls, tensors: Tensors) -> "Crosses":
        """Return what `tensors` returned, if it is consistent."""
        fresh = cls()
        for name, side in (("context", fresh.context), ("actions", fresh.actions)):
            hashes = take(tensors, f"cross_{name}", "u", (None,)).tolist()
            side.add(hashes, take(tensors, f"cross_{name}_first", "f", (len(hashes),)).tolist())
            side.seen = take(tensors, f"cross_{name}_seen", "f", (2, 1 + len(hashes))).copy()
        d = (1 + len(fresh.context)) * (1 + len(fresh.actions))
        shapes = {"gram": (1, d, d), "pull": (1, d), "spread": (1, d, d), "mean": (1, d), "middle": (1,)}
        fresh.block = Blocks(
            *(take(tensors, f"cross_{name}", "f", shapes[name]).copy() for name in Blocks._fields)
        )
        fresh.fitted = take(tensors, "cross_fitted", "f", (6,)).copy()
        sides = fresh.context, fresh.actions
        sound = (
            d <= MOST
            and all(len(set(side.columns.hashes)) == len(side) for side in sides)
            and all(np.isfinite(array).all() for side in sides for array in (side.first, side.seen))
            and all(np.isfinite(array).all() for array in (*fresh.block, fresh.fitted))
            and all((side.seen[1] >= 0).all() for side in sides)
            and (fresh.fitted >= 0).all()
            and (fresh.fitted[GROUPS] > 0).all()
        )
        if not sound:
            raise FileError("the crosses in the model file contradict each other")
        return fresh
