"""Actions of any form: ids, named features and a context.

Without a context, and with at most COLUMNS features, users have a full covariance over features or ids (`plain.py`):
the model that `Hierarchical` has for declared actions. The first context, or one feature too many, ends its learning.
From then on it is an offset, and crosses of the user, the action and the context learn the rest (`effects.py`).
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, final

import numpy as np

from coterie.arrays import Floats
from coterie.errors import FileError, NumberError, UserError
from coterie.models.batches import TOO_LARGE, Batch, Outcome
from coterie.models.encoded import Encoded, read_actions
from coterie.models.files import Tensors, take
from coterie.models.hierarchy.columns import Columns, without_ids
from coterie.models.hierarchy.drift import HalfLife, half_life_of, present_half_life
from coterie.models.hierarchy.effects import Effects, Settings
from coterie.models.hierarchy.plain import PARTS, PlainModel
from coterie.models.hierarchy.refit import COLUMNS
from coterie.models.hierarchy.representation import EffectPart, Exploration, Group, Scored
from coterie.models.parts import Parts
from coterie.models.ranges import TINY

# Bytes of an effect in the table, of a pair of user and item, and of an item.
EFFECT, PAIR, ITEM = 53, 40, 150
KNOWN = ("population", "user", "id", "user × id")  # the kinds of effects of `PlainModel.estimates`


@final
class EncodedKind:
    """Encoded actions as a table: each feature has a column."""

    n_features = None
    one_hot = True

    def __init__(self) -> None:
        self.columns = Columns()

    def read(self, contexts: Any) -> Encoded:
        return read_actions(contexts)[1]

    def read_one(self, context: Any) -> Encoded:
        return context if isinstance(context, Encoded) else read_actions([context])[1]

    def ids(self, contexts: Encoded) -> list[Hashable]:
        """Return the hashes of ids as text: in model files of the service, numbers are users."""
        hashed = contexts.hashed
        if hashed.has_id.all():
            return list(map(str, hashed.features[hashed.starts[:-1]].tolist()))
        firsts = zip(hashed.has_id.tolist(), hashed.starts[:-1].tolist(), strict=True)
        return [str(int(hashed.features[start])) if has_id else None for has_id, start in firsts]

    def table(self, contexts: Encoded) -> Floats:
        hashed = contexts.hashed
        return self.columns.table(hashed.starts, hashed.features, without_ids(hashed))

    def new_in(self, one: Encoded) -> tuple[list[int], Floats]:
        """Return the features of an action that have no column, and their values."""
        first = int(one.hashed.has_id[0])
        pairs = zip(one.hashed.features[first:].tolist(), one.hashed.values[first:].tolist(), strict=True)
        found = {name: value for name, value in pairs if value and name not in self.columns.hashes}
        return list(found), np.array(list(found.values()))


@final
class NamedModel:
    """A `Representation` that holds at most `slots` effects; the oldest make room for new ones."""

    def __init__(self, slots: int, half_life: HalfLife) -> None:
        self.kind = EncodedKind()
        self.plain = PlainModel(self.kind, half_life)
        self.effects = Effects(slots, half_life)
        self.most = slots * EFFECT  # bytes of the users in `plain`
        self.crossed = False  # whether the effects learn, and `plain` no more
        # What `plain` last said of whom and of which candidates, until something changes: whoever asks for a
        # decision's parts does it next.
        self._said: tuple[Hashable, Encoded | None, Iterable[Floats]] = None, None, ()

    def read(self, contexts: Any) -> tuple[Any, Encoded]:
        return read_actions(contexts)

    def read_one(self, context: Any) -> Encoded:
        return self.kind.read_one(context)

    def score(self, user: Hashable, candidates: Encoded, explore: float, floor: float) -> Scored:
        if not (self.crossed or len(candidates.hashed.context)):
            found, none = self.plain.score(user, candidates, explore, floor), np.zeros(len(candidates))
            population, own, effect, pair = values = [found.parts.get(name, none) for name in PARTS]
            self._said = user, candidates, values
            parts = {"population": population, "action": effect, "context": none, "user": own + pair}
            return found._replace(parts=parts)
        population, action, own = self._offset(user, candidates)
        scored = self.effects.score(user, candidates, Settings(explore, floor), population + action + own)
        estimate, width, common, effect, context, personal, score, chances = scored
        own = own + personal
        parts = {
            "population": population + common,
            "action": action + effect,
            "context": context,
            "user": own,
        }
        return Scored(score, chances, estimate, width, estimate - own, width, parts, 1)

    def _offset(self, user: Hashable, candidates: Encoded) -> Floats:
        """Return what `plain` knows of each candidate: the population's part, the action's and the user's."""
        if not self.plain.learned:
            return np.zeros((3, len(candidates)))
        population, own, effect, pair = self.plain.estimates(user, candidates)
        return np.array([population, effect, own + pair])

    def contributions(self, user: Hashable, candidates: Encoded, k: int, most: int) -> list[EffectPart]:
        found = self.effects.largest(user, candidates, k, most) if self.crossed else []
        sums = {(part.kind, part.action, part.context): part.value for part in found}
        if self.plain.learned or not self.crossed:
            asked, seen, values = self._said
            if seen is not candidates or asked != user:
                values = self.plain.estimates(user, candidates)
            said = [float(part[k]) for part in values]
            for kind, action, value in zip(KNOWN, [-1, -1, 0, 0], said, strict=True):
                if value or kind == "population":
                    sums[kind, action, -1] = sums.get((kind, action, -1), 0.0) + value
        found = [EffectPart(*place, value) for place, value in sums.items()]
        return sorted(found, key=lambda part: -abs(part.value))[:most]

    def learn(self, user: Hashable, one: Encoded, payoff: float, now: int) -> None:
        self._said = None, None, ()
        names, values = self.kind.new_in(one)
        crossed = self.crossed or len(one.hashed.context) > 0 or not self._has_room(len(names))
        if crossed:
            self.effects.learn(
                user, one, payoff - float(self._offset(user, one).sum()), now - self.plain.learned
            )
            self.crossed = True
            return
        if names:
            self.plain.check(user, one)  # before a column is added
            if not (np.abs(values) >= TINY).all():
                raise NumberError(f"the payoff {payoff!r} of user {user!r} cannot be learned: {TOO_LARGE}")
            self.plain.add_features(values)
            self.kind.columns.add(names)
        self.plain.learn(user, one, payoff, now)

    def _has_room(self, features: int) -> bool:
        """Return whether `plain` has room for so many features more, one more user, pair and item."""
        d, pairs = self.plain.many.n_used + features, self.plain.pairs
        users = (self.plain.n_rows + 1) * d * (d + 3) * 4
        known = (pairs.entries + 1) * PAIR + (len(pairs.items) + 1) * ITEM
        return d <= 1 + COLUMNS and users + known <= self.most

    def play(self, batch: Batch, exploration: Exploration, learned: int) -> tuple[Outcome, int] | None:
        """Return None: which columns there are depends on what was learned before."""
        return None

    def add(self, user: Hashable) -> None:
        if user not in self.plain.roster:
            (self.effects if self.crossed else self.plain).add(user)

    def set_friends(self, user: Hashable, friends: Mapping[Hashable, float]) -> None:
        self._said = None, None, ()
        self.plain.set_friends(user, friends)

    def friends_of(self, user: Hashable) -> dict[Hashable, float]:
        return self.plain.friends_of(user)

    def drop(self, user: Hashable) -> None:
        known = [user in self.plain.roster, user in self.effects.users]
        if not any(known):
            raise UserError(f"user {user!r} is not known, so cannot be dropped")
        self._said = None, None, ()
        if known[0]:
            self.plain.drop(user)
        if known[1]:
            self.effects.drop(user)

    @property
    def users(self) -> Sequence[Hashable]:
        names = self.plain.roster.names
        return [*names, *(user for user in self.effects.users if user not in self.plain.roster)]

    @property
    def variances(self) -> dict[str, float]:
        return (self.plain.variances if self.plain.learned else {}) | self.effects.variances

    @property
    def present_half_life(self) -> float | None:
        return present_half_life(self.effects.drift if self.crossed else self.plain.drift)

    def groups(self, most: int) -> list[Group]:
        """Return the groups, without what they differ in: of names, only hashes are kept."""
        if not self.plain.learned:
            return [Group(1.0, list(self.users), [])]
        return [group._replace(differs=[]) for group in self.plain.groups(most)]

    # Files.

    def tensors(self) -> Tensors:
        return _named(self.plain.tensors()) | self.effects.tensors() | self._own()

    def _own(self) -> Tensors:
        columns = np.array(self.kind.columns.hashes, dtype=np.uint64)
        return {"columns": columns, "crossed": np.array([int(self.crossed)])}

    def restore(self, tensors: Tensors) -> None:
        fresh = self._fresh(tensors)
        fresh.plain.restore(_plain(tensors))
        fresh.effects.restore(tensors)
        self._take(fresh)

    def parts(self) -> dict[str, Parts]:
        return self.effects.parts | _named(self.plain.parts())

    def head(self) -> Tensors:
        return _named(self.plain.head()) | self.effects.head() | self._own()

    def restore_parts(self, head: Tensors, parts: Mapping[str, Iterable[bytes]]) -> None:
        fresh = self._fresh(head)
        fresh.plain.restore_parts(_plain(head), _plain(parts))
        fresh.effects.restore_parts(head, parts)
        self._take(fresh)

    def _fresh(self, tensors: Tensors) -> "NamedModel":
        columns, crossed = take(tensors, "columns", "u", (None,)), take(tensors, "crossed", "i", (1,))
        fresh = NamedModel(len(self.effects.table.keys), half_life_of(self.plain.drift))
        fresh.kind.columns.add(columns.tolist())
        fresh.crossed = bool(crossed[0])
        if (
            len(set(fresh.kind.columns.hashes)) < len(columns)
            or len(columns) > COLUMNS
            or crossed[0] not in (0, 1)
        ):
            raise FileError("the columns of features in the model file contradict each other")
        return fresh

    def _take(self, fresh: "NamedModel") -> None:
        if fresh.plain.many.n_used != 1 + len(fresh.kind.columns.hashes):
            raise FileError("the columns of features in the model file contradict each other")
        self._said = None, None, ()
        self.kind, self.plain, self.effects = fresh.kind, fresh.plain, fresh.effects
        self.crossed = fresh.crossed


def _named(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is of the plain model, under names of its own."""
    return {f"plain_{name}": value for name, value in found.items()}


def _plain(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return what `_named` was given."""
    return {name[6:]: value for name, value in found.items() if name.startswith("plain_")}
