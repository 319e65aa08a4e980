"""Rounds: one visit of a user at a time, or many as arrays, so that policies play them without a Python call each."""

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import ClassVar, NamedTuple

import numpy as np

from coterie.arrays import Floats, Ints
from coterie.models.actions import Action, Actions
from coterie.models.batches import Batch, names_of, positions
from coterie.models.candidates import Candidates, pick

STEP = 250  # rounds in a batch that is made of single ones


class Round(NamedTuple):
    """One visit. The policy sees `user` and `contexts`; of `payoffs` it learns only the chosen one's."""

    user: Hashable
    contexts: (
        Actions  # an array (candidates, n_features), a sequence of item ids, `Candidates` or `InContext`
    )
    payoffs: Floats  # (candidates,) each candidate's payoff; NaN where a log does not know it
    expected: Floats  # (candidates,) the expected payoffs; `payoffs` itself where unknown
    joined: Sequence[Hashable] = ()  # users who arrive before this visit
    left: Sequence[Hashable] = ()  # users who leave before this visit


def rounds_of(batch: Batch) -> Iterator[Round]:
    """Yield the rounds of a batch one by one; payoffs that a log does not contain are NaN."""
    before = (batch.joined, batch.left)
    for t, user in enumerate(names_of(batch.users)):
        row = batch.candidates[t]
        payoffs = batch.payoffs[t]
        if batch.served is not None:
            payoffs = np.full(len(row), np.nan)
            payoffs[batch.served[t]] = batch.payoffs[t]
        expected = payoffs if batch.expected is None else batch.expected[t]
        yield Round(user, pick(batch.items, row), payoffs, expected, *before)
        before = ((), ())


def batches_of(rounds: Iterable[Round]) -> Iterator[Batch]:
    """Yield rounds in batches of at most STEP, cut where users join or leave and where lists change their length."""
    some: list[Round] = []
    for visit in rounds:
        cut = visit.left or visit.joined or len(some) == STEP
        if some and (cut or len(visit.payoffs) != len(some[0].payoffs)):
            yield _batch_of(some)
            some = []
        some.append(visit)
    if some:
        yield _batch_of(some)


def _batch_of(visits: Sequence[Round]) -> Batch:
    """Return rounds as arrays. A log's rounds have one known payoff each, the others are NaN."""
    users, first = [visit.user for visit in visits], visits[0]
    payoffs = np.array([visit.payoffs for visit in visits])  # (rounds, candidates)
    items, candidates = _gathered([visit.contexts for visit in visits])
    expected, known = np.array([visit.expected for visit in visits]), ~np.isnan(payoffs)
    served = None if known.all() else np.argmax(known, axis=1)
    if served is not None:
        payoffs = payoffs[np.arange(len(visits)), served]
    return Batch(users, candidates, items, payoffs, served, expected, first.joined, first.left)


def _gathered(lists: Sequence[Actions]) -> tuple[Actions, Ints]:
    """Return the different items of several lists, and each list as positions in them.

    Vectors and actions are not compared. A candidate whose features change between lists counts as two with one id.
    """
    width, first = len(lists[0]), lists[0]
    if isinstance(first, np.ndarray) and first.ndim == 2:
        return np.concatenate(lists), np.arange(len(lists) * width).reshape(-1, width)
    shown = [item for listed in lists for item in listed]
    keys: list[Hashable] = shown
    if isinstance(first, Candidates):
        keys = [(item.id, item.features.tobytes()) for item in shown]
    elif isinstance(first[0], Action):
        keys = list(range(len(shown)))
    different, where = positions(keys)
    of_key = dict(zip(keys, shown, strict=True))
    items: Actions = [of_key[key] for key in different]
    if isinstance(first, Candidates):
        items = Candidates.trusted([item.id for item in items], np.array([item.features for item in items]))
    return items, where.reshape(-1, width)


class Traits:
    """What only some worlds, datasets and logs are or have."""

    is_log: ClassVar[bool] = False  # only the payoffs of shown items are known
    has_ids: ClassVar[bool] = False  # items have ids besides their features
    has_contexts: ClassVar[bool] = False  # actions have a context
    is_anonymous: ClassVar[bool] = False  # nobody knows who comes
    every: ClassVar[int] = 2_000  # rounds that a policy plays between two commits of its trace
    notes: Sequence[str] = ()  # remarks for readers of results


class BlockSource(ABC):
    """Gives rounds in batches, and one by one."""

    @abstractmethod
    def blocks(self, n_rounds: int, seed: int, start: int = 0) -> Iterator[Batch]:
        """Yield the rounds from `start` up to `n_rounds`, in batches; the same for the same seed."""

    def rounds(self, n_rounds: int, seed: int = 0) -> Iterator[Round]:
        """Yield the first rounds one by one."""
        for block in self.blocks(n_rounds, seed):
            yield from rounds_of(block)


def draw_distinct(rng: np.random.Generator, sizes: Ints, n: int) -> Ints:
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
