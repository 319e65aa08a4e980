"""KDD Cup 2012, track 2: ads served by a search engine, `training.txt`, 150 million records.

A line has the clicks and impressions of one ad for one user and query; it pays 1 if there was any click. User 0
means unknown, and is left out. `docs/reproduce.md` says how users and ads are chosen, and why.
"""

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coterie.data.files import data_folder, find_needed, need
from coterie.data.logs.logged import Logged
from coterie.data.published.ad_log import ad_log
from coterie.data.published.catalogue import source
from coterie.data.published.large_files import Layout, first_line, pieces
from coterie.errors import FileError

if TYPE_CHECKING:
    import polars as pl

COLUMNS = (
    "click", "impression", "url_hash", "ad_id", "advertiser_id", "depth", "position",
    "query_id", "keyword_id", "title_id", "description_id", "user_id",
)  # fmt: skip
UNKNOWN = 0


def kddcup(
    *,
    folder: str | os.PathLike[str] | None = None,
    n_users: int = 10_333,
    n_items: int = 6_780,
    file: str | None = None,
    **settings: Any,
) -> Logged:
    """Return the log of the chosen users and ads; from `training.txt`, or else from the small sample.

    The other settings are those of `ad_log`: n_candidates, draw and on_progress.
    """
    names = [file] if file else ["training.txt", "Click_prediction_small.csv"]
    path = find_needed(data_folder(folder), source("kddcup").places, names, "kddcup")
    header = first_line(path)
    has_header = "click" in header
    separator = "," if has_header else "\t"
    n_fields = len(header.split(separator))
    if n_fields != len(COLUMNS):
        raise FileError(
            f"{path}, line 1: {n_fields} fields, expected {len(COLUMNS)}; this is not training.txt of KDD Cup "
            "2012, track 2"
        )
    layout = Layout(separator, COLUMNS, has_header)
    chosen = {"n_users": n_users, "n_items": n_items}
    is_whole = path.name.removesuffix(".gz") == "training.txt"
    return ad_log("kddcup", path, partial(_frames, path, layout), chosen, is_whole=is_whole, **settings)


def _frames(path: Path, layout: Layout) -> Iterator["pl.DataFrame"]:
    pl = need("polars", "reading logs")
    columns = {"click": "number", "ad_id": "number", "user_id": "number"}
    for frame in pieces(path, layout, columns):
        yield frame.filter(pl.col("user_id") != UNKNOWN).rename({"ad_id": "item", "user_id": "user"})
