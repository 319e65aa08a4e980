"""User models over item ids, as classes of users with equal histories.

On item k a user is only a pair (times, total payoff): w = total / (1 + times), spread = 1 / √(1 + times).
Users with equal pairs are interchangeable for that item, so a neighbourhood is a scan over the classes of
equal pairs. Whoever was never touched on the item is in the class (0, 0), which is implied and not stored.
"""

import math
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, final

import numpy as np

from coterie.errors import FileError, UserError
from coterie.models.checks import check_user, read_items
from coterie.models.files import Tensors, pack_ids, take, unpack_ids
from coterie.models.protocol import ROUNDING, Eligible, Near, View


class Pair(NamedTuple):
    """All that matters of a user's history with one item."""

    times: int
    total: float

    @property
    def estimate(self) -> float:
        return self.total / (1 + self.times)

    @property
    def spread(self) -> float:
        return 1 / math.sqrt(1 + self.times)

    def and_then(self, payoff: float) -> "Pair":
        return Pair(self.times + 1, self.total + payoff)


UNTOUCHED = Pair(0, 0.0)


@dataclass
class Item:
    """Everybody's history with one item. `sizes` follows from `pairs`; `put` writes both."""

    pairs: dict[Hashable, Pair] = field(default_factory=dict)
    sizes: dict[Pair, int] = field(default_factory=dict)

    def put(self, user: Hashable, pair: Pair | None) -> None:
        """Set a user's pair; None forgets the user."""
        old = self.pairs.pop(user, None)
        if old is not None:
            self.sizes[old] -= 1
            if not self.sizes[old]:
                del self.sizes[old]
        if pair is not None:
            self.pairs[user] = pair
            self.sizes[pair] = self.sizes.get(pair, 0) + 1


@final
class OneHot:
    """One independent mean a user and item, shrunk to zero as the ridge does."""

    def __init__(self, eligible: Eligible) -> None:
        self.eligible = eligible
        self._items: dict[Hashable, Item] = {}
        self._known: dict[Hashable, bool] = {}  # each known user, and whether ever updated
        self._n_updated = 0

    def read(self, contexts: Any) -> list[Hashable]:
        """Check candidates and return them as a list of ids."""
        return read_items(contexts)

    def view(self, user: Hashable, contexts: Sequence[Hashable]) -> View:
        """Return the user's own estimates and spreads."""
        pairs = [self._pair(user, item) for item in contexts]
        return View(np.array([p.estimate for p in pairs]), np.array([p.spread for p in pairs]))

    def gather(self, user: Hashable, contexts: Sequence[Hashable], view: View, scale: float) -> Near:
        """Sum over each candidate's neighbours, class by class."""
        members = np.zeros(len(contexts), dtype=np.int64)
        estimate, spread = np.zeros(len(contexts)), np.zeros(len(contexts))
        for k, item in enumerate(contexts):
            for pair, size in self._near(user, item, view.estimate[k], view.spread[k], scale):
                members[k] += size
                estimate[k] += size * pair.estimate
                spread[k] += size * pair.spread
        return Near(members, estimate, spread)

    def gather_many(
        self,
        users: Sequence[Hashable],
        contexts: Sequence[Sequence[Hashable]],
        views: Sequence[View],
        scale: float,
    ) -> list[Near]:
        """Do what `gather` does for several users."""
        return [self.gather(u, c, v, scale) for u, c, v in zip(users, contexts, views, strict=True)]

    def neighbours(
        self, user: Hashable, contexts: Sequence[Hashable], view: View, scale: float
    ) -> list[Hashable]:
        """Return the neighbours for the first candidate."""
        near = {pair for pair, _ in self._near(user, contexts[0], view.estimate[0], view.spread[0], scale)}
        return [name for name in self._eligible_users(user) if self._pair(name, contexts[0]) in near]

    def update(self, user: Hashable, context: Hashable, payoff: float) -> int:
        """Let one user learn."""
        self._put(user, context, self._pair(user, context).and_then(payoff))
        return 1

    def share(
        self, user: Hashable, context: Hashable, payoff: float, view: View, scale: float, limit: float
    ) -> int:
        """Let the confident neighbours learn."""
        near = self._near(user, context, view.estimate[0], view.spread[0], scale)
        sure = {pair for pair, _ in near if scale * pair.spread < limit}
        learners = [name for name in self._eligible_users(user) if self._pair(name, context) in sure]
        for name in learners:
            self._put(name, context, self._pair(name, context).and_then(payoff))
        return len(learners)

    def add(self, user: Hashable) -> None:
        """Register a user."""
        check_user(user)
        self._known.setdefault(user, False)

    def drop(self, user: Hashable) -> None:
        """Forget a user, on every item."""
        check_user(user)
        if user not in self._known:
            raise UserError(f"user {user!r} is not known, so cannot be dropped")
        self._n_updated -= self._known.pop(user)
        for name in [name for name, item in self._items.items() if user in item.pairs]:
            self._items[name].put(user, None)
            if not self._items[name].pairs:
                del self._items[name]

    @property
    def users(self) -> Sequence[Hashable]:
        """The known users."""
        return list(self._known)

    def tensors(self) -> Tensors:
        """Return everything as arrays: one entry a touched (user, item) pair."""
        order = {name: position for position, name in enumerate(self._known)}
        touched = [
            (order[user], column, pair.times, pair.total)
            for column, item in enumerate(self._items.values())
            for user, pair in item.pairs.items()
        ]
        user, item, count, total = zip(*touched, strict=True) if touched else ((), (), (), ())
        return {
            "users": pack_ids(self._known),
            "updated": np.array(list(self._known.values()), dtype=np.uint8),
            "items": pack_ids(self._items),
            "pair_user": np.array(user, dtype=np.int64),
            "pair_item": np.array(item, dtype=np.int64),
            "pair_count": np.array(count, dtype=np.int64),
            "pair_total": np.array(total, dtype=np.float64),
        }

    def restore(self, tensors: Tensors) -> None:
        """Take over saved arrays."""
        names, items = unpack_ids(tensors, "users"), unpack_ids(tensors, "items")
        updated = take(tensors, "updated", "u", (len(names),)).astype(bool)
        user = take(tensors, "pair_user", "i", (None,))
        item, count = (take(tensors, name, "i", user.shape) for name in ("pair_item", "pair_count"))
        total = take(tensors, "pair_total", "f", user.shape)
        sound = (user >= 0) & (user < len(names)) & (item >= 0) & (item < len(items))
        if not (sound & (count >= 1) & (np.abs(total) <= count)).all() or not updated[user].all():
            raise FileError("the histories in the model file contradict each other")
        found = {name: Item() for name in items}
        columns = list(found.values())
        for u, i, n, y in zip(user.tolist(), item.tolist(), count.tolist(), total.tolist(), strict=True):
            columns[i].put(names[u], Pair(n, y))
        self._items = found
        self._known = dict(zip(names, updated.tolist(), strict=True))
        self._n_updated = int(updated.sum())

    def _pair(self, user: Hashable, name: Hashable) -> Pair:
        item = self._items.get(name)
        return item.pairs.get(user, UNTOUCHED) if item else UNTOUCHED

    def _near(
        self, user: Hashable, name: Hashable, estimate: float, spread: float, scale: float
    ) -> Iterator[tuple[Pair, int]]:
        """Yield the classes that are neighbours of `user`, with their sizes."""
        item = self._items.get(name)
        touched = len(item.pairs) if item else 0
        if self.eligible == "all":
            untouched = len(self._known) + (user not in self._known) - touched
        else:
            untouched = self._n_updated + (not self._known.get(user, False)) - touched
        for pair, size in [*(item.sizes.items() if item else ()), (UNTOUCHED, untouched)]:
            if size and abs(estimate - pair.estimate) <= scale * (spread + pair.spread) + ROUNDING:
                yield pair, size

    def _eligible_users(self, user: Hashable) -> list[Hashable]:
        if self.eligible == "all":
            return [*self._known, *([] if user in self._known else [user])]
        updated = [name for name, yes in self._known.items() if yes]
        return updated if self._known.get(user, False) else [*updated, user]

    def _put(self, user: Hashable, name: Hashable, pair: Pair) -> None:
        self._n_updated += not self._known.get(user, False)
        self._known[user] = True
        self._items.setdefault(name, Item()).put(user, pair)
