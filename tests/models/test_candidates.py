"""Items with ids and features: made once and checked, sliced cheaply, and played by every loop."""

import doctest
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest

import coterie
from coterie import Action, Candidates, LinUCB
from coterie.data.rounds import Round, batches_of, rounds_of
from coterie.errors import ContextError
from coterie.experiments.run.play import play, play_batches
from coterie.models.candidates import pick, project
from coterie.policies.base.batch import Batch, Outcome, run_one_by_one
from coterie.policies.base.decision import Decision

SHOWN = Candidates(["jazz", "news", ("a", 1)], [[1.0, 0.0], [0.0, 2.0], [3.0, 3.0]])


class Both:
    """A stand-in for a policy of both: it picks the largest second feature, and keeps what it learns."""

    users: tuple[str, ...] = ()
    largest_payoff = 1.0

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def decide(self, user: Any, contexts: Any) -> Decision:
        assert isinstance(contexts, Candidates)
        return Decision(user, contexts, contexts.features[:, 1])

    def draw(self, decision: Decision) -> int:
        return decision.choice

    def learn(self, user: Any, context: Any, payoff: float) -> int:
        assert isinstance(context, Action)
        self.seen.append((user, context.id, context.features.tolist(), payoff))
        return 1

    def run(self, batch: Batch) -> Outcome:
        return run_one_by_one(cast(Any, self), batch)


def test_one_position_is_a_candidate_and_several_are_candidates() -> None:
    one = SHOWN[1]
    assert isinstance(one, Action)
    assert (one.id, one.features.tolist()) == ("news", [0.0, 2.0])
    assert SHOWN[np.int64(-1)].id == ("a", 1)
    for some in (SHOWN[[2, 0]], SHOWN[np.array([2, 0])], SHOWN[::-2]):
        assert isinstance(some, Candidates)
        assert some.ids == [("a", 1), "jazz"]
        assert some.features.tolist() == [[3.0, 3.0], [1.0, 0.0]]
    assert [item.id for item in SHOWN] == SHOWN.ids
    assert (len(SHOWN), SHOWN.n_features) == (3, 2)
    assert repr(SHOWN) == "Candidates(['jazz', 'news', ('a', 1)], 3 × 2 features)"
    with pytest.raises(IndexError):
        SHOWN[3]


def test_ids_and_features_may_be_arrays() -> None:
    made = Candidates(np.array([7, 8]), np.array([[1], [2]]))
    assert made.ids == [7, 8]
    assert type(made.ids[0]) is int
    assert made.features.dtype == np.float64


@pytest.mark.parametrize(
    ("ids", "features", "message"),
    [
        ([], np.zeros((0, 2)), "the candidate list is empty"),
        (["a"], [], "the candidate list is empty"),
        (["a"], [[1.0], [2.0]], "there are 1 ids and 2 rows of features; give one row of features an id"),
        ([["a"]], [[1.0]], r"item id \['a'\] is unhashable; use strings, integers or tuples"),
        ("jazz", [[1.0]], "ids is the single string 'jazz'"),
        (3, [[1.0]], "ids is 3, expected a sequence of item ids"),
        (["a", "b"], [[1.0, 0.0], [np.nan, 0.0]], "context 1 holds NaN or infinity"),
        (["a"], [["x"]], "features must be numbers"),
        (["a"], [1.0], r"features have shape \(1,\), expected \(candidates, n_features\)"),
        (["a"], [[]], r"features have shape \(1, 0\)"),
    ],
)
def test_bad_input_is_named(ids: Any, features: Any, message: str) -> None:
    with pytest.raises(ContextError, match=message):
        Candidates(ids, features)


def test_a_position_that_is_none_is_named() -> None:
    with pytest.raises(ContextError, match=r"candidates.* got 'a', expected a position, a slice or a list"):
        SHOWN[cast(Any, "a")]


def test_views_show_features_ids_or_both() -> None:
    assert project(SHOWN, "features") is SHOWN.features
    assert project(SHOWN, "ids") is SHOWN.ids
    assert project(SHOWN, "both") is SHOWN
    assert project(["a"], "features") == ["a"]
    assert pick(SHOWN, np.array([1])).ids == ["news"]
    assert pick(["a", "b"], np.array([1, 1])) == ["b", "b"]


def test_a_batch_of_candidates_is_played_and_learned_from() -> None:
    policy = Both()
    batch = Batch(["ann", "bob"], np.array([[0, 1], [2, 0]]), SHOWN, np.array([[0.0, 1.0], [0.5, 0.0]]))
    assert run_one_by_one(cast(Any, policy), batch).choice.tolist() == [1, 0]
    assert policy.seen == [("ann", "news", [0.0, 2.0], 1.0), ("bob", ("a", 1), [3.0, 3.0], 0.5)]


def test_a_block_gives_rounds_of_candidates_and_its_trace_names_the_items() -> None:
    block = Batch(np.array([5, 6]), np.array([[0, 1], [2, 0]]), SHOWN, np.array([[0.0, 1.0], [0.5, 0.0]]))
    assert [visit.contexts.ids for visit in rounds_of(block)] == [["jazz", "news"], [("a", 1), "jazz"]]
    [(done, table)] = play_batches(cast(Any, Both()), iter([block]), 0, 10)
    assert done == 2
    assert isinstance(table, pa.Table)
    assert table["item"].to_pylist() == ["news", "('a', 1)"]
    assert [row.item for row in play(cast(Any, Both()), rounds_of(block))] == ["news", "('a', 1)"]


def test_rounds_become_a_batch_in_which_each_item_comes_once() -> None:
    paid = np.array([0.0, 1.0])
    changed = Candidates(["news", "jazz"], [[0.0, 2.0], [9.0, 9.0]])
    [batch] = batches_of([Round("ann", SHOWN[:2], paid, paid), Round("bob", changed, paid, paid)])
    assert batch.items.ids == ["jazz", "news", "jazz"]  # jazz came with two sets of features
    assert batch.items.features.tolist() == [[1.0, 0.0], [0.0, 2.0], [9.0, 9.0]]
    assert batch.candidates.tolist() == [[0, 1], [1, 2]]


def test_an_explanation_names_candidates_by_id() -> None:
    assert [row["item"] for row in Both().decide("ann", SHOWN).rows()] == SHOWN.ids


def test_replay_shows_each_policy_what_it_was_made_for() -> None:
    items = Candidates(["a", "b"], [[0.5, 0.0], [0.0, 0.5]])
    from coterie.experiments import replay

    for policy in (LinUCB(n_features=2), LinUCB(one_hot=True)):
        told = replay(policy, [1, 1], [[0, 1], [1, 0]], [0, 0], [1.0, 1.0], items)
        assert told.kept.tolist() == [True, False]


def test_the_example_runs_and_the_names_are_one_import_away() -> None:
    from coterie.models import candidates

    assert doctest.testmod(candidates).failed == 0
    assert {"Action", "Candidates"} <= set(dir(coterie))


def test_candidates_are_equal_if_ids_and_features_are() -> None:
    again = Candidates(list(SHOWN.ids), SHOWN.features.copy())
    assert again == SHOWN
    assert again[:2] != SHOWN
    assert Candidates(SHOWN.ids, SHOWN.features + 1) != SHOWN
    assert Candidates(["jazz", "film", ("a", 1)], SHOWN.features) != SHOWN
    assert SHOWN.ids != SHOWN
