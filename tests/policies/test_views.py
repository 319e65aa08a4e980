"""What of an item a policy is shown: by default, and by the spec."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coterie.data.datasets import open_dataset
from coterie.data.worlds.world_as_dataset import Rest
from coterie.errors import ParameterError
from coterie.experiments import open_world, parse_spec, play, read_trace, record
from coterie.experiments.run.runs import Run
from coterie.policies import VW
from tests.miniature import write_lastfm

pytest.importorskip("vowpalwabbit", reason="Vowpal Wabbit is not installed: pip install 'coterie[rivals]'")

SETTINGS: dict[str, Any] = {"verify": False, "components": 4, "n_candidates": 5, "n_rounds": 60}


@pytest.fixture
def music(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    write_lastfm(tmp_path / "data")
    monkeypatch.setenv("COTERIE_DATA", str(tmp_path / "data"))
    return open_dataset("lastfm", **SETTINGS)


@pytest.mark.parametrize(
    ("spec", "place", "view"),
    [
        ("cab", "music", "features"),
        ("cab:items=features", "music", "features"),
        ("linucb-single:items=ids", "music", "ids"),
        ("vw", "music", "both"),
        ("vw:items=ids", "music", "ids"),
        ("vw", "dense", "features"),
        ("vw", "clicks", "ids"),
        ("cab", "clicks", "ids"),
        ("cab:items=ids", "clicks", "ids"),
    ],
)
def test_policies_are_shown_what_they_take_and_the_data_know(
    spec: str, place: str, view: str, music: Any
) -> None:
    world = Rest(music, 10) if place == "music" else open_world(place)
    run = Run.of(parse_spec(spec), world, 0, 20)
    assert run.items == view
    parameters = run.parameters
    assert (parameters["n_features"] is None) == (view == "ids")
    assert parameters["one_hot"] is (view != "features")
    assert run.make_policy() is not None
    [*rows] = play(run.make_policy(), run.rounds())
    assert len(rows) == 20
    assert (rows[0].item is None) == (view == "features")


@pytest.mark.parametrize(
    ("spec", "place", "message"),
    [
        (
            "cab:items=ids",
            "dense",
            "items=ids in 'cab:items=ids': these data have features only; leave",
        ),
        ("cab:items=both", "dense", "these data have features only"),
        ("cab:items=features", "clicks", "these data have ids only"),
        (
            "cab:items=both",
            "music",
            "items=both in 'cab:items=both': cab takes features or ids, not both; write",
        ),
    ],
)
def test_what_the_data_do_not_know_cannot_be_asked_for(
    spec: str, place: str, message: str, music: Any
) -> None:
    world = music if place == "music" else open_world(place)
    with pytest.raises(ParameterError, match=message):
        Run.of(parse_spec(spec), world, 0, 20)


def test_the_view_is_part_of_the_run(music: Any, tmp_path: Path) -> None:
    runs = {
        view: Run.of(parse_spec(f"vw:items={view}"), music, 0, 40) for view in ("features", "ids", "both")
    }
    assert len({run.file_name() for run in runs.values()}) == 3
    for view, run in runs.items():
        header = json.loads(json.dumps(run.header()))
        assert header["items"] == view
        assert Run.from_header(header) == run
        record(run, tmp_path / f"{view}.parquet")
    trace = read_trace(tmp_path / "both.parquet")
    assert set(trace["item"]) <= {str(item) for item in music.content.items.ids}
    assert read_trace(tmp_path / "features.parquet")["item"].null_count() == 40


def test_the_rounds_are_the_same_whatever_is_shown(music: Any) -> None:
    shown = {
        view: list(Run.of(parse_spec(f"vw:items={view}"), music, 3, 30).rounds())
        for view in ("features", "both")
    }
    for one, other in zip(shown["features"], shown["both"], strict=True):
        assert one.user == other.user
        assert np.array_equal(one.contexts, other.contexts.features)
        assert np.array_equal(one.payoffs, other.payoffs)
    assert VW.takes_both
