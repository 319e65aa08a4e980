"""Rounds from likes: a user, an item that this user likes, and other available items (LastFM, Delicious).

Payoffs are the true labels, so the other items may pay too. With `pool="growing"` the available items are some drawn
at the start and every liked item drawn since; with "all" all items are available from the first round on.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from coterie.arrays import Floats, Ints
from coterie.data.blocks import DrawnSource, draw_distinct
from coterie.data.files import check_choice, check_fingerprint, data_folder
from coterie.data.published.tags import Tagging, features
from coterie.data.worlds.world import check_count
from coterie.errors import ParameterError
from coterie.models.batches import Batch
from coterie.models.candidates import Candidates

POOLS = ("growing", "all")
UNTAGGED = ("keep", "drop")


class Likes(NamedTuple):
    """The content of a dataset's files."""

    users: Ints  # (likes,) ids
    items: Ints  # (likes,) ids
    item_ids: Ints  # all items, liked or not, ascending
    tagging: Tagging  # of positions in `item_ids`
    fingerprint: str  # of the files
    whole: bool  # whether these are the complete published files


class Prepared(NamedTuple):
    """The data that rounds are drawn from."""

    user_ids: Ints  # (n_users,) users with at least one like
    starts: Ints  # (n_users + 1,) where each user's likes begin
    liked: Ints  # (likes,) positions of items, by user
    item_ids: Ints  # (n_items,)
    vectors: Floats  # (n_items, components)
    fingerprint: str
    whole: bool


@final
@dataclass(frozen=True, kw_only=True)
class Labelled(DrawnSource):
    """A dataset of likes. The defaults are how we read the paper's section 5; `docs/reproduce.md` says why."""

    name: str
    reader: Callable[[Path, bool], Likes]
    components: int = 25
    centre: bool = True
    scale: str = "largest"
    tags: str = "whole"
    untagged: str = "keep"
    pool: str = "growing"
    n_candidates: int = 25
    n_rounds: int = 50_000
    verify: bool = True
    fingerprint: str | None = None  # of the files; if given, it must match
    friends_reader: Callable[[Path, bool], list[tuple[int, int]]] | None = None  # reads the pairs of friends
    folder: str | os.PathLike[str] | None = None

    def __post_init__(self) -> None:
        check_choice("pool", self.pool, POOLS)
        check_choice("untagged", self.untagged, UNTAGGED)
        check_count("components", self.components, least=1)
        check_count("n_candidates", self.n_candidates, least=2)
        check_count("n_rounds", self.n_rounds, least=1)

    @property
    def n_features(self) -> int:
        """How many features an item has."""
        return self.components

    def parameters(self) -> dict[str, Any]:
        """Return all parameters needed to make the same rounds again, without the folder of the files."""
        names = [
            "components",
            "centre",
            "scale",
            "tags",
            "untagged",
            "pool",
            "n_candidates",
            "n_rounds",
            "verify",
        ]
        settings = {name: getattr(self, name) for name in names}
        return {"kind": self.name, **settings, "fingerprint": self.prepared.fingerprint}

    @cached_property
    def prepared(self) -> Prepared:
        """The users, their likes and the items' vectors."""
        folder = data_folder(self.folder)
        how = (self.components, self.centre, self.scale, self.tags)
        found = _prepare(self.reader, folder, self.verify, self.untagged, how)
        check_fingerprint(self.name, folder, found.fingerprint, self.fingerprint)
        return found

    @property
    def n_users(self) -> int:
        """How many users like at least one item."""
        return len(self.prepared.user_ids)

    @property
    def n_items(self) -> int:
        """How many items there are."""
        return len(self.prepared.item_ids)

    @property
    def provenance(self) -> str:
        """Whether the data are the published ones."""
        return "real" if self.prepared.whole else "real, partial"

    def friends(self) -> list[tuple[int, int]]:
        """Return the pairs of friends among users with likes, each pair once."""
        if self.friends_reader is None:
            raise ParameterError(f"{self.name} has no list of friends")
        known = set(self.prepared.user_ids.tolist())
        pairs = self.friends_reader(data_folder(self.folder), self.verify)
        return sorted(
            {(min(pair), max(pair)) for pair in pairs if known.issuperset(pair) and pair[0] != pair[1]}
        )

    def block(self, seed: int) -> Batch:
        """Return all rounds; the same for the same seed."""
        check_count("seed", seed, least=0)
        return _draw(self, seed)


@lru_cache(maxsize=4)
def _prepare(
    reader: Callable[[Path, bool], Likes],
    folder: Path,
    verify: bool,
    untagged: str,
    how: tuple[int, bool, str, str],
) -> Prepared:
    likes = reader(folder, verify)
    item_ids, tagging, users, items = likes.item_ids, likes.tagging, likes.users, likes.items
    if untagged == "drop":
        kept = np.unique(tagging.items)
        item_ids, tagging = item_ids[kept], tagging._replace(items=np.searchsorted(kept, tagging.items))
        of_kept = np.isin(items, item_ids)
        users, items = users[of_kept], items[of_kept]
    components, centre, scale, tags = how
    vectors = features(tagging, len(item_ids), components=components, centre=centre, scale=scale, tags=tags)
    pairs = np.unique(np.stack([users, items], axis=1), axis=0)  # a like counts once per user and item
    user_ids, first = np.unique(pairs[:, 0], return_index=True)
    starts = np.append(first, len(pairs)).astype(np.int64)
    liked = np.searchsorted(item_ids, pairs[:, 1])
    return Prepared(user_ids, starts, liked, item_ids, vectors, likes.fingerprint, likes.whole)


@lru_cache(maxsize=2)
def _draw(data: Labelled, seed: int) -> Batch:
    """Draw all rounds: users, liked items, the others, and the order of each list."""
    ready, n_rounds = data.prepared, data.n_rounds
    n_items, n_others = len(ready.item_ids), data.n_candidates - 1
    if n_items <= data.n_candidates:
        raise ParameterError(f"n_candidates is {data.n_candidates}, but {data.name} has {n_items} items")
    rng = np.random.default_rng([seed, 5])
    user = rng.integers(len(ready.user_ids), size=n_rounds)
    n_likes = np.diff(ready.starts)[user]
    one = ready.liked[ready.starts[user] + (rng.random(n_rounds) * n_likes).astype(np.int64)]
    if data.pool == "all":
        order, size, place = np.arange(n_items), np.full(n_rounds, n_items), one
    else:
        first = rng.choice(n_items, data.n_candidates, replace=False)
        order, size, place = _grow(first, one)
    # The liked item is left out of the draw: drawn numbers from its position on are shifted by one.
    inside = place < size
    drawn = draw_distinct(rng, size - inside, n_others)
    others = order[drawn + (inside[:, None] & (drawn >= place[:, None]))]
    candidates = rng.permuted(np.concatenate([one[:, None], others], axis=1), axis=1)
    items = Candidates.trusted(ready.item_ids.tolist(), ready.vectors)
    return Batch(ready.user_ids[user], candidates, items, _labels(ready, user, candidates))


def _grow(first: Ints, one: Ints) -> tuple[Ints, Ints, Ints]:
    """Return the items in order of availability, how many are available per round, and each liked item's place."""
    came = np.concatenate([first, one])
    items, when, which = np.unique(came, return_index=True, return_inverse=True)
    rank = np.argsort(np.argsort(when))
    is_new = np.zeros(len(came), dtype=np.int64)
    is_new[when] = 1
    size = np.cumsum(is_new)[len(first) - 1 : -1]  # before the round's own item is added
    return items[np.argsort(when)], size, rank[which[len(first) :]]


def _labels(ready: Prepared, user: Ints, candidates: Ints) -> NDArray[np.float64]:
    """Return 1 where the round's user likes the candidate, else 0."""
    n_items = len(ready.item_ids)
    of_user = np.repeat(np.arange(len(ready.user_ids)), np.diff(ready.starts))
    known = of_user * n_items + ready.liked  # ascending
    asked = user[:, None] * n_items + candidates
    place = np.minimum(np.searchsorted(known, asked), len(known) - 1)
    return np.asarray(known[place] == asked, dtype=np.float64)
