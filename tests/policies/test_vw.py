"""Vowpal Wabbit as a policy: probabilities, the list that is learned from, files that can be trusted."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import coterie
from coterie import VW, Action, Candidates
from coterie.errors import ContextError, FileError, MissingExtraError, ParameterError
from coterie.policies import vw as module
from coterie.policies.base import vowpal_options
from coterie.policies.base.batch import Batch, run_one_by_one
from coterie.policies.vw import SETTINGS

pytest.importorskip("vowpalwabbit", reason="Vowpal Wabbit is not installed: pip install 'coterie[rivals]'")

ITEMS = Candidates([f"item {k}" for k in range(6)], np.random.default_rng(1).normal(size=(6, 3)))


def rounds(n: int, seed: int = 0) -> Batch:
    """Rounds in which each user likes what has the user's number."""
    rng = np.random.default_rng(seed)
    users = rng.integers(3, size=n)
    lists = np.array([rng.permutation(6)[:4] for _ in range(n)])
    return Batch(users.tolist(), lists, ITEMS, (lists % 3 == users[:, None]).astype(np.float64))


def state(policy: VW) -> dict[str, bytes]:
    return {name: tensor.tobytes() for name, tensor in policy.tensors().items()}


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_run_is_what_deciding_and_learning_one_by_one_is_to_the_byte(setting: str) -> None:
    fast, slow = (VW(n_features=3, one_hot=True, setting=setting, seed=5) for _ in range(2))
    known = rounds(150)
    log = known._replace(payoffs=known.payoffs[:, 0], served=np.zeros(150, dtype=np.int64))
    for batch in (known, log):
        mine, theirs = fast.run(batch), run_one_by_one(slow, batch)
        for column, expected in zip(mine, theirs, strict=True):
            assert column.tolist() == expected.tolist()
    assert state(fast) == state(slow)
    assert fast.learned == slow.learned < 300
    assert fast.rng.random() == slow.rng.random()


def test_it_learns_what_each_user_likes() -> None:
    policy = VW(n_features=3, one_hot=True, setting="squarecb")
    paid = rounds(3_000).payoffs[np.arange(3_000), policy.run(rounds(3_000)).choice]
    possible = rounds(3_000).payoffs.max(axis=1)
    assert paid[:300].mean() < 0.8 * possible[:300].mean()
    assert paid[-300:].mean() > 0.9 * possible[-300:].mean()


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_saved_policy_of_both_goes_on_choice_for_choice(setting: str, tmp_path: Path) -> None:
    policy = VW(n_features=3, one_hot=True, setting=setting, seed=2)
    policy.run(rounds(80))
    policy.save(tmp_path / "model")
    loaded = coterie.load(tmp_path / "model")
    assert isinstance(loaded, VW)
    assert (loaded.learned, loaded.users) == (80, policy.users)
    assert state(loaded) == state(policy)
    assert loaded.run(rounds(80, 1)).choice.tolist() == policy.run(rounds(80, 1)).choice.tolist()
    assert state(loaded) == state(policy)


def test_choices_are_drawn_from_the_probabilities() -> None:
    """Untrained, all are alike. After b has paid, epsilon 0.1 shows it with probability 0.925, others with 0.025."""
    policy = VW(one_hot=True, setting="personalizer", seed=1)
    assert policy.explain("ann", list("abcd")).probability == pytest.approx([0.25] * 4)
    policy.learn("ann", "b", 1.0)
    assert policy.explain("ann", list("abcd")).probability == pytest.approx([0.025, 0.925, 0.025, 0.025])
    drawn = [policy.choose("ann", list("abcd")) for _ in range(2_000)]
    assert abs(drawn.count(1) - 1_850) < 5 * np.sqrt(2_000 * 0.925 * 0.075)


def test_the_whole_list_is_learned_from_only_after_its_own_decision(monkeypatch: pytest.MonkeyPatch) -> None:
    taught: list[tuple[int, int, float, float]] = []
    policy = VW(one_hot=True, setting="epsilon")

    def teach(examples: list[Any], k: int, payoff: float, chance: float) -> None:
        taught.append((len(examples) - 1, k, payoff, round(chance, 3)))
        policy._vw._finish_example_multi_ex(examples)

    monkeypatch.setattr(policy, "_teach", teach)
    k = policy.choose("ann", ["a", "b"])
    policy.explain("bob", ["c"])  # is not a decision
    chosen = ["a", "b"][k]
    policy.learn("ann", chosen, 1.0)
    policy.learn("bob", chosen, 0.5)  # another user
    policy.learn("ann", "c", -0.5)  # not in the list
    policy.drop("ann")
    policy.learn("ann", chosen, 1.0)  # whose decision is forgotten
    assert taught == [(2, k, 1.0, 0.5), (1, 0, 0.5, 1.0), (1, 0, -0.5, 1.0), (1, 0, 1.0, 1.0)]


def test_ids_of_any_characters_stay_apart() -> None:
    odd: list[Any] = ["a b", "a|b", "a:1", "a\nb", "1", 1, ("x", 2), "ä", ""]
    texts = [module._text(name) for name in odd]
    assert len(set(texts)) == len(odd)
    assert not any(set(" |:\n") & set(text) for text in texts)
    assert module._text(np.int64(1)) == module._text(1)
    policy = VW(one_hot=True)
    for name in odd:
        assert 0 <= policy.choose(name, odd) < len(odd)
        policy.learn(name, name, 1.0)


def test_bad_input_of_both_kinds_is_named_and_changes_nothing() -> None:
    policy = VW(n_features=3, one_hot=True)
    policy.run(rounds(20))
    before = state(policy)
    bad: list[tuple[str, Any]] = [
        ("contexts is a list, expected Candidates", lambda: policy.choose("new", ["a"])),
        ("context has 1 features, this policy was made with n_features=3",
         lambda: policy.choose("new", Candidates(["a"], [[1.0]]))),
        ("context is a str, expected an Action such as candidates", lambda: policy.learn("new", "a", 1.0)),
        ("context 0 holds NaN", lambda: policy.learn("new", Action("a", np.array([np.nan, 0, 0])), 1.0)),
        ("contexts is a ndarray", lambda: policy.run(rounds(3)._replace(items=ITEMS.features))),
    ]  # fmt: skip
    for message, call in bad:
        with pytest.raises(ContextError, match=message):
            call()
    assert state(policy) == before
    with pytest.raises(
        ParameterError, match="setting is 'best', expected one of: personalizer, epsilon, fast"
    ):
        VW(one_hot=True, setting="best")
    with pytest.raises(
        ParameterError, match="n_features is None and one_hot is False, expected at least one kind of context"
    ):
        VW()


def test_a_model_with_other_options_is_not_opened(tmp_path: Path) -> None:
    """Options in a model file could name files to write."""
    policy = VW(one_hot=True, setting="fast")
    found = policy.tensors()
    foreign = found["model"].tobytes().replace(b"--learning_rate 2", b"--final_regre x")
    for model in (foreign, VW(one_hot=True, setting="slow").tensors()["model"].tobytes(), b"", b"nothing"):
        with pytest.raises(FileError, match="is not Vowpal Wabbit's with setting='fast'"):
            policy.restore({**found, "model": np.frombuffer(model, dtype=np.uint8)})
    with pytest.raises(FileError, match="Vowpal Wabbit cannot read the model"):
        policy.restore({**found, "model": found["model"][:200]})
    policy.restore(found)


def test_without_the_package_the_way_out_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_spec("vowpalwabbit") is not None
    monkeypatch.setattr(vowpal_options, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"pip install 'coterie\[rivals\]'"):
        VW(one_hot=True)


def test_it_takes_vowpal_wabbits_own_arguments() -> None:
    """Options about namespaces are ours; those that could read or write files are refused, and nonsense too."""
    policy = VW(one_hot=True, arguments="--cb_explore_adf --epsilon 0.4 -q GT --ignore A --dsjson -b 18")
    for _ in range(50):
        policy.learn("ann", "jazz", 1.0)
        policy.learn("ann", "news", 0.0)
    assert policy.decide("ann", ["news", "jazz"]).probability.tolist() == pytest.approx([0.2, 0.8])
    for wrong, why in (
        ("--cb_explore_adf -f /tmp/x", "--f is no option"),
        ("--epsilon 0.2", "expected --cb_explore_adf"),
        ("--cb_explore_adf --cb_type nonsense", "Vowpal Wabbit refuses"),
    ):
        with pytest.raises(ParameterError, match=why):
            VW(one_hot=True, arguments=wrong)
