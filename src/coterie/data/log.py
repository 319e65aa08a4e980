"""A log of one's own: who was shown what, and what it paid, replayed as rounds.

A log knows only the payoff of what was shown. So a round offers the shown item among others, and a policy
that picks another one is told nothing: the record does not count. This is the paper's protocol for its
advertising data (section 5); how the other candidates are drawn is told in `coterie.data.lists`.
"""

import hashlib
import os
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from coterie.data.lists import DRAWS, thinned
from coterie.data.logged import Logged, from_arrays
from coterie.data.stream import cache_folder
from coterie.data.tags import Floats, Ints, check_choice
from coterie.errors import FileError, ParameterError

READERS: dict[str, Any] = {
    ".csv": partial(pl.read_csv, infer_schema_length=None),
    ".parquet": pl.read_parquet,
}
NUMPY_INTEGERS = (pl.Int8, pl.Int16, pl.Int32, pl.Int64, pl.UInt8, pl.UInt16, pl.UInt32, pl.UInt64)
MOST = 20  # candidates, unless there are few items
WORDS = "a log has the columns user, item (or features) and payoff"


def open_log(
    log: Any,
    *,
    candidates: int | None = None,
    draw: str = "balanced",
    sha256: str | None = None,
) -> Logged:
    """Open a log: a CSV or Parquet file, or any table with the Arrow interface, in the order of time.

    Columns are `user`, `payoff` (in [-1, 1]), and `item` or features: a column `features` of lists, or several
    named `feature_…`. Where there are features, items with equal ones are the same item. `candidates` is the
    length of lists, by default half the number of items, at most 20. With `draw="balanced"` records of an item
    that takes up more than 1/candidates of the log are left out at random, and a note says how many.
    """
    check_choice("draw", draw, DRAWS)
    if candidates is not None and (not isinstance(candidates, int) or candidates < 2):
        raise ParameterError(f"candidates={candidates!r}; a list needs at least 2")
    path = _kept(log) if hasattr(log, "__arrow_c_stream__") else Path(log).absolute()
    table = _read(path)
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if sha256 not in (None, found):
        raise FileError(f"{path} has changed since the run was described; its sha256 was {sha256}")
    items, served = _items(path, table)
    n_items = len(items)
    if n_items < 2:
        raise FileError(f"{path} shows only one item; there is nothing to choose")
    length = n_items if draw == "all" else min(candidates or max(2, min(MOST, n_items // 2)), n_items)
    users, payoffs = _users(table["user"]), table["payoff"].cast(pl.Float64).to_numpy()
    notes = []
    if draw == "balanced":
        keep = thinned(served, n_items, length)
        users, served, payoffs = users[keep], served[keep], payoffs[keep]
        if not keep.all():
            notes.append(
                f"{(~keep).sum():,} of {len(keep):,} records, of items that take up more than 1/{length} of the log, "
                "were left out at random, so that lists can be balanced."
            )
    counts = np.bincount(served, minlength=n_items)
    return Logged(
        name=path.name,
        described={"kind": "log", "log": str(path), "candidates": length, "draw": draw, "sha256": found},
        provenance="real",
        items=items,
        shares=counts / counts.sum(),
        n_users=len(set(users.tolist())),
        n_rounds=len(served),
        records=from_arrays(users, served, payoffs),
        n_candidates=length,
        draw=draw,
        notes=notes,
    )


def _users(ids: pl.Series) -> NDArray[Any]:
    """Return the ids as an array; integers that NumPy has no type for as Python's own."""
    if ids.dtype.is_integer() and ids.dtype not in NUMPY_INTEGERS:
        return np.array(ids.to_list(), dtype=object)
    return ids.to_numpy()


def _kept(table: Any) -> Path:
    """Write a table to the cache, named by its content, so that other processes can open it too."""
    frame = pl.DataFrame(table)
    place = cache_folder() / "logs"
    try:
        place.mkdir(parents=True, exist_ok=True)
        beside = place / f".{os.getpid()}.parquet"
        frame.write_parquet(beside)
        path = place / f"log-{hashlib.sha256(beside.read_bytes()).hexdigest()[:16]}.parquet"
        beside.replace(path)
    except OSError as error:
        raise FileError(f"the log cannot be kept in {place} ({error}); set COTERIE_CACHE") from error
    return path.absolute()


def _items(path: Path, table: pl.DataFrame) -> tuple[Any, Ints]:
    """Return the items, ids as a list or features as an array, and the place of each record's item in them."""
    if "features" not in table.columns:
        names = table["item"].unique(maintain_order=True)
        places = {name: k for k, name in enumerate(names.to_list())}
        return names.to_list(), np.array([places[item] for item in table["item"].to_list()], dtype=np.int64)
    lengths = table["features"].list.len()
    if lengths.n_unique() > 1:
        row = int((lengths != lengths[0]).arg_max() or 0)
        raise FileError(
            f"{path}, record {row + 1}: {lengths[row]} features, the first record has {lengths[0]}"
        )
    vectors: Floats = np.array(table["features"].to_list(), dtype=np.float64)
    norms = np.linalg.norm(vectors, axis=1)
    if not (norms <= 1 + 1e-9).all():
        row = int(np.argmin(norms <= 1 + 1e-9))
        raise FileError(
            f"{path}, record {row + 1}: its features have norm {norms[row]:.6g}, expected at most 1; scale them down"
        )
    unique, served = np.unique(vectors, axis=0, return_inverse=True)
    return unique, np.asarray(served, dtype=np.int64).ravel()


def _read(path: Path) -> pl.DataFrame:
    """Read the columns and check them, so that nothing odd is found in the middle of a run."""
    reader = READERS.get(path.suffix.lower())
    if reader is None:
        raise FileError(f"{path} is neither .csv nor .parquet; a log is one of them")
    try:
        table: pl.DataFrame = reader(path)
    except FileNotFoundError:
        raise FileError(f"there is no file {path}") from None
    except (OSError, pl.exceptions.PolarsError) as error:
        raise FileError(f"{path} cannot be read: {str(error).splitlines()[0]}") from error
    return _checked(path, _with_features(path, table))


def _with_features(path: Path, table: pl.DataFrame) -> pl.DataFrame:
    """Return the needed columns; features, if there are any, as one column of lists."""
    several = [name for name in table.columns if name.startswith("feature_")]
    if several and "features" not in table.columns:
        table = table.with_columns(_as_list(path, table, several))
    needed = ["user", "features" if "features" in table.columns else "item", "payoff"]
    missing = [name for name in needed if name not in table.columns]
    if missing:
        raise FileError(f"{path} has no column {missing[0]!r}; {WORDS}")
    table = table.select(needed)
    kind = table.schema.get("features")
    if isinstance(kind, pl.Array):
        kind = pl.List(kind.inner)
        table = table.with_columns(pl.col("features").cast(kind))
    if kind is not None and not (isinstance(kind, pl.List) and kind.inner.is_numeric()):
        raise FileError(f"{path}: column 'features' holds {kind}, expected lists of numbers")
    return table


def _as_list(path: Path, table: pl.DataFrame, names: list[str]) -> pl.Series:
    odd = [name for name in names if not table[name].dtype.is_numeric()]
    if odd:
        raise FileError(f"{path}: column {odd[0]!r} holds {table[odd[0]].dtype}, expected numbers")
    return pl.Series("features", table.select(pl.col(names).cast(pl.Float64)).to_numpy().tolist())


def _checked(path: Path, table: pl.DataFrame) -> pl.DataFrame:
    if not table["payoff"].dtype.is_numeric() and table["payoff"].dtype != pl.Boolean:
        raise FileError(f"{path}: column 'payoff' holds {table['payoff'].dtype}, expected numbers in [-1, 1]")
    payoff = pl.col("payoff").cast(pl.Float64)
    bad = table.with_row_index("row").filter(
        pl.any_horizontal(pl.all().is_null()) | ~payoff.is_between(-1, 1)
    )
    if len(bad):
        row = bad.row(0, named=True)
        values = ", ".join(f"{name}={row[name]!r}" for name in table.columns)
        raise FileError(f"{path}, record {row['row'] + 1}: {values}; expected all three, payoff in [-1, 1]")
    return table
