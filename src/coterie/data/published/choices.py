"""Choices that people made, in surveys or shops: the options of a task are the candidates, and the chosen one pays 1.

Tasks come in random order, and so do the options of each. Options have attributes only, standardised over all
options, with a constant, and divided by the largest norm. `SURVEYS` has one reader per dataset, which makes tasks of
the file's columns.
"""

import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, final

import numpy as np

from coterie.arrays import Floats, Ints
from coterie.data.files import need, sha256
from coterie.data.published.catalogue import read_known, source
from coterie.data.published.dealt import Dealt, within_norm_one
from coterie.data.published.r_file import read_r
from coterie.errors import FileError
from coterie.models.batches import Batch


class Tasks(NamedTuple):
    """The content of a survey."""

    users: Ints  # (tasks,) ids
    options: Floats  # (tasks, options, attributes)
    chosen: Ints  # (tasks,) the place of the chosen option
    fingerprint: str = ""  # of the file


@final
@dataclass(frozen=True, kw_only=True)
class Choices(Dealt):
    """A survey as rounds: a task is one round. `name` is one of SURVEYS."""

    stream = 15
    has_ids = False  # options are new in every task

    @property
    def about(self) -> str:
        """A description of a round, for reports."""
        return (
            f"The rounds are {self.n_rounds:,} choices of {self.n_users:,} people. In each, one of them chose one of "
            f"{self.n_candidates} options. The chosen one pays 1, the others 0."
        )

    @property
    def n_candidates(self) -> int:
        """How many options a task has."""
        return int(self.content.options.shape[1])

    @property
    def n_features(self) -> int:
        """How many attributes an option has, with the constant."""
        return int(self.content.options.shape[2])

    def deal(self, rng: np.random.Generator) -> Batch:
        """Put the tasks and the options of each into random order."""
        users, options, chosen, _ = self.content
        n, width, d = options.shape
        order = rng.permutation(n)
        lists = rng.permuted(np.tile(np.arange(width), (n, 1)), axis=1)
        payoffs = (lists == chosen[order][:, None]).astype(np.float64)
        return Batch(users[order], order[:, None] * width + lists, options.reshape(n * width, d), payoffs)

    def read(self, folder: Path) -> Tasks:
        """Read the tasks, and standardise the attributes over all options."""
        path, content = read_known(self.name, source(self.name).files[0].name, folder, self.verify)
        try:
            tasks = SURVEYS[self.name](_columns(path, content))
        except KeyError as error:
            raise FileError(
                f"{path} has no column {error}; fetch it again with `coterie data get {self.name}`"
            ) from error
        spread = tasks.options.std(axis=(0, 1))
        options = (tasks.options - tasks.options.mean(axis=(0, 1))) / np.where(spread > 0, spread, 1)
        options = within_norm_one(np.concatenate([options, np.ones((*options.shape[:2], 1))], axis=2))
        return tasks._replace(options=options, fingerprint=sha256(content)[:16])


def _columns(path: Path, content: bytes) -> Mapping[str, Any]:
    """Return the columns of a table, or the values of an R file, by name."""
    if path.suffix != ".csv":
        return read_r(content, path)
    table = need("polars", "reading data files").read_csv(io.BytesIO(content))
    return {name: table[name].to_numpy() for name in table.columns}


def _electricity(column: Mapping[str, Any]) -> Tasks:
    """Read the suppliers: price, contract length, local, well known, time of day, seasonal."""
    order = np.lexsort([column["alt"], column["chid"]])
    n = len(np.unique(column["chid"]))
    options = np.stack([column[name][order] for name in ("pf", "cl", "loc", "wk", "tod", "seas")], axis=1)
    taken = column["choice"][order].reshape(n, -1)
    return Tasks(
        column["id"][order].reshape(n, -1)[:, 0],
        options.astype(np.float64).reshape(n, -1, options.shape[1]),
        taken.argmax(axis=1),
    )


def _swissmetro(column: Mapping[str, Any]) -> Tasks:
    """Read time, cost and headway of train, Swissmetro and car, and which one it is; with a pass, trains cost 0.

    Tasks in which one of them was not available, or none was chosen, are left out.
    """
    names = ("TRAIN", "SM", "CAR")
    kept = (column["CHOICE"] > 0) & np.all([column[f"{name}_AV"] == 1 for name in names], axis=0)
    options = np.zeros((int(kept.sum()), 3, 6))
    for k, name in enumerate(names):
        paid = column[f"{name}_CO"] * (1 if name == "CAR" else column["GA"] == 0)
        headway = column.get(f"{name}_HE", np.zeros(len(kept)))
        options[:, k, :3] = np.stack([column[f"{name}_TT"], np.minimum(paid, 500), headway], axis=1)[kept]
        options[:, k, 3 + k] = 1
    return Tasks(column["ID"][kept], options, column["CHOICE"][kept].astype(np.int64) - 1)


def _camera(found: Mapping[str, Any]) -> Tasks:
    """Read four cameras per task, or none of them: brand, pixels, zoom, video, swivel, wifi and price."""
    people = found["camera"]
    chosen = np.stack([one["y"] for one in people]) - 1  # (people, tasks)
    options = np.stack([one["X"] for one in people])
    return Tasks(
        np.repeat(np.arange(len(people)), chosen.shape[1]),
        options.reshape(chosen.size, -1, options.shape[2]),
        chosen.ravel(),
    )


def _bank(found: Mapping[str, Any]) -> Tasks:
    """Read two credit cards per task. The file has the first's attributes minus the second's: each gets a half."""
    table = found["bank"]["choiceAtt"]
    users, chosen, *attributes = (np.asarray(values, dtype=np.float64) for values in table.values())
    first = np.stack(attributes, axis=1) / 2
    return Tasks(users.astype(np.int64), np.stack([first, -first], axis=1), (chosen == 0).astype(np.int64))


def _margarine(found: Mapping[str, Any]) -> Tasks:
    """Read ten margarines per purchase: the price, and which one it is."""
    users, chosen, *prices = found["margarine"]["choicePrice"].values()
    price = np.stack(prices, axis=1)
    brand = np.broadcast_to(np.eye(len(prices)), (len(price), len(prices), len(prices)))
    options = np.concatenate([price[:, :, None], brand], axis=2)
    return Tasks(users.astype(np.int64), options, chosen.astype(np.int64) - 1)


SURVEYS: dict[str, Callable[[Mapping[str, Any]], Tasks]] = {
    "electricity": _electricity,
    "swissmetro": _swissmetro,
    "camera": _camera,
    "bank": _bank,
    "margarine": _margarine,
}
