"""The part that the published click logs share: from the selected records to a log."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from coterie.arrays import JsonObject
from coterie.data.logs.lists import thinned
from coterie.data.logs.logged import Logged, from_arrays
from coterie.data.published.catalogue import source
from coterie.data.published.large_files import kept_selection, select

if TYPE_CHECKING:
    import polars as pl


def ad_log(
    name: str,
    path: Path,
    frames: Callable[[], Iterator["pl.DataFrame"]],
    chosen: JsonObject,
    *,
    is_whole: bool,
    n_candidates: int = 20,
    draw: str = "balanced",
    on_progress: Callable[[str], None] = lambda what: None,
) -> Logged:
    """Return the records of the `chosen` users and ads as a log with candidate lists.

    `frames` yields the file's records; `is_whole` is False if the file is a sample.
    """
    make = partial(select, frames, chosen["n_users"], chosen["n_items"], on_progress)
    selection = kept_selection(path, chosen, make)
    users, items, clicks = selection.users, selection.items, selection.clicks
    notes = [
        f"{len(items):,} of the {selection.n_read:,} records of {path.name} with a known user: those of the "
        f"{selection.n_users:,} most active users on the {selection.n_items:,} most served ads."
    ]
    if not is_whole:
        title = source(name).title
        notes.append(f"{path.name} is a small sample of {title}: for trying things out, not for results.")
    if draw == "balanced":
        keep = thinned(items.astype(np.int64), selection.n_items, n_candidates)
        if not keep.all():
            notes.append(
                f"{(~keep).sum():,} records of ads that take up more than 1/{n_candidates} of the log were left "
                "out at random, so that lists can be balanced."
            )
        users, items, clicks = users[keep], items[keep], clicks[keep]
    counts = np.bincount(items, minlength=selection.n_items)
    described = {"kind": name, "file": path.name.removesuffix(".gz"), **chosen}
    return Logged(
        name=name,
        described={**described, "n_candidates": n_candidates, "draw": draw},
        provenance="real" if is_whole else "real, partial",
        items=list(range(selection.n_items)),
        shares=counts / counts.sum(),
        n_users=len(np.unique(users)),
        n_rounds=len(items),
        records=from_arrays(users, items, clicks),
        n_candidates=n_candidates,
        draw=draw,
        notes=notes,
    )
