"""KDD Cup and Avazu: from published files, read in pieces, to logs."""

import gzip
from pathlib import Path

import numpy as np
import pytest

from coterie.data.published import large_files
from coterie.data.published.avazu import avazu
from coterie.data.published.kddcup import kddcup
from coterie.errors import FileError
from tests.miniature import real_data


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COTERIE_CACHE", str(tmp_path / "cache"))


def kdd_lines(n: int) -> list[tuple[int, int, int]]:
    """Return (click, ad, user): user 0 is unknown; low ads and users come more often."""
    rng = np.random.default_rng(5)
    ads = (rng.random(n) ** 2 * 12).astype(int) + 100
    users = (rng.random(n) ** 2 * 20).astype(int)
    return list(zip(rng.integers(0, 3, n).tolist(), ads.tolist(), users.tolist(), strict=True))


def write_training(folder: Path, lines: list[tuple[int, int, int]]) -> Path:
    path = folder / "kddcup" / "training.txt"
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(f"{c}\t3\t14340390157469404125\t{a}\t7\t2\t1\t9\t8\t7\t6\t{u}\n" for c, a, u in lines)
    path.write_text(text)
    return path


def test_kddcup_takes_the_most_served_ads_and_then_the_most_active_users(tmp_path: Path) -> None:
    lines = kdd_lines(3_000)
    write_training(tmp_path, lines)
    log = kddcup(folder=tmp_path, n_users=6, n_items=8, n_candidates=3, draw="uniform")
    known = [(c, a, u) for c, a, u in lines if u != 0]
    count = {ad: sum(a == ad for _, a, _ in known) for ad in {a for _, a, _ in known}}
    ads = sorted(count, key=lambda ad: (-count[ad], ad))[:8]
    active = {u: sum(v == u and a in ads for _, a, v in known) for u in range(1, 20)}
    users = sorted(sorted(active, key=lambda u: (-active[u], u))[:6])
    expected = [
        (users.index(u), sorted(ads).index(a), float(c > 0)) for c, a, u in known if u in users and a in ads
    ]
    records = log.records(0, log.n_rounds)
    found = list(zip(records.users.tolist(), records.items.tolist(), records.payoffs.tolist(), strict=True))
    assert found == expected
    assert (log.n_users, log.n_items, log.provenance) == (6, 8, "real")
    assert f"of the {len(known):,} records" in log.notes[0]


def test_pieces_make_no_difference_and_the_selection_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_training(tmp_path, kdd_lines(500))
    layout = large_files.Layout("\t", [f"c{k}" for k in range(12)], False)
    columns = {"c0": "number", "c11": "number"}
    whole = list(large_files.pieces(path, layout, columns))
    small = list(large_files.pieces(path, layout, columns, size=100))
    assert len(whole) == 1
    assert len(small) > 100
    assert [row for frame in small for row in frame.rows()] == whole[0].rows()
    first = kddcup(folder=tmp_path, n_users=6, n_items=8, n_candidates=3)
    monkeypatch.setattr(large_files, "pieces", None)  # would fail if the file were read again
    again = kddcup(folder=tmp_path, n_users=6, n_items=8, n_candidates=3)
    assert np.array_equal(first.records(0, 50).items, again.records(0, 50).items)


def test_damaged_line_of_a_long_file_is_named(tmp_path: Path) -> None:
    path = write_training(tmp_path, kdd_lines(300))
    with path.open("a") as file:
        file.write("0\t3\t1434\tqueen\t7\t2\t1\t9\t8\t7\t6\t5\n")
    with pytest.raises(FileError, match=r"training.txt, line 301: ad_id is 'queen', expected a whole number"):
        kddcup(folder=tmp_path)
    write_training(tmp_path, kdd_lines(300))
    with path.open("a") as file:
        file.write("0\t3\t1434\n")
    with pytest.raises(FileError, match="line 301: 3 fields, expected 12"):
        kddcup(folder=tmp_path)
    path.write_text("userID\tartistID\n1\t2\n")
    with pytest.raises(FileError, match=r"line 1: 2 fields, expected 12; this is not training.txt"):
        kddcup(folder=tmp_path)
    path.unlink()
    with pytest.raises(FileError, match=r"there is no training.txt or Click_prediction_small.csv"):
        kddcup(folder=tmp_path)


HEADER = "id,click,hour,site_id,app_id,device_id,device_ip,device_model,C14"


def test_avazu_users_are_devices_and_ads_are_creatives_in_a_place(tmp_path: Path) -> None:
    rows = [
        "1,1,14102100,s1,a1,d1,i1,m1,10",
        "2,0,14102100,s1,a1,a99f214a,i1,m1,10",
        "3,0,14102100,s2,a1,a99f214a,i1,m1,10",
        "4,0,14102100,s2,a1,d1,i9,m9,11",
    ]
    place = tmp_path / "avazu"
    place.mkdir()
    with gzip.open(place / "train.gz", "wt") as file:
        file.write("\n".join([HEADER, *rows]) + "\n")
    log = avazu(folder=tmp_path, n_candidates=2, draw="uniform")
    assert (log.n_users, log.n_items, log.n_rounds) == (2, 3, 4)
    users = log.records(0, 4).users.tolist()
    assert users[0] == users[3] != users[1] == users[2]
    assert log.records(0, 4).payoffs.tolist() == [1, 0, 0, 0]
    assert avazu(folder=tmp_path, n_candidates=2, draw="uniform", ad="C14").n_items == 2
    (place / "train.gz").write_bytes((place / "train.gz").read_bytes()[:-20])
    with pytest.raises(FileError, match=r"train.gz is truncated or damaged"):
        avazu(folder=tmp_path)


def test_real_samples_prove_the_loaders() -> None:
    folder = real_data("kddcup2012_track2")
    log = kddcup(folder=folder)
    assert (log.n_users, log.provenance) == (10_333, "real, partial")
    assert "30,315 records" in log.notes[0]  # 39,948 less 9,633 without a user
    log = avazu(folder=real_data("avazu"), ad="C14", n_items=259, draw="uniform")
    assert (log.n_users, log.n_items, log.n_rounds) == (7_531, 259, 8_999)
    assert next(log.blocks(100, 0)).candidates.shape == (100, 20)
