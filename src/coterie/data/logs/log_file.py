"""Log files: reads and checks all columns first, so that no run fails midway."""

import csv
import re
from collections.abc import Callable, Hashable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl

from coterie.arrays import Array, Floats, Ints
from coterie.data.logs.interactions import DECISIONS, columns_of, is_export, open_interactions
from coterie.errors import FileError
from coterie.models.batches import positions
from coterie.models.checks import ABOVE, NORM


def _read_decisions(path: Path) -> pl.DataFrame:
    """Return the user, shown item and reward of each decision of an interaction log."""
    log = open_interactions(path).interactions
    return pl.DataFrame(
        {
            "user": [str(one.user) for one in log],
            "item": [one.actions[one.chosen] for one in log],
            "payoff": [one.reward for one in log],
        }
    )


def _read_parquet(path: Path) -> pl.DataFrame:
    columns = set(columns_of(path))
    decisions = set(DECISIONS) <= columns and "payoff" not in columns
    return _read_decisions(path) if decisions or is_export(path) else pl.read_parquet(path)


READERS: dict[str, Callable[[Path], pl.DataFrame]] = {
    ".csv": partial(pl.read_csv, infer_schema_length=None),
    ".parquet": _read_parquet,
    ".dsjson": _read_decisions,
}
NUMPY_INTEGERS = (pl.Int8, pl.Int16, pl.Int32, pl.Int64, pl.UInt8, pl.UInt16, pl.UInt32, pl.UInt64)
SEPARATORS = {";": "';'", "\t": "tabs", "|": "'|'"}
FEATURE = re.compile(r"feature(_.+|\d+)?")  # one of several columns with features
WORDS = "a log has the columns user, item (or features) and payoff"


class LogFile(NamedTuple):
    """The records of a log, in time order."""

    users: Array  # (records,) ids
    items: (
        list[Hashable] | Floats
    )  # the distinct items: ids as a list in order of appearance, or features (items, n_features)
    served: Ints  # (records,) positions in `items`
    payoffs: Floats  # (records,)
    notes: list[str]  # changes made while reading

    @property
    def has_features(self) -> bool:
        """Whether items are given by their features."""
        return isinstance(self.items, np.ndarray)


def read_log_file(path: Path) -> LogFile:
    """Read a CSV or Parquet file with the columns user, payoff, and item or features, or a service's export.

    Features are one column `features` of equally long lists, or several columns `feature_…` (or `feature0`,
    `feature1`, …); then `item` is ignored. Features with a norm above 1 are all divided by the largest
    norm, and a note says so; norms within 1e-4 of 1 count as 1. Of an export (.parquet or .dsjson) the user,
    the shown action's id and its reward are read.
    """
    reader = READERS.get(path.suffix.lower())
    if reader is None:
        raise FileError(f"{path} is neither .csv nor .parquet nor .dsjson; a log is one of them")
    try:
        if path.suffix.lower() == ".csv":
            _check_header(path)
        table = reader(path)
    except FileNotFoundError:
        raise FileError(f"there is no file {path}") from None
    except (OSError, UnicodeError, csv.Error, pl.exceptions.PolarsError) as error:
        raise FileError(f"{path}{_trouble(path) or _reason(error)}") from error
    table = _checked(path, _with_features(path, table))
    items, served, notes = _items(path, table)
    return LogFile(_ids(table["user"]), items, served, table["payoff"].cast(pl.Float64).to_numpy(), notes)


def _check_header(path: Path) -> None:
    """Raise FileError unless the first line of a CSV file has distinct names separated by commas."""
    with path.open(encoding="utf-8-sig", newline="") as file:
        names = next(csv.reader(file), [])
    if not names:
        raise FileError(f"{path} cannot be read: it is empty; {WORDS}")
    if len(names) == 1:
        for separator, called in SEPARATORS.items():
            if separator in names[0]:
                raise FileError(
                    f"{path}, line 1: fields are separated by {called}, not by commas; write it with commas, or "
                    f"give open_log the table that polars.read_csv(…, separator={separator!r}) returns"
                )
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise FileError(
            f"{path}, line 1: the column {twice[0]!r} is there {names.count(twice[0])} times; the columns are "
            f"{_listed(names)}; leave each of them once"
        )


def _trouble(path: Path) -> str:
    """Return which line of a CSV file cannot be read, why, and the fix; empty if all lines are good."""
    if path.suffix.lower() != ".csv" or not path.is_file():
        return ""
    for line, content in enumerate(path.read_bytes().split(b"\n"), start=1):
        try:
            content.decode()
        except UnicodeDecodeError as error:
            return f", line {line}: byte {content[error.start]:#x} is not UTF-8; save the file as UTF-8"
    with path.open(encoding="utf-8-sig", newline="") as file:
        rows = csv.reader(file)
        names = next(rows, [])
        for row in rows:
            if len(row) > len(names):
                return (
                    f", line {rows.line_num}: {len(row)} fields, but there are {len(names)} columns: "
                    f"{_listed(names)}; put fields that hold a comma in double quotes"
                )
    return ""


def _reason(error: Exception) -> str:
    return f" cannot be read: {str(error).splitlines()[0]}"


def _listed(names: list[str]) -> str:
    return ", ".join(map(repr, names[:12])) + (", …" if len(names) > 12 else "")


def _with_features(path: Path, table: pl.DataFrame) -> pl.DataFrame:
    """Return the needed columns; features, if there are any, as one column of lists."""
    several = [name for name in table.columns if FEATURE.fullmatch(name)]
    if several and "features" not in table.columns:
        table = table.with_columns(_as_list(path, table, several))
    needed = ["user", "features" if "features" in table.columns else "item", "payoff"]
    missing = [name for name in needed if name not in table.columns]
    if missing:
        raise FileError(f"{path} has no column {missing[0]!r}{_way_out(missing[0], table.columns)}")
    if not len(table):
        raise FileError(f"{path} has the columns {_listed(table.columns)}, but no records below them")
    table = table.select(needed)
    kind = table.schema.get("features")
    if isinstance(kind, pl.Array):
        kind = pl.List(kind.inner)
        table = table.with_columns(pl.col("features").cast(kind))
    if kind is not None and not (isinstance(kind, pl.List) and kind.inner.is_numeric()):
        raise FileError(f"{path}: column 'features' holds {kind}, expected lists of numbers")
    return table


def _way_out(missing: str, columns: list[str]) -> str:
    """Return what to do about a missing column."""
    alike = next((name for name in columns if name.strip().lower() == missing), None)
    if alike is not None:
        return f", but {alike!r}; rename it: names are lower case, without spaces"
    return f"; {WORDS}; this one has {_listed(columns)}"


def _as_list(path: Path, table: pl.DataFrame, names: list[str]) -> pl.Series:
    odd = [name for name in names if not table[name].dtype.is_numeric()]
    if odd:
        raise FileError(f"{path}: column {odd[0]!r} holds {table[odd[0]].dtype}, expected numbers")
    for name in names:
        if table[name].null_count():
            row = int(table[name].is_null().arg_max() or 0)
            raise FileError(
                f"{path}, {_record(path, row)}: {name} is missing; give every record all features"
            )
    return pl.Series("features", table.select(pl.col(names).cast(pl.Float64)).to_numpy().tolist())


def _record(path: Path, row: int) -> str:
    """Name a record, counted from 1, and its line if the file is CSV."""
    return f"record {row + 1}" + (f" (line {row + 2})" if path.suffix.lower() == ".csv" else "")


def _checked(path: Path, table: pl.DataFrame) -> pl.DataFrame:
    """Return the table if every record has a user, an item and a payoff in [-1, 1]."""
    table = _with_numeric_payoffs(path, table)
    payoff = pl.col("payoff").cast(pl.Float64)
    ids = [
        pl.col(name) for name in ("user", "item") if name in table.columns and table[name].dtype.is_float()
    ]
    odd = pl.any_horizontal(pl.all().is_null(), ~payoff.is_between(-1, 1), *(name.is_nan() for name in ids))
    bad = table.with_row_index("row").filter(odd)
    if len(bad):
        row = bad.row(0, named=True)
        values = ", ".join(f"{name}={row[name]!r}" for name in table.columns)
        raise FileError(
            f"{path}, {_record(path, row['row'])}: {values}; expected all three, payoff in [-1, 1]; correct it or "
            "leave it out"
        )
    return table


def _with_numeric_payoffs(path: Path, table: pl.DataFrame) -> pl.DataFrame:
    kind = table["payoff"].dtype
    if kind.is_numeric() or kind == pl.Boolean:
        return table
    if kind != pl.String:
        raise FileError(f"{path}: column 'payoff' holds {kind}, expected numbers in [-1, 1]")
    numbers = table["payoff"].str.strip_chars().cast(pl.Float64, strict=False)
    odd = (numbers.is_null() | numbers.is_nan()) & table["payoff"].is_not_null()
    if not odd.any():
        return table.with_columns(numbers)
    row = int(odd.arg_max() or 0)
    raise FileError(
        f"{path}, {_record(path, row)}: payoff is {table['payoff'][row]!r}, expected a number in [-1, 1]: write 1 "
        "for yes and 0 for no; leave out records whose payoff is not known"
    )


def _items(path: Path, table: pl.DataFrame) -> tuple[list[Hashable] | Floats, Ints, list[str]]:
    """Return the items, the position of each record's item, and notes on changed features."""
    if "features" not in table.columns:
        return *positions(table["item"].to_list()), []
    lengths = table["features"].list.len()
    if lengths.n_unique() > 1:
        row = int((lengths != lengths[0]).arg_max() or 0)
        raise FileError(
            f"{path}, {_record(path, row)}: {lengths[row]} features, the first record has {lengths[0]}"
        )
    vectors: Floats = np.array(table["features"].to_list(), dtype=np.float64)
    norms = np.linalg.norm(vectors, axis=1)
    if not np.isfinite(norms).all():
        row = int(np.argmin(np.isfinite(norms)))
        raise FileError(
            f"{path}, {_record(path, row)}: its features hold NaN or infinity; every feature must be a finite number"
        )
    unique, served_ = np.unique(vectors, axis=0, return_inverse=True)
    unique, notes = _scaled(unique)
    return unique, np.asarray(served_, dtype=np.int64).ravel(), notes


def _scaled(vectors: Floats) -> tuple[Floats, list[str]]:
    """Return vectors of norm 1 at most: all divided by the largest norm, unless norms exceed 1 only by rounding."""
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    longest = float(norms.max(initial=0))
    if longest <= ABOVE:
        return np.where(norms > NORM, vectors / np.maximum(norms, 1), vectors), []
    note = (
        f"Features were divided by {longest:.4g}, the largest norm, because contexts have norm 1 at most. Divide by "
        "the same number wherever a policy that was tuned here is used."
    )
    return vectors / longest, [note]


def _ids(ids: pl.Series) -> Array:
    """Return ids as an array; integers too large for NumPy become Python objects."""
    if ids.dtype.is_integer() and ids.dtype not in NUMPY_INTEGERS:
        return np.array(ids.to_list(), dtype=object)
    return ids.to_numpy()
