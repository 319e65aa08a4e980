"""MovieLens: users' ratings of movies (GroupLens, ml-latest-small). A payoff is 1 for a rating of 4 or more.

The payoff of every candidate is known. Items have ids and features: an indicator for each genre and one for the
decade of release. `docs/reproduce.md` says how the rounds are made.
"""

import io
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, final

import numpy as np

from coterie.arrays import Array, Floats, Ints
from coterie.data.files import need, sha256
from coterie.data.published.catalogue import read_known
from coterie.data.published.dealt import Dealt
from coterie.data.rounds import draw_distinct
from coterie.errors import FileError, ParameterError
from coterie.models.batches import Batch
from coterie.models.candidates import Candidates

if TYPE_CHECKING:
    import polars as pl

LIKED = 4.0  # stars, at least
NO_GENRES = "(no genres listed)"
YEAR = re.compile(r"\((\d{4})\)\s*$")  # at the end of a title


class Ratings(NamedTuple):
    """The content of the files."""

    user_ids: Ints  # (n_users,) ascending
    starts: Ints  # (n_users + 1,) where each user's ratings begin
    rated: Ints  # (ratings,) positions of movies, by user
    liked: Floats  # (ratings,) payoffs: for movies 1 for a rating of at least LIKED, else 0
    items: Candidates  # (n_items,) the movies, ids ascending
    fingerprint: str  # of the files


@final
@dataclass(frozen=True, kw_only=True)
class MovieLens(Dealt):
    """Ratings as rounds: `n_draws` random lists, or, if that is 0, each user's movies cut into lists."""

    reader: Callable[[Path, bool], Ratings]
    n_candidates: int = 5
    n_draws: int = 0
    what: str = "movie"  # that is rated
    pays: str = f"1 if the user gave it {LIKED:g} stars or more, and 0 if not"

    stream = 12
    counts = {"n_candidates": 2, "n_draws": 0}  # noqa: RUF012 (never changed)

    @property
    def settings(self) -> tuple[str, ...]:  # type: ignore[override]
        """The fields that the rounds depend on."""
        return ("n_candidates", "n_draws") if self.n_draws else ("n_candidates",)

    @property
    def about(self) -> str:
        """A description of a round, for reports."""
        which = (
            f"drawn from the {self.what}s" if self.n_draws else f"of {self.what}s, none twice, among those"
        )
        return (
            f"The rounds are made from what {self.n_users:,} users of {self.name} rated. In each, one of them is "
            f"offered a list of {self.n_candidates} {which} this user has rated. A {self.what} pays {self.pays}."
        )

    def read(self, folder: Path) -> Ratings:
        """Read who rated what."""
        return self.reader(folder, self.verify)

    @property
    def n_users(self) -> int:
        """How many users rated enough movies for a list."""
        return int((np.diff(self.content.starts) >= self.n_candidates).sum())

    @property
    def n_rounds(self) -> int:
        """How many rounds there are; the same for every seed."""
        return self.n_draws or int((np.diff(self.content.starts) // self.n_candidates).sum())

    def deal(self, rng: np.random.Generator) -> Batch:
        """Make all rounds: the user of each, and which of the user's ratings are its candidates."""
        ready, width = self.content, self.n_candidates
        n_rated = np.diff(ready.starts)
        able = np.flatnonzero(n_rated >= width)
        if not len(able):
            raise ParameterError(
                f"n_candidates is {width}, but no user in {self.name} rated that many movies"
            )
        if self.n_draws:
            user = able[rng.integers(len(able), size=self.n_draws)]
            place = ready.starts[user][:, None] + draw_distinct(rng, n_rated[user], width)
        else:
            lists = [
                (ready.starts[one] + rng.permutation(n_rated[one]))[: n_rated[one] // width * width]
                for one in able
            ]
            user = np.repeat(able, [len(own) // width for own in lists])
            order = rng.permutation(len(user))
            user, place = user[order], np.concatenate(lists).reshape(-1, width)[order]
        return Batch(ready.user_ids[user], ready.rated[place], ready.items, ready.liked[place])


def read_small(folder: Path, verify: bool) -> Ratings:
    """Read both files of ml-latest-small."""
    pl = need("polars", "reading data files")
    columns = {"userId": pl.Int64, "movieId": pl.Int64, "rating": pl.Float64}
    ratings, own = _read("ratings.csv", folder, verify, columns)
    columns = {"movieId": pl.Int64, "title": pl.String, "genres": pl.String}
    listed, other = _read("movies.csv", folder, verify, columns)
    listed = listed.sort("movieId")
    pair = ["userId", "movieId"]
    ratings = ratings.unique(pair, keep="last", maintain_order=True).sort(pair)
    ids, movies = listed["movieId"].to_numpy(), ratings["movieId"].to_numpy()
    missing = np.setdiff1d(movies, ids)
    if len(missing):
        raise FileError(
            f"ratings.csv rates movie {missing[0]}, which movies.csv does not list; fetch both files again with "
            "`coterie data get movielens`"
        )
    vectors, _ = features(listed["title"].to_list(), listed["genres"].to_list())
    users, stars = ratings["userId"].to_numpy(), ratings["rating"].to_numpy()
    return ratings_of(
        users,
        np.searchsorted(ids, movies),
        stars >= LIKED,
        Candidates.trusted(ids.tolist(), vectors),
        own + other,
    )


def ratings_of(users: Ints, rated: Ints, payoffs: Array, movies: Candidates, hashes: str) -> Ratings:
    """Return ratings that are sorted by user, with the positions of the movies."""
    user_ids, first = np.unique(users, return_index=True)
    starts = np.append(first, len(users)).astype(np.int64)
    return Ratings(user_ids, starts, rated, payoffs.astype(np.float64), movies, sha256(hashes.encode())[:16])


def _read(name: str, folder: Path, verify: bool, columns: dict[str, Any]) -> tuple["pl.DataFrame", str]:
    """Return some columns of a file, as a Polars frame, and the hash of its content."""
    pl = need("polars", "reading data files")
    path, content = read_known("movielens", name, folder, verify)
    try:
        table = pl.read_csv(io.BytesIO(content), columns=list(columns), schema_overrides=columns)
    except pl.exceptions.PolarsError as error:
        reason = str(error).splitlines()[0]
        raise FileError(
            f"{path} cannot be read as a table with the columns {', '.join(columns)} ({reason}); the file is "
            "damaged, fetch it again"
        ) from error
    empty = [column for column, n in zip(columns, table.null_count().row(0), strict=True) if n]
    if empty or not len(table):
        what = f"has lines without {empty[0]}" if empty else "holds no rows"
        raise FileError(f"{path} {what}; it was cut short or damaged, fetch it again")
    return table, sha256(content)


def features(titles: list[str], genres: list[str]) -> tuple[Floats, tuple[str, ...]]:
    """Return each movie's genres and decade as indicators, (movies, features), and the features' names.

    All are divided by the same number, so that the longest vector has norm 1.
    """
    named: list[set[str]] = []
    for title, text in zip(titles, genres, strict=True):
        year = YEAR.search(title)
        decade = {f"{year[1][:3]}0s"} if year else set()
        named.append(decade | (set() if text == NO_GENRES else set(text.split("|"))))
    names = tuple(sorted(set().union(*named)))
    place = {name: column for column, name in enumerate(names)}
    vectors = np.zeros((len(named), max(len(names), 1)))
    for row, own in enumerate(named):
        vectors[row, [place[name] for name in own]] = 1
    longest = np.linalg.norm(vectors, axis=1).max()
    return vectors / (longest or 1), names


# Lists that do not repeat (each user's rated movies, each once), and lists that are drawn anew each time.
movielens = partial(MovieLens, name="movielens", reader=read_small)
movielens_repeat = partial(
    MovieLens, name="movielens-repeat", reader=read_small, n_candidates=10, n_draws=40_000
)
