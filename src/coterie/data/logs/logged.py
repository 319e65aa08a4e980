"""Rounds from a log: each record is a user, a served item in a list of candidates, and its payoff.

`coterie.data.logs.lists` explains the lists, and why they make replay unbiased.
"""

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, final

import numpy as np

from coterie.arrays import Array, Floats, Ints, JsonObject
from coterie.data.files import check_choice
from coterie.data.logs.lists import DRAWS, draw_lists
from coterie.data.rounds import BlockSource, Traits
from coterie.errors import ParameterError
from coterie.models.batches import Batch
from coterie.models.checks import check_count

BLOCK = 50_000  # records whose lists are drawn together; reading may start at any block


class LogRecords(NamedTuple):
    """Some records of a log, in time order."""

    users: Array  # (records,) ids
    items: Ints  # (records,) positions in `Logged.items`
    payoffs: Floats  # (records,)


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Logged(Traits, BlockSource):
    """A log with candidate lists: one round per record."""

    name: str
    described: JsonObject  # all parameters needed to open the same log again
    provenance: str  # "real", "real, partial" or "generated twin"
    items: list[Hashable] | Floats  # ids as a list, or features (items, n_features)
    shares: Floats  # (items,) each item's share of the records
    n_users: int
    n_rounds: int
    records: Callable[[int, int], LogRecords]  # from a record up to another
    n_candidates: int
    draw: str = "balanced"
    notes: Sequence[str] = ()  # remarks for readers of results
    everything: LogRecords | None = None  # all records, if some were left out of the rounds

    is_log: ClassVar[bool] = True
    every: ClassVar[int] = 500_000  # records that a policy plays between two commits

    def __post_init__(self) -> None:
        check_choice("draw", self.draw, DRAWS)
        check_count("n_candidates", self.n_candidates, least=2)
        if self.draw == "all" and self.n_candidates != self.n_items:
            raise ParameterError(f"draw='all' lists {self.n_items} items, not {self.n_candidates}")
        if self.draw == "balanced" and self.shares.max() * self.n_candidates > 1 + 1e-9:
            raise ParameterError(
                f"{self.name}: an item is served in {self.shares.max():.1%} of the records; balanced lists of "
                f"{self.n_candidates} candidates need at most {1 / self.n_candidates:.1%}; thin the log first"
            )

    @property
    def one_hot(self) -> bool:
        """Whether items have ids only, without features."""
        return not isinstance(self.items, np.ndarray)

    @property
    def n_features(self) -> int | None:
        """How many features an item has; None if items have ids only."""
        return self.items.shape[1] if isinstance(self.items, np.ndarray) else None

    @property
    def n_items(self) -> int:
        """How many items there are."""
        return len(self.shares)

    def parameters(self) -> JsonObject:
        """Return all parameters needed to make the same rounds again."""
        return dict(self.described)

    def every_record(self) -> LogRecords:
        """Return all records in time order, including those left out of the rounds."""
        return self.records(0, self.n_rounds) if self.everything is None else self.everything

    def blocks(self, n_rounds: int, seed: int, start: int = 0) -> Iterator[Batch]:
        """Yield the rounds from `start` up to `n_rounds`, or to the log's end; `seed` draws the lists."""
        check_count("seed", seed, least=0)
        n_rounds = min(n_rounds, self.n_rounds)
        for first in range(start // BLOCK * BLOCK, n_rounds, BLOCK):
            last = min(first + BLOCK, self.n_rounds)
            users, items, payoffs = self.records(first, last)
            rng = np.random.default_rng([seed, 6, first // BLOCK])
            lists, served = draw_lists(rng, items, self.shares, self.n_candidates, self.draw)
            block = Batch(users, lists, self.items, payoffs, served)
            yield block.cut(max(start - first, 0), min(n_rounds, last) - first)


def from_arrays(users: Array, items: Array, payoffs: Array) -> Callable[[int, int], LogRecords]:
    """Return a function for `Logged.records` over whole arrays of any compact type."""

    def records(first: int, last: int) -> LogRecords:
        some = slice(first, last)
        return LogRecords(users[some], items[some].astype(np.int64), payoffs[some].astype(np.float64))

    return records
