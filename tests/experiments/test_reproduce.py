"""The paper's protocol: batches, tuning, the reported part, figures, numbers and report."""

import json
import math
import pickle
from pathlib import Path
from typing import Any, cast

import numpy as np
import polars as pl
import pytest

from coterie.data import WORLDS
from coterie.data.datasets import open_dataset
from coterie.data.published import dealt
from coterie.data.published.lastfm import lastfm
from coterie.data.published.twins import twin
from coterie.data.worlds.world_as_dataset import Rest, Stage
from coterie.errors import FileError, ParameterError
from coterie.experiments import parse_spec, parse_specs, read_trace, record
from coterie.experiments.report.reproduction import page, warnings
from coterie.experiments.run.play import Row, play_batches
from coterie.experiments.run.runs import Run
from coterie.experiments.run.worlds import make_world
from coterie.experiments.study.distances import user_distances
from coterie.experiments.study.protocol import Protocol, run_protocol
from coterie.experiments.study.reproduce import Reproduced, reproduce
from coterie.experiments.study.tuning import Grid, paper_grid, read_score, score, settings
from coterie.policies import GOBLin
from tests.miniature import real_data, write_lastfm

TWIN: dict[str, Any] = {"n_users": 12, "n_items": 8, "n_candidates": 3, "n_records": 900}
MUSIC: dict[str, Any] = {"verify": False, "components": 4, "n_candidates": 5, "n_rounds": 300}


@pytest.fixture
def music(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    write_lastfm(tmp_path / "data")
    monkeypatch.setenv("COTERIE_DATA", str(tmp_path / "data"))
    return open_dataset("lastfm", **MUSIC)


@pytest.mark.parametrize("policy", ["cab:alpha=0.2:gamma=1.5", "linucb-multiple", "random"])
@pytest.mark.parametrize("kind", ["music", "twin", "world"])
def test_batches_play_what_the_plain_loop_plays(policy: str, kind: str, music: Any) -> None:
    """The plain loop chooses and learns round by round, and knows only what a round says."""
    places: dict[str, Any] = {"music": music, "twin": twin("tuenti", **TWIN), "world": WORLDS["clicks"]()}
    run = Run.of(parse_spec(policy), places[kind], 3, 300)
    parts = list(play_batches(run.make_policy(), run.blocks(0), 0, 100))
    assert parts[-1][0] == 300
    rows = [Row(*values) for _, table in parts for values in zip(*table.to_pydict().values(), strict=True)]
    slow, here = run.make_policy(), iter(rows)
    for t, visit in enumerate(run.rounds()):
        decision = slow.decide(visit.user, visit.contexts)
        k = slow.draw(decision)
        payoff = float(visit.payoffs[k])
        if math.isnan(payoff):
            continue
        row = next(here)
        assert (row.round, row.user, row.choice, row.payoff) == (t, str(visit.user), k, payoff)
        assert row.item == (None if kind == "music" else str(visit.contexts[k]))
        assert (row.neighbours, row.updated) == (
            int(decision.members[k]),
            slow.learn(visit.user, visit.contexts[k], payoff),
        )
        assert row.expected == float(visit.expected[k])
        assert math.isnan(row.best) if kind == "twin" else row.best == float(visit.expected.max())
    assert next(here, None) is None


def test_recorded_part_goes_on_where_it_was_interrupted(
    music: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dealt, "STEP", 20)  # so that there are several commits, at 60, 120, 180 and 240
    run = Run.of(parse_spec("cab:alpha=0.1"), Rest(music, 60), 1, 240)
    record(run, tmp_path / "whole.parquet", every=50)

    def stop(done: int) -> None:
        if done >= 140:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        record(run, tmp_path / "broken.parquet", every=50, tick=stop)
    heard: list[int] = []
    record(run, tmp_path / "broken.parquet", every=50, tick=heard.append)
    assert heard[0] == 120
    whole, broken = (tmp_path / name for name in ("whole.parquet", "broken.parquet"))
    assert whole.read_bytes() == broken.read_bytes()
    assert read_trace(whole)["round"].to_list() == list(range(240))


def test_part_is_the_rest_and_is_made_again_from_its_parameters(music: Any) -> None:
    part = Rest(music, 60)
    again = make_world(json.loads(json.dumps(part.parameters())))
    whole = list(music.rounds(300, 2))[60:]
    rest = list(again.rounds(240, 2))
    assert part.n_rounds == 240
    assert all(
        a.user == b.user and np.array_equal(a.contexts.features, b.contexts.features)
        for a, b in zip(whole, rest, strict=True)
    )
    log = Rest(twin("tuenti", **TWIN), 100)
    other: Any = make_world(log.parameters())
    ours, theirs = next(log.blocks(50, 1)), next(other.blocks(50, 1))
    assert np.array_equal(ours.candidates, theirs.candidates)


def test_another_folder_is_another_dataset(
    music: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert music.n_users == 12
    write_lastfm(tmp_path / "other", n_users=9)
    monkeypatch.setenv("COTERIE_DATA", str(tmp_path / "other"))
    assert open_dataset("lastfm", **MUSIC).n_users == 9


def test_grid_is_the_papers() -> None:
    grid = paper_grid(1_892)
    assert (len(grid.alpha), grid.alpha[0], grid.alpha[1], grid.alpha[-1]) == (21, 0.0, 0.01, 0.2)
    assert grid.alpha2 == [0.1, 0.2, 0.3, 0.4, 0.5]
    assert (grid.k[:4], grid.k[-2:]) == ([1, 2, 4, 8], [1_024, 1_892])
    assert paper_grid(1).k == [1]


def test_settings_are_those_a_policy_has_and_does_not_fix() -> None:
    grid = Grid([0.0, 0.1], [0.5], [1, 2])
    assert [spec.text for spec in settings(parse_spec("cab"), grid)] == ["cab:alpha=0.0", "cab:alpha=0.1"]
    fixed = settings(parse_spec("cab:alpha=0.3:gamma=0.1"), grid)
    assert [spec.text for spec in fixed] == ["cab:alpha=0.3:gamma=0.1"]
    assert [spec.text for spec in settings(parse_spec("random"), grid)] == ["random"]


def test_score_is_kept_and_not_played_again(music: Any, tmp_path: Path) -> None:
    run = Run.of(parse_spec("cab"), music, 0, 100)
    heard: list[int] = []
    score(run, tmp_path / "a.json", tick=heard.append)
    assert heard[-1] == 100
    heard.clear()
    score(run, tmp_path / "a.json", tick=heard.append)
    assert heard == []
    assert read_score(tmp_path / "a.json", run).n_rounds == 100
    with pytest.raises(FileError, match="is about another run"):
        score(Run.of(parse_spec("cab"), music, 1, 100), tmp_path / "a.json")
    (tmp_path / "a.json").write_text("{")
    with pytest.raises(FileError, match=r"is damaged .* played again"):
        read_score(tmp_path / "a.json", run)


def protocol(data: Any, out: Path, **changes: Any) -> Protocol:
    out.mkdir(parents=True, exist_ok=True)
    specs = parse_specs("cab,linucb-single:alpha=0.1,random")
    return Protocol(data.name, data, specs, out, n_runs=2, quick=True, **changes)


def test_tuning_sees_the_first_fifth_only_and_the_report_the_rest(music: Any, tmp_path: Path) -> None:
    asked = protocol(music, tmp_path / "out")
    found = run_protocol(asked, workers=1)
    assert (asked.n_tuned, asked.n_reported) == (60, 240)
    tried = asked.tried(parse_spec("cab"))
    assert [one.spec.text for one in tried] == [f"cab:alpha={a}" for a in (0.0, 0.02, 0.05, 0.1, 0.2)]
    best = max(one.merit for one in tried)
    assert found.plan.specs[0] == next(one.spec for one in tried if one.merit == best)
    first = read_trace(found.plan.tasks(found.plan.specs[0])[0][1])
    reported = list(music.rounds(300, 0))[60:]
    assert first["user"].to_list() == [str(visit.user) for visit in reported]
    assert first["round"].to_list() == list(range(240))
    for run, path in asked.tuning_tasks(parse_spec("cab"))[0][1]:
        assert run.n_rounds == 60
        assert read_score(path, run).n_rounds == 60


def test_reproduction_of_labelled_data_writes_figures_numbers_and_report(music: Any, tmp_path: Path) -> None:
    out = tmp_path / "out"
    evidence = reproduce(protocol(music, out), workers=1)
    for name in ("figure-2", "figure-3"):
        for kind, start in (("svg", b"<?xml"), ("pdf", b"%PDF"), ("png", b"\x89PNG")):
            assert (out / f"{name}.{kind}").read_bytes().startswith(start)
    told = json.loads((out / "numbers.json").read_text())
    assert told["statistics"]["users"] == 12
    assert told["statistics"]["paper"]["users"] == 1_892
    assert told["comparison"]["policies"][0]["regret_to_random"]["mean"] > 0
    assert str(tmp_path) not in (out / "numbers.json").read_text()
    runs = pl.read_parquet(out / "runs.parquet")
    assert runs.group_by("policy").len()["len"].to_list() == [2, 2, 2]
    curves = pl.read_parquet(out / "curves.parquet")
    random = curves.filter((pl.col("figure") == "figure-2") & (pl.col("policy") == "RAN"))
    assert (random["mean"] - 1).abs().max() == 0
    assert pl.read_parquet(out / "tuning.parquet")["merit"].is_finite().all()
    html = page(evidence, ["coterie", "reproduce", "lastfm", "--quick"])
    for text in (
        "Figure 2",
        "Figure 3",
        "This is the quick version",
        "1,892",
        "RAN",
        "coterie reproduce lastfm",
    ):
        assert text in html
    assert "$" not in html.split("</style>")[1]


def test_reproduction_is_the_same_when_done_again_elsewhere(music: Any, tmp_path: Path) -> None:
    for name in ("one", "two"):
        reproduce(protocol(music, tmp_path / name), workers=1)
    for file in (
        "numbers.json",
        "runs.parquet",
        "curves.parquet",
        "figure-2.svg",
        "figure-2.png",
        "figure-2.pdf",
    ):
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes(), file


def test_reproduction_of_a_twin_says_that_it_is_one(tmp_path: Path) -> None:
    out = tmp_path / "out"
    evidence = reproduce(protocol(twin("tuenti", **TWIN), out), workers=1)
    assert evidence.title == "Tuenti (generated twin)"
    assert list(evidence.sheets) == ["figure-1"]
    told = json.loads((out / "numbers.json").read_text())
    assert told["statistics"]["provenance"] == "generated twin"
    assert 150 < told["statistics"]["retained"] < 330  # a third of 720
    assert "not the real data" in told["notes"][0]
    html = page(evidence, ["coterie"])
    assert html.count("generated twin") >= 3
    assert "generated twin" in (out / "figure-1.svg").read_text()


def test_partial_delicious_is_told(music: Any, tmp_path: Path) -> None:
    class Partial:
        provenance, is_log, notes = "real, partial", False, ()

    asked = protocol(music, tmp_path / "out")
    object.__setattr__(asked, "data", Partial())
    object.__setattr__(asked, "name", "delicious")
    object.__setattr__(asked, "quick", False)
    told = warnings(Reproduced(asked, None, {}))  # type: ignore[arg-type]
    assert "partial reconstruction" in told[0]


def test_distances_by_hand() -> None:
    """Two users, one item each, x = (1, 0) and (0, 1), liked twice: w = 2/3 x, so they are 2/3·√2 apart."""

    class Data:
        one_hot, is_log, n_features = False, False, 2

        def blocks(self, n_rounds: int, seed: int) -> Any:
            from coterie.models.batches import Batch

            users = np.array([5, 6, 5, 6])
            lists = np.array([[0, 1], [0, 1], [0, 1], [0, 1]])
            payoffs = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [0.0, 1.0]])
            yield Batch(users, lists, np.eye(2), payoffs)

    found = user_distances(cast(Any, Data()), 4, 0)
    assert found["user"].to_list() == ["5", "6", "5", "6"]
    assert np.allclose(found["distance"].to_numpy(), 2 / 3 * math.sqrt(2))
    with pytest.raises(ParameterError, match="samples is 'some', expected one of: liked, all"):
        user_distances(cast(Any, Data()), 4, 0, "some")


def test_settings_that_cannot_be(music: Any, tmp_path: Path) -> None:
    with pytest.raises(ParameterError, match=r"tuned_share is 1.5"):
        protocol(music, tmp_path / "out", tuned_share=1.5)
    with pytest.raises(ParameterError, match="too few to tune"):
        protocol(lastfm(**{**MUSIC, "n_rounds": 3}), tmp_path / "out")
    with pytest.raises(ParameterError, match="unknown dataset 'spotify'; choose among lastfm, delicious"):
        open_dataset("spotify")
    with pytest.raises(ParameterError, match=r"dataset 'lastfm': .*colour"):
        open_dataset("lastfm", colour="red")


def test_friends_in_the_data_are_a_graph_for_policies(music: Any) -> None:
    ring = sorted({(min(a, b), max(a, b)) for a, b in zip(range(10, 22), [*range(11, 22), 10], strict=True)})
    assert music.friends() == ring
    part = Rest(music, 20)
    run = Run.of(parse_spec("gob-lin:graph=friends"), part, 0, 30)
    assert (
        run.parameters["graph"] == "friends"
    )  # the file of a run says where the graph is from, not what it is
    policy = run.make_policy()
    assert isinstance(policy, GOBLin)
    assert set(policy.users) == set(range(10, 22))
    assert {tuple(sorted(edge[:2])) for edge in policy.parameters["graph"]} == set(ring)
    alone = Run.of(parse_spec("gob-lin"), part, 0, 30)
    assert alone.make_policy().users == []
    ads = twin("tuenti", **TWIN)
    with pytest.raises(ParameterError, match=r"'gob-lin:graph=friends': these data have no friendships"):
        Run.of(parse_spec("gob-lin:graph=friends"), ads, 0, 10).make_policy()


def test_real_friends_are_those_of_the_published_file() -> None:
    data: Any = open_dataset("lastfm", folder=real_data("lastfm", "user_friends.dat.gz"))
    pairs = data.friends()
    assert len(pairs) == 12_717  # the readme's number of bi-directional relations
    assert all(a < b for a, b in pairs)


def test_a_built_in_world_is_tuned_and_reported_like_a_dataset(tmp_path: Path) -> None:
    """The reported rounds are those after the tuned ones, the policy knows nothing yet, and users come and go."""
    world = WORLDS["turnover"]()
    stage = Stage("turnover", world, 500)
    asked = Protocol("turnover", stage, parse_specs("cab,random"), tmp_path, n_runs=2, quick=True)
    assert (asked.total, asked.n_tuned, asked.n_reported) == (500, 100, 400)
    found = reproduce(asked, workers=1)
    assert found.title == "turnover (built-in world)"
    trace = read_trace(found.comparison.plan.tasks(found.comparison.plan.specs[0])[1][1])
    rounds = list(world.rounds(500, 1))[100:]
    assert trace["user"].to_list() == [str(visit.user) for visit in rounds]
    assert trace["best"].to_list() == [float(visit.expected.max()) for visit in rounds]
    numbers = json.loads((tmp_path / "numbers.json").read_text())
    assert numbers["statistics"]["users"] == 300
    assert (tmp_path / "figure-2.svg").exists()
    assert "turnover (built-in world)" in page(found, ["coterie", "reproduce", "turnover"])


def test_what_is_left_of_a_world_is_made_again_and_can_be_copied() -> None:
    rest = Rest(WORLDS["dense"](), 30)
    again: Any = make_world(json.loads(json.dumps(rest.parameters())))
    assert isinstance(rest, Rest)
    assert pickle.loads(pickle.dumps(again)).parameters() == rest.parameters()  # noqa: S301
    assert again.n_features == rest.n_features
    for one, other in zip(rest.rounds(5, 2), again.rounds(5, 2), strict=True):
        assert np.array_equal(one.contexts, other.contexts)


def test_a_stage_of_ids_has_items_and_one_of_new_items_has_none() -> None:
    assert Stage("clicks", WORLDS["clicks"]()).n_items == 20
    assert Stage("dense", WORLDS["dense"]()).n_items is None
    with pytest.raises(ParameterError, match="n_rounds"):
        Stage("clicks", WORLDS["clicks"](), 1)
