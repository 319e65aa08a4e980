"""MovieLens-100K: 943 users' ratings of 1,682 movies (GroupLens, 1998), as the package recbole contains it.

Three games. `movielens-100k` is played like `movielens`: a user's rated movies cut into lists, a rating of 4 or more
pays 1. `movielens-groups` is the game of M-CNB (Meta Clustering of Neural Bandits, KDD 2024) and `movielens-locb`
that of LOCB (Local clustering in contextual bandits, 2021), read from their papers and public code: the users of the
bandit are groups, and the one movie of ten that a member rated 1 is the right answer.
"""

import io
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, final

import numpy as np

from coterie.arrays import Floats, Ints
from coterie.data.files import need, sha256
from coterie.data.published.catalogue import read_known
from coterie.data.published.dealt import Dealt
from coterie.data.published.movielens import LIKED, MovieLens, Ratings, features, ratings_of
from coterie.models.batches import Batch
from coterie.models.candidates import Candidates

if TYPE_CHECKING:
    import polars as pl

N_SINGULAR = 9  # singular vectors, with a constant beside them
WIDTH = 0.5  # of the normal density that makes a context of features


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


def _tables(folder: Path, verify: bool) -> tuple["pl.DataFrame", "pl.DataFrame", str]:
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
class MovieGroups(Dealt):
    """Groups as users: nine pairs of a member and a movie rated 5, and one rated 1, which pays 1."""

    n_groups: int
    n_drawn: int  # one of so many users, the first ones, comes with the group; 0 for all
    sees_members: bool  # whether a context has the features of the member, besides those of the movie
    n_candidates: int = 10
    n_rounds: int = 10_000

    stream = 14
    counts = {"n_groups": 1, "n_drawn": 0, "n_candidates": 2, "n_rounds": 1}  # noqa: RUF012 (never changed)
    settings = ("n_groups", "n_drawn", "sees_members", "n_candidates", "n_rounds")
    has_ids = False  # candidates are pairs

    @property
    def about(self) -> str:
        """A description of a round, for reports."""
        return (
            f"{self.n_users} groups of users of MovieLens-100K come; a candidate is a member with a movie. Of "
            f"{self.n_candidates} candidates, one was rated 1 and pays 1; the others were rated 5."
        )

    @property
    def n_features(self) -> int:
        """How many features a pair has."""
        return (1 + self.sees_members) * (N_SINGULAR + 1)

    @property
    def n_users(self) -> int:
        """How many groups may come."""
        return len(np.unique(self.content.drawn))

    def deal(self, rng: np.random.Generator) -> Batch:
        """Show the features of the drawn pairs."""
        groups, shown, right = self._draw(rng)
        users, movies = shown.reshape(-1, 2).T
        seen = [self.content.movies[movies], self.content.users[users]][: 1 + self.sees_members]
        payoffs = (np.arange(self.n_candidates) == right[:, None]).astype(np.float64)
        places = np.arange(payoffs.size).reshape(payoffs.shape)
        return Batch(groups, places, _densities(np.hstack(seen)), payoffs)

    def _draw(self, rng: np.random.Generator) -> tuple[Ints, Ints, Ints]:
        """Draw the group, the pairs and the place of the right answer of every round."""
        pairs, n, width = self.content, self.n_rounds, self.n_candidates
        groups = pairs.drawn[rng.integers(len(pairs.drawn), size=n)]
        right = rng.integers(width, size=n)
        shown = np.empty((n, width, 2), dtype=np.int64)
        for t, (group, place) in enumerate(zip(groups.tolist(), right.tolist(), strict=True)):
            liked, disliked = pairs.liked[group], pairs.disliked[group]
            shown[t] = liked[rng.choice(len(liked), width, replace=len(liked) < width)]
            shown[t, place] = disliked[rng.integers(len(disliked))]
        return groups, shown, right

    def read(self, folder: Path) -> Pairs:
        """Read the ratings as +1 (above 4), -1 (below 2) or nothing, and make features and groups of them."""
        table, movies, hashes = _tables(folder, self.verify)
        ids = movies["item_id"].to_numpy()
        user_ids, row = np.unique(table["user_id"].to_numpy(), return_inverse=True)
        column, stars = np.searchsorted(ids, table["item_id"].to_numpy()), table["rating"].to_numpy()
        sign = (stars > 4).astype(np.float64) - (stars < 2)
        matrix = np.zeros((len(user_ids), len(ids)))
        matrix[row, column] = sign
        left, _, right = np.linalg.svd(matrix, full_matrices=False)
        users, items = _features(left[:, :N_SINGULAR]), _features(right[:N_SINGULAR].T)
        means = need("sklearn.cluster", "grouping users").KMeans(self.n_groups, n_init=10, random_state=0)
        group = means.fit_predict(users)
        liked, disliked = (
            [pairs[group[pairs[:, 0]] == one] for one in range(self.n_groups)]
            for pairs in (np.stack([row[sign == side], column[sign == side]], axis=1) for side in (1, -1))
        )
        able = np.array([bool(len(a) and len(b)) for a, b in zip(liked, disliked, strict=True)])
        drawn = group[: self.n_drawn or None]
        drawn = drawn[able[drawn]].astype(np.int64)
        return Pairs(drawn, liked, disliked, users, items, sha256(hashes.encode())[:16])


def _densities(vectors: Floats) -> Floats:
    """Return the normal density of each entry, divided by the largest norm that is possible."""
    return np.asarray(np.exp(-0.5 * (vectors / WIDTH) ** 2) / np.sqrt(vectors.shape[1]))


def _features(vectors: Floats) -> Floats:
    """Return rows of length 1, or 0 where there is nothing, with a constant 1, all divided by √2; rounded."""
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    rows = np.hstack([vectors / np.where(norms > 0, norms, 1), np.ones((len(vectors), 1))])
    signs = np.sign(rows[np.abs(rows[:, :-1]).argmax(axis=0), np.arange(rows.shape[1] - 1)])
    rows[:, :-1] *= signs  # the sign of a singular vector is arbitrary
    return np.asarray(np.round(rows / np.sqrt(2), 9))


movielens_100k = partial(MovieLens, name="movielens-100k", reader=read)
movielens_groups = partial(MovieGroups, name="movielens-groups", n_groups=100, n_drawn=100, sees_members=True)
movielens_locb = partial(MovieGroups, name="movielens-locb", n_groups=50, n_drawn=0, sees_members=False)
