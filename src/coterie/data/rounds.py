"""Rounds: one visit of a user at a time, or many as arrays, so that policies play them without a Python call each."""

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterator, Sequence
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from coterie.models.actions import Actions
from coterie.models.batches import Batch, names_of
from coterie.models.candidates import pick


class Round(NamedTuple):
    """One visit. The policy sees `user` and `contexts`; of `payoffs` it learns only the chosen one's."""

    user: Hashable
    contexts: (
        Actions  # an array (candidates, n_features), a sequence of item ids, `Candidates` or `InContext`
    )
    payoffs: NDArray[np.float64]  # (candidates,) each candidate's payoff; NaN where a log does not know it
    expected: NDArray[np.float64]  # (candidates,) the expected payoffs; `payoffs` itself where unknown
    joined: Sequence[Hashable] = ()  # users who arrive before this visit
    left: Sequence[Hashable] = ()  # users who leave before this visit


def rounds_of(batch: Batch) -> Iterator[Round]:
    """Yield the rounds of a batch one by one; payoffs that a log does not contain are NaN."""
    users = names_of(batch.users)
    for t, user in enumerate(users):
        row = batch.candidates[t]
        contexts = pick(batch.items, row)
        payoffs = batch.payoffs[t]
        if batch.served is not None:
            payoffs = np.full(len(row), np.nan)
            payoffs[batch.served[t]] = batch.payoffs[t]
        yield Round(user, contexts, payoffs, payoffs)


class Traits:
    """What only some worlds, datasets and logs are or have."""

    is_log: ClassVar[bool] = False  # only the payoffs of shown items are known
    has_ids: ClassVar[bool] = False  # items have ids besides their features
    has_contexts: ClassVar[bool] = False  # actions have a context
    is_anonymous: ClassVar[bool] = False  # nobody knows who comes
    notes: Sequence[str] = ()  # remarks for readers of results


class BlockSource(ABC):
    """Gives rounds in blocks, and one by one."""

    @abstractmethod
    def blocks(self, n_rounds: int, seed: int, start: int = 0) -> Iterator[Batch]:
        """Yield the rounds from `start` up to `n_rounds`, in blocks; the same for the same seed."""

    def rounds(self, n_rounds: int, seed: int = 0) -> Iterator[Round]:
        """Yield the first rounds one by one."""
        for block in self.blocks(n_rounds, seed):
            yield from rounds_of(block)


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
    return rng.permuted(drawn, axis=1)
