"""The inputs of compiled loops over rows: rounds as arrays, in chunks."""

from collections.abc import Callable, Hashable
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from coterie.models.batches import Batch, as_rounds
from coterie.models.rows.ridge_rows import RidgeRows, kernels

Numbers = NDArray[np.int64]
Floats = NDArray[np.float64]


@final
class Chunk:
    """Some rounds in the format of compiled loops, with their outcomes after the loop."""

    def __init__(self, batch: Batch, row: Callable[[Hashable], int]) -> None:
        numbers: dict[Hashable, int] = {}
        who = np.array([numbers.setdefault(user, len(numbers)) for user in batch.users], dtype=np.int64)
        self.users = list(numbers)  # the user of each number
        self.people = kernels("rows.loops").People(
            np.array([row(user) for user in self.users], dtype=np.int64),
            np.zeros(1 + len(self.users), dtype=np.int64),
        )
        self.rounds = as_rounds(batch, who)

    @property
    def joined(self) -> list[Hashable]:
        """The users who got a row, in order."""
        return [self.users[number] for number in self.people.joined[1 : 1 + self.people.joined[0]]]


@final
class Items:
    """All items of a batch in the rows' format; collects the items that get a number in a loop."""

    def __init__(self, models: RidgeRows, contexts: Any) -> None:
        self._models = models
        self.names = list(contexts) if models.one_hot else []
        self.numbers = np.array(models.numbers(contexts))  # a copy: the loop writes new items' numbers here
        self.named = np.zeros(2 + len(self.names), dtype=np.int64)
        self._start()

    def _start(self) -> None:
        self.named[0] = len(getattr(self._models, "items", ()))
        self.named[1] = 0

    def settle(self) -> None:
        """Register the items that got a number."""
        new = self.named[2 : 2 + self.named[1]].tolist()
        self._models.items_named([self.names[position] for position in new])
        self._start()


def play(name: str, arguments: Callable[[], tuple[Any, ...]], so_far: Numbers, n: int) -> None:
    """Run the compiled loop of a policy until `so_far[0]` is n; `arguments` makes room and returns its arguments."""
    loop = getattr(kernels("rows.loops"), name)
    while so_far[0] < n:
        loop(*arguments())


def nearest(user_rows: RidgeRows, row: int, pools: RidgeRows, n_pools: int, home: int) -> int:
    """Return the pool with the nearest profile: `home` unless another is nearer, else the first."""
    return int(kernels("rows.loops").nearest(user_rows.rows, row, pools.rows, n_pools, home))


def partner(
    pools: RidgeRows, c: int, whole: NDArray[np.bool_], age: Numbers, rate: Floats, near: Floats, alike: float
) -> int:
    """Return the oldest fully checked pool that is similar to pool c, or -1."""
    return int(kernels("rows.loops").partner(pools.rows, c, whole, age, rate, near, alike))
