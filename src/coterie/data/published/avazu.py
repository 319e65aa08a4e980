"""Avazu: mobile ads, the `train` file of the Kaggle competition, 40 million records in time order.

There is no user id: a user is the device_id, or device_ip with device_model if the device_id means "none". C14 is
usually read as the ad, but has fewer values than the paper has ads; so an ad here is C14 in a place (site and app).
"""

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coterie.data.files import check_choice, data_folder, find_needed, need
from coterie.data.logs.logged import Logged
from coterie.data.published.ad_log import ad_log
from coterie.data.published.catalogue import source
from coterie.data.published.large_files import Layout, first_line, pieces
from coterie.errors import FileError

if TYPE_CHECKING:
    import polars as pl

NO_DEVICE = "a99f214a"
ADS = {"C14 in a place": ("C14", "site_id", "app_id"), "C14": ("C14",)}
NEEDED = ("click", "device_id", "device_ip", "device_model", "C14", "site_id", "app_id")


def avazu(
    *,
    folder: str | os.PathLike[str] | None = None,
    file: str | None = None,
    ad: str = "C14 in a place",
    n_users: int = 48_723,
    n_items: int = 5_099,
    **settings: Any,
) -> Logged:
    """Return the log of the chosen users and ads; from `train`, or else from the small sample.

    The other settings are those of `ad_log`: n_candidates, draw and on_progress.
    """
    check_choice("ad", ad, tuple(ADS))
    names = [file] if file else ["train", "train.csv", "train_sample_8999.csv"]
    path = find_needed(data_folder(folder), source("avazu").places, names, "avazu")
    header = first_line(path).split(",")
    missing = [name for name in NEEDED if name not in header]
    if missing:
        raise FileError(f"{path}, line 1: no column {missing[0]!r}; this is not Avazu's train file")
    frames = partial(_frames, path, Layout(",", header, True), ADS[ad])
    chosen = {"n_users": n_users, "n_items": n_items, "ad": ad}
    return ad_log("avazu", path, frames, chosen, is_whole="sample" not in path.name, **settings)


def _frames(path: Path, layout: Layout, ad: tuple[str, ...]) -> Iterator["pl.DataFrame"]:
    pl = need("polars", "reading logs")
    columns = {"click": "number", "device_id": "text", "device_ip": "text", "device_model": "text"}
    columns |= dict.fromkeys(ad, "text")
    for frame in pieces(path, layout, columns):
        yield frame.select(
            "click",
            pl.concat_str(ad, separator="/").alias("item"),
            pl.when(pl.col("device_id") == NO_DEVICE)
            .then(pl.concat_str(["device_ip", "device_model"], separator="/"))
            .otherwise("device_id")
            .alias("user"),
        )
