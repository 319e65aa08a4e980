"""A crowd: who is there, who visits next, and which cluster each user belongs to for each family of items."""

from collections.abc import Hashable, Iterator, Sequence
from typing import Any, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from coterie.errors import UserError

POPULARITIES = ("even", "zipf")  # every user as often as the next; or the k-th in proportion to 1/k


class Visit(NamedTuple):
    """The user who comes now, and who came and went since the visit before."""

    user: int
    joined: Sequence[int]
    left: Sequence[int]
    taste: int  # whose tastes the user has now: the own at first, after a change those of somebody never seen


@final
class Crowd:
    """A population of constant size, in seats: whoever leaves is replaced by a newcomer with a fresh id.

    A newcomer inherits the seat and how often it is called, nothing else. With `popularity="zipf"` seat s is
    called in proportion to 1/(s+1), where user s starts in seat s. Before each visit but the first, every
    user leaves with probability `turnover`/1000, and every user who stays is dealt into clusters anew with
    probability `drift`/1000, under the same id and without a word.
    """

    def __init__(
        self,
        *,
        n_users: int,
        n_families: int,
        clusters_per_family: int,
        popularity: str,
        turnover: float,
        drift: float = 0.0,
        seed: int,
    ) -> None:
        self.n_users = n_users
        self.n_families = n_families
        self.clusters_per_family = clusters_per_family
        self.popularity = popularity
        self.turnover = turnover
        self.drift = drift
        self.seed = seed
        self._generations: dict[int, NDArray[np.int64]] = {}

    def clusters(self, user: Hashable) -> NDArray[np.int64]:
        """Return the cluster in each family that a user starts with: (n_families,)."""
        generation, place = divmod(checked_user(user), self.n_users)
        table = self._generations.get(generation)
        if table is None:
            table = self._generations[generation] = self._deal(generation)
        row: NDArray[np.int64] = table[:, place]
        return row

    def _deal(self, generation: int) -> NDArray[np.int64]:
        """Deal `n_users` users into clusters of equal size (to within one), anew for each family."""
        rng = np.random.default_rng([self.seed, 1, generation])
        order = np.tile(np.arange(self.n_users), (self.n_families, 1))
        dealt: NDArray[np.int64] = rng.permuted(order, axis=1) % self.clusters_per_family
        return dealt  # (n_families, n_users)

    def visits(self, rng: np.random.Generator) -> Iterator[Visit]:
        """Yield visits without end."""
        seats = list(range(self.n_users))
        tastes = list(range(self.n_users))
        weight = 1 / np.arange(1, self.n_users + 1) if self.popularity == "zipf" else np.ones(self.n_users)
        upto = np.cumsum(weight)
        seat = _seat(upto, rng)
        yield Visit(seats[seat], (), (), tastes[seat])
        newcomer = self.n_users
        while True:
            joined: list[int] = []
            left: list[int] = []
            n_leaving = rng.binomial(self.n_users, self.turnover / 1000) if self.turnover else 0
            if n_leaving:
                for seat in rng.choice(self.n_users, n_leaving, replace=False).tolist():
                    left.append(seats[seat])
                    joined.append(newcomer)
                    seats[seat] = tastes[seat] = newcomer
                    newcomer += 1
            n_changing = rng.binomial(self.n_users, self.drift / 1000) if self.drift else 0
            if n_changing:
                for seat in rng.choice(self.n_users, n_changing, replace=False).tolist():
                    tastes[seat] = newcomer
                    newcomer += 1
            seat = _seat(upto, rng)
            yield Visit(seats[seat], joined, left, tastes[seat])


def _seat(upto: NDArray[np.float64], rng: np.random.Generator) -> int:
    """Draw a seat, given the running sum of the seats' weights."""
    # Rounding may bring the product up to the last sum itself, one past the last seat.
    return min(int(np.searchsorted(upto, rng.random() * upto[-1], side="right")), len(upto) - 1)


def is_whole(value: Any) -> bool:
    """Return whether `value` is an integer, of Python or NumPy."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def checked_user(user: Any) -> int:
    """Return the user as an int, or raise UserError."""
    if is_whole(user) and user >= 0:
        return int(user)
    raise UserError(f"user is {user!r}, this world's users are the integers 0, 1, 2, …")
