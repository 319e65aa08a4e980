"""What published datasets share: files become a content, and a seed deals its rounds.

A dataset is a class with `read`, which makes the content of the files, and `deal`, which makes all rounds of it.
"""

import os
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from coterie.arrays import Floats, JsonObject
from coterie.data.files import check_fingerprint, data_folder
from coterie.data.rounds import STEP, BlockSource, Traits
from coterie.errors import ParameterError
from coterie.models.batches import Batch
from coterie.models.checks import check_count


@dataclass(frozen=True, kw_only=True)
class Dealt(Traits, BlockSource):
    """A published dataset. Its content has `items`, a `fingerprint`, and, if rounds are given, their `users`."""

    name: str
    verify: bool = True  # whether the files must be the published ones
    fingerprint: str | None = None  # of the files; if given, it must match
    folder: str | os.PathLike[str] | None = None

    stream: ClassVar[int]  # of random numbers, beside the seed
    counts: ClassVar[dict[str, int]] = {}  # whole numbers among the fields, with the least allowed
    settings: ClassVar[tuple[str, ...]] = ()  # the fields that the rounds depend on, besides the files
    one_hot: ClassVar[bool] = False
    has_ids: ClassVar[bool] = True

    def __post_init__(self) -> None:
        for name, least in self.counts.items():
            check_count(name, getattr(self, name), least=least)

    @property
    @abstractmethod
    def n_candidates(self) -> int:
        """How many candidates a round has."""

    @abstractmethod
    def read(self, folder: Path) -> Any:
        """Return the content of the files."""

    @abstractmethod
    def deal(self, rng: np.random.Generator) -> Batch:
        """Return all rounds."""

    def place(self) -> Path:
        """Return the folder of the files."""
        return data_folder(self.folder)

    @cached_property
    def content(self) -> Any:
        """The content of the files, which are read once."""
        place = self.place()
        found = _read(replace(self, folder=place, fingerprint=None))
        check_fingerprint(self.name, place, found.fingerprint, self.fingerprint)
        return found

    @property
    def provenance(self) -> str:
        """Whether the data are the published ones."""
        return "real"

    @property
    def n_users(self) -> int:
        """How many users come."""
        return len(np.unique(self.content.users))

    @property
    def n_rounds(self) -> int:
        """How many rounds there are; the same for every seed."""
        return len(self.content.users)

    @property
    def n_items(self) -> int | None:
        """How many items there are; None if they are new in every round."""
        return len(self.content.items) if self.has_ids else None

    @property
    def n_features(self) -> int:
        """How many features an item has."""
        return int(self.content.items.n_features)

    def parameters(self) -> JsonObject:
        """Return all parameters needed to make the same rounds again, without the folder of the files."""
        chosen = {name: getattr(self, name) for name in (*self.settings, "verify")}
        return {"kind": self.name, **chosen, "fingerprint": self.content.fingerprint}

    def block(self, seed: int) -> Batch:
        """Return all rounds; the same for the same seed."""
        check_count("seed", seed, least=0)
        return _deal(self, seed)

    def blocks(self, n_rounds: int, seed: int, start: int = 0) -> Iterator[Batch]:
        """Yield the rounds from `start` up to `n_rounds`, in batches; the same for the same seed."""
        if n_rounds > self.n_rounds:
            raise ParameterError(
                f"{n_rounds:,} rounds are asked of {self.name}, which has {self.n_rounds:,}; ask for fewer"
            )
        yield from self.block(seed).pieces(start, n_rounds, STEP)


@lru_cache(maxsize=4)
def _read(data: Dealt) -> Any:
    return data.read(Path(data.folder or "."))


@lru_cache(maxsize=4)
def _deal(data: Dealt, seed: int) -> Batch:
    return data.deal(np.random.default_rng([seed, data.stream]))


def within_norm_one(vectors: Floats) -> Floats:
    """Divide vectors by the largest norm; rounded, so that another machine's last bits change no choice."""
    return np.asarray(np.round(vectors / (np.linalg.norm(vectors, axis=-1).max() or 1), 9))
