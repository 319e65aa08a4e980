"""The contest: results of several folders in one table and one picture."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coterie.errors import FileError, ParameterError
from coterie.experiments.report.contest_figure import save_contest
from coterie.experiments.study.contest import (
    BEGIN,
    END,
    ContestLine,
    ContestScore,
    columns,
    put_into,
    read_contest,
    table,
)
from coterie.experiments.study.contest_verdict import (
    ahead,
    first_page,
    is_clearly_behind,
    judge,
    where_not,
    words,
)
from coterie.experiments.study.contest_verdict import table as overall_table
from tests.cli.test_cli_reproduce import call

Entry = tuple[str, str, str | None, float]  # spec, title, items, mean
OURS: Entry = ("hierarchical", "Hierarchical", "both", 0.65)
BLIND: Entry = ("random", "RAN", "features", 1.0)


def write(
    folder: Path,
    entries: list[Entry],
    *,
    dataset: str = "lastfm",
    title: str = "LastFM",
    measure: str = "regret",
    rounds: int = 50_000,
    seeds: int = 5,
    **settings: str,
) -> Path:
    """Write a numbers.json with as much as the contest reads."""
    policies: list[dict[str, Any]] = []
    for spec, name, items, mean in entries:
        value = {"mean": mean, "spread": 0.0041 if seeds > 1 else None}
        own = {"ctr": value, "regret_to_random": None} if measure == "ctr" else {"regret_to_random": value}
        policies.append({"policy": spec, "title": name, **({"items": items} if items else {}), **own})
    comparison = {
        "world_parameters": {"kind": "part", "of": {"kind": dataset, **settings}},
        "n_rounds": rounds * 4 // 5,
        "seeds": list(range(seeds)),
        "measure": measure,
        "policies": policies,
    }
    told = {"dataset": dataset, "statistics": {"dataset": title, "rounds": rounds}, "comparison": comparison}
    folder.mkdir()
    (folder / "numbers.json").write_text(json.dumps(told))
    return folder


def test_folders_of_one_dataset_become_one_line_and_the_best_is_bold(tmp_path: Path) -> None:
    """Results from before the view was written down are of features; the later folder's CLUB counts."""
    old = write(
        tmp_path / "old", [("club:alpha=0.1", "CLUB (alpha=0.1)", None, 0.7), ("random", "RAN", None, 1.0)]
    )
    new = write(tmp_path / "new", [("club", "CLUB", "features", 0.757), BLIND], seeds=3)
    [line] = read_contest([old, new])
    assert {name: score.mean for name, score in line.scores.items()} == {"club": 0.757, "random": 1.0}
    assert (line.n_rounds, line.n_runs) == (40_000, 5)
    assert table([line]) == (
        "| data | measure | rounds | runs | CLUB | RAN |\n"
        "| --- | --- | --- | --- | --- | --- |\n"
        "| LastFM | regret over RAN's ↓ | 40,000 | 5 | **0.757 ± 0.004** (3 runs) | 1.000 ± 0.004 (3 runs) |\n"
    )


def test_one_run_has_no_spread(tmp_path: Path) -> None:
    text = table(read_contest([write(tmp_path / "one", [OURS, BLIND], seeds=1)]))
    assert "| **0.650** | 1.000 |" in text


def test_ours_comes_first_vw_next_and_ran_last(tmp_path: Path) -> None:
    vw: Entry = ("vw:setting=squarecb", "VW (best of 5: squarecb)", "both", 0.827)
    cab: Entry = ("cab:alpha=0.01", "CAB (alpha=0.01)", "features", 0.831)
    lines = read_contest([write(tmp_path / "one", [BLIND, cab, vw, OURS])])
    assert columns(lines) == ["hierarchical", "vw", "cab", "random"]
    assert "| **0.650 ± 0.004** | 0.827 ± 0.004 (squarecb) | 0.831 ± 0.004 | 1.000 ± 0.004 |" in table(lines)


def test_who_was_shown_features_alone_has_a_line_of_its_own(tmp_path: Path) -> None:
    """In the second line a policy that takes features or ids counts with the better of the two."""
    plain: Entry = ("hierarchical:items=features", "Hierarchical (items=features)", "features", 0.718)
    single: list[Entry] = [
        ("linucb-single", "LinUCB-SINGLE", "features", 0.9),
        ("linucb-single:items=ids", "LinUCB-SINGLE (items=ids)", "ids", 0.8),
    ]
    first, second = read_contest([write(tmp_path / "one", [OURS, plain, *single, BLIND])])
    assert (first.title, second.title) == ("LastFM, features only", "LastFM, features and ids")
    assert first.scores["hierarchical"].mean == 0.718
    assert first.scores["linucb-single"].mean == 0.9
    assert second.scores["hierarchical"].mean == 0.65
    assert second.scores["linucb-single"].mean == 0.8
    assert "0.800 ± 0.004 (ids)" in table([second])


def test_who_was_also_told_of_friendships_has_one_more_line(tmp_path: Path) -> None:
    """There it is beside GOBLin, which needs them, and RAN; neither is in a line of those that are not told."""
    plain: Entry = ("hierarchical:items=features", "Hierarchical (items=features)", "features", 0.72)
    goblin: Entry = ("gob-lin:graph=friends", "GOBLin (graph=friends)", "features", 0.7)
    club: Entry = ("club", "CLUB", "features", 0.76)
    told: Entry = (
        "hierarchical:items=features:friends=friends",
        "Hierarchical (items=features, friends=friends)",
        "features",
        0.67,
    )
    one = write(tmp_path / "one", [OURS, plain, goblin, club, BLIND])
    two = write(tmp_path / "two", [told, BLIND], seeds=2)
    first, second, third = read_contest([one, two])
    assert [line.scores["hierarchical"].mean for line in (first, second, third)] == [0.72, 0.65, 0.67]
    assert ["gob-lin" in line.scores for line in (first, second, third)] == [False, False, True]
    assert third.title == "LastFM, features and friends"
    assert "| **0.670 ± 0.004** (friends, 2 runs) | 0.700 ± 0.004 (friends) |" in table([third])
    assert first.scores.keys() == {"hierarchical", "club", "random"}
    assert third.scores.keys() == {"hierarchical", "gob-lin", "random"}
    text = table([first, third])
    assert "(1) it is given friendships, so it plays in the line with friends" in text
    assert "(2) it takes no friendships" in text


def test_a_log_is_judged_by_its_click_through_rate_and_a_short_one_is_another_line(tmp_path: Path) -> None:
    log = {"dataset": "tuenti", "title": "Tuenti (generated twin)", "measure": "ctr"}
    club: Entry = ("club:alpha=0.1", "CLUB (alpha=0.1)", None, 0.08)
    entries: list[Entry] = [("cab", "CAB", None, 0.1), club, ("random", "RAN", None, 0.05)]
    short = write(tmp_path / "short", entries, rounds=300_000, **log)  # type: ignore[arg-type]
    long = write(tmp_path / "long", entries, rounds=15_000_000, **log)  # type: ignore[arg-type]
    music = write(tmp_path / "music", [OURS, BLIND])
    lines = read_contest([short, long, music])
    assert [line.title for line in lines] == [
        "LastFM",
        "Tuenti (generated twin)",
        "Tuenti (generated twin), first 300,000 records",
    ]
    assert [line.best() for line in lines] == ["hierarchical", "cab", "cab"]
    assert lines[1].lost("cab") == pytest.approx(0.5)  # as good as twice RAN
    assert lines[0].lost("hierarchical") == 0.65
    text = table(lines)
    assert "| click-through rate ↑ | 12,000,000 | 5 | – (1) | **0.1000 ± 0.0041** | 0.0800 ± 0.0041 |" in text


def test_a_cell_without_a_result_says_why(tmp_path: Path) -> None:
    """Equal reasons share a note; without a reason in the file, the note says that it was not played."""
    club: Entry = ("club", "CLUB", "features", 0.7)
    one = write(tmp_path / "one", [OURS, club, BLIND])
    two = write(tmp_path / "two", [OURS, BLIND], dataset="dense", title="dense")
    three = write(tmp_path / "three", [OURS, BLIND], dataset="lonely", title="lonely")
    for folder in (two, three):
        told = json.loads((folder / "numbers.json").read_text())
        (folder / "numbers.json").write_text(json.dumps({**told, "not_played": {"club": "CLUB takes hours"}}))
    four = write(tmp_path / "four", [OURS, BLIND], dataset="wine", title="Wines")
    text = table(read_contest([one, two, three, four]))
    assert text.count("| – (1) |") == 1
    assert text.count("| – (2) |") == 2
    assert text.endswith(
        "\n\n(1) Not played in the runs that this line is made of.  \n(2) CLUB takes hours  \n"
    )


def test_who_is_too_slow_for_a_twin_has_a_reason(tmp_path: Path) -> None:
    cab: Entry = ("cab", "CAB", None, 0.1)
    twin = write(tmp_path / "one", [cab, ("random", "RAN", None, 0.05)], dataset="tuenti", measure="ctr")
    other = write(tmp_path / "two", [cab, ("vw", "VW (best of 5: fast)", "both", 0.83), BLIND])
    text = table(read_contest([twin, other]))
    assert "(1) its five settings take 25 minutes for 300,000 records, and hours for all" in text


def test_another_reading_of_a_dataset_is_another_line(tmp_path: Path) -> None:
    plain = write(tmp_path / "plain", [OURS, BLIND], pool="growing")
    other = write(tmp_path / "other", [OURS, BLIND], pool="all")
    short = write(tmp_path / "short", [OURS, BLIND], pool="all", rounds=3_000)
    assert [line.title for line in read_contest([plain, short, other])] == [
        "LastFM",
        "LastFM, pool=all",
        "LastFM, pool=all, first 3,000 rounds",
    ]


def test_the_picture_shows_the_lines_we_took_part_in(tmp_path: Path) -> None:
    rivals: list[Entry] = [("vw", "VW (best of 5: fast)", "both", 0.83), ("club", "CLUB", "features", 0.76)]
    lines = read_contest([
        write(tmp_path / "one", [OURS, *rivals, BLIND]),
        write(tmp_path / "two", [rivals[1], BLIND], dataset="dense", title="dense (built-in world)"),
    ])  # fmt: skip
    svg, png = save_contest(lines, tmp_path / "picture" / "contest")
    drawn = svg.read_text()
    for text in ("Hierarchical", "LastFM", "CLUB", "VW"):
        assert text in drawn
    assert "dense" not in drawn
    assert png.read_bytes().startswith(b"\x89PNG")
    again, _ = save_contest(lines, tmp_path / "again")
    assert again.read_text() == drawn
    without, _ = save_contest(lines[1:], tmp_path / "without")
    assert "dense" in without.read_text()
    far: Entry = ("cab", "CAB", "features", 2.5)
    lines = read_contest([write(tmp_path / "far", [OURS, rivals[1], far, BLIND])])
    assert "Triangle: more than 1.25." in save_contest(lines, tmp_path / "far")[0].read_text()
    assert "Triangle" not in drawn


def test_what_cannot_be_read_or_drawn_is_named(tmp_path: Path) -> None:
    with pytest.raises(ParameterError, match="no folder is named"):
        read_contest([])
    with pytest.raises(FileError, match=r"there is no .*nothing/numbers.json; give folders that"):
        read_contest([tmp_path / "nothing"])
    folder = write(tmp_path / "bad", [])
    assert save_contest(read_contest([folder]), tmp_path / "picture") == []
    (folder / "numbers.json").write_text("{}")
    with pytest.raises(FileError, match=r"numbers.json is damaged \(KeyError"):
        read_contest([folder])
    page = tmp_path / "page.md"
    with pytest.raises(FileError, match="cannot be read"):
        put_into(page, "x")
    page.write_text("no marks")
    with pytest.raises(FileError, match="has no marks for the table; write <!-- contest -->"):
        put_into(page, "x")
    assert page.read_text() == "no marks"


def test_the_command_writes_table_and_picture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write(tmp_path / "one", [OURS, BLIND])
    page = tmp_path / "page.md"
    page.write_text(f"# Results\n\n{BEGIN}\nold\n{END}\n\nmore\n")
    words = ["contest", str(folder), "--out", str(tmp_path / "out"), "--into", str(page)]
    assert call(monkeypatch, *words) == 0
    text = (tmp_path / "out" / "contest.md").read_text()
    shown = capsys.readouterr().out
    assert shown.splitlines()[1].split() == ["LastFM", "40,000", "Hierarchical", "0.650", "RAN", "1.000"]
    assert all(len(line) <= 120 for line in shown.splitlines())
    assert "\nRegret over RAN's, lower is better; " in shown
    assert page.read_text() == f"# Results\n\n{BEGIN}\n{text}{END}\n\nmore\n"
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "contest.json",
        "contest.md",
        "contest.svg",
        "contest.png",
    }


def play(monkeypatch: pytest.MonkeyPatch, folder: Path, *more: str) -> int:
    """Play three small games: one without data, one with a file that differs from the published one."""
    (folder / "bayesm").mkdir(exist_ok=True)
    (folder / "bayesm" / "margarine.rda").write_bytes(b"not the published file")
    who = "hierarchical,linucb-single,gob-lin:graph=friends,random"
    words = [
        "contest",
        "wine",
        "camera",
        "margarine",
        "--policies",
        who,
        "--runs",
        "2",
        "--rounds",
        "100",
        "--workers",
        "1",
    ]
    return call(monkeypatch, *words, "--data", str(folder), "--out", str(folder / "out"), *more)


def test_games_are_played_once_and_a_game_without_data_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert play(monkeypatch, tmp_path) == 0
    told = " ".join(capsys.readouterr().err.split())
    assert "camera was not played: there is no camera.RData" in told
    assert f"`coterie data get camera --data {tmp_path}` gets it" in told
    assert "margarine was not played: " in told
    assert "other content than the published file, by its sha256" in told
    assert f"`coterie data get margarine --data {tmp_path}` fetches it again" in told
    text = (tmp_path / "out" / "contest.md").read_text()
    assert "| Wines | regret over RAN's ↓ | 80 | 2 |" in text
    numbers = json.loads((tmp_path / "out" / "wine" / "numbers.json").read_text())
    assert "these data have no friendships" in numbers["not_played"]["gob-lin"]
    played = {path: path.stat().st_mtime_ns for path in (tmp_path / "out" / "wine" / "traces").iterdir()}
    assert len(played) >= 6
    assert play(monkeypatch, tmp_path, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["folders"] == ["wine"]
    again = {path: path.stat().st_mtime_ns for path in (tmp_path / "out" / "wine" / "traces").iterdir()}
    assert again == played


def test_a_misspelled_game_is_named_before_anything_is_played(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(monkeypatch, "contest", "wine", "camra", "--out", str(tmp_path / "out")) == 2
    told = " ".join(capsys.readouterr().err.split())
    assert "'camra' is no game and no folder; choose among camera, bank, " in told
    assert not (tmp_path / "out").exists()


def test_if_nothing_can_be_played_that_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(monkeypatch, "contest", "camera", "bank", "--data", str(tmp_path)) != 0
    told = " ".join(capsys.readouterr().err.split())
    assert "bank was not played: there is no bank.rda" in told
    assert "no game could be played" in told


def line(title: str, is_log: bool = False, **runs: list[float]) -> ContestLine:
    """Return a line with the results of each run."""
    scores = {
        name: ContestScore(
            name.upper(), float(np.mean(own)), float(np.std(own, ddof=1)), "features", "", tuple(own)
        )
        for name, own in runs.items()
    }
    return ContestLine(title, is_log, 1000, len(next(iter(runs.values()))), scores)


def games(n: int = 12) -> list[ContestLine]:
    """Hierarchical is first in all games but two, CLUB second and RAN last; VW plays only one."""
    found = []
    for k in range(n):
        ours, club = (
            ([0.5, 0.51, 0.49], [0.6, 0.62, 0.61]) if k > 1 else ([0.6, 0.62, 0.61], [0.5, 0.51, 0.49])
        )
        extra: dict[str, Any] = {"vw": [0.55, 0.55, 0.56]} if not k else {}
        found.append(
            line(f"game {k}", hierarchical=ours, club=club, cab=[0.8, 0.81, 0.8], random=[1.0] * 3, **extra)
        )
    return found


def test_mean_ranks_and_the_critical_difference_by_hand() -> None:
    """Ranks 1 (ten times) and 2 (twice): 14/12. q of four policies is 2.569: 2.569·√(4·5/(6·12)) = 1.354."""
    found = judge(games())
    assert found is not None
    assert [one.name for one in found.ranked] == ["hierarchical", "club", "cab", "random"]
    assert [one.rank for one in found.ranked] == pytest.approx([14 / 12, 22 / 12, 3, 4])
    assert found.critical == pytest.approx(2.569 * math.sqrt(20 / 72), abs=0.002)
    assert found.chance < 0.001
    assert [one.name for one in found.behind] == ["cab", "random"]
    assert "| VW | – | 0 of 1 | 1, 0 | 3% to 100% |" in overall_table(found)
    assert words(found).endswith("Not ranked, because they played less than three quarters of the games: VW.")
    club = found.standings[1]
    assert (club.wins, club.losses, club.near) == (2, 10, 2)
    assert club.share == pytest.approx((0.021, 0.484), abs=0.001)  # Clopper and Pearson's interval of 2 in 12
    assert "clearly behind are CAB (3.00), RANDOM (4.00); not clearly CLUB (1.83)." in words(found)
    assert "| CLUB | 1.83 | 2 of 12 | 2, 10 | 2% to 48% |" in overall_table(found)


def test_ranks_are_of_the_games_that_all_ranked_policies_played() -> None:
    """DCCB misses three of twelve games, so nine are ranked; with four missing it has no rank, and twelve are."""
    for missing, n_ranked in ((3, 9), (4, 12)):
        lines = games()
        for k, one in enumerate(lines):
            if k >= missing:
                one.scores["dccb"] = one.scores["cab"]._replace(title="DCCB")
        found = judge(lines)
        assert found is not None
        assert (found.n_lines, found.n_ranked) == (12, n_ranked)
        assert ("dccb" in {one.name for one in found.ranked}) == (missing == 3)
        assert "is best or not clearly behind in 10 of 12 games." in words(found)
        assert f"over the {n_ranked} games that all of them played" in words(found)


def test_a_line_for_two_says_nothing_of_how_many_games_the_others_played() -> None:
    """DCCB played nine of twelve games, just enough; four more for Hierarchical and one rival change nothing."""
    lines = games()
    for one in lines[3:]:
        one.scores["dccb"] = one.scores["cab"]
    lines += [
        line(f"friends {k}", hierarchical=[0.5, 0.5], gob=[0.6, 0.7], random=[1.0, 1.0]) for k in range(4)
    ]
    found = judge(lines)
    assert found is not None
    assert (found.n_lines, found.n_ranked) == (16, 9)
    assert "dccb" in {one.name for one in found.ranked}


def test_who_is_clearly_behind_by_hand() -> None:
    """Behind by 0.1, 0.11 and 0.12 in the same runs: 0.11 ± 4.3·0.0058. By 0, 0.1 and 0.2: 0.1 ± 4.3·0.058."""
    best, even, wide = [0.5, 0.5, 0.5], [0.6, 0.61, 0.62], [0.5, 0.6, 0.7]
    found = line("one", hierarchical=best, club=even, cab=wide)
    assert [is_clearly_behind(found, name) for name in found.scores] == [False, True, False]
    log = line("log", is_log=True, hierarchical=[0.2, 0.21], club=[0.1, 0.11])
    assert is_clearly_behind(log, "club")
    assert not is_clearly_behind(log, "hierarchical")
    # Runs of a log share its records: with a sampling error of 0.05, 0.1 ± 4.3·√2·0.05 says nothing.
    for name, score in log.scores.items():
        log.scores[name] = score._replace(error=0.05)
    assert not is_clearly_behind(log, "club")


def test_equal_policies_are_seldom_told_apart() -> None:
    """Of 200 contests of equal policies over 12 games, at most 20 (3.2 errors more than 10) name a difference."""
    rng = np.random.default_rng(0)
    named = 0
    for _ in range(200):
        found = judge(
            [line(str(k), **{name: rng.normal(size=3).tolist() for name in ("hierarchical", "club", "cab", "random")})
             for k in range(12)]
        )  # fmt: skip
        assert found is not None
        named += bool(found.behind)
    assert named <= 20


def test_the_sentences_of_the_first_page_have_the_numbers_of_the_lines() -> None:
    assert first_page(games()) == (
        "`Hierarchical` is best in 10, level with the best in 0, and clearly behind in 2 of 12 games."
    )
    level = line("level", hierarchical=[0.5, 0.6, 0.7], club=[0.5, 0.5, 0.5], random=[1.0] * 3)
    assert "best in 10, level with the best in 1, and clearly behind in 2 of 13" in first_page(
        [*games(), level]
    )
    near = line("near", hierarchical=[0.5, 0.5004], club=[0.5004, 0.4996])
    assert where_not([*games(), near]) == (
        "Other policies are clearly better in some games: CLUB on game 0 and game 1."
    )
    assert where_not([near, level]) == "No other policy is clearly better in any game."
    assert ahead([*games()[:1], near, level]) == (
        "\n- game 0: CLUB (0.500 against 0.610), clearly"
        "\n- near: CLUB (0.5000 against 0.5002), not clearly"
        "\n- level: CLUB (0.500 against 0.600), not clearly\n"
    )
    assert ahead(games()[3:]) == "\n- none\n"
    assert judge(games()[:1]) is None


def test_what_is_kept_of_the_contest_is_what_the_folders_say() -> None:
    results = Path(__file__).parents[2] / "results"
    kept = json.loads((results / "contest.json").read_text(encoding="utf-8"))
    lines = read_contest([results / name for name in kept["folders"]])
    assert kept["first_page"] == first_page(lines)
    assert (kept["where_not"], kept["ahead"]) == (where_not(lines), ahead(lines))
    found = judge(lines)
    assert found is not None
    assert kept["words"] == words(found)
    assert words(found) in (results / "README.md").read_text(encoding="utf-8")
