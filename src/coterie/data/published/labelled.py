"""Rounds from likes: a user, an item that this user likes, and other available items (LastFM, Delicious).

Payoffs are the true labels, so the other items may pay too. With `pool="growing"` the available items are some drawn
at the start and every liked item drawn since; with "all" all items are available from the first round on.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, final

import numpy as np

from coterie.arrays import Floats, Ints
from coterie.data.files import check_choice
from coterie.data.published.dealt import Dealt
from coterie.data.published.tags import Tagging, features
from coterie.data.rounds import draw_distinct
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


class PreparedLikes(NamedTuple):
    """The data that rounds are drawn from."""

    user_ids: Ints  # (n_users,) users with at least one like
    starts: Ints  # (n_users + 1,) where each user's likes begin
    liked: Ints  # (likes,) positions of items, by user
    items: Candidates  # (n_items,)
    fingerprint: str
    whole: bool


@final
@dataclass(frozen=True, kw_only=True)
class Labelled(Dealt):
    """A dataset of likes. The defaults are how we read the paper's section 5; `docs/reproduce.md` says why."""

    reader: Callable[[Path, bool], Likes]
    components: int = 25
    centre: bool = True
    scale: str = "largest"
    tags: str = "whole"
    untagged: str = "keep"
    pool: str = "growing"
    n_candidates: int = 25
    n_rounds: int = 50_000
    friends_reader: Callable[[Path, bool], list[tuple[int, int]]] | None = None  # reads the pairs of friends

    stream = 5
    counts = {"components": 1, "n_candidates": 2, "n_rounds": 1}  # noqa: RUF012 (never changed)
    settings = (
        "components", "centre", "scale", "tags", "untagged", "pool", "n_candidates", "n_rounds",
    )  # fmt: skip

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("pool", self.pool, POOLS)
        check_choice("untagged", self.untagged, UNTAGGED)

    @property
    def n_users(self) -> int:
        """How many users like at least one item."""
        return len(self.content.user_ids)

    @property
    def provenance(self) -> str:
        """Whether the data are the published ones."""
        return "real" if self.content.whole else "real, partial"

    def friends(self) -> list[tuple[int, int]]:
        """Return the pairs of friends among users with likes, each pair once."""
        if self.friends_reader is None:
            raise ParameterError(f"{self.name} has no list of friends")
        known = set(self.content.user_ids.tolist())
        pairs = self.friends_reader(self.place(), self.verify)
        return sorted(
            {(min(pair), max(pair)) for pair in pairs if known.issuperset(pair) and pair[0] != pair[1]}
        )

    def read(self, folder: Path) -> PreparedLikes:
        """Read the likes, and make the items' features of their tags."""
        likes = self.reader(folder, self.verify)
        item_ids, tagging, users, items = likes.item_ids, likes.tagging, likes.users, likes.items
        if self.untagged == "drop":
            kept = np.unique(tagging.items)
            item_ids, tagging = item_ids[kept], tagging._replace(items=np.searchsorted(kept, tagging.items))
            of_kept = np.isin(items, item_ids)
            users, items = users[of_kept], items[of_kept]
        vectors = features(
            tagging, len(item_ids), components=self.components, centre=self.centre, scale=self.scale,
            tags=self.tags,
        )  # fmt: skip
        pairs = np.unique(np.stack([users, items], axis=1), axis=0)  # a like counts once per user and item
        user_ids, first = np.unique(pairs[:, 0], return_index=True)
        starts = np.append(first, len(pairs)).astype(np.int64)
        liked = np.searchsorted(item_ids, pairs[:, 1])
        listed = Candidates.trusted(item_ids.tolist(), vectors)
        return PreparedLikes(user_ids, starts, liked, listed, likes.fingerprint, likes.whole)

    def deal(self, rng: np.random.Generator) -> Batch:
        """Draw all rounds: users, liked items, the others, and the order of each list."""
        ready, n_rounds = self.content, self.n_rounds
        n_items, n_others = len(ready.items), self.n_candidates - 1
        if n_items <= self.n_candidates:
            raise ParameterError(f"n_candidates is {self.n_candidates}, but {self.name} has {n_items} items")
        user = rng.integers(len(ready.user_ids), size=n_rounds)
        n_likes = np.diff(ready.starts)[user]
        one = ready.liked[ready.starts[user] + (rng.random(n_rounds) * n_likes).astype(np.int64)]
        if self.pool == "all":
            order, size, place = np.arange(n_items), np.full(n_rounds, n_items), one
        else:
            first = rng.choice(n_items, self.n_candidates, replace=False)
            order, size, place = _grow(first, one)
        # The liked item is left out of the draw: drawn numbers from its position on are shifted by one.
        inside = place < size
        drawn = draw_distinct(rng, size - inside, n_others)
        others = order[drawn + (inside[:, None] & (drawn >= place[:, None]))]
        candidates = rng.permuted(np.concatenate([one[:, None], others], axis=1), axis=1)
        return Batch(ready.user_ids[user], candidates, ready.items, _labels(ready, user, candidates))


def _grow(first: Ints, one: Ints) -> tuple[Ints, Ints, Ints]:
    """Return the items in order of availability, how many are available per round, and each liked item's place."""
    came = np.concatenate([first, one])
    items, when, which = np.unique(came, return_index=True, return_inverse=True)
    rank = np.argsort(np.argsort(when))
    is_new = np.zeros(len(came), dtype=np.int64)
    is_new[when] = 1
    size = np.cumsum(is_new)[len(first) - 1 : -1]  # before the round's own item is added
    return items[np.argsort(when)], size, rank[which[len(first) :]]


def _labels(ready: PreparedLikes, user: Ints, candidates: Ints) -> Floats:
    """Return 1 where the round's user likes the candidate, else 0."""
    n_items = len(ready.items)
    of_user = np.repeat(np.arange(len(ready.user_ids)), np.diff(ready.starts))
    known = of_user * n_items + ready.liked  # ascending
    asked = user[:, None] * n_items + candidates
    place = np.minimum(np.searchsorted(known, asked), len(known) - 1)
    return np.asarray(known[place] == asked, dtype=np.float64)
