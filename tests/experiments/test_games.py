"""The games of the contest: who plays, and that no policy wins a game whose payoffs are shuffled."""

import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest
from rich.console import Console

from coterie import Batch, LinUCB
from coterie.cli.studies.reproduce import open_place
from coterie.data import WORLDS
from coterie.data.datasets import DATASETS
from coterie.errors import FileError
from coterie.evaluation.verdict import FIRST_RUNS, RunRegrets, is_ahead, level_at
from coterie.experiments import Run, Spec, parse_spec, parse_specs
from coterie.experiments.run.play import play_batches
from coterie.experiments.run.runs import EVERYBODY
from coterie.experiments.study.contest_games import GAMES, PLAYERS, SHORT, TWINS, players
from coterie.experiments.study.metrics import summarise
from coterie.experiments.study.tuning import paper_grid, settings
from coterie.policies import POLICIES
from tests.experiments.contest_time import Point, extrapolated
from tests.experiments.draws_cost import played
from tests.miniature import real_data, write_lastfm

ROUNDS = 100  # of a game with shuffled payoffs


def test_every_game_is_a_dataset_or_a_world() -> None:
    assert len(SHORT) >= 20
    assert len([name for name in SHORT if name in DATASETS]) >= 14
    page = (Path(__file__).parents[2] / "docs" / "contest.md").read_text(encoding="utf-8")
    for name, game in GAMES.items():
        assert game.data in DATASETS or game.data in WORLDS
        assert f"`{name}`" in page


def test_every_rival_tries_the_same_number_of_settings() -> None:
    """CLUB has 105 settings in the paper's grid and LinUCB 21; ten of each are tried, always the same ones."""
    grid = paper_grid(100)
    for name in ("club", "linucb-single", "dynucb", "cab"):
        chosen = [spec.text for spec in settings(parse_spec(name), grid, 10)]
        assert len(set(chosen)) == 10
        assert set(chosen) < {spec.text for spec in settings(parse_spec(name), grid)}
        assert chosen == [spec.text for spec in settings(parse_spec(name), grid, 10)]
    assert len(settings(parse_spec("hierarchical"), grid, 10)) == 1


def test_who_cannot_play_is_named_with_the_reason() -> None:
    """GOBLin has no graph; HierTS, which is for vectors, sees the 20 ids as unit vectors."""
    place = open_place("music-and-news", {}, Console(stderr=True), 100)
    able, why_not = players(parse_specs(PLAYERS), place)
    assert {"hierarchical", "cab", "club", "hier-ts", "random"} <= {spec.name for spec in able}
    assert not why_not.keys() & {spec.name for spec in able}
    assert "these data have no friendships" in why_not["gob-lin"]


def test_who_sees_features_or_ids_plays_with_each() -> None:
    """Hierarchical sees both at once, HierTS takes vectors only; the other rivals play twice."""
    place: Any = SimpleNamespace(
        n_features=3, one_hot=False, has_ids=True, has_contexts=False, parameters=dict
    )
    able, _ = players(parse_specs("hierarchical,cab,linucb-single,hier-ts,random"), place)
    seen = {spec.text: Run.of(spec, place, 0, 1).items for spec in able}
    assert seen == {
        "hierarchical": "both", "cab": "features", "linucb-single": "features", "hier-ts": "features",
        "random": "features", "cab:items=ids": "ids", "linucb-single:items=ids": "ids",
    }  # fmt: skip


def test_who_can_do_without_friendships_plays_with_and_without_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GOBLin needs them; LinUCB does not know them."""
    write_lastfm(tmp_path)
    monkeypatch.setenv("COTERIE_DATA", str(tmp_path))
    settings = {"verify": False, "n_candidates": 5, "n_rounds": 100, "components": 5}
    place = open_place("lastfm", settings, Console(stderr=True), None)
    able, why_not = players(parse_specs("hierarchical,linucb-single,gob-lin:graph=friends"), place)
    assert [spec.text for spec in able] == [
        "hierarchical", "linucb-single", "gob-lin:graph=friends", "linucb-single:items=ids",
        "hierarchical:items=features", "hierarchical:items=features:friends=friends",
    ]  # fmt: skip
    assert not why_not


def test_a_policy_of_vectors_sees_few_ids_as_unit_vectors() -> None:
    """So LinUCB over vectors of 20 ids makes the choices of LinUCB over these ids."""
    place = open_place("music-and-news", {}, Console(stderr=True), 100)
    run = Run.of(parse_spec("hier-ts"), place, 3, 50)
    assert (run.items, run.parameters["n_features"]) == ("units", 20)
    plain = Run.of(parse_spec("linucb-single"), place, 3, 50)
    vectors, ids = LinUCB(n_features=20, shared=True), LinUCB(one_hot=True, shared=True)
    for shown, named in zip(run.rounds(), plain.rounds(), strict=True):
        assert shown.contexts.argmax(axis=1).tolist() == list(named.contexts)
        k = vectors.choose(shown.user, shown.contexts)
        assert k == ids.choose(named.user, named.contexts)
        vectors.learn(shown.user, shown.contexts[k], shown.payoffs[k])
        ids.learn(named.user, named.contexts[k], named.payoffs[k])


def test_without_users_a_model_per_user_is_a_model_of_everybody() -> None:
    """LinUCB per user chooses as the shared one does, in blocks and one by one; who takes names sees nobody."""
    place = open_place("wine", {}, Console(stderr=True), None)
    chosen = [
        np.concatenate([run.make_policy().run(block).choice for block in run.blocks(0)])
        for run in (Run.of(parse_spec(name), place, 0, 200) for name in ("linucb-multiple", "linucb-single"))
    ]
    assert chosen[0].tolist() == chosen[1].tolist()
    assert {visit.user for visit in Run.of(parse_spec("cab"), place, 0, 9).rounds()} == {EVERYBODY}
    named = next(name for name, kind in POLICIES.items() if kind.takes_names)
    assert {visit.user for visit in Run.of(parse_spec(named), place, 0, 9).rounds()} == {None}


def test_the_time_of_all_rounds_by_hand() -> None:
    """Two rounds in 1 s and two in 2 s: round t costs 1/4 + t/4 s. A game that gets faster costs what it did last."""
    assert [extrapolated([Point(2, 1.0), Point(4, 3.0)], n) for n in (4, 8)] == [3.0, 10.0]
    assert extrapolated([Point(2, 2.0), Point(4, 3.0)], 8) == 4.0
    assert extrapolated([Point(2, 2.0)], 8) == extrapolated([Point(4, 2.0), Point(5, 5.0)], 8) == 8.0


def pieces(spec: Spec, place: Any) -> Iterator[Callable[[int], float]]:
    """Yield games of ROUNDS rounds: what the policy loses if payoffs are shuffled among candidates by a seed."""
    run = Run.of(spec, place, 0, min(place.n_rounds, 25 * ROUNDS))
    for block in run.blocks(0):
        for cut in block.pieces(0, len(block.users) // ROUNDS * ROUNDS, ROUNDS):
            yield partial(lost, run, cut)


def lost(run: Run, batch: Batch, seed: int) -> float:
    payoffs = np.random.default_rng([seed, 99]).permuted(batch.payoffs, axis=1)
    choice = run.make_policy().run(batch._replace(payoffs=payoffs)).choice
    return float((payoffs.max(axis=1) - payoffs[np.arange(len(payoffs)), choice]).sum())


@pytest.mark.slow
def test_with_shuffled_payoffs_hardly_any_winner_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """At most 1 in 100 comparisons names a winner; 6 of 144 would be 4 errors more. Games need their data."""
    monkeypatch.setenv("COTERIE_DATA", os.environ.get("COTERIE_DATA") or str(real_data()))
    specs, named, n_compared = parse_specs("hierarchical,linucb-single,club,random"), 0, 0
    for game in GAMES.values():
        if game.data in TWINS:
            continue  # logs of millions of records
        try:
            place = open_place(game.data, dict(game.settings), Console(stderr=True), None)
        except FileError:
            continue
        if getattr(place, "is_log", False):
            continue  # most payoffs are unknown
        games = [list(pieces(spec, place)) for spec in specs]
        for first in range(0, 6 * FIRST_RUNS, FIRST_RUNS):
            seeds = range(first, first + FIRST_RUNS)
            found = [RunRegrets(np.array([own[seed % len(own)](seed) for seed in seeds])) for own in games]
            best, *others = sorted(found, key=lambda runs: float(runs.regrets.sum()))
            named += is_ahead(best, others, level=level_at(FIRST_RUNS))
            n_compared += 1
    assert n_compared >= 30
    assert named <= 5


def test_without_draws_the_highest_score_is_taken() -> None:
    """Then `floor` makes no difference: with draws, floor=1 is a random choice."""
    place = open_place("music-and-news", {}, Console(stderr=True), 300)
    drawn, first, second = (
        Run.of(parse_spec(text), place, 0, 300)
        for text in ("hierarchical:floor=1", "hierarchical:floor=0", "hierarchical:floor=1")
    )
    assert played(first).regret == played(second).regret
    trace = next(table for _, table in play_batches(drawn.make_policy(), drawn.blocks(0), 0, 2_000))
    assert summarise(pl.DataFrame(pl.from_arrow(trace))).regret > 1.2 * played(first).regret
