"""Comparisons: the numbers by hand, the specs of policies, the worlds, and many processes at once."""

import json
import math
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

from coterie.errors import FileError, ParameterError
from coterie.experiments import Plan, Row, compare, open_world, parse_spec, parse_specs
from coterie.experiments.report.comparison import report
from coterie.experiments.report.words import reasons
from coterie.experiments.run.specs import DEFAULT
from coterie.experiments.run.trace import SCHEMA, read_trace
from coterie.experiments.run.worlds import make_world
from coterie.experiments.study.metrics import (
    cumulative_ctr,
    cumulative_regret,
    curve,
    over_runs,
    ratio_to_random,
    summarise,
)
from coterie.experiments.study.table import as_json
from coterie.policies import POLICIES
from coterie.policies.vw import SETTINGS

SMALL = {"kind": "one-hot", "n_users": 12, "n_items": 8, "n_candidates": 4}


def make_plan(out: Path, policies: str = DEFAULT, n_rounds: int = 300, n_runs: int = 2) -> Plan:
    return Plan("small", make_world(SMALL), parse_specs(policies), n_rounds, n_runs, 0, out)


def make_trace(*rows: tuple[float, float, float, int, int]) -> pl.DataFrame:
    listed = [Row(t, "ann", "jazz", 0, *row)._asdict() for t, row in enumerate(rows)]
    frame = pl.from_arrow(pa.Table.from_pylist(listed, schema=SCHEMA))
    assert isinstance(frame, pl.DataFrame)
    return frame


def test_numbers_of_a_world_by_hand() -> None:
    """Lost: 0.5, 0, 0.25, 0, 0.25. The first fifth is the first round, the last fifth the last."""
    trace = make_trace(
        (1.0, 0.5, 1.0, 1, 1),
        (0.0, 1.0, 1.0, 2, 1),
        (1.0, 0.75, 1.0, 3, 4),
        (0.0, 1.0, 1.0, 4, 2),
        (1, 0.75, 1, 5, 1),
    )
    found = summarise(trace)
    assert cumulative_regret(trace).tolist() == [0.5, 0.5, 0.75, 0.75, 1.0]
    assert (found.regret, found.payoff, found.ctr, found.kept) == (1.0, 3.0, 0.6, 5)
    assert found.share_of_best == 0.8
    assert (found.early_loss, found.late_loss) == (0.5, 0.25)
    assert found.neighbours == 3.0
    assert (found.share_rate, found.shared_with) == (0.4, 3.0)


def test_numbers_of_a_log_by_hand() -> None:
    """Of four records two are kept, with payoffs 0 and 1."""
    nan = math.nan
    trace = make_trace(
        (nan, nan, nan, 1, 0), (0.0, 0.0, nan, 1, 1), (1.0, 1.0, nan, 1, 1), (nan, nan, nan, 1, 0)
    )
    found = summarise(trace)
    assert cumulative_ctr(trace).tolist() == [0.0, 0.5]
    assert (found.kept, found.ctr, found.n_rounds) == (2, 0.5, 4)
    assert math.isnan(found.regret)
    assert math.isnan(found.shared_with)


def test_mean_and_spread_over_runs_by_hand() -> None:
    assert over_runs([1.0, 3.0]).mean == 2.0
    assert over_runs([1.0, 3.0]).spread == pytest.approx(math.sqrt(2))
    assert over_runs([5.0]).mean == 5.0
    assert math.isnan(over_runs([5.0]).spread)  # one run has none
    assert ratio_to_random([1.0, 2.0], [4.0, 4.0]).mean == 0.375
    found = curve([np.array([1.0, 2.0, 3.0]), np.array([3.0, 4.0, 5.0, 6.0])], n_points=2)
    assert found.time.tolist() == [1, 3]
    assert found.mean.tolist() == [2.0, 4.0]
    assert found.spread.tolist() == pytest.approx([math.sqrt(2)] * 2)


def test_a_spec_names_a_policy_and_its_parameters() -> None:
    spec = parse_spec("cab:alpha=0.05:gamma=0.1:thompson=true")
    assert spec.name == "cab"
    assert spec.parameters == {"alpha": 0.05, "gamma": 0.1, "thompson": True}
    assert spec.title == "CAB (alpha=0.05, gamma=0.1, thompson=true)"
    single = parse_spec("linucb-single").complete(view="features", n_features=3, seed=9)
    assert (single["shared"], single["n_features"], single["one_hot"]) == (True, 3, False)
    assert single["seed"] == 9
    assert "seed" not in parse_spec("sclub").complete(view="ids", n_features=None, seed=9)


def test_a_spec_may_be_written_as_python_json_or_a_table_would() -> None:
    for text in ("linucb:shared=True", "LinUCB:shared=true", "LINUCB:Shared=TRUE"):
        spec = parse_spec(text)
        assert (spec.name, spec.parameters) == ("linucb", {"shared": True})
    assert parse_spec("club:p=None").parameters == {"p": None}
    for text, name in (("RAN", "random"), ("GOBLin", "gob-lin"), ("SparseCAB", "sparse-cab"), ("Cab", "cab")):
        assert parse_spec(text).text == name
    assert parse_spec("LinUCB-SINGLE:alpha=0.2").title == "LinUCB-SINGLE (alpha=0.2)"
    with pytest.raises(ParameterError, match="policy 'cab' is listed twice"):
        parse_specs("cab,CAB")


def test_every_policy_of_the_registry_has_a_spec_and_a_title() -> None:
    for name in POLICIES:
        assert parse_spec(name).title


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("cat", "unknown policy 'cat'; choose among bass, cab, club, "),
        (
            "cab:beta=1",
            "unknown setting 'beta=1' in 'cab:beta=1'; write name=value with alpha, gamma, half_life, items, "
            "thompson",
        ),
        ("cab:alpha", "unknown setting 'alpha'"),
        ("linucb-single:shared=false", "unknown setting 'shared=false'"),
        ("random:seed=3", "unknown setting 'seed=3' in 'random:seed=3'; .* with items"),
        ("cab:items=all", "items=all in 'cab:items=all'; expected items=features, items=ids, items=both"),
        ("cab,cab", "policy 'cab' is listed twice"),
        (" , ", "names no policy; choose among"),
    ],
)
def test_a_spec_that_cannot_be_read_is_named(text: str, message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        parse_specs(text)


def test_a_bad_value_is_told_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(ParameterError, match="gamma"):
        make_plan(tmp_path, "cab:gamma=-1")
    with pytest.raises(ParameterError, match="alpha"):
        make_plan(tmp_path, "cab:alpha=high")
    with pytest.raises(ParameterError, match="rounds=0; expected at least 1"):
        make_plan(tmp_path, n_rounds=0)
    with pytest.raises(ParameterError, match="runs=0"):
        make_plan(tmp_path, n_runs=0)
    assert not list(tmp_path.iterdir())


def test_a_world_comes_by_name_or_from_a_json_file(tmp_path: Path) -> None:
    path = tmp_path / "world.json"
    path.write_text(json.dumps(SMALL))
    assert open_world(str(path)).parameters()["n_users"] == 12
    with pytest.raises(
        ParameterError, match=r"unknown world 'atlantis'; choose among music-and-news, .*\.json"
    ):
        open_world("atlantis")
    with pytest.raises(FileError, match="there is no file"):
        open_world(str(tmp_path / "none.json"))
    path.write_text("[1, 2]")
    with pytest.raises(FileError, match="not a JSON object"):
        open_world(str(path))


def test_all_policies_play_the_same_rounds_and_the_best_comes_first(tmp_path: Path) -> None:
    plan = make_plan(tmp_path)
    comparison = compare(plan, workers=1)
    users = [read_trace(path)["user"].to_list() for spec in plan.specs for _, path in plan.tasks(spec)]
    assert users[0::2] == [users[0]] * 7  # the first run of each
    assert users[0] != users[1]
    lost = [result.over("regret").mean for result in comparison.results]
    assert lost == sorted(lost)
    blind = next(result for result in comparison.results if result.spec.name == "random")
    assert blind.to_random == (1.0, 0.0)


def test_several_processes_do_what_one_does_and_finished_runs_are_kept(tmp_path: Path) -> None:
    alone, together = make_plan(tmp_path / "1", "cab,random"), make_plan(tmp_path / "2", "cab,random")
    compare(alone, workers=1)
    heard: list[int] = []
    compare(together, on_progress=lambda done: heard.append(sum(done)), workers=2)
    assert heard[-1] == 4 * 300
    for spec in alone.specs:
        for (_, one), (_, two) in zip(alone.tasks(spec), together.tasks(spec), strict=True):
            assert one.read_bytes() == two.read_bytes()
    stamps = [path.stat().st_mtime_ns for path in sorted(tmp_path.glob("2/traces/*.parquet"))]
    compare(together, workers=1)
    assert stamps == [path.stat().st_mtime_ns for path in sorted(tmp_path.glob("2/traces/*.parquet"))]


def test_the_picture_holds_what_the_policy_and_the_world_say(tmp_path: Path) -> None:
    plan = make_plan(tmp_path, "linucb-multiple,cab", n_runs=1)
    comparison = compare(plan, workers=1)
    assert comparison.pictured is not None
    assert comparison.pictured.text == "cab"
    picture = comparison.picture
    assert picture is not None
    assert picture["other"].n_unique() == 11
    for row in picture.iter_rows(named=True):
        alike = plan.world.neighbours(int(row["user"]), int(row["item"]))  # type: ignore[union-attr]
        assert row["truth"] == (int(row["other"]) in alike)
    assert picture["found"].any()


def test_policies_that_find_neighbours_are_pictured_and_others_are_not(tmp_path: Path) -> None:
    drawn = compare(make_plan(tmp_path / "1", "dccb,random", n_rounds=40, n_runs=1), workers=1)
    assert drawn.pictured is not None
    assert drawn.pictured.text == "dccb"
    assert any("did not decide alone" in text and "teach" not in text for _, text in reasons(drawn))
    undrawn = compare(make_plan(tmp_path / "2", "linucb-single,random", n_rounds=40, n_runs=1), workers=1)
    assert undrawn.pictured is None
    assert undrawn.picture is None


def test_plain_vw_stands_for_five_settings_and_the_best_in_hindsight_is_shown(tmp_path: Path) -> None:
    pytest.importorskip("vowpalwabbit")
    plan = make_plan(tmp_path, "vw,random")
    assert len(plan.all_tasks()) == 6 * plan.n_runs
    comparison = compare(plan, workers=1)
    found = comparison.hindsight["vw"]
    assert list(found) == [f"vw:setting={name}" for name in SETTINGS]
    best = min(found, key=lambda text: found[text].mean)
    [shown] = [result for result in comparison.results if result.spec.name == "vw"]
    assert (shown.spec.text, shown.spec.stands_for) == (best, "vw")
    assert shown.over("regret") == found[best]
    assert shown.spec.title == f"VW (best of 5: {shown.spec.parameters['setting']})"
    assert [spec.text for spec in comparison.plan.specs] == [best, "random"]
    told = as_json(comparison)
    assert told["hindsight"]["vw"][best]["mean"] == found[best].mean
    assert "--policies vw,random" in report(comparison)


def test_one_setting_of_vw_is_just_that_one() -> None:
    assert [spec.text for spec in parse_spec("vw:setting=slow").variants()] == ["vw:setting=slow"]
    assert parse_spec("vw:setting=slow").title == "VW (setting=slow)"
    assert [spec.title for spec in parse_spec("vw:items=ids").variants()][
        3
    ] == "VW (items=ids, best of 5: squarecb)"
    assert parse_spec("cab").variants() == [parse_spec("cab")]
