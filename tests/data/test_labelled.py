"""LastFM and Delicious: how files become rounds."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from coterie.data.published.delicious import delicious
from coterie.data.published.labelled import Labelled, _grow
from coterie.data.published.lastfm import lastfm
from coterie.data.rounds import draw_distinct, rounds_of
from coterie.errors import FileError, ParameterError
from tests.miniature import real_data, write, write_lastfm


@pytest.fixture
def small(tmp_path: Path) -> Labelled:
    write_lastfm(tmp_path)
    return lastfm(folder=tmp_path, verify=False, components=5, n_candidates=6, n_rounds=400)


def test_pool_grows_by_the_items_that_have_come_up() -> None:
    """Items 7 and 3 are there at the start; then 3, 9, 9, 7, 4 come up: sizes 2, 2, 3, 3, 3 before each."""
    order, size, place = _grow(np.array([7, 3]), np.array([3, 9, 9, 7, 4]))
    assert order.tolist() == [7, 3, 9, 4]
    assert size.tolist() == [2, 2, 3, 3, 3]
    assert place.tolist() == [1, 2, 2, 0, 3]


def test_distinct_draws_are_distinct_and_every_set_is_equally_likely() -> None:
    drawn = draw_distinct(np.random.default_rng(0), np.full(60_000, 5), 2)
    assert (drawn[:, 0] != drawn[:, 1]).all()
    counts = np.bincount(drawn[:, 0] * 5 + drawn[:, 1], minlength=25).reshape(5, 5)
    expected = 60_000 / 20
    assert np.abs(counts[~np.eye(5, dtype=bool)] - expected).max() < 5 * np.sqrt(expected)


def test_a_list_has_an_item_the_user_likes_and_no_item_twice(small: Labelled) -> None:
    block = small.block(3)
    assert block.candidates.shape == (400, 6)
    assert (block.payoffs.max(axis=1) == 1).all()
    assert all(len(set(row)) == 6 for row in block.candidates.tolist())


def test_payoffs_are_the_true_labels(small: Labelled) -> None:
    listened = (Path(str(small.folder)) / "lastfm" / "user_artists.dat").read_text().splitlines()[1:]
    likes = {tuple(map(int, line.split("\t")[:2])) for line in listened}
    block = small.block(0)
    for user, row, payoffs in zip(block.users, block.candidates, block.payoffs, strict=True):
        ids = np.array(small.content.items.ids)[row]
        assert [float((int(user), int(item)) in likes) for item in ids] == payoffs.tolist()


def test_growing_pool_offers_only_items_that_came_up_before(small: Labelled) -> None:
    """What pays nothing was drawn from the pool: the start's 6 items, or a liked item of an earlier round."""
    block = small.block(1)
    start: set[int] = set()
    paid: set[int] = set()
    for row, payoffs in zip(block.candidates.tolist(), block.payoffs, strict=True):
        start |= {item for item, payoff in zip(row, payoffs, strict=True) if not payoff} - paid
        paid |= {item for item, payoff in zip(row, payoffs, strict=True) if payoff}
    assert len(start) <= 6
    everywhere = replace(small, pool="all").block(1)
    assert len(np.unique(block.candidates[:10])) < len(np.unique(everywhere.candidates[:10]))


def test_same_seed_same_rounds_and_another_seed_others(small: Labelled) -> None:
    again = replace(small)
    assert np.array_equal(small.block(4).candidates, again.block(4).candidates)
    assert not np.array_equal(small.block(4).candidates, small.block(5).candidates)


def test_blocks_from_anywhere_are_the_rounds_themselves(small: Labelled) -> None:
    rounds = list(small.rounds(400, 2))
    parts = [visit for block in small.blocks(400, 2, start=130) for visit in rounds_of(block)]
    assert len(parts) == 270
    for one, other in zip(rounds[130:], parts, strict=True):
        assert one.user == other.user
        assert one.contexts.ids == other.contexts.ids
        assert np.array_equal(one.contexts.features, other.contexts.features)
        assert np.array_equal(one.payoffs, other.payoffs)


def test_vectors_have_norm_at_most_one_and_are_principal_components(small: Labelled) -> None:
    vectors = small.content.items.features
    assert np.linalg.norm(vectors, axis=1).max() <= 1
    assert np.linalg.norm(vectors, axis=1).max() > 1 - 1e-6
    assert np.abs(vectors.mean(axis=0)).max() < 1e-8  # centred
    gram = vectors.T @ vectors
    assert np.abs(gram - np.diag(np.diag(gram))).max() < 1e-6  # uncorrelated
    assert (np.diff(np.diag(gram)) <= 1e-9).all()  # largest first


def test_other_readings_are_parameters(small: Labelled) -> None:
    unit = replace(small, scale="unit").content.items.features
    assert np.allclose(np.linalg.norm(unit, axis=1), 1)
    plain = replace(small, centre=False).content.items.features
    assert (np.linalg.norm(plain, axis=1)[50:] == 0).all()  # without tags: nothing
    dropped = replace(small, untagged="drop")
    assert (small.n_items, dropped.n_items) == (60, 50)
    words = replace(small, tags="words").content.items.features
    assert not np.allclose(np.abs(words), np.abs(small.content.items.features))


def test_lines_may_end_in_crlf(small: Labelled, tmp_path: Path) -> None:
    write_lastfm(tmp_path / "windows", newline="\r\n")
    other = replace(small, folder=tmp_path / "windows")
    assert other.parameters() == small.parameters()


def test_changed_files_are_noticed(small: Labelled, tmp_path: Path) -> None:
    with pytest.raises(FileError, match="not those of the run described"):
        _ = replace(small, fingerprint="0" * 16).content
    with pytest.raises(
        FileError, match=r"user_artists.dat: .* rows, the published file has 92,834; it was cut"
    ):
        _ = lastfm(folder=tmp_path).content


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("11\t103", r"user_artists.dat, line \d+: 2 fields, expected 3"),
        ("11\tqueen\t4", r"user_artists.dat, line \d+: artistID is 'queen', expected a whole number"),
    ],
)
def test_damaged_line_is_named(tmp_path: Path, line: str, said: str) -> None:
    write_lastfm(tmp_path)
    with (tmp_path / "lastfm" / "user_artists.dat").open("a") as file:
        file.write(line + "\n")
    with pytest.raises(FileError, match=said):
        _ = lastfm(folder=tmp_path, verify=False).content


def test_missing_and_foreign_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(
        FileError, match=r"there is no user_artists.dat .*`coterie data get lastfm --data .*`"
    ):
        _ = lastfm(folder=tmp_path).content
    write_lastfm(tmp_path)
    write(tmp_path / "lastfm" / "user_artists.dat", "movie rating", [(1, 2)])
    with pytest.raises(FileError, match=r"line 1: no column 'userID', found movie, rating"):
        _ = lastfm(folder=tmp_path, verify=False).content
    (tmp_path / "lastfm" / "user_artists.dat").unlink()
    (tmp_path / "lastfm" / "user_artists.dat.gz").write_bytes(b"\x1f\x8b\x08broken")
    with pytest.raises(FileError, match=r"truncated or not a gzip file.*`coterie data get lastfm --data .*`"):
        _ = lastfm(folder=tmp_path, verify=False).content
    with pytest.raises(FileError, match="does not exist"):
        _ = lastfm(folder=tmp_path / "nowhere").content


def test_parameters_that_cannot_be(small: Labelled) -> None:
    with pytest.raises(ParameterError, match="pool is 'huge', expected one of: growing, all"):
        lastfm(pool="huge")
    with pytest.raises(ParameterError, match="components is 60, expected from 1 to 39"):
        _ = replace(small, components=60).content
    with pytest.raises(ParameterError, match="which has 400; ask for fewer"):
        next(small.blocks(401, 0))


def test_delicious_reads_published_and_partial_files(tmp_path: Path) -> None:
    """The same world both ways: URL ids 5, 7, 9, ...; all tag weights 1."""
    rng = np.random.default_rng(1)
    likes = [(user, 5 + 2 * int(url)) for user in range(6) for url in rng.choice(40, 7, replace=False)]
    tags = [(row, int(tag)) for row in range(40) for tag in rng.choice(30, 3, replace=False)]
    names: list[tuple[object, ...]] = [(tag, f"t{tag}") for tag in range(30)]
    settings = {"verify": False, "components": 4, "n_candidates": 5, "n_rounds": 50}
    part, whole = tmp_path / "part" / "delicious", tmp_path / "whole" / "delicious"
    write(part / "user_bookmarks_partial.tsv", "userID bookmarkID", list(likes))
    write(part / "bookmark_tags_noweight.tsv", "itemRow tagID", list(tags))
    write(part / "bookmark_index.tsv", "itemRow bookmarkID certain", [(r, 5 + 2 * r, 1) for r in range(40)])
    marked = [(user, url, 1, 8, 11, 2010, 1, 1, 1) for user, url in likes]
    write(
        whole / "user_taggedbookmarks.dat",
        "userID bookmarkID tagID day month year hour minute second",
        list(marked),
    )
    write(whole / "bookmark_tags.dat", "bookmarkID tagID tagWeight", [(5 + 2 * r, t, 1) for r, t in tags])
    for place in (part, whole):
        write(place / "tags.dat", "id value", names)
    one = delicious(folder=tmp_path / "part", **settings)
    other = delicious(folder=tmp_path / "whole", **settings)
    assert (one.provenance, other.provenance) == ("real, partial", "real")
    assert np.array_equal(one.block(0).candidates, other.block(0).candidates)
    assert np.allclose(one.content.items.features, other.content.items.features)


def test_real_lastfm_has_the_published_size() -> None:
    data = lastfm(folder=real_data("lastfm"))
    assert (data.n_users, data.n_items, data.n_features, data.provenance) == (1_892, 17_632, 25, "real")
    block = data.block(0)
    assert block.candidates.shape == (50_000, 25)
    assert np.linalg.norm(data.content.items.features, axis=1).max() <= 1
    assert 1 < block.payoffs.sum(axis=1).mean() < 1.3


def test_real_delicious_says_that_it_is_partial() -> None:
    data = delicious(folder=real_data("delicious"))
    assert (data.n_users, data.n_items, data.provenance) == (1_843, 69_226, "real, partial")


@pytest.mark.parametrize(("pool", "low", "high"), [("growing", 0.0, 0.9), ("all", 0.98, 1.02)])
def test_an_id_that_never_came_up_is_a_hint_in_a_growing_pool_alone(
    pool: str, low: float, high: float
) -> None:
    """Show an item that never came up before, if there is one, else any: that must not beat chance."""
    data = lastfm(folder=real_data("lastfm", "user_artists.dat.gz"), pool=pool)
    block, rng = data.block(0).cut(0, 20_000), np.random.default_rng(0)
    seen = np.zeros(len(data.content.items), dtype=np.bool_)
    lost = blind = 0.0
    for row, payoffs in zip(block.candidates, block.payoffs, strict=True):
        new = np.flatnonzero(~seen[row])
        k = rng.choice(new) if len(new) else rng.integers(len(row))
        lost, blind = lost + 1 - payoffs[k], blind + 1 - payoffs.mean()
        seen[row] = True
    assert low < lost / blind < high
