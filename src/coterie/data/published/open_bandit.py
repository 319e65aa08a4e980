"""The Open Bandit Dataset: a fashion shop's log, served by a policy that was uniform over all items.

Replay needs no generated lists here: a list holds all items of the campaign, and the served one was drawn
uniformly from them. There is no user id; users with the same four features count as one. The three positions
on the page are three records. Saito et al., arXiv:2008.07146.
"""

import os
from pathlib import Path

import numpy as np

from coterie.arrays import Floats
from coterie.data.files import (
    check_choice,
    check_fingerprint,
    data_folder,
    find_needed,
    need,
    read_bytes,
    sha256,
)
from coterie.data.logs.logged import Logged, from_arrays
from coterie.data.published.catalogue import source
from coterie.data.published.large_files import Layout, pieces
from coterie.errors import FileError

CAMPAIGNS = ("all", "men", "women")
USER = tuple(f"user_feature_{k}" for k in range(4))


def open_bandit(
    *, folder: str | os.PathLike[str] | None = None, campaign: str = "all", fingerprint: str | None = None
) -> Logged:
    """Return the log of a campaign under the uniform policy."""
    check_choice("campaign", campaign, CAMPAIGNS)
    pl = need("polars", "reading logs")
    places = (f"open_bandit_dataset/random/{campaign}", f"random/{campaign}")
    path = find_needed(data_folder(folder), places, [f"{campaign}.csv"], "open-bandit")
    content = read_bytes(path)
    found = sha256(content)[:16]
    check_fingerprint("open-bandit", path.parent, found, fingerprint)
    header = content.partition(b"\n")[0].decode().split(",")
    needed = {"item_id": "number", "click": "number"} | dict.fromkeys(("propensity_score", *USER), "text")
    missing = [name for name in needed if name not in header]
    if missing:
        raise FileError(
            f"{path}, line 1: no column {missing[0]!r}; this is not a log of the Open Bandit Dataset"
        )
    table = pl.concat(list(pieces(path, Layout(",", header, True), needed)))
    items = np.unique(table["item_id"].to_numpy())
    _check_uniform(path, table["propensity_score"].cast(pl.Float64).to_numpy(), len(items))
    users = table.select(pl.concat_str(USER, separator="/").alias("user"))["user"]
    names = users.unique().sort()
    codes = np.searchsorted(names.to_numpy().astype(str), users.to_numpy().astype(str))
    served = np.searchsorted(items, table["item_id"].to_numpy())
    known = {file.name: file.rows for file in source("open-bandit").partial}
    is_small = len(table) == known[f"{campaign}.csv"]
    return Logged(
        name="open-bandit",
        described={"kind": "open-bandit", "campaign": campaign, "fingerprint": found},
        provenance="real, partial" if is_small else "real",
        items=items.tolist(),
        shares=np.full(len(items), 1 / len(items)),
        n_users=len(names),
        n_rounds=len(table),
        records=from_arrays(codes, served, table["click"].to_numpy()),
        n_candidates=len(items),
        draw="all",
        notes=(
            "Users are those with the same four features. "
            + ("This is the small published version: too few clicks to rank policies." if is_small else ""),
        ),
    )


def _check_uniform(path: Path, propensity: Floats, n_items: int) -> None:
    odd = np.flatnonzero(np.abs(propensity - 1 / n_items) > 1e-9)
    if len(odd):
        raise FileError(
            f"{path}, line {odd[0] + 2}: propensity_score is {propensity[odd[0]]:g}, expected {1 / n_items:g} "
            "for a uniform policy; use the log of the policy `random`"
        )
