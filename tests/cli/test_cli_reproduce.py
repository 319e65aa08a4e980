"""`coterie reproduce` and `coterie data` as a stranger meets them."""

import json
import re
import sys
from pathlib import Path

import polars as pl
import pytest

from coterie.cli import main
from tests.miniature import write_lastfm

LASTFM = [
    "--unverified",
    "--settings",
    "components=4",
    "--settings",
    "n_rounds=200",
    "--settings",
    "n_candidates=5",
]
SMALL = ["--quick", "--runs", "2", "--workers", "1", "--policies", "cab:alpha=0.1,linucb-single,random"]


def call(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["coterie", *words])
    monkeypatch.setenv("COLUMNS", "160")
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COTERIE_DATA", str(tmp_path / "nowhere"))
    monkeypatch.setenv("COTERIE_CACHE", str(tmp_path / "cache"))


def test_reproduce_prints_a_table_and_writes_everything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_lastfm(tmp_path / "data")
    out = tmp_path / "out"
    words = ["reproduce", "lastfm", "--data", str(tmp_path / "data"), "--out", str(out), *LASTFM, *SMALL]
    assert call(monkeypatch, *words) == 0
    text = capsys.readouterr().out
    for part in (
        "LastFM: 160 rounds reported, 2 runs",
        "CAB (alpha=0.1)",
        "RAN",
        "quick version",
        "report.html",
    ):
        assert part in text
    found = sorted(path.name for path in (out / "lastfm-quick").iterdir() if path.is_file())
    assert found == sorted(
        ["curves.parquet", "numbers.json", "report.html", "runs.parquet", "tuning.parquet"]
        + [f"figure-{k}.{kind}" for k in (2, 3) for kind in ("pdf", "png", "svg")]
    )
    assert call(monkeypatch, *words, "--json") == 0  # nothing is played again
    assert json.loads(capsys.readouterr().out)["tuned"]["random"] == "random"


def test_a_log_of_ones_own_goes_through_the_same_protocol(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    n = 600
    frame = pl.DataFrame(
        {"user": [f"u{t % 7}" for t in range(n)], "item": [f"i{t * t % 11}" for t in range(n)]}
    )
    frame = frame.with_columns((pl.col("item").str.len_chars() == 2).cast(pl.Int8).alias("payoff"))
    frame.write_parquet(tmp_path / "mine.parquet")
    words = [str(tmp_path / "mine.parquet"), "--out", str(tmp_path / "out"), *SMALL]
    (tmp_path / "settings.toml").write_text("candidates = 3\n")
    assert call(monkeypatch, "tune", *words, "--settings", str(tmp_path / "settings.toml")) == 0
    told = capsys.readouterr()
    assert "warning" not in told.err
    first = " ".join(told.out.split("No clear winner")[0].split())
    assert first.startswith("Best settings in tuning on ")
    assert re.search(r"mine.parquet: cab:alpha=0.1,linucb-single:alpha=[\d.]+,random$", first)
    assert "of the 600 rounds" not in told.out
    assert "of the 21 values of α in" in " ".join(told.out.split())
    assert "clusters" not in told.out  # no policy here has that parameter
    assert (tmp_path / "out" / "mine-quick" / "figure-1.svg").exists()
    assert call(monkeypatch, "reproduce", *words) == 2
    assert "mine.parquet is a log of your own; use `coterie tune " in " ".join(
        capsys.readouterr().err.split()
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["reproduce", "spotify"], "unknown dataset 'spotify'; choose among lastfm, delicious"),
        (["reproduce", "lastfm"], "nowhere does not exist"),
        (["reproduce", "kddcup"], "nowhere does not exist"),
        (["reproduce", "tuenti", "--settings", "colour"], "setting 'colour' is not name=value"),
        (["reproduce", "tuenti", "--settings", "colour=red"], "no such setting"),
        (["reproduce", "lastfm", "--settings", "pool=[1]"], "dataset 'lastfm'"),
        (["reproduce", "tuenti", "--policies", "psychic"], "unknown policy 'psychic'"),
        (["tune", "lastfm"], "is not a .csv or .parquet file; for a dataset, `coterie reproduce lastfm`"),
        (["data", "check"], "nowhere does not exist"),
        (["data", "get", "avazu"], "needs a Kaggle account"),
        (["data", "get", "spotify"], "unknown dataset 'spotify'"),
    ],
)
def test_mistakes_are_told_in_one_line(
    words: list[str], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(monkeypatch, *words) == 2
    errors = capsys.readouterr().err
    assert said in errors
    assert "Traceback" not in errors


def test_files_that_differ_are_read_if_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without the check, the file is read, and that it is no file of R is found then."""
    (tmp_path / "bayesm").mkdir()
    (tmp_path / "bayesm" / "bank.rda").write_bytes(b"other")
    words = ["reproduce", "bank", "--data", str(tmp_path)]
    assert call(monkeypatch, *words) == 2
    assert "bank.rda: other content than the published file" in capsys.readouterr().err
    assert call(monkeypatch, *words, "--unverified") == 2
    assert "bank.rda is not an R data file that can be read" in " ".join(capsys.readouterr().err.split())


def test_data_check_lists_files_and_fails_on_a_wrong_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_lastfm(tmp_path / "data")
    assert call(monkeypatch, "data", "check", "lastfm", "--data", str(tmp_path / "data")) == 1
    text = capsys.readouterr().out
    assert "differs" in text
    assert "it was cut short" in text
    assert call(monkeypatch, "data", "check", "lastfm", "--data", str(tmp_path / "data"), "--json") == 1
    assert "differs" in {line["state"] for line in json.loads(capsys.readouterr().out)}
    assert call(monkeypatch, "data", "check", "kddcup", "--data", str(tmp_path / "data")) == 0
    assert "missing" in capsys.readouterr().out
