"""Hierarchical over actions of any form: by hand, against exact conditioning and its twin, and in a full table."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie import Action, Hierarchical
from coterie.errors import ContextError, FileError, ParameterError, UserError
from coterie.models._kernels.hierarchy import effect_keys as keys
from coterie.models.actions import named_features
from coterie.models.encoded import Encoded, read_actions
from coterie.models.hierarchy import blocks
from coterie.models.hierarchy.drift import HalfLife
from coterie.models.hierarchy.effects import NAMES, Effects, Settings
from coterie.models.hierarchy.named import NamedModel
from coterie.models.probability import pick
from tests.twins.named_effects import NaiveEffects


def effects_of(policy: Hierarchical) -> Effects:
    assert isinstance(policy._model, NamedModel)
    return policy._model.effects


def used(policy: Hierarchical) -> int:
    """How many effects are known."""
    return int((effects_of(policy).table.kinds > 0).sum())


def test_the_first_payoff_by_hand() -> None:
    """An id alone has four effects, with the prior variance 4 for the population and 0.15 each for the others.

    With the noise of 0.5 the total is 4.95. The first payoff is the origin, so no mean changes. The precision of the
    data is one over the total without the effect's own v. Variances are fitted once payoffs differ.
    """
    effects, one = Effects(64, None), read_actions(["tea"])[1]
    effects.learn("ann", one, 1.0, 1)
    tensors = effects.tensors()
    assert sorted(NAMES[kind] for kind in tensors["kinds"]) == ["id", "population", "user", "user × id"]
    assert tensors["precision"] == pytest.approx([1 / 0.95, 1 / 4.8, 1 / 4.8, 1 / 4.8])
    assert tensors["pull"].tolist() == [0] * 4
    assert effects.variances == {"population": 4, "user": 0.15, "id": 0.15, "user × id": 0.15}
    assert effects.noise[0] == 0.5
    offset = np.array([0.0, 0.25])
    told = effects.score("ann", read_actions(["tea", "milk"])[1], Settings(1.0, 0.0), offset)
    assert told[0].tolist() == [1, 1.25]
    # What all candidates have in common is not explored. With one payoff per id, a ninth of an id's variance counts,
    # and as much of the user's for this id: there is one user, so nothing is of use for others only.
    assert told[1] == pytest.approx([math.sqrt(2 / (1 / 0.15 + 1 / 4.8) / 9), math.sqrt(2 * 0.15 / 9)])


def test_the_first_payoff_is_exact_conditioning() -> None:
    """The prior has no covariances, so after one payoff the variances are those of the full Gaussian.

    Numbers are left out of effects of their own, and of the crosses, until they vary: what is left is a constant.
    """
    policy = Hierarchical()
    policy.learn("ann", Action("i", {"x": 1.5, "y": 0.3}, {"a": 0.5, "b": -2.0}), 0.7)
    kinds = [NAMES[kind] for kind in policy.tensors()["kinds"]]
    assert sorted(kinds) == ["population", "user", "user × id"]
    own = np.array([4.0 if kind == "population" else 0.15 for kind in kinds])
    block, z, constant = np.diag([0.25, 0.125, 0.125]), np.array([1, 0.5, -2]), 0.25
    total = own.sum() + z @ block @ z + constant + 0.5
    assert 1 / (1 / own + policy.tensors()["precision"]) == pytest.approx(own - own**2 / total)
    blocks, crosses = effects_of(policy).blocks, effects_of(policy).crosses
    posterior = np.linalg.inv(np.linalg.inv(block) + np.outer(z, z) / (total - z @ block @ z))
    assert posterior == pytest.approx(block - np.outer(block @ z, block @ z) / total)
    assert blocks.blocks.gram[1] == pytest.approx(np.outer(z, z) / (total - z @ block @ z))
    assert crosses.block.gram[0, 0, 0] == pytest.approx(1 / (total - constant))
    assert not crosses.block.gram[0, 1:].any()
    assert crosses.block.spread[0, 0, 0] == pytest.approx(constant - constant**2 / total)


EXPLORING = [(1.0, 0.01), (0.3, 0.15), (0.0, 0.0)]  # explore and floor
LEARNING = [(False, None), (True, "learned"), (False, 8.0)]  # clicks and half_life


@pytest.mark.parametrize(
    ("explore", "floor", "clicks", "half_life"),
    [
        pytest.param(*exploring, *learning, marks=pytest.mark.slow if i and i != k else [])
        for i, exploring in enumerate(EXPLORING)
        for k, learning in enumerate(LEARNING)
    ],
)
def test_choices_are_those_of_the_twin(
    explore: float, floor: float, clicks: bool, half_life: HalfLife
) -> None:
    rng = np.random.default_rng(7)
    policy = Hierarchical(explore=explore, floor=floor, seed=3, slots=5000, half_life=half_life)
    twin, stream = NaiveEffects(explore, floor, half_life), np.random.default_rng(3)
    for t in range(250):
        user = f"user {rng.integers(5)}"
        context = {f"c{i}": float(rng.normal()) for i in rng.permutation(20)[: rng.integers(0, 4)]}
        if t % 50 == 9:
            context = {f"c{i}": 1.0 for i in range(17)}  # too many for effects of user, context and id
        actions = [
            Action(
                None if rng.random() < 0.2 else int(rng.integers(6)),
                {f"f{i}": float(rng.integers(1, 3)) for i in rng.permutation(4)[: rng.integers(0, 3)]},
                context,
            )
            for _ in range(4)
        ]
        scores, sds = zip(*(twin.score(user, a.id, a.features, context) for a in actions), strict=True)
        chances = twin.chances(scores, sds)
        decision = policy.decide(user, actions)
        assert decision.score == pytest.approx(scores, abs=1e-9)
        assert decision.probability == pytest.approx(chances, abs=1e-5)
        expected = (
            decision.choice
            if decision.probability.max() == 1
            else pick(decision.probability, stream.random())
        )
        assert policy.draw(decision) == expected
        chosen = actions[expected]
        y = (
            float(rng.random() < 0.2)
            if clicks
            else round(float(rng.uniform(-1, 1)), 2) * (9 if t % 17 == 5 else 1)
        )
        if t % 90 == 80:
            y = 1e4  # far beyond all others
        policy.learn(user, chosen, y)
        twin.learn(user, chosen.id, chosen.features, context, y)
        if t % 60 == 59:
            policy.drop(user)
            twin.drop(user)
    assert policy.variances == pytest.approx(twin.v0)
    assert effects_of(policy).noise[0] == pytest.approx(twin.noise)


def test_context_decides_between_actions_that_are_ids_only() -> None:
    policy, rng, right = Hierarchical(seed=0), np.random.default_rng(0), 0
    for t in range(600):
        wet = bool(rng.random() < 0.5)
        shown = [Action(item, {}, {"rain" if wet else "sun": 1}) for item in ("umbrella", "hat")]
        k = policy.choose("everybody", shown)
        good = (shown[k].id == "umbrella") == wet
        right += good and t >= 100
        policy.learn("everybody", shown[k], float(good))
    assert right > 450  # of 500


def test_what_was_learned_in_a_context_counts_without_one() -> None:
    policy = Hierarchical(explore=0.0, floor=0.0)
    for _ in range(10):
        policy.learn("ann", Action("tea", {}, {"sun": 1}), 0.0)
        policy.learn("ann", Action("juice", {}, {"sun": 1}), 1.0)
    estimate = policy.explain("bob", [Action("tea"), Action("juice")]).estimate
    in_the_sun = policy.explain("bob", [Action(item, {}, {"sun": 1}) for item in ("tea", "juice")]).estimate
    assert estimate == pytest.approx(in_the_sun)  # the sun always shone, so it explains nothing
    assert estimate[1] > estimate[0] + 0.3


def test_choices_are_as_frequent_as_their_probabilities() -> None:
    policy = Hierarchical(floor=0.2, seed=5)
    policy.learn("ann", Action("a"), 1.0)
    policy.learn("ann", Action("b"), -1.0)
    shown = [Action(item) for item in "abc"]
    chances = policy.explain("ann", shown).probability
    assert chances is not None
    assert chances.sum() == pytest.approx(1)
    assert chances.min() >= 0.2 / 3
    often = np.bincount([policy.choose("ann", shown) for _ in range(4000)], minlength=3) / 4000
    assert often == pytest.approx(chances, abs=0.03)


def test_without_exploring_the_best_estimate_is_taken() -> None:
    policy = Hierarchical(explore=0.0, floor=0.0)
    policy.learn("ann", Action("b"), 1.0)
    policy.learn("ann", Action("a"), 0.0)
    assert {policy.choose("ann", [Action(item) for item in "abc"]) for _ in range(20)} == {1}
    assert policy.explain("ann", [{"x": 1}, {"y": 1}]).probability.tolist() == [1.0, 0.0]


def test_contributions_right_after_a_decision_are_those_that_are_computed_anew() -> None:
    policy, shown = Hierarchical(), [Action(name) for name in "abc"]
    candidates = policy.read(shown)
    for k in range(30):
        policy.learn(f"user-{k % 3}", shown[k % 3], float(k % 2))
        policy.decide("user-1", candidates)
        for user in ("user-1", "user-2"):  # the latter was not decided for
            after = [policy.contributions(user, candidates, i) for i in range(3)]
            assert after == [policy.contributions(user, policy.read(shown), i) for i in range(3)]
        policy.decide("user-1", candidates)
        policy.learn("user-1", shown[0], 1.0)
        assert policy.contributions("user-1", candidates, 0) == policy.contributions(
            "user-1", policy.read(shown), 0
        )
        if k == 20:
            policy.decide("user-1", candidates)
            policy.drop("user-1")
            assert policy.contributions("user-1", candidates, 0) == policy.contributions(
                "user-1", policy.read(shown), 0
            )


def test_contributions_are_the_largest_parts() -> None:
    policy = Hierarchical()
    shown = Action("tea", {"hot": 1.0, "sweet": 0.1}, {"cold day": 1.0})
    for _ in range(20):
        policy.learn("ann", shown, 1.0)
        policy.learn("ann", Action("milk", {"cool": 1.0}, {"hot day": 1.0}), 0.0)
    parts = policy.contributions("ann", [Action("milk"), Action("tea", shown.features, {})][1:], 0, most=3)
    assert len(parts) == 3
    assert [abs(part.value) for part in parts] == sorted((abs(part.value) for part in parts), reverse=True)
    every = policy.contributions("ann", [shown], 0, most=50)
    told = policy.explain("ann", [shown])
    assert sum(part.value for part in every) == pytest.approx(told.estimate[0])
    assert {(part.kind, part.action, part.context) for part in every} >= {
        ("population", -1, -1), ("user", -1, -1), ("id", 0, -1), ("feature", 1, -1), ("context × id", 0, 0),
        ("context × feature", 2, 0), ("user × context × id", 0, 0),
    }  # fmt: skip
    assert policy.contributions("nobody", [Action("water")], 0) == [every_of(policy, "population")]


def every_of(policy: Hierarchical, kind: str) -> Any:
    return next(part for part in policy.contributions("ann", [Action("tea")], 0, 50) if part.kind == kind)


def test_a_forgotten_user_leaves_nothing_behind() -> None:
    policy = Hierarchical()
    policy.learn("ann", Action("a", {"x": 1}, {"c": 1}), 1.0)
    assert used(policy) == 5
    policy.drop("ann")
    assert used(policy) == 1  # population; what else all users share is in a block and in the crosses
    owned = {NAMES.index(name) for name in NAMES if name.startswith("user")}
    assert not owned & set(policy.tensors()["kinds"].tolist())
    assert "ann" not in policy.users
    empty = policy.tensors()["kinds"] == 0
    for name in ("keys", "precision", "pull", "touched"):
        assert not policy.tensors()[name][empty].any()
    shown = [Action("a", {"x": 1}, {"c": 1}), Action("z", {"y": 1}, {"c": 1})]
    told, stranger = policy.explain("ann", shown), policy.explain("nobody", shown)
    assert told.score.tolist() == stranger.score.tolist()


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 6), st.integers(0, 12), st.integers(0, 4)), max_size=60),
    st.integers(64, 80),
)
def test_a_table_that_is_too_small_stays_sound(visits: list[tuple[int, int, int]], slots: int) -> None:
    """After each step its tensors can be restored, which checks keys, lists of users and free places."""
    policy = Hierarchical(slots=slots)
    for user, item, features in visits:
        shown = Action(item, {f"f{k}": 1.0 for k in range(features)}, {f"c{k}": 1.0 for k in range(features)})
        policy.learn(user, shown, (-1.0) ** item)
        if item == 3:
            policy.drop(user)
        other = Hierarchical(slots=slots)
        other.restore(policy.tensors())
        other.learned = policy.learned
        assert used(policy) <= slots
        told, same = policy.explain(user, [shown]), other.explain(user, [shown])
        assert told.estimate.tolist() == same.estimate.tolist()
        assert np.isfinite(told.score).all()


def test_a_full_table_continues_identically_after_a_file(tmp_path: Path) -> None:
    def play(policy: Hierarchical, seed: int) -> list[int]:
        rng, chosen = np.random.default_rng(seed), []
        for _ in range(80):
            shown = [Action(int(i), {"f": 1.0}) for i in rng.permutation(30)[:3]]
            k = policy.choose(int(rng.integers(9)), shown)
            policy.learn(int(rng.integers(9)), shown[k], float(rng.random() < 0.5))
            chosen.append(k)
        return chosen

    policy = Hierarchical(slots=70)
    play(policy, 0)
    policy.save(tmp_path / "model")
    loaded = Hierarchical.load(tmp_path / "model")
    assert play(loaded, 1) == play(policy, 1)
    for name, tensor in policy.tensors().items():
        assert tensor.tobytes() == loaded.tensors()[name].tobytes()


def test_scale_hardly_matters() -> None:
    """With features ten times as large the starting variances adapt, so the first decisions are the same."""
    small, large = Hierarchical(), Hierarchical()
    rng = np.random.default_rng(0)
    for _ in range(60):
        x = rng.normal(size=3)
        for policy, factor in ((small, 1.0), (large, 10.0)):
            policy.learn("ann", {f"f{i}": factor * v for i, v in enumerate(x)}, float(x[0] > 0))
    ask = rng.normal(size=(4, 3))
    one = small.explain("ann", [{f"f{i}": v for i, v in enumerate(row)} for row in ask])
    ten = large.explain("ann", [{f"f{i}": 10 * v for i, v in enumerate(row)} for row in ask])
    assert one.score == pytest.approx(ten.score)


def test_candidates_are_the_same_after_bytes() -> None:
    policy = Hierarchical()
    for shown in (Action("a", {"x": 2}, {"c": 1, "d": 3}), Action(None, {}, {}), Action("b")):
        encoded = policy.read([shown])
        again = Encoded.from_bytes(encoded.to_bytes())
        for one, two in zip(encoded.hashed, again.hashed, strict=True):
            assert one.tolist() == two.tolist()
    for bad in (b"", b"x" * 9, b"\xff" * 24, np.array([0, 1], "<u4").tobytes()):
        with pytest.raises(FileError, match="hashed features"):
            Encoded.from_bytes(bad)


@pytest.mark.parametrize("vector", [[0.5, 0, -2.0], (0.5, 0, -2.0), np.array([0.5, 0, -2.0])])
def test_a_context_may_be_a_vector(vector: Any) -> None:
    named, numbered = Hierarchical(), Hierarchical()
    for policy, context in ((named, {"f0": 0.5, "f2": -2.0}), (numbered, vector)):
        shown = [Action("a", {}, context), Action("b", {}, list(vector) if policy is numbered else context)]
        for t in range(20):
            policy.learn(None, shown[t % 2], float(t % 3))
        policy.choose("ann", shown)
    assert named.explain("ann", [Action("a", {}, {"f0": 0.5, "f2": -2.0})]).score == pytest.approx(
        numbered.explain("ann", [Action("a", {}, vector)]).score, abs=0
    )


def test_bad_actions_are_named_and_change_nothing() -> None:
    policy = Hierarchical()
    policy.learn("ann", Action("a"), 1.0)
    before = {name: tensor.tobytes() for name, tensor in policy.tensors().items()}
    good = Action("a", {}, {"c": 1})
    for message, contexts in (
        ("the candidate list is empty", []),
        ("contexts is the single string 'jazz'", "jazz"),
        ("expected a list of actions", Action("a")),
        ("contexts is 3, expected a sequence of actions", 3),
        ("the vector of action 1 has 'red', expected numbers", [[1.0], [2.0, "red"]]),
        ("action 1 has another context", [good, Action("b")]),
        ("action 1 has another context", [good, {"x": 1}]),
        (r"item id \[1\] is unhashable", [Action([1])]),  # type: ignore[arg-type]
        ("feature 'x' of action 0 is nan", [Action("a", {"x": math.nan})]),
        ("feature 'x' of action 0 is b'red', expected a word or a finite", [Action("a", {"x": b"red"})]),
        ("feature 'x' of the context is inf", [Action("a", {}, {"x": math.inf})]),
        ("feature 'x' of action 0 is -inf", [Action("a", {"x": -math.inf})]),
        ("action 0 is 3, expected a mapping of names", [Action("a", 3)]),
        ("action 0 is 'jazz', expected a mapping of names", [Action("a", "jazz")]),
        (r"feature 'f0' of action 0 is \[1.0\]", [Action("a", [[1.0], [2.0]])]),
        ("the context is 3, expected a mapping of names", [Action("a", {}, 3)]),
        ("the vector of the context has 'red', expected numbers", [Action("a", {}, [1.0, "red"])]),
        ("action 1 has another context", [Action("a", {}, [1, 2]), Action("b", {}, np.array([1, 3]))]),
        ("has the name 3, expected text", [Action("a", {3: 1.0})]),
        (
            "make 250000 crosses, expected at most 200000",
            [Action(None, {f"f{i}": 1.0 for i in range(500)}, {f"c{i}": 1.0 for i in range(500)})],
        ),
    ):
        with pytest.raises(ContextError, match=message):
            policy.choose("ann", contexts)  # type: ignore[arg-type]
        if isinstance(contexts, list) and len(contexts) == 1:
            with pytest.raises(ContextError, match=message):
                policy.learn("ann", contexts[0], 1.0)
    with pytest.raises(UserError, match="user 'bob' is not known"):
        policy.drop("bob")
    assert before == {name: tensor.tobytes() for name, tensor in policy.tensors().items()}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"slots": 10}, "slots is 10, expected a whole number of at least 64"),
        ({"slots": 1 << 40}, "expected at most"),
        ({"explore": -1}, "explore is -1"),
        ({"explore": math.nan}, "explore is nan"),
        ({"floor": 1.5}, "floor is 1.5, expected a share between 0 and 1"),
        ({"one_hot": True, "slots": 64}, "slots is 64, but declared actions have no table of effects"),
        ({"half_life": 0}, r"half_life is 0, expected a number of payoffs above 0"),
        ({"one_hot": 1}, "one_hot is 1"),
    ],
)
def test_bad_parameters_are_named(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        Hierarchical(**wrong)


def test_a_file_that_contradicts_itself_is_refused() -> None:
    policy = Hierarchical()
    for k in range(12):
        policy.learn(k % 4, Action(k % 5, {"f": 1.0}, {"c": 1.0 + k}), 0.5)
    policy.drop(2)
    whole = policy.tensors()

    def other(**changed: Any) -> dict[str, Any]:
        return {**whole, **{name: np.array(value) for name, value in changed.items()}}

    def with_(name: str, place: int, value: Any) -> dict[str, Any]:
        tensor = whole[name].copy()
        tensor[place] = value
        return other(**{name: tensor})

    head = int(np.flatnonzero(whole["kinds"] == keys.USER)[0])
    member = int(np.flatnonzero(whole["kinds"] == keys.USER_ID)[0])
    plain = int(np.flatnonzero(whole["kinds"] == keys.POPULATION)[0])
    for tensors in (
        with_("nexts", head, head),
        with_("nexts", head, -1),
        with_("nexts", member, 10_000),
        with_("owners", member, plain),
        with_("owners", member, -1),
        with_("owners", plain, head),
        with_("kinds", plain, 200),
        with_("kinds", plain, 0),
        with_("keys", plain, whole["keys"][head]),
        with_("precision", plain, -1.0),
        with_("precision", plain, np.nan),
        with_("counts", 0, 3),
        with_("counts", 2, -1),
        with_("numbers", 0, 1),
        with_("numbers", 0, 99),
        with_("noise", 0, 0.0),
        with_("figures", 3, 0.0),
        with_("block_spread", 1, -1.0),
        with_("block_fitted", 3, 0.0),
        with_("block_mean", 1, np.nan),
        with_("block_middle", 1, -1.0),
        with_("block_centre", 1, np.inf),
        with_("block_ids", 1, whole["block_ids"][0]),
        with_("cross_spread", 0, np.inf),
        with_("cross_pull", 0, np.nan),
        with_("cross_fitted", 3, 0.0),
        with_("cross_context_seen", 1, -1.0),
        other(cross_actions=np.array([1, 1], dtype=np.uint64)),
        with_("context_units_seen", 0, 0.0),
        with_("context_units_seen", 3, -1.0),
        with_("context_units_seen", 3, 1e101),
        other(action_units_hashes=np.array([1], dtype=np.uint64)),
        other(free=whole["free"][:-1]),
        other(crossed=[2]),
        other(columns=np.array([1, 1], dtype=np.uint64)),
        other(columns=np.array([1], dtype=np.uint64)),
        with_("plain_many_place", 0, 2),
        with_("plain_deciding", 0, 3),
        other(users=np.frombuffer(json.dumps([1, 2]).encode(), np.uint8)),
    ):
        fresh = Hierarchical()
        with pytest.raises(FileError):
            fresh.restore(tensors)
        assert not fresh.users
        assert used(fresh) == 0
    Hierarchical().restore(with_("context_units_seen", 3, 1e40))  # many large numbers in range add up to it
    with pytest.raises(FileError, match="expected at most 64"):
        Hierarchical(slots=64).restore(grown())


def grown() -> dict[str, Any]:
    policy = Hierarchical()
    for k in range(40):
        policy.learn(k, Action(k, context={"c": 1.0}), 0.5)
    return policy.tensors()


def test_users_whose_effects_were_removed_can_learn_and_be_dropped() -> None:
    policy = Hierarchical(slots=64)
    for k in range(200):
        policy.learn(k, Action(k), 1.0)
    assert len(policy.users) == 200
    assert used(policy) <= 64
    policy.learn(0, Action(0), 1.0)
    for k in range(200):
        policy.drop(k)
    assert not policy.users


def digits(n_rounds: int, batch: int = 1, unit: float = 1.0, worth: float = 1.0) -> float:
    """Play scikit-learn's digits: 64 pixels are the context, 10 actions by id. Return the share right at the end."""
    data, rng = pytest.importorskip("sklearn.datasets").load_digits(), np.random.default_rng(0)
    policy, waits, right = Hierarchical(seed=0), [], []
    for place in rng.permutation(len(data.target))[:n_rounds].tolist():
        pixels = data.data[place] * np.where(np.arange(64) == 20, unit, 1.0)
        context = {f"p{i}": value for i, value in enumerate(pixels.tolist())}
        encoded = policy.read([Action(str(digit), {}, context) for digit in range(10)])
        k = policy.choose("everybody", encoded)
        right.append(k == data.target[place])
        waits.append((encoded[k], worth * float(right[-1])))
        if len(waits) == batch:
            for one, payoff in waits:
                policy.learn("everybody", one, payoff)
            waits.clear()
    return float(np.mean(right[-n_rounds // 4 :]))


@pytest.mark.slow
@pytest.mark.parametrize("change", [{}, {"batch": 200}, {"unit": 100.0}, {"unit": 1e4}, {"worth": 0.01}])
def test_actions_by_id_learn_their_weights_over_the_context(change: dict[str, Any]) -> None:
    """A diagonal posterior over correlated pixels is right in 0.77 of the last 450 rounds."""
    assert digits(1797, **change) > 0.86


def test_the_origin_and_the_scale_of_payoffs_do_not_matter() -> None:
    def play(worth: float, base: float) -> list[int]:
        rng, policy, chosen = np.random.default_rng(1), Hierarchical(seed=1), []
        for t in range(200):
            context = {"a": float(rng.normal()), "b": 1.0}
            shown = [Action(int(i), {"f": float(i % 3)}, context) for i in rng.permutation(6)[:4]]
            k = policy.choose(t % 7, shown)
            paid = float(rng.random() < 0.3 + 0.1 * (int(str(shown[k].id)) % 4))
            policy.learn(t % 7, shown[k], paid * worth + base)
            chosen.append(k)
        return chosen

    assert play(1 / 128, 0.0) == play(1.0, 0.0)
    assert play(0.5, -0.75) == play(1.0, 0.0)


def test_a_few_large_payoffs_do_not_look_like_tastes() -> None:
    """Purchases: most payoffs are 0, some are large, and users do not differ. Before, 0.63 of random's regret."""
    rng = np.random.default_rng(1)
    policy, weights = Hierarchical(seed=1), rng.normal(size=(6, 5)) * 0.4
    regret = random = 0.0
    for _ in range(2000):
        user, z = int(rng.integers(30)), rng.normal(size=4)
        buys = 1 / (1 + np.exp(2.5 - weights @ np.r_[1, z]))
        now = {f"c{i}": float(value) for i, value in enumerate(z)}
        shown = [Action(str(k), None, now) for k in range(6)]
        k = policy.choose(user, shown)
        regret, random = regret + buys.max() - buys[k], random + float((buys.max() - buys).mean())
        policy.learn(user, shown[k], float(rng.random() < buys[k]) * float(np.exp(3 + rng.standard_normal())))
    assert regret < 0.6 * random


def test_blocks_have_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Context features beyond the places, and actions beyond the room, have effects of their own in the table."""
    monkeypatch.setattr(blocks, "MOST", 2)
    monkeypatch.setattr(blocks, "ROOM", 3 * 3 * 3)
    policy = Hierarchical()
    for k in range(12):
        policy.learn("ann", Action(k % 4, {}, {"a": 1.0, "b": float(k), "c": 1.0}), float(k % 2))
    assert (len(effects_of(policy).blocks.places), len(effects_of(policy).blocks.ids)) == (2, 2)
    found = [NAMES[kind] for kind in policy.tensors()["kinds"]]
    assert found.count("id") == 2
    assert found.count("context × id") == 2 + 2 * 3
    assert np.isfinite(policy.explain("ann", [Action(3, {}, {"a": 1.0, "c": 1.0, "d": 1.0})]).score).all()
    again = Hierarchical()
    again.restore(policy.tensors())
    assert again.tensors()["block_spread"].tobytes() == policy.tensors()["block_spread"].tobytes()


def test_none_is_no_features_and_no_context() -> None:
    plain, policy = Hierarchical(), Hierarchical()
    for one, action in ((plain, Action("a")), (policy, Action("a", None, None))):
        assert one.choose("ann", [action]) == 0
        one.learn("ann", action, 1.0)
    assert {name: t.tobytes() for name, t in plain.tensors().items()} == {
        name: t.tobytes() for name, t in policy.tensors().items()
    }


def test_in_a_context_old_payoffs_fade_as_users_return() -> None:
    """Two users, and a half-life of ten payoffs of each: after twenty payoffs all that was known counts half."""
    policy, now = Hierarchical(half_life=10), {"a": 1.0}
    for t in range(40):
        policy.learn(t % 2, Action("x", context=now), t % 3)
    before, block = effects_of(policy).table.precision.copy(), effects_of(policy).blocks.blocks.gram.copy()
    for t in range(20):
        policy.learn(t % 2, Action("y", context={"b": 1.0}), 1.0)
    after = effects_of(policy).table.precision
    alone = [
        e
        for e, kind in enumerate(effects_of(policy).table.kinds[:40])
        if NAMES[kind] == "user × context × id"
    ]
    assert after[alone[:2]] == pytest.approx(before[alone[:2]] / 2)
    ratio = effects_of(policy).blocks.blocks.gram[1, 1, 1] / block[1, 1, 1]
    assert ratio > 0.4  # a half, but that the noise was fitted again


@pytest.mark.parametrize("users", [1, 20])
def test_forgetting_follows_a_change_in_a_context(users: int) -> None:
    """The payoffs turn around every 250 rounds."""
    right = {}
    for half_life in (None, 60.0 / users):
        policy, rng, found = Hierarchical(half_life=half_life, seed=1), np.random.default_rng(2), 0
        for t in range(1500):
            now = {"rain": float(rng.normal())}
            shown = [Action(name, context=now) for name in "ab"]
            k, user = policy.choose(t % users, shown), t % users
            good = (k == 0) == ((now["rain"] > 0) == (t // 250 % 2 == 0))
            policy.learn(user, shown[k], float(good))
            found += good
        right[half_life] = found / 1500
    assert right[60.0 / users] > right[None] + 0.1


def test_a_number_above_a_million_counts_by_its_logarithm() -> None:
    assert named_features("the action", {"time": 1e6, "late": 1e6 * math.e, "early": -1e6 * math.e**2}) == {
        "time": 1e6,
        "late": pytest.approx(2e6),
        "early": pytest.approx(-3e6),
    }
    policy = Hierarchical()
    for now in (1.7e9, 1.7e9 + 3600, 1e308, -1e308):
        action = Action("a", {"made": now}, {"now": now})
        policy.learn("ann", action, 1.0)
        assert math.isfinite(policy.decide("ann", [action]).score[0])


def test_a_worse_action_is_not_kept_in_one_of_two_contexts() -> None:
    """Action b pays the same in both contexts, so most payoffs are equal; a pays more in one, little in the other."""
    payoffs = {"easy": (0.9, 0.75), "hard": (0.1, 0.75)}
    found = []
    for seed in range(12):
        policy, rng, right = Hierarchical(seed=seed), np.random.default_rng(seed), 0
        for t in range(300):
            kind = ("easy", "hard")[int(rng.integers(2))]
            shown = [Action(name, {}, {"prompt": kind}) for name in "ab"]
            k = policy.choose("ann", shown)
            policy.learn("ann", shown[k], payoffs[kind][k])
            right += t >= 200 and kind == "easy" and k == 0
        found.append(right)
    assert sum(right > 25 for right in found) >= 10


def test_contexts_whose_products_overflow_are_explored_whole() -> None:
    """A model file may hold such sums; what is explored stays a number."""
    policy, rng = Hierarchical(), np.random.default_rng(0)
    for _ in range(30):
        policy.learn(
            "ann", Action("ab"[int(rng.integers(2))], {}, {"x": rng.normal(), "y": 1.0}), rng.normal()
        )
    found = effects_of(policy).blocks
    found.blocks.gram[:] = 1e200
    assert found._common(np.full(3, 1e150)) == 1.0
    found.blocks.gram[:] = np.nan
    assert found._common(np.ones(3)) == 1.0


@pytest.mark.parametrize("users", [1, 20])
def test_numbers_of_any_origin_and_unit_are_learned_in_a_context(users: int) -> None:
    """Payoffs depend on products of a context feature and an action's feature, and on the user's own tastes.

    In the second game the same numbers are told with other origins and in units from 0.01 to 1,000.
    """
    lost = []
    for told in (False, True):
        rng = np.random.default_rng(5)
        shared, own = rng.normal(size=(3, 3)), rng.normal(size=(users, 3)) * (0.5 if users > 1 else 0.0)
        origin, unit = (3 * rng.normal(size=(2, 3)), 10.0 ** rng.uniform(-2, 3, (2, 3)))
        if not told:
            origin, unit = np.zeros((2, 3)), np.ones((2, 3))
        policy, regret, random = Hierarchical(seed=1, floor=0.0), 0.0, 0.0
        for t in range(900):
            user, around, actions = t % users, rng.normal(size=3), rng.normal(size=(5, 3))
            mean = actions @ (shared @ around + own[user])
            context = {f"c{i}": float(v) for i, v in enumerate((around + origin[0]) * unit[0])}
            shown = [
                Action(None, {f"f{i}": float(v) for i, v in enumerate((row + origin[1]) * unit[1])}, context)
                for row in actions
            ]
            k = policy.choose(user, shown)
            policy.learn(user, shown[k], float(mean[k] + 0.3 * rng.normal()))
            if t >= 600:
                regret += mean.max() - mean[k]
                random += mean.max() - mean.mean()
        lost.append(regret / random)
    assert max(lost) < 0.1
