"""Classification sets as games."""

import numpy as np
import pytest

from coterie.data.datasets import open_dataset
from coterie.data.published.classified import Classified, cancer, digits, wine
from coterie.data.worlds.world_as_dataset import Rest
from coterie.errors import FileError, ParameterError
from coterie.experiments.run.play import play
from coterie.experiments.run.runs import Run
from coterie.experiments.run.specs import parse_spec
from coterie.experiments.run.worlds import make_world
from coterie.models.actions import Action
from coterie.models.candidates import InContext, pick, project
from coterie.policies import POLICIES

pytest.importorskip("sklearn", reason="the sets are files of scikit-learn")


@pytest.mark.parametrize(
    ("data", "examples", "n_context", "actions"),
    [(digits(), 1_797, 65, 10), (cancer(), 569, 31, 2), (wine(), 178, 14, 3)],
)
def test_the_sets_have_their_published_sizes(
    data: Classified, examples: int, n_context: int, actions: int
) -> None:
    contexts, payoffs, ids, _ = data.content
    assert contexts.shape == (examples, n_context)
    assert np.linalg.norm(contexts, axis=1).max() == pytest.approx(1)
    assert payoffs.shape == (examples, actions) == (examples, len(ids))
    assert (data.n_rounds, data.n_features) == (data.passes * examples, actions * n_context)


def test_each_pass_shows_every_example_once_and_exactly_one_action_pays() -> None:
    data = wine(passes=2)
    blocks = list(data.blocks(data.n_rounds, seed=3))
    seen = np.concatenate([block.items.contexts[:: data.n_items] for block in blocks])
    for half in (seen[:178], seen[178:]):
        assert sorted(map(tuple, half)) == sorted(map(tuple, data.content.contexts))
    right = {tuple(x): y.argmax() for x, y in zip(*data.content[:2], strict=True)}
    for block in blocks:
        for row, payoffs in zip(block.candidates, block.payoffs, strict=True):
            shown = pick(block.items, row)
            labels = [data.content.items.index(name) for name in shown.names]
            assert payoffs.tolist() == [float(label == right[tuple(shown.contexts[0])]) for label in labels]


def test_rounds_from_the_middle_and_one_by_one_are_the_same_rounds() -> None:
    data = wine()
    late = list(Rest(data, 300).blocks(200, seed=1))
    whole = list(data.rounds(500, seed=1))[300:]
    names = [name for block in late for row in block.candidates for name in pick(block.items, row).names]
    assert names == [name for visit in whole for name in visit.contexts.names]
    assert all(visit.user is None for visit in whole)


def test_what_policies_see_of_an_action_in_its_context() -> None:
    """Two actions, a context of two features: blocks of two, the second action's block is the second."""
    shown = InContext(["a", "b"], np.array([1, 0]), np.array([[0.5, 1.0], [0.5, 1.0]]))
    assert project(shown, "features").tolist() == [[0, 0, 0.5, 1], [0.5, 1, 0, 0]]
    assert project(shown, "ids") == ["b", "a"]
    assert project(shown, "both").ids == ["b", "a"]
    assert project(pick(shown, np.array([1])), "features").tolist() == [[0.5, 1, 0, 0]]


def test_policies_that_take_names_see_actions_and_others_see_features() -> None:
    data = wine()
    named = next(name for name, kind in POLICIES.items() if kind.takes_names)
    run = Run.of(parse_spec(named), data, 0, 3)
    assert run.items == "names"
    action = next(run.blocks(0)).items[0]
    assert isinstance(action, Action)
    assert len(action.context) == data.n_context
    assert len([*play(run.make_policy(), run.rounds())]) == 3
    assert Run.of(parse_spec("linucb"), data, 0, 3).items == "features"
    with pytest.raises(ParameterError, match="takes no names"):
        Run.of(parse_spec("linucb:items=names"), data, 0, 3)


def test_a_linear_policy_learns_the_wines() -> None:
    """Random is right in a third of the rounds."""
    data = wine(passes=2)
    run = Run.of(parse_spec("linucb-single"), data, 0, data.n_rounds)
    policy = run.make_policy()
    paid = [row.payoff for row in play(policy, run.rounds())]
    assert np.mean(paid[178:]) > 0.9


def test_bad_requests_are_refused_with_the_way_out() -> None:
    data = open_dataset("wine")
    assert make_world(data.parameters()).parameters() == data.parameters()
    with pytest.raises(ParameterError, match=r"1,781 rounds are asked of wine, which has 1,780"):
        list(data.blocks(1_781, 0))
    with pytest.raises(ParameterError, match="passes is 0"):
        wine(passes=0)
    with pytest.raises(FileError, match="fingerprint"):
        _ = wine(fingerprint="0").content
