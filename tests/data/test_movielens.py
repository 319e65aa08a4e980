"""MovieLens: how ratings become rounds."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from coterie.data.datasets import open_dataset
from coterie.data.published.catalogue import check
from coterie.data.published.movielens import MovieLens, features, movielens, movielens_repeat
from coterie.data.worlds.world_as_dataset import Rest
from coterie.errors import FileError, ParameterError
from coterie.experiments.run.worlds import make_world
from tests.miniature import real_data

MOVIES = """movieId,title,genres
10,"Cat, The (1995)",Comedy|Drama
20,Dog (1999),Drama
30,Untitled,(no genres listed)
40,Old One (1931) ,Comedy|Drama|War
50,E (2001),War
"""
RATINGS = """userId,movieId,rating,timestamp
1,10,4.0,5
1,20,3.5,5
1,30,5.0,5
1,40,0.5,5
1,50,4.5,5
2,10,1.0,5
2,50,4.0,5
3,20,4.0,5
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "ml-latest-small"
    place.mkdir()
    (place / "movies.csv").write_text(MOVIES)
    (place / "ratings.csv").write_text(RATINGS)
    return tmp_path


@pytest.fixture
def small(folder: Path) -> MovieLens:
    return movielens(folder=folder, verify=False, n_candidates=2)


def test_features_are_genres_and_decade_scaled_by_one_number() -> None:
    """The longest has three genres and a decade, so norm 2: every indicator is 1/2."""
    vectors, names = features(
        ["Cat, The (1995)", "Dog (1999)", "Untitled", "Old One (1931) "],
        ["Comedy|Drama", "Drama", "(no genres listed)", "Comedy|Drama|War"],
    )
    assert names == ("1930s", "1990s", "Comedy", "Drama", "War")
    assert (2 * vectors).tolist() == [
        [0, 1, 1, 1, 0],
        [0, 1, 0, 1, 0],
        [0, 0, 0, 0, 0],
        [1, 0, 1, 1, 1],
    ]


def test_every_list_is_new_and_what_is_left_over_is_dropped(small: MovieLens) -> None:
    """Of 5, 2 and 1 movies, lists of 2 take 4, 2 and none."""
    block = small.block(0)
    assert small.n_rounds == len(block.users) == 3
    assert sorted(block.users.tolist()) == [1, 1, 2]
    assert (small.n_users, small.n_items, small.n_features) == (2, 5, 6)
    shown = [
        (user, item) for user, row in zip(block.users.tolist(), block.candidates, strict=True) for item in row
    ]
    assert len(shown) == len(set(shown))


def test_a_movie_pays_if_it_got_four_stars(small: MovieLens) -> None:
    stars = {tuple(map(int, line.split(",")[:2])): float(line.split(",")[2]) for line in RATINGS.split()[1:]}
    for data in (small, replace(small, n_draws=40)):
        block = data.block(3)
        for user, row, payoffs in zip(block.users.tolist(), block.candidates, block.payoffs, strict=True):
            ids = [block.items.ids[k] for k in row]
            assert payoffs.tolist() == [float(stars[user, item] >= 4) for item in ids]


def test_repeated_lists_are_drawn_from_those_who_rated_enough(folder: Path) -> None:
    data = movielens_repeat(folder=folder, verify=False, n_candidates=2, n_draws=300)
    block = data.block(0)
    assert data.n_rounds == len(block.users) == 300
    assert set(block.users.tolist()) == {1, 2}  # the third rated one movie
    assert abs((block.users == 1).mean() - 0.5) < 0.1  # users, not ratings, are equally likely
    assert all(len(set(row)) == 2 for row in block.candidates.tolist())


def test_same_seed_same_rounds_another_seed_others_and_again_from_parameters(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COTERIE_DATA", str(folder))
    data = open_dataset("movielens-repeat", verify=False, n_candidates=2, n_draws=50)
    again: MovieLens = make_world(data.parameters())  # type: ignore[assignment]
    assert np.array_equal(data.block(4).candidates, again.block(4).candidates)  # type: ignore[union-attr]
    assert not np.array_equal(again.block(4).candidates, again.block(5).candidates)
    rest = list(Rest(data, 20).rounds(30, 4))
    assert [visit.user for visit in rest] == again.block(4).users[20:].tolist()
    assert rest[0].contexts.ids == [again.content.items.ids[k] for k in again.block(4).candidates[20]]


def test_data_say_what_they_know(small: MovieLens) -> None:
    assert (small.has_ids, small.one_hot, small.is_log, small.n_features) == (True, False, False, 6)
    assert Rest(small, 1).has_ids
    assert "a list of 2" in small.about


def test_files_that_are_not_what_they_should_be_are_named(folder: Path) -> None:
    with pytest.raises(
        FileError, match=r"ratings.csv: 8 rows, the published file has 100,004; it was cut short"
    ):
        _ = movielens(folder=folder).content
    with pytest.raises(FileError, match="not those of the run described"):
        _ = movielens(folder=folder, verify=False, fingerprint="0" * 16).content
    with pytest.raises(ParameterError, match="no user in movielens rated that many movies"):
        movielens(folder=folder, verify=False, n_candidates=6).block(0)
    with pytest.raises(ParameterError, match="4 rounds are asked of movielens, which has 3; ask for fewer"):
        next(movielens(folder=folder, verify=False, n_candidates=2).blocks(4, 0))


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        (
            "ratings.csv",
            RATINGS + "3,99,4.0,5\n",
            "ratings.csv rates movie 99, which movies.csv does not list",
        ),
        ("ratings.csv", RATINGS + "3,ten,4.0,5\n", "ratings.csv cannot be read as a table .*fetch it again"),
        ("ratings.csv", RATINGS + "3,10,,5\n", "ratings.csv has lines without rating"),
        ("movies.csv", "movieId,title,genres\n", "movies.csv holds no rows"),
        ("movies.csv", "id,name\n1,2\n", "movies.csv cannot be read as a table with the columns movieId"),
    ],
)
def test_damaged_files_are_named(tmp_path: Path, file: str, text: str, message: str) -> None:
    for name, content in (("movies.csv", MOVIES), ("ratings.csv", RATINGS), (file, text)):
        (tmp_path / name).write_text(content)
    with pytest.raises(FileError, match=message):
        _ = movielens(folder=tmp_path, verify=False).content


def test_real_files_have_the_published_numbers() -> None:
    folder = real_data("ml-latest-small", "ratings.csv.gz")
    assert {found.state for found in check("movielens", folder)} == {"ok"}
    data = movielens(folder=folder)
    assert (data.n_users, data.n_items, data.n_features, data.n_rounds) == (671, 9_125, 31, 19_753)
    norms = np.linalg.norm(data.content.items.features, axis=1)
    assert norms.max() == pytest.approx(1)
    repeat = movielens_repeat(folder=folder)
    block = repeat.block(0)
    assert block.candidates.shape == (40_000, 10)
    assert len(np.unique(block.users)) == 671
    assert 0.5 < block.payoffs.mean() < 0.6
