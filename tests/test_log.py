"""Logs of one's own: how records become rounds, and what is said about files that cannot be read."""

import math
from collections import Counter
from pathlib import Path

import polars as pl
import pytest

from coterie import Random
from coterie.data.log import Log
from coterie.errors import FileError, ParameterError
from coterie.experiments import open_world, play
from coterie.experiments.worlds import make_world


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_records_become_rounds_by_hand(tmp_path: Path) -> None:
    """Two items have come up after the second record, so with two candidates the third is the first round."""
    path = write(tmp_path / "log.csv", "user,item,payoff\nann,a,1\nbob,b,0\nann,a,0.5\neve,c,1\n")
    log = Log(path, candidates=2)
    assert log.n_rounds == 2
    assert log.n_users == 3
    first, second = log.rounds(10, seed=0)
    assert first.user == "ann"
    assert sorted(first.contexts) == ["a", "b"]
    assert first.payoffs[first.contexts.index("a")] == 0.5
    assert math.isnan(first.payoffs[first.contexts.index("b")])
    assert "c" in second.contexts
    assert second.payoffs[second.contexts.index("c")] == 1.0


def make_log(folder: Path, n: int = 3_000) -> Path:
    """Item a is shown half of the time, b, c, d and e share the rest; payoff 1 for a."""
    items = [("a", "b", "a", "c", "a", "d", "a", "e")[t % 8] for t in range(n)]
    frame = pl.DataFrame({"user": [t % 3 for t in range(n)], "item": items})
    frame = frame.with_columns((pl.col("item") == "a").cast(pl.Int8).alias("payoff"))
    frame.write_parquet(folder / "log.parquet")
    return folder / "log.parquet"


def test_a_blind_choice_is_kept_once_in_as_many_times_as_there_are_candidates(tmp_path: Path) -> None:
    log = Log(make_log(tmp_path), candidates=3)
    rows = list(play(Random(one_hot=True, seed=1), log.rounds(3_000, seed=2)))
    kept = [row for row in rows if not math.isnan(row.payoff)]
    assert len(kept) / len(rows) == pytest.approx(1 / 3, abs=0.03)
    assert sum(row.updated for row in rows) == 0  # RAN learns nothing
    assert Counter(row.choice for row in kept).keys() == {0, 1, 2}


def test_candidates_are_different_items_that_came_up_before(tmp_path: Path) -> None:
    log = Log(make_log(tmp_path, 200), candidates=4)
    seen = set(log.items[: log.n_rounds and len(log.items) - log.n_rounds])
    for visit, item in zip(log.rounds(500, seed=0), log.items[-log.n_rounds :], strict=True):
        assert len(set(visit.contexts)) == 4
        assert set(visit.contexts) <= seen | {item}
        seen.add(item)


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
            "has no column 'payoff'; a log has the columns user, item and payoff",
        ),
        ("a.csv", "user,item,payoff\nann,a,1\nbob,b,2\n", "record 2: .*payoff=2; expected .* in \\[-1, 1\\]"),
        ("a.csv", "user,item,payoff\nann,,1\n", "record 1: user='ann', item=None"),
        ("a.csv", "user,item,payoff\nann,a,yes\n", "column 'payoff' holds String, expected numbers"),
        ("a.csv", "user,item,payoff\nann,a,1\n", "shows only one item"),
        ("a.csv", "", "cannot be read"),
        ("a.parquet", "PAR1", "cannot be read"),
        ("a.txt", "", "neither .csv nor .parquet"),
    ],
)
def test_a_log_that_cannot_be_read_is_named(name: str, text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(FileError, match=message):
        Log(write(tmp_path / name, text))


def test_a_log_that_ends_before_its_first_round_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="too short: its 2 records only fill the first list"):
        Log(write(tmp_path / "log.csv", "user,item,payoff\nann,a,1\nbob,b,0\n"))


def test_a_payoff_that_is_not_a_number_is_refused(tmp_path: Path) -> None:
    frame = pl.DataFrame({"user": ["ann"], "item": ["a"], "payoff": [math.nan]})
    frame.write_parquet(tmp_path / "log.parquet")
    with pytest.raises(FileError, match=r"record 1: .*payoff=nan; expected all three"):
        Log(tmp_path / "log.parquet")


def test_a_fraction_late_in_a_long_csv_is_read(tmp_path: Path) -> None:
    """Polars guesses a column's type from the first hundred lines unless told otherwise."""
    lines = [f"u{t},i{t % 2},1" for t in range(500)]
    path = write(tmp_path / "log.csv", "\n".join(["user,item,payoff", *lines, "u0,i0,0.5"]))
    assert Log(path).payoffs[-1] == 0.5


def test_a_missing_log_and_a_list_of_one_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="there is no file"):
        open_world(str(tmp_path / "none.csv"))
    with pytest.raises(ParameterError, match="candidates=1; a list needs at least 2"):
        Log(make_log(tmp_path), candidates=1)
