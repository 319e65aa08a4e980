"""Many rounds as arrays, so that policies can play them without a Python call per round."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from coterie.data.rounds import Round
from coterie.errors import ParameterError
from coterie.models.candidates import pick

STEP = 250  # rounds in a block


class Block(NamedTuple):
    """Consecutive rounds. With `served` they come from a log, and payoffs are those of the served items."""

    users: Any  # (rounds,) an array of ids
    candidates: NDArray[np.int64]  # (rounds, candidates): positions in `items`
    items: Any  # item ids as a list, their feature vectors (items, n_features), or `Candidates` with both
    payoffs: NDArray[np.float64]  # (rounds,) with `served`, else (rounds, candidates)
    served: NDArray[np.int64] | None = None  # (rounds,): the place of the served item in its list

    def rounds(self) -> Iterator[Round]:
        """Yield the same rounds one by one; payoffs that the log does not contain are NaN."""
        for t, user in enumerate(self.users.tolist()):
            row = self.candidates[t]
            contexts = pick(self.items, row)
            payoffs = self.payoffs[t]
            if self.served is not None:
                payoffs = np.full(len(row), np.nan)
                payoffs[self.served[t]] = self.payoffs[t]
            yield Round(user, contexts, payoffs, payoffs)

    def pieces(self, first: int, last: int, step: int) -> Iterator["Block"]:
        """Yield the rounds from `first` up to `last`, at most `step` at a time."""
        for start in range(first, last, step):
            yield self.cut(start, min(start + step, last))

    def cut(self, first: int, last: int) -> "Block":
        """Return the rounds from `first` up to `last`."""
        served = None if self.served is None else self.served[first:last]
        return Block(
            self.users[first:last],
            self.candidates[first:last],
            self.items,
            self.payoffs[first:last],
            served,
        )


class BlockSource(ABC):
    """Gives rounds in blocks, and one by one."""

    @abstractmethod
    def blocks(self, n_rounds: int, seed: int, start: int = 0) -> Iterator[Block]:
        """Yield the rounds from `start` up to `n_rounds`, in blocks; the same for the same seed."""

    def rounds(self, n_rounds: int, seed: int = 0) -> Iterator[Round]:
        """Yield the first rounds one by one."""
        for block in self.blocks(n_rounds, seed):
            yield from block.rounds()


class DrawnSource(BlockSource):
    """Draws all its rounds at once. Subclasses have `name` and `n_rounds`."""

    @abstractmethod
    def block(self, seed: int) -> Block:
        """Return all rounds; the same for the same seed."""

    def blocks(self, n_rounds: int, seed: int, start: int = 0) -> Iterator[Block]:
        """Yield the rounds from `start` up to `n_rounds`, in blocks; the same for the same seed."""
        data: Any = self
        if n_rounds > data.n_rounds:
            raise ParameterError(
                f"{n_rounds:,} rounds are asked of {data.name}, which has {data.n_rounds:,}; ask for fewer"
            )
        yield from self.block(seed).pieces(start, n_rounds, STEP)


def draw_distinct(rng: np.random.Generator, sizes: NDArray[np.int64], n: int) -> NDArray[np.int64]:
    """For every t, draw `n` different whole numbers below sizes[t], in random order: (len(sizes), n).

    Floyd's sampling, one column at a time over all rows at once; every set is equally likely.
    """
    drawn = np.empty((len(sizes), n), dtype=np.int64)
    for k in range(n):
        top = sizes - n + k  # the largest number allowed in this column
        number = (rng.random(len(sizes)) * (top + 1)).astype(np.int64)
        seen = (drawn[:, :k] == number[:, None]).any(axis=1)
        drawn[:, k] = np.where(seen, top, number)
    shuffled: NDArray[np.int64] = rng.permuted(drawn, axis=1)
    return shuffled
