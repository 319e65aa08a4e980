"""Logs of one's own: how records become rounds, and what is said about files that cannot be read."""

import math
from collections import Counter
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

from coterie import CAB, Random
from coterie.advice.records import read_log
from coterie.data.logs.log import open_log
from coterie.errors import FileError, ParameterError
from coterie.experiments import Plan, compare, open_world, parse_specs, play, read_trace
from coterie.experiments.run.worlds import make_world
from coterie.experiments.study.protocol import Protocol, run_protocol
from coterie.models.batches import distinct
from coterie.policies.base.batch import Batch


def write(path: Path, text: str) -> Path:
    path.write_text(text, errors="surrogateescape")
    return path


def test_records_become_rounds_by_hand(tmp_path: Path) -> None:
    """Four records of four items, lists of two: each record is a round, the shown item among one other."""
    path = write(tmp_path / "log.csv", "user,item,payoff\nann,a,1\nbob,b,0\nann,c,0.5\neve,d,1\n")
    log = open_log(path, candidates=2)
    assert (log.n_rounds, log.n_users, log.n_candidates, log.items) == (4, 3, 2, ["a", "b", "c", "d"])
    rounds = list(log.rounds(10, seed=0))
    assert [visit.user for visit in rounds] == ["ann", "bob", "ann", "eve"]
    for visit, item, payoff in zip(rounds, "abcd", (1, 0, 0.5, 1), strict=True):
        assert len(set(visit.contexts)) == 2
        assert visit.payoffs[visit.contexts.index(item)] == payoff
        assert np.isnan(visit.payoffs).sum() == 1


def make_log(folder: Path, n: int = 3_000) -> Path:
    """Item a is shown half of the time, b, c, d and e share the rest; payoff 1 for a."""
    items = [("a", "b", "a", "c", "a", "d", "a", "e")[t % 8] for t in range(n)]
    frame = pl.DataFrame({"user": [t % 3 for t in range(n)], "item": items})
    frame = frame.with_columns((pl.col("item") == "a").cast(pl.Int8).alias("payoff"))
    frame.write_parquet(folder / "log.parquet")
    return folder / "log.parquet"


def test_a_blind_choice_is_kept_once_in_as_many_times_as_there_are_candidates(tmp_path: Path) -> None:
    log = open_log(make_log(tmp_path), candidates=3)
    rows = list(play(Random(one_hot=True, seed=1), log.rounds(3_000, seed=2)))
    kept = [row for row in rows if not math.isnan(row.payoff)]
    assert len(kept) / len(rows) == pytest.approx(1 / 3, abs=0.03)
    assert sum(row.updated for row in rows) == 0  # RAN learns nothing
    assert Counter(row.choice for row in kept).keys() == {0, 1, 2}


def test_records_of_an_item_that_is_shown_too_often_are_left_out_and_it_is_told(tmp_path: Path) -> None:
    """a has 1,500 of 3,000 records; lists of 3 allow a third: 750, what is half of the others' 1,500."""
    log = open_log(make_log(tmp_path), candidates=3)
    assert log.n_rounds == 2_250
    assert log.shares[0] == pytest.approx(1 / 3)
    assert "750 of 3,000 records" in log.notes[0]
    assert open_log(make_log(tmp_path), candidates=3, draw="uniform").n_rounds == 3_000


def test_items_with_features_come_as_lists_or_as_columns(tmp_path: Path) -> None:
    vectors = [[0.6, 0.0], [0.0, 0.8], [0.6, 0.0], [0.5, 0.5]]
    base = pl.DataFrame({"user": [1, 2, 1, 2], "payoff": [1.0, 0.0, -1.0, 0.5]})
    base.with_columns(pl.Series("features", vectors)).write_parquet(tmp_path / "lists.parquet")
    columns = [pl.Series(f"feature_{k}", [vector[k] for vector in vectors]) for k in range(2)]
    base.with_columns(columns).write_csv(tmp_path / "columns.csv")
    for name in ("lists.parquet", "columns.csv"):
        log = open_log(tmp_path / name, candidates=2, draw="uniform")
        assert (log.one_hot, log.n_features, log.n_items) == (False, 2, 3)
        block = next(log.blocks(4, 0))
        assert block.served is not None
        shown = block.items[block.candidates[np.arange(4), block.served]]
        assert shown.tolist() == vectors
        policy = CAB(n_features=2)
        assert policy.run(Batch(*block)).kept.any()


@pytest.mark.parametrize(
    ("features", "said"),
    [
        ([[0.6, 0.0], [0.0]], "record 2: 1 features, the first record has 2"),
        ([[0.6, 0.0], [3.0, math.nan]], "record 2: its features hold NaN or infinity"),
        ([["a"], ["b"]], "column 'features' holds List.*, expected lists of numbers"),
    ],
)
def test_features_that_cannot_be_are_named(tmp_path: Path, features: list[list[object]], said: str) -> None:
    frame = pl.DataFrame({"user": [1, 2], "payoff": [1, 0], "features": features})
    frame.write_parquet(tmp_path / "log.parquet")
    with pytest.raises(FileError, match=said):
        open_log(tmp_path / "log.parquet")


def test_unit_vectors_with_five_decimals_are_read_by_compare_and_advise_alike(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(60, 3))
    vectors = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).round(5)
    assert np.linalg.norm(vectors, axis=1).max() > 1 + 1e-6
    lines = [f"u{t % 5},{t % 2},{','.join(map(str, x))}" for t, x in enumerate(vectors)]
    path = write(tmp_path / "log.csv", "user,payoff,feature_0,feature_1,feature_2\n" + "\n".join(lines))
    log, records = open_log(path), read_log(path)
    assert not log.notes
    assert not records.notes
    assert records.vectors is not None
    assert np.asarray(log.items).tolist() == records.vectors.tolist()
    assert CAB(n_features=3).run(Batch(*next(log.blocks(60, 0)))).kept.any()


def test_features_of_any_length_are_scaled_with_a_note_by_compare_and_advise_alike(tmp_path: Path) -> None:
    path = write(tmp_path / "log.csv", "user,payoff,feature1,feature2\na,1,3,4\nb,0,0,1\na,1,1,0\n")
    log, records = open_log(path, draw="uniform"), read_log(path)
    assert sorted(np.asarray(log.items).tolist()) == [[0.0, 0.2], [0.2, 0.0], [0.6, 0.8]]
    for notes in (log.notes, records.notes):
        assert len(notes) == 1
        assert "divided by 5, the largest norm" in notes[0]


def test_any_arrow_table_is_a_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COTERIE_CACHE", str(tmp_path / "cache"))
    table = pa.table({"user": ["u", "v", "u"], "item": ["a", "b", "c"], "payoff": [1.0, 0.0, 1.0]})
    log = open_log(table)
    again = make_world(log.parameters())
    assert [v.contexts for v in log.rounds(3, 1)] == [v.contexts for v in again.rounds(3, 1)]
    assert log.items == ["a", "b", "c"]


def test_the_same_seed_gives_the_same_rounds_and_a_log_is_opened_again(tmp_path: Path) -> None:
    log = open_world(str(make_log(tmp_path)))
    again = make_world(log.parameters())
    ours, theirs, others = (
        [visit.contexts for visit in world.rounds(50, seed)]
        for world, seed in ((log, 1), (again, 1), (log, 2))
    )
    assert ours == theirs
    assert ours != others
    make_log(tmp_path, 100)
    with pytest.raises(FileError, match="has changed since the run was described"):
        make_world(log.parameters())


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        (
            "a.csv",
            "user,item\nann,a\n",
            "has no column 'payoff'; a log has the columns user, item",
        ),
        (
            "a.csv",
            "user,item,payoff\nann,a,1\nbob,b,2\n",
            r"record 2 \(line 3\): .*payoff=2; expected .* in \[-1, 1\]",
        ),
        ("a.csv", "user,item,payoff\nann,,1\n", r"record 1 \(line 2\): user='ann', item=None"),
        (
            "a.csv",
            "user,item,payoff\nann,a,1\nann,b,yes\n",
            r"record 2 \(line 3\): payoff is 'yes', .*: write 1 for yes",
        ),
        ("a.csv", "user,item,payoff\nann,a,nan\n", r"record 1 \(line 2\): .*payoff.*nan.* \[-1, 1\]"),
        ("a.csv", "user,item,payoff\n", "the columns 'user', 'item', 'payoff', but no records"),
        ("a.csv", "User,Item,payoff\nann,a,1\n", "has no column 'user', but 'User'; rename it"),
        ("a.csv", "who,what,paid\nann,a,1\n", "no column 'user'; .*; this one has 'who', 'what', 'paid'"),
        ("a.csv", "user;item;payoff\nann;a;1\n", "line 1: fields are separated by ';', .*separator=';'"),
        ("a.csv", "user\titem\tpayoff\nann\ta\t1\n", "line 1: fields are separated by tabs"),
        (
            "a.csv",
            "user,item,item,payoff\nann,a,b,1\n",
            "line 1: the column 'item' is there 2 times; the columns",
        ),
        ("a.csv", "user,item,payoff\nann,a,1\n", "shows only one item"),
        (
            "a.csv",
            "user,item,payoff\nann,a,1\nbob,b,0,9\n",
            "line 3: 4 fields, but there are 3 columns: 'user', .*quotes",
        ),
        (
            "a.csv",
            "user,item,payoff\nann,a,1\nbob,\udce9,0\n",
            "line 3: byte 0xe9 is not UTF-8; save the file as UTF-8",
        ),
        ("a.csv", "", "cannot be read"),
        ("a.parquet", "PAR1", "cannot be read"),
        ("a.txt", "", "neither .csv nor .parquet"),
    ],
)
def test_a_log_that_cannot_be_read_is_named(name: str, text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(FileError, match=message):
        open_log(write(tmp_path / name, text))


def test_a_payoff_that_is_not_a_number_is_refused(tmp_path: Path) -> None:
    frame = pl.DataFrame({"user": ["ann"], "item": ["a"], "payoff": [math.nan]})
    frame.write_parquet(tmp_path / "log.parquet")
    with pytest.raises(FileError, match=r"record 1: .*payoff=nan; expected all three"):
        open_log(tmp_path / "log.parquet")


def test_a_fraction_late_in_a_long_csv_is_read(tmp_path: Path) -> None:
    """Polars guesses a column's type from the first hundred lines unless told otherwise."""
    lines = [f"u{t},i{t % 2},1" for t in range(500)]
    path = write(tmp_path / "log.csv", "\n".join(["user,item,payoff", *lines, "u0,i0,0.5"]))
    assert open_log(path).records(0, 501).payoffs[-1] == 0.5


def test_a_missing_log_and_a_list_of_one_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="there is no file"):
        open_world(str(tmp_path / "none.csv"))
    with pytest.raises(ParameterError, match="candidates=1; a list needs at least 2"):
        open_log(make_log(tmp_path), candidates=1)


@pytest.mark.parametrize("first", [2**63, 2**64 - 40, 2**64, 2**70, -(2**70)])
def test_ids_of_any_size_are_compared_and_tuned(first: int, tmp_path: Path) -> None:
    records = [(first + t % 7, first + 5 * t % 11, t % 2) for t in range(400)]
    rows = "".join(f"{user},{item},{payoff}\n" for user, item, payoff in records)
    log = open_log(write(tmp_path / "log.csv", "user,item,payoff\n" + rows))
    assert (log.n_users, set(log.items)) == (7, {first + k for k in range(11)})
    specs = parse_specs("cab,linucb-multiple,club,random")
    found = compare(Plan("big", log, specs, 400, 1, 0, tmp_path / "out"), workers=1)
    trace = read_trace(found.plan.tasks(specs[0])[0][1])
    assert set(trace["user"]) <= {str(first + k) for k in range(7)}
    protocol = Protocol(
        "big", log, parse_specs("random,linucb-multiple:alpha=0.1"), tmp_path / "two", n_runs=1
    )
    assert run_protocol(protocol, workers=1).results


def test_users_of_a_batch_may_be_unsigned_and_large() -> None:
    users = np.array([2**63, 2**64 - 1, 2**63], dtype=np.uint64)
    policy = CAB(one_hot=True)
    policy.run(Batch(users, np.zeros((3, 1), dtype=np.int64), ["a"], np.ones((3, 1))))
    assert set(policy.users) == {2**63, 2**64 - 1}
    near = np.array([2**63 + 5, 2**63, 2**63 + 5], dtype=np.uint64)
    found, where = distinct(near)
    assert (found.tolist(), where.tolist()) == ([2**63, 2**63 + 5], [1, 0, 1])
    small, where = distinct(np.array([-128, 127], dtype=np.int8))
    assert (small.tolist(), where.tolist()) == ([-128, 127], [0, 1])
