"""Actions' weights over context features: a full covariance per action id, with a prior that is learned.

    what action a adds in context z = x·w_a       x: a constant 1, then the context features that are known
    w_a ~ N(0, P⁻¹)                               one variance for the constant, one for all context features together

Once there was a context, actions without one have x = 1, so what was learned in contexts counts for them.
A context feature gets a place on its first payoff, while there are at most MOST of them, and an action a block, while
there is ROOM. What has no place or block has effects of its own in the table of effects (`effects.py`). Starts come
from the data, as in `refit.py`: the origin of a context feature does not matter, and its units hardly.
"""

from typing import final

import numpy as np

from coterie.arrays import Floats, Ints
from coterie.errors import FileError
from coterie.models._kernels.hierarchy.blocks import Blocked, Blocks, learn_block, view_blocks
from coterie.models._kernels.hierarchy.effect_keys import HashedItems
from coterie.models._kernels.hierarchy.effects import RARE
from coterie.models._kernels.spd import invert
from coterie.models.files import Tensors, take

MOST = 128  # places
ROOM = 1 << 20  # numbers in all blocks' matrices
START = (
    0.25  # the variance of the constant, and that of all context features together, as shares of the payoffs'
)
UNEQUAL = 3.0  # as in `refit.py`, but narrower: contexts are numbers in many units, such as age and income
WEAK = 5.0  # the starting variances count as so many observations
LEAST = 0.01  # of the variance due to the context is explored in any case
GROWTH = 1.15  # the variances are fitted again when the number of payoffs has grown by this factor


@final
class ContextBlocks:
    """The blocks, by the hashes of ids, and the places, by the hashes of context features."""

    def __init__(self) -> None:
        self.places: dict[int, int] = {}
        self.ids: dict[int, int] = {}
        self.blocks = make_blocks(1, 1)
        self.seen = np.zeros((2, 1))  # the mean of each place, and its sum of squares around it
        # Payoffs learned, payoffs at the last fit, the variances of the constant and of the context; the largest
        # variance of payoffs, which falls when good actions are chosen, but then nothing is known of the others; and
        # how much of the variance that is due to the context is worth exploring.
        self.fitted = np.array([0.0, 0.0, START, START, 0.0, 1.0])
        self.centre = np.ones(1)  # x at the mean context of the last fit

    def find(self, hashed: HashedItems) -> tuple[Ints, Ints]:
        """Return the first two parts of `Blocked`. Actions without payoffs have the block 0, the prior."""
        if not self.places:
            return np.empty(0, np.int64), np.full(len(hashed.has_id), -1)
        places = np.array([self.places.get(name, -1) for name in hashed.context.tolist()], dtype=np.int64)
        new = 0 if self._has_room(1) else -1
        firsts = hashed.features[hashed.starts[:-1][hashed.has_id]].tolist()
        which = np.full(len(hashed.has_id), -1)
        which[hashed.has_id] = [self.ids.get(name, new) for name in firsts]
        return places, which

    def knows(self, hashed: HashedItems) -> bool:
        """Return whether `add` would add nothing."""
        context = hashed.context.tolist()
        return (
            not (context or self.places)
            or not hashed.has_id[0]
            or (int(hashed.features[0]) in self.ids and all(name in self.places for name in context))
        )

    def add(self, hashed: HashedItems, variance: float) -> None:
        """Give an action a block, and its context places, while there is room; `variance` is that of the payoffs."""
        context = hashed.context.tolist()
        if not (context or self.places) or not hashed.has_id[0]:
            return
        new = [name for name in context if name not in self.places][: MOST - len(self.places)]
        if new and self._has_room(0, len(new)):
            self.places |= {name: 1 + len(self.places) + i for i, name in enumerate(new)}
            self._resize(len(self.blocks.mean))
            self._compute(variance)
        name = int(hashed.features[0])
        if name not in self.ids and self._has_room(1):
            self.ids[name] = 1 + len(self.ids)
            if self.ids[name] >= len(self.blocks.mean):
                self._resize(2 * len(self.blocks.mean))
            for array in (self.blocks.spread, self.blocks.mean, self.blocks.middle):
                array[self.ids[name]] = array[0]

    def _has_room(self, blocks: int, places: int = 0) -> bool:
        return (1 + len(self.ids) + blocks) * (1 + len(self.places) + places) ** 2 <= ROOM

    def _resize(self, room: int) -> None:
        fresh, seen = make_blocks(room, 1 + len(self.places)), np.zeros((2, 1 + len(self.places)))
        for new, old in zip((*fresh, seen), (*self.blocks, self.seen), strict=True):
            new[tuple(slice(length) for length in old.shape)] = old
        self.blocks, self.seen = fresh, seen

    def view(self, blocked: Blocked, values: Floats) -> Floats:
        """Return a row per candidate: see `view_blocks`."""
        found = np.zeros((len(blocked.which), 4))
        if self.places:
            view_blocks(self.blocks, blocked, values, float(self.fitted[5]), found)
        return found

    @property
    def returning(self) -> float:
        """How much of an action's uncertainty is worth exploring: less if few payoffs are of the same action.

        The first payoffs cannot tell, so they count less than RARE that have all been of one.
        """
        payoffs = float(self.fitted[0])
        often = payoffs / max(len(self.ids), 1)
        return (often + RARE * RARE / (payoffs + RARE)) / (often + RARE)

    def parts(self, blocked: Blocked, k: int, values: Floats) -> list[tuple[int, float]]:
        """Return the parts of candidate k's estimate: the position of the context feature, -1 for the constant."""
        b = int(blocked.which[k])
        if b <= 0:
            return []
        mean = self.blocks.mean[b]
        found = [(c, float(mean[place] * values[c])) for c, place in enumerate(blocked.places) if place >= 0]
        return [(c, value) for c, value in [(-1, float(mean[0])), *found] if value != 0]

    def learn(self, blocked: Blocked, values: Floats, residual: float, noise: float, variance: float) -> None:
        """Learn a payoff minus all other effects. `variance` is that of the payoffs, 0 while all are equal."""
        x = np.zeros(1 + len(self.places))
        x[blocked.places[blocked.places >= 0]] = values[blocked.places >= 0]
        self.fitted[0] += 1
        off = x - self.seen[0]
        self.seen[0] += off / self.fitted[0]
        self.seen[1] += off * (x - self.seen[0])
        learn_block(self.blocks, int(blocked.which[0]), blocked.places, values, self.centre, residual, noise)
        if self.fitted[0] >= self.fitted[1] * GROWTH:
            self.fit(variance or 1.0, learn=variance > 0)

    def rescale(self, variance: float, ratio: float) -> None:
        """Take over a new variance of payoffs, `ratio` times the old one: what was learned keeps its weight."""
        self.blocks.gram[:] /= ratio
        self.blocks.pull[:] /= ratio
        self.blocks.spread[:] *= ratio
        self.fitted[2:5] *= ratio
        self.fit(variance)

    def reweigh(self, variance: float, ratio: float) -> None:
        """Multiply the weight of all payoffs: the noise was fitted again, and is less by this factor.

        Else early payoffs, of actions that are rarely right, would count less than the many later ones of actions
        that were chosen because they are right, and all estimates would come near to those.
        """
        self.blocks.gram[:] *= ratio
        self.blocks.pull[:] *= ratio
        self._compute(variance)

    def fit(self, variance: float, learn: bool = True) -> None:
        """Fit the variances to what was learned (MacKay's step), unless payoffs have no scale, and all posteriors."""
        n, d, relative = 1 + len(self.ids), 1 + len(self.places), relative_scale(self.seen, self.fitted[0])
        back = self._centre(1.0)
        if learn:
            self.fitted[4] = max(self.fitted[4], variance)
        if n > 1 and learn:
            means = self.blocks.mean[1:n] @ back.T
            doubts = np.array([np.diag(back @ spread @ back.T) for spread in self.blocks.spread[1:n]])
            for place, part in ((2, slice(0, 1)), (3, slice(1, d))):
                squares = (np.square(means[:, part]) / relative[part]).sum()
                free = (1 - doubts[:, part] / (self.fitted[place] * relative[part])).clip(0, 1).sum()
                self.fitted[place] = (squares + WEAK * START * self.fitted[4]) / (free + WEAK)
        self.fitted[1] = self.fitted[0]
        self._compute(variance)

    def _compute(self, variance: float) -> None:
        """Compute the prior and all posteriors."""
        n, d = 1 + len(self.ids), 1 + len(self.places)
        if n == 1:
            self.fitted[2:4] = START * variance
        relative = relative_scale(self.seen, self.fitted[0])
        variances = relative * np.where(np.arange(d) > 0, *self.fitted[[3, 2]])
        turn, back = self._centre(-1.0), self._centre(1.0)
        root, spread = np.empty((d, d)), np.empty((d, d))
        self.blocks.spread[0] = (turn * variances) @ turn.T
        precision = (back.T / variances) @ back
        for b in range(1, n):
            invert(precision + self.blocks.gram[b], d, root, spread)
            mean = spread @ self.blocks.pull[b]
            if np.isfinite(spread).all() and np.isfinite(mean).all():  # else rounding: what was learned stays
                self.blocks.spread[b], self.blocks.mean[b] = spread, mean
        self.centre, self.fitted[5] = back[0].copy(), self._common(relative)
        self.blocks.middle[:n] = ((self.blocks.spread[:n] @ self.centre) * self.centre).sum(axis=1).clip(0)

    def _common(self, relative: Floats) -> float:
        """Return what contexts have in common: the mean squared cosine between two of them, around their mean.

        It is 1 for two contexts, and about one over the number of features if these are independent.
        """
        gram, centre = self.blocks.gram.sum(axis=0), self.seen[0, 1:]
        around = gram[1:, 1:] - np.outer(gram[1:, 0], centre) - np.outer(centre, gram[0, 1:])
        around += gram[0, 0] * np.outer(centre, centre)
        units = np.sqrt(relative[1:])
        with np.errstate(over="ignore", invalid="ignore"):
            around *= np.outer(units, units)
            total = float(np.trace(around))
            found = float(np.square(around / total).sum()) if total > 0 else 1.0
        return min(max(found, LEAST), 1.0) if np.isfinite(found) else 1.0

    def _centre(self, sign: float) -> Floats:
        """Return what adds to the constant's weight, or takes from it, the others' at the mean context."""
        found = np.eye(1 + len(self.places))
        found[0, 1:] = sign * self.seen[0, 1:]
        return found

    def tensors(self) -> Tensors:
        """Return everything as arrays."""
        n = 1 + len(self.ids)
        return {
            "block_places": np.array(list(self.places), dtype=np.uint64),
            "block_ids": np.array(list(self.ids), dtype=np.uint64),
            "block_seen": self.seen.copy(),
            "block_fitted": self.fitted.copy(),
            "block_centre": self.centre.copy(),
            **{f"block_{name}": array[:n].copy() for name, array in self.blocks._asdict().items()},
        }

    @classmethod
    def restored(cls, tensors: Tensors) -> "ContextBlocks":
        """Return what `tensors` returned, if it is consistent."""
        fresh = cls()
        places, ids = (take(tensors, f"block_{name}", "u", (None,)).tolist() for name in ("places", "ids"))
        fresh.places = {name: 1 + i for i, name in enumerate(places)}
        fresh.ids = {name: 1 + i for i, name in enumerate(ids)}
        n, d = 1 + len(ids), 1 + len(places)
        shapes = {"gram": (n, d, d), "pull": (n, d), "spread": (n, d, d), "mean": (n, d), "middle": (n,)}
        fresh.blocks = Blocks(
            *(take(tensors, f"block_{name}", "f", shapes[name]).copy() for name in Blocks._fields)
        )
        fresh.seen = take(tensors, "block_seen", "f", (2, d)).copy()
        fresh.fitted = take(tensors, "block_fitted", "f", (6,)).copy()
        fresh.centre = take(tensors, "block_centre", "f", (d,)).copy()
        doubts = np.diagonal(fresh.blocks.spread, axis1=1, axis2=2)
        sound = (
            len(fresh.places) == len(places) <= MOST
            and len(fresh.ids) == len(ids)
            and n * d * d <= ROOM
            and all(
                np.isfinite(array).all() for array in (*fresh.blocks, fresh.seen, fresh.fitted, fresh.centre)
            )
            and (doubts[1:] > 0).all()
            and (fresh.blocks.middle >= 0).all()
            and (fresh.seen[1] >= 0).all()
            and (fresh.fitted >= 0).all()
            and (fresh.fitted[[2, 3, 5]] > 0).all()
        )
        if not sound:
            raise FileError("the blocks in the model file contradict each other")
        return fresh


def make_blocks(room: int, d: int) -> Blocks:
    """Return blocks of zeros."""
    square, line = (room, d, d), (room, d)
    return Blocks(np.zeros(square), np.zeros(line), np.zeros(square), np.zeros(line), np.zeros(room))


def median(values: Floats) -> float:
    """Return the middle of some numbers, at least one: as NumPy's, which takes longer than a decision."""
    ordered, half = np.sort(values), len(values) // 2
    return float(ordered[half] if len(values) % 2 else (ordered[half - 1] + ordered[half]) / 2)


def relative_scale(seen: Floats, learned: float) -> Floats:
    """Return each place's share in the variance of all context features, per unit of its own; 1 for the constant."""
    spread = np.sqrt(seen[1, 1:] / max(learned, 1.0))
    middle = median(spread[spread > 0]) if (spread > 0).any() else 1.0
    spread[spread == 0] = middle
    counted = np.clip(spread, middle / UNEQUAL, middle * UNEQUAL)
    return np.concatenate([[1.0], np.square(counted / spread) / np.square(counted).sum()])
