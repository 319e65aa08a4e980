"""One form of an action: shorthands mean the same, what is missing is named; visitors without a name."""

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from coterie import (
    CAB,
    VW,
    Action,
    Batch,
    Candidates,
    Decision,
    Hierarchical,
    LinUCB,
    Policy,
    Random,
    load,
)
from coterie.errors import ContextError, FileError, UserError
from coterie.models.actions import named_features
from tests.policies.test_contract import candidates, each_policy, fingerprint, play

D = 5


def as_actions(contexts: Any, one_hot: bool) -> list[Action]:
    return [Action(one) if one_hot else Action(features=one) for one in contexts]


@each_policy
def test_actions_mean_what_their_shorthands_mean(make: Callable[[], Policy], one_hot: bool) -> None:
    short, long = make(), make()
    rng = np.random.default_rng(1)
    for t in range(20):
        contexts = candidates(rng, one_hot)
        actions = as_actions(contexts, one_hot)
        k = short.choose(f"user {t % 3}", contexts)
        assert long.choose(f"user {t % 3}", actions) == k
        assert long.rank("user 1", actions)[1:] != []
        short.rank("user 1", contexts)
        assert long.learn(f"user {t % 3}", actions[k], 0.5) == short.learn(f"user {t % 3}", contexts[k], 0.5)
    assert long.learn_many(["a", "b"], actions[:2], [0, 1]) == short.learn_many(
        ["a", "b"], contexts[:2], [0, 1]
    )
    lists = np.array([[0, 1], [1, 2]])
    assert (
        long.run(Batch(["a", "b"], lists, actions, np.ones((2, 2)))).choice.tolist()
        == short.run(Batch(["a", "b"], lists, contexts, np.ones((2, 2)))).choice.tolist()
    )
    assert fingerprint(long) == fingerprint(short)


def test_columns_are_read_by_ids_and_by_vectors() -> None:
    shown = Candidates(["jazz", "news"], [[1.0, 0.0], [0.0, 1.0]])
    for policy in (LinUCB(one_hot=True), LinUCB(n_features=2), CAB(one_hot=True), Hierarchical()):
        k = policy.choose("ann", shown)
        policy.learn("ann", shown[1 - k], 1.0)
        assert policy.decide("bob", shown).score.shape == (2,)
    assert policy.learned == 1


@pytest.mark.parametrize(
    ("policy", "actions", "text"),
    [
        (LinUCB(one_hot=True), [Action("a"), {"genre": "jazz"}], "action 1 has no id, and this policy"),
        (LinUCB(one_hot=True), [Action("a"), Action(features=[1.0])], "action 1 has no id"),
        (LinUCB(n_features=2), [Action("a", [1.0, 0.0]), Action("b")], "action 1 has no features, and"),
        (LinUCB(n_features=2), [Action("a", {"genre": "jazz"})], "action 0 has named features"),
        (LinUCB(n_features=2), [Action("a", [1.0, 0.0]), Action("b", [np.nan, 0.0])], "context 1 holds NaN"),
        (Hierarchical(), [{"age": float("nan")}], "feature 'age' of action 0 is nan, expected a word"),
        (Hierarchical(), [{"x": 1}, {"x": object()}], "feature 'x' of action 1 is <object"),
    ],
    ids=range(7),
)  # fmt: skip
def test_what_is_missing_is_named_and_nothing_changes(policy: Policy, actions: Any, text: str) -> None:
    before = fingerprint(policy)
    with pytest.raises(ContextError, match=text):
        policy.choose("ann", actions)
    with pytest.raises(ContextError):
        policy.learn_many(["ann"] * len(actions), actions, [1.0] * len(actions))
    assert fingerprint(policy) == before


def test_all_actions_of_a_choice_have_the_same_context_and_each_record_its_own() -> None:
    policy = Hierarchical()
    actions = [Action("a", {}, {"h": 1}), Action("b", {}, {"h": 2})]
    with pytest.raises(ContextError, match="action 1 has another"):
        policy.choose("ann", actions)
    policy.learn_many(["ann", "ann"], actions, [1.0, 0.0])
    assert policy.learned == 2


def test_words_are_parts_of_names_and_what_is_not_known_is_left_out() -> None:
    found = named_features(
        "it", {"genre": "jazz", "n": 3, "hot": True, "cold": False, "label": None, "empty": ""}
    )
    assert found == {"genre=jazz": 1.0, "n": 3.0, "hot": 1.0, "empty=": 1.0}
    word, plain = Hierarchical(), Hierarchical()
    word.learn("ann", Action("x", {"genre": "jazz", "label": None}), 1.0)
    plain.learn("ann", Action("x", {"genre=jazz": 1}), 1.0)
    assert fingerprint(word) == fingerprint(plain)


def test_a_policy_over_names_learns_records_and_tables() -> None:
    """As one by one, in each record's own context, without moving the random stream."""
    records = [
        Action("tea", {"hot": 1}, {"hour": 9}),
        Action("juice", {"kind": "cold"}, {"hour": 13}),
        Action("tea"),
    ]
    one, many, table = (Hierarchical(seed=1) for _ in range(3))
    for user, action, payoff in zip("abc", records, (1.0, 0.0, 0.5), strict=True):
        one.learn(user, action, payoff)
    stream = copy.deepcopy(many.rng.bit_generator.state)
    assert many.learn_many(list("abc"), records, [1.0, 0.0, 0.5]) == 3
    assert many.rng.bit_generator.state == stream
    columns = {
        "user": list("abc"), "payoff": [1.0, 0.0, 0.5], "item": [record.id for record in records],
        "features": [record.features for record in records], "context": [record.context for record in records],
    }  # fmt: skip
    table.fit(columns)
    assert fingerprint(one) == fingerprint(many) == fingerprint(table)


def test_a_position_is_not_an_action() -> None:
    policy = LinUCB(one_hot=True)
    k = policy.choose("ann", ["jazz", "news"])
    with pytest.raises(
        ContextError, match="context is 0, the position of 'jazz' in the last list; give the action"
    ):
        policy.learn("ann", k, 1.0)
    assert policy.learned == 0
    assert policy.learn("ann", "jazz", 1.0) == 1
    numbered = LinUCB(one_hot=True)
    numbered.choose("ann", [3, 1, 0])
    assert numbered.learn("ann", 0, 1.0) == 1  # an id, whatever its position
    assert LinUCB(one_hot=True).learn("ann", 0, 1.0) == 1  # nothing was offered


@each_policy
def test_of_an_anonymous_visitor_nothing_is_kept_but_what_all_share(
    make: Callable[[], Policy], one_hot: bool
) -> None:
    policy = make()
    if isinstance(policy, VW):
        pytest.skip("has no users, but a decision to learn from")
    play(policy, one_hot, 20, seed=1)
    users = set(policy.users)
    contexts = candidates(np.random.default_rng(2), one_hot)
    k = policy.choose(None, contexts)
    policy.learn(None, contexts[k], 1.0)
    policy.learn_many([None, "user 1", None], contexts[:3], [0.0, 1.0, 0.0])
    lists = np.array([[0, 1], [1, 2]])
    policy.run(Batch([None, "user 2"], lists, contexts, np.ones((2, 2))))
    assert set(policy.users) == users
    stranger, anonymous = policy.decide("a stranger", contexts), policy.decide(None, contexts)
    assert anonymous.probability.tolist() == stranger.probability.tolist()
    with pytest.raises(UserError, match="user is None, an anonymous visitor, of whom nothing is kept"):
        policy.add(None)


def test_a_shared_model_learns_from_anonymous_visitors() -> None:
    policy = LinUCB(one_hot=True, shared=True)
    policy.learn(None, "news", 1.0)
    assert policy.choose(None, ["jazz", "news"]) == 1
    assert list(policy.users) == []
    assert list(Random(one_hot=True).users) == []


class Counter(Policy):
    """The smallest policy: it counts."""

    name = "counter"
    reference = "none"

    def __init__(self, *, one_hot: bool = True, seed: int = 0) -> None:
        self.one_hot, self.seed = one_hot, seed
        self.counts: dict[Any, float] = {}
        self.seen = np.zeros(3)
        self.path: list[Any] = []

    def decide(self, user: Any, contexts: Any) -> Decision:
        items = self.read(contexts)
        weight = np.array([1.0 + self.counts.get(item, 0.0) for item in items])
        return Decision(user, items, weight, weight / weight.sum())

    def learn(self, user: Any, context: Any, payoff: float) -> int:
        [item] = self.read([context])
        payoff = self.read_payoff(payoff)
        self.add(user)
        self.counts[item] = self.counts.get(item, 0.0) + payoff
        self.path.append((user, payoff))
        self.learned += 1
        return 1


def test_two_methods_make_a_policy(tmp_path: Any) -> None:
    policy = Counter(seed=4)
    assert isinstance(play(policy, True, 30, seed=1), list)
    policy.learn("ann", ("a", 1), 1.0)
    policy.save(tmp_path / "model")
    again = Counter.load(tmp_path / "model")
    assert (again.counts, again.path, again.seen.tolist()) == (policy.counts, policy.path, [0.0, 0.0, 0.0])
    assert set(again.users) == set(policy.users)
    assert play(again, True, 30, seed=2) == play(policy, True, 30, seed=2)
    policy.drop("ann")
    with pytest.raises(FileError, match="which this coterie does not have"):
        load(tmp_path / "model")
    with pytest.raises(FileError, match="the attributes in the model file are damaged"):
        policy.restore({"attributes": np.frombuffer(b"[1", dtype=np.uint8)})
