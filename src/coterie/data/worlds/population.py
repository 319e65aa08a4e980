"""The users of a world: who is present, who visits next, and each user's cluster per family of items."""

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, TypeGuard, final

import numpy as np

from coterie.arrays import Floats, Ints
from coterie.errors import UserError

POPULARITIES = ("even", "zipf")  # all users equally often; or the k-th user in proportion to 1/k


class Visit(NamedTuple):
    """The user who visits now, and the users who joined and left since the visit before."""

    user: int
    joined: Sequence[int]
    left: Sequence[int]
    taste: int  # the id whose clusters apply now: the user's own at first, a new unused id after each change


@final
@dataclass(frozen=True, kw_only=True)
class WorldUsers:
    """A population of constant size, in slots: a user who leaves is replaced by a newcomer with a new id.

    A newcomer takes over the slot and how often it is drawn, nothing else. User s starts in slot s; with
    `popularity="zipf"` slot s is drawn in proportion to 1/(s+1). Before each visit except the first, every
    user leaves with probability `turnover`/1000, and every user who stays gets new random clusters with
    probability `drift`/1000. The user's id does not change, and the policy is not informed.
    """

    n_users: int
    clusters_per_family: int
    popularity: str
    turnover: float
    seed: int
    n_families: int = 1
    drift: float = 0.0

    @cached_property
    def _generations(self) -> dict[int, Ints]:
        return {}

    def clusters(self, user: Hashable) -> Ints:
        """Return the user's initial cluster in each family: (n_families,)."""
        if not (is_whole(user) and user >= 0):
            raise UserError(f"user is {user!r}, this world's users are the integers 0, 1, 2, …")
        generation, place = divmod(int(user), self.n_users)
        table = self._generations.get(generation)
        if table is None:
            table = self._generations[generation] = self._assign(generation)
        return table[:, place]

    def _assign(self, generation: int) -> Ints:
        """Assign `n_users` users to clusters of equal size (to within one), independently for each family."""
        rng = np.random.default_rng([self.seed, 1, generation])
        order = np.tile(np.arange(self.n_users), (self.n_families, 1))
        return rng.permuted(order, axis=1) % self.clusters_per_family  # (n_families, n_users)

    def visits(self, rng: np.random.Generator) -> Iterator[Visit]:
        """Yield visits without end."""
        slots = list(range(self.n_users))
        tastes = list(range(self.n_users))
        weight = 1 / np.arange(1, self.n_users + 1) if self.popularity == "zipf" else np.ones(self.n_users)
        cumulative = np.cumsum(weight)
        slot = _draw_slot(cumulative, rng)
        yield Visit(slots[slot], (), (), tastes[slot])
        newcomer = self.n_users
        while True:
            joined: list[int] = []
            left: list[int] = []
            n_leaving = rng.binomial(self.n_users, self.turnover / 1000) if self.turnover else 0
            if n_leaving:
                for slot in rng.choice(self.n_users, n_leaving, replace=False).tolist():
                    left.append(slots[slot])
                    joined.append(newcomer)
                    slots[slot] = tastes[slot] = newcomer
                    newcomer += 1
            n_changing = rng.binomial(self.n_users, self.drift / 1000) if self.drift else 0
            if n_changing:
                for slot in rng.choice(self.n_users, n_changing, replace=False).tolist():
                    tastes[slot] = newcomer
                    newcomer += 1
            slot = _draw_slot(cumulative, rng)
            yield Visit(slots[slot], joined, left, tastes[slot])


def _draw_slot(cumulative: Floats, rng: np.random.Generator) -> int:
    """Draw a slot, given the cumulative sum of the slots' weights."""
    slot = int(np.searchsorted(cumulative, rng.random() * cumulative[-1], side="right"))
    return min(slot, len(cumulative) - 1)  # by rounding, the product may equal the last sum


def is_whole(value: object) -> TypeGuard[int]:
    """Return whether `value` is a Python or NumPy integer."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)
