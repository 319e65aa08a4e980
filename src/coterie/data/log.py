"""A log of one's own: who was shown what, and what it paid, replayed as rounds.

A log knows only the payoff of what was shown. So a round offers the shown item among others, and a policy
that picks another one is told nothing: its payoff is NaN, the record does not count. This is the paper's
protocol for its advertising data (section 5). The other candidates are the items of earlier records drawn at
random, independently of payoffs; an item that is shown often is drawn often, so whichever candidate is
picked, it is the shown one about once in `candidates` times.
"""

import hashlib
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, final

import numpy as np
import polars as pl

from coterie.data.rounds import Round
from coterie.errors import FileError, ParameterError

COLUMNS = ("user", "item", "payoff")
READERS: dict[str, Any] = {
    ".csv": partial(pl.read_csv, infer_schema_length=None),
    ".parquet": pl.read_parquet,
}


@final
class Log:
    """A CSV or Parquet file with the columns user, item and payoff, in the order of time."""

    one_hot = True
    n_features: int | None = None

    def __init__(self, path: str | os.PathLike[str], candidates: int = 20, sha256: str | None = None) -> None:
        if not isinstance(candidates, int) or candidates < 2:
            raise ParameterError(f"candidates={candidates!r}; a list needs at least 2")
        self.path = Path(path).absolute()
        table = _read(self.path)
        self.sha256 = hashlib.sha256(self.path.read_bytes()).hexdigest()
        if sha256 not in (None, self.sha256):
            raise FileError(f"{path} has changed since the run was described; its sha256 was {sha256}")
        self.users = table["user"].to_list()
        self.items = table["item"].to_list()
        self.payoffs = table["payoff"].cast(pl.Float64).to_numpy()
        self.candidates = min(candidates, table["item"].n_unique())
        if self.candidates < 2:
            raise FileError(f"{path} shows only one item; there is nothing to choose")
        if not self.n_rounds:
            raise FileError(f"{path} is too short: its {len(self.items)} records only fill the first list")

    def parameters(self) -> dict[str, Any]:
        """Return the values from which the same log is opened again."""
        return {
            "kind": "log",
            "path": str(self.path),
            "candidates": self.candidates,
            "sha256": self.sha256,
        }

    @property
    def n_users(self) -> int:
        """How many users the log knows."""
        return len(set(self.users))

    @property
    def n_rounds(self) -> int:
        """How many records can be replayed; those before them only fill the first list."""
        return len(self.items) - self._first()

    def rounds(self, n_rounds: int, seed: int) -> Iterator[Round]:
        """Yield the first `n_rounds` rounds; fewer if the log is shorter. `seed` draws the other candidates."""
        rng = np.random.default_rng(seed)
        first = self._first()
        for t in range(first, min(first + n_rounds, len(self.items))):
            shown = self.items[t]
            others: dict[Any, None] = {}
            while len(others) < self.candidates - 1:
                for earlier in rng.integers(t, size=self.candidates).tolist():
                    if self.items[earlier] != shown and len(others) < self.candidates - 1:
                        others[self.items[earlier]] = None
            listed = [*others]
            place = int(rng.integers(self.candidates))
            listed.insert(place, shown)
            payoffs = np.full(self.candidates, np.nan)
            payoffs[place] = self.payoffs[t]
            yield Round(self.users[t], listed, payoffs, payoffs)

    def _first(self) -> int:
        """Return the first record before which enough different items came up."""
        seen: set[Any] = set()
        for t, item in enumerate(self.items):
            if len(seen) == self.candidates:
                return t
            seen.add(item)
        return len(self.items)


def _read(path: Path) -> pl.DataFrame:
    """Read the three columns and check them, so that nothing odd is found in the middle of a run."""
    reader = READERS.get(path.suffix.lower())
    if reader is None:
        raise FileError(f"{path} is neither .csv nor .parquet; a log is one of them")
    try:
        table: pl.DataFrame = reader(path)
    except FileNotFoundError:
        raise FileError(f"there is no file {path}") from None
    except (OSError, pl.exceptions.PolarsError) as error:
        raise FileError(f"{path} cannot be read: {str(error).splitlines()[0]}") from error
    missing = [name for name in COLUMNS if name not in table.columns]
    if missing:
        raise FileError(f"{path} has no column {missing[0]!r}; a log has the columns user, item and payoff")
    table = table.select(COLUMNS)
    if not table["payoff"].dtype.is_numeric() and table["payoff"].dtype != pl.Boolean:
        raise FileError(f"{path}: column 'payoff' holds {table['payoff'].dtype}, expected numbers in [-1, 1]")
    payoff = pl.col("payoff").cast(pl.Float64)
    bad = table.with_row_index("row").filter(
        pl.any_horizontal(pl.all().is_null()) | ~payoff.is_between(-1, 1)
    )
    if len(bad):
        row = bad.row(0, named=True)
        values = f"user={row['user']!r}, item={row['item']!r}, payoff={row['payoff']!r}"
        raise FileError(f"{path}, record {row['row'] + 1}: {values}; expected all three, payoff in [-1, 1]")
    return table
