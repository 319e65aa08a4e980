"""Tables in and out: the same from pandas, polars and Arrow."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from coterie import Random, evaluate, open_interactions, open_log, replay
from coterie.advice.records import read_log
from coterie.bridges import FromFunction, frame
from coterie.data import WORLDS
from coterie.errors import FileError, MissingExtraError, ParameterError
from coterie.experiments import Plan, compare, parse_specs
from tests.bridges.alike import alike
from tests.known_worlds import live

Make = Callable[[dict[str, Any]], Any]
MAKERS: list[Make] = [
    pd.DataFrame,
    lambda columns: pd.DataFrame(columns).set_axis(range(5, 5 + len(columns["user"]))),
    pl.DataFrame,
    pa.table,
    lambda columns: pa.table(columns).to_reader(),
]
IDS = ["pandas", "pandas-index", "polars", "arrow", "arrow-reader"]
POLICIES = "own:make=tests.bridges.agents.greedy,random"
SHOWN = {"user": ["u", "v", "u", "w"], "item": ["a", "b", "c", "a"], "payoff": [1.0, 0.0, 1.0, 0.5]}
DECISIONS = {
    "user": ["ann", "bob", "ann"],
    "action": ["a", "b", "b"],
    "probability": [0.5, 0.25, 0.75],
    "reward": [1, 0, 1],
}


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COTERIE_CACHE", str(tmp_path / "cache"))


@pytest.mark.parametrize("make", MAKERS, ids=IDS)
def test_a_table_is_a_log_wherever_a_file_is(make: Make, tmp_path: Path) -> None:
    pl.DataFrame(SHOWN).write_csv(tmp_path / "log.csv")
    from_file, from_table = open_log(tmp_path / "log.csv"), open_log(make(SHOWN))
    assert from_table.items == from_file.items
    for a, b in zip(from_file.every_record(), from_table.every_record(), strict=True):
        assert a.tolist() == b.tolist()
    ours, theirs = read_log(make(SHOWN)), read_log(tmp_path / "log.csv")  # what `coterie advise` reads
    assert (ours.users.tolist(), ours.payoffs.tolist()) == (theirs.users.tolist(), theirs.payoffs.tolist())
    assert Random(one_hot=True).fit(from_table).learned == 4


@pytest.mark.parametrize("make", MAKERS, ids=IDS)
def test_a_table_of_decisions_is_evaluated(make: Make) -> None:
    """Uniform shows the logged action half of the time: weights 1, 2, 2/3. IPS: (1 + 2/3)/3 = 5/9."""
    found = evaluate(make(DECISIONS), ["uniform"])
    assert found["uniform"].estimates["ips"].value == pytest.approx(5 / 9)
    assert [one.actions for one in found.log.interactions] == [("a", "b")] * 3
    assert [one.user for one in found.log.interactions] == ["ann", "bob", "ann"]


@pytest.mark.parametrize("kind", ["polars", "pandas", "arrow"])
def test_decisions_come_back_as_they_went(kind: str, tmp_path: Path) -> None:
    log = live(0, 40, "epsilon").log
    first = log.interactions[0]
    dressed = first._replace(features=tuple({"size": float(k)} if k else {} for k in range(4)))
    log = type(log)(log.name, [dressed, *log.interactions[1:]])
    assert alike(open_interactions(frame(log, kind)), log)
    frame(log).write_parquet(tmp_path / "log.parquet")
    assert alike(open_interactions(tmp_path / "log.parquet"), log)
    shown = open_log(frame(log, kind)).every_record()  # who was shown what, without the probabilities
    assert shown.users.tolist() == [one.user for one in log.interactions]


def test_context_columns_are_named_numbers_and_texts() -> None:
    table = pd.DataFrame(
        {
            **DECISIONS,
            "actions": [["a", "b"], ["b"], ["c", "b"]],
            "context_age": [0.5, None, 0.25],
            "context_os": ["ios", "web", None],
            "context": [{"hour": 1}, {"hour": 0}, None],
        }
    )
    log = open_interactions(table)
    assert [dict(one.context) for one in log.interactions] == [
        {"hour": 1.0, "age": 0.5, "os=ios": 1.0},
        {"os=web": 1.0},
        {"age": 0.25},
    ]
    assert [(one.actions, one.chosen) for one in log.interactions] == [
        (("a", "b"), 0),
        (("b",), 0),
        (("c", "b"), 1),
    ]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"reward": None}, r"table has no column 'reward'; decisions have action, probability, reward"),
        ({"reward": [1, 0, 3]}, r"row 2 of table has the reward 3.0, expected a number in \[-1, 1\]"),
        ({"reward": ["1", "0", "1"]}, r"column 'reward' holds String, expected numbers"),
        ({"probability": [0.5, 0.0, 1.0]}, r"row 1 of table showed its action with probability 0.0"),
        ({"action": ["a", None, "b"]}, r"row 1 of table: action is missing"),
        ({"actions": [["a"], ["a"], ["b"]]}, r"row 1 of table shows 'b', which is not among its actions: a"),
        ({"probabilities": [[1.0], [1.0], [1.0]]}, r"row 0 of table has 2 actions and 1 probabilities"),
        ({"context": [1, 2, 3]}, r"row 0 of table: 1 is not named"),
        ({"context_x": [[1], [2], [3]]}, r"row 0 of table: x is \[1\], expected a number or a text"),
    ],
)
def test_what_is_wrong_with_decisions_is_told(change: dict[str, Any], message: str) -> None:
    columns = {name: values for name, values in (DECISIONS | change).items() if values is not None}
    with pytest.raises(FileError, match=message):
        open_interactions(pl.DataFrame(columns))
    with pytest.raises(FileError, match="table holds no decisions"):
        open_interactions(pl.DataFrame(DECISIONS).clear())


def test_results_are_tables(tmp_path: Path) -> None:
    plan = Plan("clicks", WORLDS["clicks"](), parse_specs(POLICIES), 300, 2, 0, tmp_path)
    found = compare(plan, workers=1)
    runs = frame(found, "pandas")
    assert isinstance(runs, pd.DataFrame)
    assert runs.groupby("policy", sort=False)["regret"].mean().tolist() == [
        result.over("regret").mean for result in found.results
    ]
    curves = frame(found, "arrow", curves=True)
    assert isinstance(curves, pa.Table)
    assert curves.column_names == ["policy", "time", "mean", "spread"]
    assert frame(found, curves=True).filter(policy="random")["time"][-1] == 300
    trace = frame(plan.tasks(plan.specs[0])[0][1])
    assert (len(trace), trace.columns[:2]) == (300, ["round", "user"])


def test_other_results_are_tables() -> None:
    evaluation = evaluate(pl.DataFrame(DECISIONS), ["uniform", "logged"])
    told = frame(evaluation, "pandas")
    assert told["method"].tolist() == ["ips", "snips", "dm", "dr"] * 2
    assert told.set_index(["policy", "method"]).loc[("uniform", "ips"), "value"] == pytest.approx(5 / 9)
    first = FromFunction(on_choose=lambda user, items: 0, one_hot=True)
    kept = frame(replay(first, [1, 2], [[7, 8], [8, 7]], [0, 1], [1.0, 0.0]))
    assert kept.rows() == [(0, True, 1.0), (0, False, 0.0)]
    assert frame(first.explain("ann", ["jazz", "news"]))["chosen"].to_list() == [True, False]
    assert frame(open_log(pl.DataFrame(SHOWN))).equals(pl.DataFrame(SHOWN))
    features = pl.DataFrame(
        {"user": [1, 2, 1], "features": [[0.5, 0], [0, 1], [0.5, 0]], "payoff": [0.0, 1, 1]}
    )
    again = frame(open_log(features))
    assert again["features"].to_list() == features["features"].to_list()


def test_what_cannot_be_a_table_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        ParameterError, match="result is a list, expected one of: Comparison, Evaluation, Replay"
    ):
        frame([1, 2])
    decision = Random(one_hot=True).explain("ann", ["jazz", "news"])
    with pytest.raises(ParameterError, match="to is 'excel', expected one of: polars, pandas, arrow"):
        frame(decision, "excel")
    with pytest.raises(ParameterError, match="a Decision has no curves"):
        frame(decision, curves=True)
    monkeypatch.setattr("coterie.bridges.frames.find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match="a pandas frame needs pandas: pip install pandas"):
        frame(decision, "pandas")
    assert np.isfinite(frame(decision)["score"].to_numpy()).all()
