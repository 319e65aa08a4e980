"""The sparse hierarchical model: each feature and each cross has an effect with a Gaussian posterior.

    y = Σ x_j w_j + noise,   w_j ~ N(0, v₀ of j's kind),   noise ~ N(0, σ²)

The posterior treats effects as independent (a diagonal covariance): exact for one effect, an approximation for
several. So a payoff costs only its number of features and crosses. One payoff y for features x:

    s = Σ v_j x_j²,   w_j += v_j x_j (y − ŷ)/(s + σ²),   v_j −= (v_j x_j)²/(s + σ²)

Two things that all users share are exceptions, with a full covariance: what an action with an id adds in a context
(`blocks.py`), and what features add in it (`crosses.py`). The table takes numbers in units of their spread
(`units.py`). v₀ of each kind and σ² are fitted to the payoffs as they arrive, a few effects at a time.
"""

import copy
from collections.abc import Hashable, Iterable, Mapping
from typing import Any, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from coterie.arrays import Floats
from coterie.errors import FileError, NumberError
from coterie.models._kernels.hierarchy import effect_keys, effect_table
from coterie.models._kernels.hierarchy import effects as kernel
from coterie.models._kernels.hierarchy.blocks import Blocked
from coterie.models._kernels.hierarchy.drift import watch_action
from coterie.models._kernels.hierarchy.effect_keys import KINDS, HashedItems
from coterie.models._kernels.hierarchy.effects import Settings, Variances
from coterie.models.batches import TOO_LARGE
from coterie.models.encoded import Encoded
from coterie.models.files import Tensors, pack_ids, take, unpack_ids
from coterie.models.hierarchy import drift
from coterie.models.hierarchy.blocks import ContextBlocks
from coterie.models.hierarchy.crosses import Crosses
from coterie.models.hierarchy.drift import HalfLife, half_life_of, make_drift, present_half_life
from coterie.models.hierarchy.effect_parts import COLUMNS, Pieces, UserNumbers, join_numbers, split
from coterie.models.hierarchy.units import Units
from coterie.models.parts import Parts
from coterie.models.ranges import MOST_LEARNED

__all__ = ["NAMES", "EffectPart", "Effects", "Settings"]


NAMES = (
    "", "population", "user", "id", "feature", "context × id", "context × feature", "user × id",
    "user × feature", "user × context × id",
)  # fmt: skip
UNITS = ("context_units", "action_units")
FADE = 0.05  # of a half-life passes before old payoffs fade again
# The rows of `score`: estimate = population + action + context + user, score = estimate + width.
SCORED = ("estimate", "width", "population", "action", "context", "user", "score", "probability")


class EffectPart(NamedTuple):
    """The part of one effect in an estimate; `action` and `context` are positions of features, -1 for none."""

    kind: str  # one of NAMES
    action: int  # among the candidate's features, the id first
    context: int
    value: float


@final
class Effects:
    """The table of effects, the fitted variances, and the numbers of users; old payoffs may fade."""

    def __init__(self, slots: int, half_life: HalfLife) -> None:
        self.drift = make_drift(half_life)
        self.pieces = Pieces(slots)
        self.figures = np.zeros((KINDS, 7))
        self.figures[:, kernel.VARIANCE] = kernel.START
        self.noise = np.zeros(10)
        self.noise[:3] = kernel.START_NOISE, kernel.WEAK * kernel.START_NOISE, kernel.WEAK
        self.blocks = ContextBlocks()
        self.crosses = Crosses()
        self.units = Units(), Units()  # of the context's features, and of actions'
        self.numbers = UserNumbers()
        self._last: tuple[HashedItems, Blocked, HashedItems] | None = None  # what `_seen` said last

    @property
    def table(self) -> effect_table.Table:
        """The effects."""
        return self.pieces.table

    @property
    def users(self) -> dict[Hashable, int]:
        """The numbers of the known users."""
        return self.numbers.users

    @property
    def variances(self) -> dict[str, float]:
        """The fitted prior variance of each kind of effect that was seen."""
        seen = self.figures[:, kernel.TIMES] > 0
        return {NAMES[k]: float(self.figures[k, kernel.VARIANCE]) for k in range(1, KINDS) if seen[k]}

    @property
    def used(self) -> int:
        """How many effects are known."""
        return int(self.table.counts[effect_table.USED] - self.table.counts[effect_table.FREED])

    def score(self, user: Hashable, encoded: Encoded, settings: Settings, offset: Floats) -> Floats:
        """Return the rows of SCORED, a column per candidate; to each estimate and score an offset is added."""
        number, hashed = self._number(user), encoded.hashed
        (blocked, converted), crossed = self._seen(hashed), self.crosses.view(hashed)
        in_blocks = self.blocks.view(blocked, hashed.context_values)
        in_blocks[:, 0] += offset + crossed[:, 0] + crossed[:, 1]
        in_blocks[:, 1] += crossed[:, 2]
        in_blocks[:, 3] = in_blocks[:, 3] * self.blocks.returning + crossed[:, 4]
        scored = kernel.score_all(
            self.table, self._variances, converted, number, blocked, in_blocks, settings
        )
        scored[2] += crossed[:, 0]
        scored[3] -= offset + crossed[:, 0]
        return scored

    def largest(self, user: Hashable, encoded: Encoded, k: int, most: int) -> list[EffectPart]:
        """Return the largest parts of the estimate of candidate k, the largest first."""
        hashed, number = encoded.hashed, self._number(user)
        blocked, converted = self._seen(hashed)
        kept, worth = kernel.largest(self.table, self.figures, converted, k, number, blocked, most)
        first, origin = int(hashed.starts[k]), float(self.noise[kernel.ORIGIN])
        crossed = self.crosses.parts(hashed, k)
        origin += sum(value for a, _, value in crossed if a < 0)
        found = [
            (
                kind,
                a - first if a >= 0 else -1,
                c,
                value + origin if kind == effect_keys.POPULATION else value,
            )
            for (kind, a, c), value in zip(kept.tolist(), worth.tolist(), strict=True)
        ] or [(effect_keys.POPULATION, -1, -1, origin)]
        found += [
            (effect_keys.FEATURE if c < 0 else effect_keys.CONTEXT_FEATURE, a - first, c, value)
            for a, c, value in crossed
            if a >= 0 and value
        ]
        found += [
            (effect_keys.ID if c < 0 else effect_keys.CONTEXT_ID, 0, c, value)
            for c, value in self.blocks.parts(blocked, k, hashed.context_values)
        ]
        largest = sorted(found, key=lambda part: -abs(part[3]))[:most]
        return [EffectPart(NAMES[kind], a, c, value) for kind, a, c, value in largest]

    def learn(self, user: Hashable, encoded: Encoded, payoff: float, now: int) -> None:
        """Learn a payoff; `now` counts payoffs, including this one. Raises NumberError if a number gets too large."""
        known, hashed = self._number(user), encoded.hashed
        number = self.numbers.next if known == effect_table.NOBODY else known
        before, variances = float(self.noise[kernel.SCALE]), self._variances
        noise = float(self.noise[kernel.NOISE])
        blocks, crosses, self._last = self.blocks, self.crosses, None
        if not blocks.knows(hashed):
            blocks = copy.deepcopy(blocks)
            blocks.add(hashed, before or 1.0)
        if not crosses.knows(hashed):
            crosses = copy.deepcopy(crosses)
            crosses.add(hashed, before or 1.0)
        blocked = Blocked(*blocks.find(hashed), *crosses.covers(hashed))
        with np.errstate(over="ignore", invalid="ignore"):  # what is not finite is refused below
            own, common = blocks.view(blocked, hashed.context_values)[0], crosses.view(hashed)[0]
            both = own + np.array([common[0] + common[1], common[2], common[3], 0.0])
            units = (
                self.units[0].count(hashed.context, hashed.context_values),
                self.units[1].count(hashed.features, hashed.values),
            )
        done, rest, blur = kernel.learn(
            self.table, variances, _convert(hashed, units), number, payoff, now, blocked, both
        )
        if not done:
            raise NumberError(f"the payoff {payoff!r} of user {user!r} cannot be learned: {TOO_LARGE}")
        self.add(user)
        self.blocks, self.crosses, self.units = blocks, crosses, units
        after = float(self.noise[kernel.SCALE])
        if blocked.which[0] >= 0:
            blocks.learn(blocked, hashed.context_values, rest - common[:3].sum(), blur + common[3], before)
        crosses.learn(hashed, rest - own[0] - own[1], blur + own[2], before)
        for part in (blocks, crosses):
            if after != before and (now <= kernel.EARLY or not before):
                part.rescale(after, after / (before or 1.0))
            elif noise != self.noise[kernel.NOISE]:
                part.reweigh(after, noise / float(self.noise[kernel.NOISE]))
        if self.drift.sums.size and now > 1:
            error = float((rest - own[:2].sum() - common[:3].sum()) / np.sqrt(blur + own[2] + common[3]))
            watch_action(
                self.drift, _convert(hashed, units), known, error, float(now), float(len(self.users))
            )
        half_life = present_half_life(self.drift)
        if half_life is not None:
            self._fade(half_life, now)

    def _fade(self, half_life: float, now: int) -> None:
        """Let all payoffs count less, at times: half after `half_life` further payoffs per user."""
        users = max(len(self.users), 1)
        every = max(round(FADE * half_life * users), 1)
        if now % every:
            return
        factor, used = 2.0 ** (-every / (half_life * users)), int(self.table.counts[effect_table.USED])
        for first in range(0, used, effect_table.PIECE):
            effect_table.mark_changed(self.table, first)
        self.table.precision[:used] *= factor
        self.table.pull[:used] *= factor
        for part in (self.blocks, self.crosses):
            part.reweigh(float(self.noise[kernel.SCALE]) or 1.0, factor)

    def _seen(self, hashed: HashedItems) -> tuple[Blocked, HashedItems]:
        """Return what blocks and crosses cover of candidates, and these in units of their spread.

        Whoever asks for a decision's parts does it next, so it is kept until a payoff is learned.
        """
        if self._last is None or self._last[0] is not hashed:
            blocked = Blocked(*self.blocks.find(hashed), *self.crosses.covers(hashed))
            self._last = hashed, blocked, _convert(hashed, self.units)
        return self._last[1:]

    def add(self, user: Hashable) -> None:
        """Give a new user a number."""
        self.numbers.add(user)

    def drop(self, user: Hashable) -> None:
        """Forget a user, and all effects of this user alone."""
        effect_table.forget_user(self.table, self.numbers.drop(user))

    @property
    def _variances(self) -> Variances:
        return Variances(self.figures, self.noise)

    def _number(self, user: Hashable) -> int:
        return self.numbers.users.get(user, effect_table.NOBODY)

    def tensors(self) -> Tensors:
        """Return everything as arrays."""
        n, freed = int(self.table.counts[effect_table.USED]), int(self.table.counts[effect_table.FREED])
        return {
            **{name: getattr(self.table, name)[: freed if name == "free" else n].copy() for name in COLUMNS},
            **self._fixed(),
            "users": pack_ids(self.users),
            "numbers": np.array([*self.users.values(), self.numbers.next], dtype=np.int64),
        }

    @property
    def parts(self) -> dict[str, Parts]:
        """The arrays that grow, to be copied part by part; `head` has the others."""
        return {"effects": self.pieces, "users": self.numbers.parts}

    def head(self) -> Tensors:
        """Return the arrays of fixed size, and the next user's number."""
        return {**self._fixed(), "next": np.array([self.numbers.next])}

    def _fixed(self) -> Tensors:
        arrays = {"counts": self.table.counts, "figures": self.figures, "noise": self.noise}
        found = {name: array.copy() for name, array in arrays.items()}
        for part in (self.blocks, self.crosses):
            found |= part.tensors()
        found |= drift.tensors(self.drift)
        for name, units in zip(UNITS, self.units, strict=True):
            found |= units.tensors(name)
        return found

    def restore_parts(self, head: Tensors, parts: Mapping[str, Iterable[bytes]]) -> None:
        """Restore what `head` and `parts` returned, and begin to record what changes."""
        counts, after = take(head, "counts", "i", (4,)), take(head, "next", "i", (1,))
        used, freed = int(counts[effect_table.USED]), int(counts[effect_table.FREED])
        if not 0 <= freed <= used <= len(self.table.keys):
            raise FileError(f"the model has {used} effects, expected at most {len(self.table.keys)} (slots)")
        columns = split(parts.get("effects", ()), used, freed)
        self.restore({**head, **columns, **join_numbers(parts.get("users", ()), int(after[0]))})
        self.pieces.mark_all(changed=False)
        self.numbers.mark_none()

    def restore(self, tensors: Tensors) -> None:
        """Restore what `tensors` returned, if it is consistent."""
        slots = len(self.table.keys)
        counts = take(tensors, "counts", "i", (4,))
        n, freed = int(counts[effect_table.USED]), int(counts[effect_table.FREED])
        columns = {
            name: take(tensors, name, kind[0], (n,)) for name, kind in COLUMNS.items() if name != "free"
        }
        free = take(tensors, "free", "i", (freed,))
        users, numbers = unpack_ids(tensors, "users"), take(tensors, "numbers", "i", (None,))
        figures, noise = take(tensors, "figures", "f", (KINDS, 7)), take(tensors, "noise", "f", (10,))
        if n > slots:
            raise FileError(f"the model file has {n} effects, expected at most {slots} (slots)")
        kinds, owners, nexts = columns["kinds"], columns["owners"], columns["nexts"]
        sound = (
            len(numbers) == len(users) + 1
            and len(np.unique(numbers)) == len(numbers)
            and (numbers[:-1] < numbers[-1]).all()
            and (numbers >= 0).all()
            and 0 <= freed <= n
            and 0 <= counts[effect_table.CURSOR] <= n
            and counts[effect_table.REFIT] >= 0
            and (kinds < KINDS).all()
            and sorted(free.tolist()) == np.flatnonzero(kinds == 0).tolist()
            and _within(owners, n)
            and _within(nexts, n)
            and (columns["precision"] >= 0).all()
            and all((np.abs(columns[name]) <= MOST_LEARNED).all() for name in ("precision", "pull"))
            and (figures >= 0).all()
            and (figures[:, kernel.VARIANCE] >= 1 / MOST_LEARNED).all()
            and (figures[:, [kernel.VARIANCE, kernel.LENGTH, kernel.TIMES]] <= MOST_LEARNED).all()
            and ((figures[:, kernel.LENGTH] > 0) == (figures[:, kernel.TIMES] > 0)).all()
            and (noise[[kernel.NOISE, kernel.NOISE_TIMES]] > 0).all()
            and (np.abs(noise) <= MOST_LEARNED).all()
            and (np.delete(noise, [kernel.MEAN, kernel.ORIGIN, kernel.LOW, kernel.HIGH]) >= 0).all()
            and noise[kernel.LOW] <= noise[kernel.MEAN] <= noise[kernel.HIGH]
            and (noise[kernel.SCALE] == 0 or noise[kernel.LOW] < noise[kernel.HIGH])
        )
        if not sound or not _chained(kinds, owners, nexts):
            raise FileError("the effects in the model file contradict each other")
        blocks, crosses = ContextBlocks.restored(tensors), Crosses.restored(tensors)
        self.drift = drift.restored(tensors, half_life_of(self.drift))
        context_units, action_units = (Units.restored(name, tensors) for name in UNITS)
        fresh = Effects(slots, half_life_of(self.drift))
        for name, column in columns.items():
            getattr(fresh.table, name)[:n] = column
        fresh.table.free[:freed], fresh.table.counts[:] = free, counts
        if not effect_table.rebuild(fresh.table):
            raise FileError("an effect appears twice in the model file")
        fresh.pieces.mark_all(changed=True)
        order = np.argsort(numbers[:-1])
        self.numbers = UserNumbers((users[k], int(numbers[k])) for k in order.tolist())
        self.numbers.next = int(numbers[-1])
        self.pieces, self.figures, self.noise = fresh.pieces, figures.copy(), noise.copy()
        self.blocks, self.crosses, self.units = blocks, crosses, (context_units, action_units)
        self._last = None


def _convert(hashed: HashedItems, units: tuple[Units, Units]) -> HashedItems:
    """Return candidates whose numbers are in units of their spread; blocks and crosses take them as they are."""
    return hashed._replace(
        context_values=units[0].convert(hashed.context, hashed.context_values),
        values=units[1].convert(hashed.features, hashed.values),
    )


def _within(places: NDArray[Any], n: int) -> bool:
    return bool(((places >= effect_table.NOBODY) & (places < n)).all())


def _chained(kinds: NDArray[Any], owners: NDArray[Any], nexts: NDArray[Any]) -> bool:
    """Return whether each effect of a user is once in the list that starts at the user's own effect."""
    personal = (kinds == effect_keys.USER) | (kinds >= effect_keys.USER_ID)
    if (
        not (owners[~personal] == effect_table.NOBODY).all()
        or not (nexts[~personal] == effect_table.NOBODY).all()
    ):
        return False
    if not (owners[personal] >= 0).all() or not (kinds[owners[personal]] == effect_keys.USER).all():
        return False
    heads = np.flatnonzero(kinds == effect_keys.USER)
    linked = nexts[nexts >= 0]
    return (
        bool((owners[heads] == heads).all())
        and len(np.unique(linked)) == len(linked) == int(personal.sum()) - len(heads)
        and bool((kinds[linked] >= effect_keys.USER_ID).all())
        and bool((owners[linked] == owners[np.flatnonzero(nexts >= 0)]).all())
    )
