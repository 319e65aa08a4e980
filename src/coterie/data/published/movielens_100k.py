"""MovieLens-100K: 943 users' ratings of 1,682 movies (GroupLens, 1998), as the package recbole contains it.

Two games. `movielens-100k` is played like `movielens`: a user's rated movies cut into lists, a rating of 4 or more
pays 1. `movielens-groups` is the game of M-CNB (Meta Clustering of Neural Bandits, KDD 2024), read from its paper
and public code: the users of the bandit are groups, and the one movie of ten that a member rated 1 is the right
answer.
"""

import io
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, final

import numpy as np

from coterie.arrays import Floats, Ints
from coterie.data.blocks import STEP, BlockSource
from coterie.data.files import check_fingerprint, data_folder, need, sha256
from coterie.data.published.catalogue import read_known
from coterie.data.published.movielens import LIKED, MovieLens, Ratings, features, ratings_of
from coterie.data.worlds.world import check_count
from coterie.errors import ParameterError
from coterie.models.batches import Batch
from coterie.models.candidates import Candidates

N_SINGULAR = 9  # singular vectors, with a constant beside them
DRAWN_AMONG = 100  # the first users, whose groups come
WIDTH = 0.5  # of the normal density that makes a context of features


def movielens_100k(*, n_candidates: int = 5, **settings: Any) -> MovieLens:
    """Return MovieLens-100K in lists that do not repeat: each user's rated movies, each once."""
    return MovieLens(name="movielens-100k", reader=read, n_candidates=n_candidates, **settings)


@lru_cache(maxsize=2)
def read(folder: Path, verify: bool) -> Ratings:
    """Read the ratings, and the movies' genres and years."""
    table, movies, hashes = _tables(folder, verify)
    ids = movies["item_id"].to_numpy()
    titles = [f"({year})" for year in movies["release_year"].to_list()]
    genres = ["|".join((text or "").split()) for text in movies["class"].to_list()]
    vectors, _ = features(titles, genres)
    table = table.sort("user_id", "item_id")
    rated = np.searchsorted(ids, table["item_id"].to_numpy())
    users, stars = table["user_id"].to_numpy(), table["rating"].to_numpy()
    return ratings_of(users, rated, stars >= LIKED, Candidates.trusted(ids.tolist(), vectors), hashes)


def _tables(folder: Path, verify: bool) -> tuple[Any, Any, str]:
    """Return the ratings and the movies as Polars frames, and the hashes of both files."""
    pl = need("polars", "reading data files")
    found, hashes = [], ""
    for name in ("ml-100k.inter", "ml-100k.item"):
        _, content = read_known("movielens-100k", name, folder, verify)
        table = pl.read_csv(io.BytesIO(content), separator="\t", quote_char=None, infer_schema=False)
        table = table.rename({column: column.split(":")[0] for column in table.columns})
        found.append(table)
        hashes += sha256(content)
    ratings, movies = found
    numbers = {"user_id": pl.Int64, "item_id": pl.Int64, "rating": pl.Float64}
    return (
        ratings.select(pl.col(k).cast(v) for k, v in numbers.items()),
        movies.with_columns(pl.col("item_id").cast(pl.Int64)).sort("item_id"),
        hashes,
    )


class Pairs(NamedTuple):
    """What the rounds of the groups are drawn from."""

    drawn: Ints  # (drawn users,) the group of each user who may come
    liked: list[Ints]  # by group: (pairs, 2) users and movies rated 5
    disliked: list[Ints]  # the same, rated 1
    users: Floats  # (users, N_SINGULAR + 1) features
    movies: Floats  # (movies, N_SINGULAR + 1)
    fingerprint: str


@final
@dataclass(frozen=True, kw_only=True)
class MovieGroups(BlockSource):
    """M-CNB's game: nine pairs of a member and a movie rated 5, and one rated 1, which pays 1."""

    name: str = "movielens-groups"
    n_groups: int = 100
    n_candidates: int = 10
    n_rounds: int = 10_000
    verify: bool = True
    fingerprint: str | None = None  # of the files; if given, it must match
    folder: str | os.PathLike[str] | None = None

    provenance: ClassVar[str] = "real"
    one_hot: ClassVar[bool] = False
    has_ids: ClassVar[bool] = False
    is_log: ClassVar[bool] = False
    every: ClassVar[int] = 2_000
    n_features: ClassVar[int] = 2 * (N_SINGULAR + 1)
    n_items: ClassVar[None] = None  # candidates are pairs

    def __post_init__(self) -> None:
        check_count("n_groups", self.n_groups, least=1)
        check_count("n_candidates", self.n_candidates, least=2)
        check_count("n_rounds", self.n_rounds, least=1)

    @property
    def about(self) -> str:
        """A description of a round, for reports."""
        return (
            f"The rounds are M-CNB's. {self.n_users} groups of users of MovieLens-100K come; a candidate is a member "
            f"with a movie. Of {self.n_candidates} candidates, one was rated 1 and pays 1; the others were rated 5."
        )

    @cached_property
    def pairs(self) -> Pairs:
        """The groups, their pairs and all features."""
        found = _prepare(data_folder(self.folder), self.verify, self.n_groups)
        check_fingerprint(self.name, data_folder(self.folder), found.fingerprint, self.fingerprint)
        return found

    @property
    def n_users(self) -> int:
        """How many groups may come."""
        return len(np.unique(self.pairs.drawn))

    def parameters(self) -> dict[str, Any]:
        """Return all parameters needed to make the same rounds again, without the folder of the files."""
        settings = {name: getattr(self, name) for name in ("n_groups", "n_candidates", "n_rounds", "verify")}
        return {"kind": self.name, **settings, "fingerprint": self.pairs.fingerprint}

    def blocks(self, n_rounds: int, seed: int, start: int = 0) -> Iterator[Batch]:
        """Yield the rounds from `start` up to `n_rounds`, in blocks; the same for the same seed."""
        check_count("seed", seed, least=0)
        if n_rounds > self.n_rounds:
            raise ParameterError(
                f"{n_rounds:,} rounds are asked of {self.name}, which has {self.n_rounds:,}; ask for fewer"
            )
        groups, shown, right = self._draw(seed)
        for first in range(start, n_rounds, STEP):
            rows = slice(first, min(first + STEP, n_rounds))
            users, movies = shown[rows].reshape(-1, 2).T
            contexts = _densities(np.hstack([self.pairs.movies[movies], self.pairs.users[users]]))
            n = len(groups[rows])
            payoffs = (np.arange(self.n_candidates) == right[rows, None]).astype(np.float64)
            yield Batch(groups[rows], np.arange(n * self.n_candidates).reshape(n, -1), contexts, payoffs)

    def _draw(self, seed: int) -> tuple[Ints, Ints, Ints]:
        """Draw the group, the pairs and the place of the right answer of every round."""
        rng, pairs, width = np.random.default_rng([seed, 14]), self.pairs, self.n_candidates
        groups = pairs.drawn[rng.integers(len(pairs.drawn), size=self.n_rounds)]
        right = rng.integers(width, size=self.n_rounds)
        shown = np.empty((self.n_rounds, width, 2), dtype=np.int64)
        for t, (group, place) in enumerate(zip(groups.tolist(), right.tolist(), strict=True)):
            liked, disliked = pairs.liked[group], pairs.disliked[group]
            shown[t] = liked[rng.choice(len(liked), width, replace=len(liked) < width)]
            shown[t, place] = disliked[rng.integers(len(disliked))]
        return groups, shown, right


def movielens_groups(**settings: Any) -> MovieGroups:
    """Return M-CNB's game on MovieLens-100K."""
    return MovieGroups(**settings)


def _densities(vectors: Floats) -> Floats:
    """Return the normal density of each entry, divided by the largest norm that is possible."""
    return np.asarray(np.exp(-0.5 * (vectors / WIDTH) ** 2) / np.sqrt(vectors.shape[1]))


@lru_cache(maxsize=2)
def _prepare(folder: Path, verify: bool, n_groups: int) -> Pairs:
    """Read the ratings as +1 (above 4), -1 (below 2) or nothing, and make features and groups of them."""
    table, movies, hashes = _tables(folder, verify)
    ids = movies["item_id"].to_numpy()
    user_ids, row = np.unique(table["user_id"].to_numpy(), return_inverse=True)
    column, stars = np.searchsorted(ids, table["item_id"].to_numpy()), table["rating"].to_numpy()
    sign = (stars > 4).astype(np.float64) - (stars < 2)
    matrix = np.zeros((len(user_ids), len(ids)))
    matrix[row, column] = sign
    left, _, right = np.linalg.svd(matrix, full_matrices=False)
    users, items = _features(left[:, :N_SINGULAR]), _features(right[:N_SINGULAR].T)
    means = need("sklearn.cluster", "grouping users").KMeans(n_groups, n_init=10, random_state=0)
    group = means.fit_predict(users)
    sides = []
    for wanted in (1, -1):
        pairs = np.stack([row[sign == wanted], column[sign == wanted]], axis=1)
        sides.append([pairs[group[pairs[:, 0]] == one] for one in range(n_groups)])
    liked, disliked = sides
    able = np.array([bool(len(a) and len(b)) for a, b in zip(liked, disliked, strict=True)])
    drawn = group[:DRAWN_AMONG]
    return Pairs(
        drawn[able[drawn]].astype(np.int64), liked, disliked, users, items, sha256(hashes.encode())[:16]
    )


def _features(vectors: Floats) -> Floats:
    """Return rows of length 1, or 0 where there is nothing, with a constant 1, all divided by √2; rounded."""
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    rows = np.hstack([vectors / np.where(norms > 0, norms, 1), np.ones((len(vectors), 1))])
    signs = np.sign(rows[np.abs(rows[:, :-1]).argmax(axis=0), np.arange(rows.shape[1] - 1)])
    rows[:, :-1] *= signs  # the sign of a singular vector is arbitrary
    return np.asarray(np.round(rows / np.sqrt(2), 9))
