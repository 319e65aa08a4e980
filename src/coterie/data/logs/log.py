"""A user's own log: users, shown items and payoffs, replayed as rounds.

A log has only the payoff of the shown item. So a round offers the shown item among others; if a policy picks
another one, it learns nothing and the record does not count, as in the paper's section 5.
"""

import hashlib
import os
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from coterie.data.files import cache_folder, check_choice
from coterie.data.logs.lists import DRAWS, thinned
from coterie.data.logs.log_file import read_log_file
from coterie.data.logs.logged import Logged, LogRecords, from_arrays
from coterie.errors import FileError, ParameterError

MOST = 20  # candidates, unless there are few items


def open_log(
    log: Any, *, candidates: int | None = None, draw: str = "balanced", sha256: str | None = None
) -> Logged:
    """Open a log: a CSV or Parquet file, or any table with the Arrow interface, in time order.

    Columns are `user`, `payoff` (in [-1, 1]), and `item` or features: a column `features` of lists, or several
    named `feature_…` (see `read_log_file`). Items with equal features are the same item. `candidates` is the
    length of lists, by default half the number of items, at most 20. With `draw="balanced"` records of an
    item that takes up more than 1/candidates of the log are left out at random, and a note says how many;
    `coterie.data.logs.lists` explains "uniform" and "all". `sha256` is the file's expected hash; None skips
    the check.

    Returns a `Logged`: rounds for `compare` and `replay`, and all records for `Policy.fit`. Raises FileError,
    which names the record, its line and the fix, if the log cannot be read, and ParameterError if a setting
    is not valid.

    >>> log = open_log(pl.DataFrame({"user": ["u", "v", "u"], "item": ["a", "b", "c"], "payoff": [1, 0, 1]}))
    >>> log.n_rounds, log.n_users, log.items
    (3, 2, ['a', 'b', 'c'])
    """
    check_choice("draw", draw, DRAWS)
    if candidates is not None and (not isinstance(candidates, int) or candidates < 2):
        raise ParameterError(f"candidates={candidates!r}; a list needs at least 2")
    path = path_of(log)
    log_file = read_log_file(path)
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if sha256 not in (None, found):
        raise FileError(f"{path} has changed since the run was described; its sha256 was {sha256}")
    users, items, served, payoffs, notes = log_file
    n_items = len(items)
    if n_items < 2:
        raise FileError(f"{path} shows only one item; there is nothing to choose")
    length = n_items if draw == "all" else min(candidates or max(2, min(MOST, n_items // 2)), n_items)
    everything = LogRecords(users, served, payoffs)
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
        everything=everything,
    )


def path_of(log: Any) -> Path:
    """Return the path of a log; a table with the Arrow interface is first written to a file."""
    return _kept(log) if hasattr(log, "__arrow_c_stream__") else Path(log).absolute()


def _kept(table: Any) -> Path:
    """Write a table to the cache, named after its hash, so that other processes can open it too."""
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
