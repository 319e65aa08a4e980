"""Choices that people made in surveys: the options of a task are the candidates, and the chosen one pays 1.

Tasks come in random order, and so do the options of each. Options have attributes only, standardised over all
options, with a constant, and divided by the largest norm.
"""

import io
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, final

import numpy as np

from coterie.arrays import Floats, Ints
from coterie.data.blocks import DrawnSource
from coterie.data.files import check_fingerprint, data_folder, need, sha256
from coterie.data.published.catalogue import read_known
from coterie.data.worlds.world import check_count
from coterie.errors import FileError
from coterie.models.batches import Batch


class Tasks(NamedTuple):
    """The content of a survey."""

    users: Ints  # (tasks,) ids
    options: Floats  # (tasks, options, attributes)
    chosen: Ints  # (tasks,) the place of the chosen option
    fingerprint: str


@final
@dataclass(frozen=True, kw_only=True)
class Choices(DrawnSource):
    """A survey as rounds: a task is one round."""

    name: str
    reader: Callable[[Path, bool], Tasks]
    verify: bool = True
    fingerprint: str | None = None  # of the file; if given, it must match
    folder: str | os.PathLike[str] | None = None

    provenance: ClassVar[str] = "real"
    has_ids: ClassVar[bool] = False
    n_items: ClassVar[None] = None  # options are new in every task

    @property
    def about(self) -> str:
        """A description of a round, for reports."""
        return (
            f"The rounds are the {self.n_rounds:,} tasks of a survey with {self.n_users:,} people. In each, one of "
            f"them was asked to choose one of {self.n_candidates} options. The chosen one pays 1, the others 0."
        )

    @cached_property
    def tasks(self) -> Tasks:
        """The tasks, with attributes ready for policies."""
        folder = data_folder(self.folder)
        found = _prepare(self.reader, folder, self.verify)
        check_fingerprint(self.name, folder, found.fingerprint, self.fingerprint)
        return found

    @property
    def n_users(self) -> int:
        """How many people chose."""
        return len(np.unique(self.tasks.users))

    @property
    def n_rounds(self) -> int:
        """How many tasks there are."""
        return len(self.tasks.users)

    @property
    def n_candidates(self) -> int:
        """How many options a task has."""
        return int(self.tasks.options.shape[1])

    @property
    def n_features(self) -> int:
        """How many attributes an option has, with the constant."""
        return int(self.tasks.options.shape[2])

    def parameters(self) -> dict[str, Any]:
        """Return all parameters needed to make the same rounds again, without the folder of the file."""
        return {"kind": self.name, "verify": self.verify, "fingerprint": self.tasks.fingerprint}

    def block(self, seed: int) -> Batch:
        """Return all rounds; the same for the same seed."""
        check_count("seed", seed, least=0)
        rng, (users, options, chosen, _) = np.random.default_rng([seed, 15]), self.tasks
        n, width, d = options.shape
        order = rng.permutation(n)
        lists = rng.permuted(np.tile(np.arange(width), (n, 1)), axis=1)
        payoffs = (lists == chosen[order][:, None]).astype(np.float64)
        return Batch(users[order], order[:, None] * width + lists, options.reshape(n * width, d), payoffs)


def electricity(**settings: Any) -> Choices:
    """Return electricity suppliers, chosen by 361 households: 4 options with 6 attributes."""
    return Choices(name="electricity", reader=read_electricity, **settings)


def swissmetro(**settings: Any) -> Choices:
    """Return train, Swissmetro or car, chosen by travellers: 3 options, where all three were there."""
    return Choices(name="swissmetro", reader=read_swissmetro, **settings)


@lru_cache(maxsize=4)
def _prepare(reader: Callable[[Path, bool], Tasks], folder: Path, verify: bool) -> Tasks:
    """Standardise the attributes over all options; rounded, so that another machine's last bits change no choice."""
    tasks = reader(folder, verify)
    spread = tasks.options.std(axis=(0, 1))
    options = (tasks.options - tasks.options.mean(axis=(0, 1))) / np.where(spread > 0, spread, 1)
    options = np.concatenate([options, np.ones((*options.shape[:2], 1))], axis=2)
    return tasks._replace(options=np.round(options / np.linalg.norm(options, axis=2).max(), 9))


def _table(dataset: str, name: str, folder: Path, verify: bool, columns: list[str]) -> tuple[Any, str]:
    """Return a file as a Polars frame, and the first digits of its hash."""
    pl = need("polars", "reading data files")
    path, content = read_known(dataset, name, folder, verify)
    table = pl.read_csv(io.BytesIO(content))
    missing = [column for column in columns if column not in table.columns]
    if missing:
        raise FileError(
            f"{path} has no column {missing[0]!r}; fetch it again with `coterie data get {dataset}`"
        )
    return table, sha256(content)[:16]


def read_electricity(folder: Path, verify: bool) -> Tasks:
    """Read the suppliers: price, contract length, local, well known, time of day, seasonal."""
    attributes = ["pf", "cl", "loc", "wk", "tod", "seas"]
    table, digits = _table(
        "electricity", "electricity.csv", folder, verify, ["choice", "id", "alt", "chid", *attributes]
    )
    table = table.sort("chid", "alt")
    n = table["chid"].n_unique()
    options = table.select(attributes).to_numpy().astype(np.float64).reshape(n, -1, len(attributes))
    taken = table["choice"].to_numpy().astype(bool).reshape(n, -1)
    return Tasks(table["id"].to_numpy().reshape(n, -1)[:, 0], options, taken.argmax(axis=1), digits)


def read_swissmetro(folder: Path, verify: bool) -> Tasks:
    """Read time, cost and headway of each means of travel, and which one it is; with a pass, trains cost nothing."""
    names = ("TRAIN", "SM", "CAR")
    needed = ["ID", "GA", "CHOICE", *(f"{name}_{what}" for name in names for what in ("AV", "TT", "CO"))]
    table, digits = _table("swissmetro", "swissmetro.csv", folder, verify, needed)
    pl = need("polars", "reading data files")
    there = pl.all_horizontal(pl.col(f"{name}_AV") == 1 for name in names)
    table = table.filter(there & (pl.col("CHOICE") > 0))
    column = {name: table[name].to_numpy().astype(np.float64) for name in table.columns}
    options = np.zeros((len(table), 3, 6))
    for k, name in enumerate(names):
        paid = column[f"{name}_CO"] * (1 if name == "CAR" else column["GA"] == 0)
        headway = column.get(f"{name}_HE", np.zeros(len(table)))
        options[:, k, :3] = np.stack([column[f"{name}_TT"], np.minimum(paid, 500), headway], axis=1)
        options[:, k, 3 + k] = 1
    return Tasks(table["ID"].to_numpy(), options, (column["CHOICE"] - 1).astype(np.int64), digits)
