"""What every policy promises, checked on every policy and both kinds of contexts."""

import copy
import inspect
import pickle
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import coterie
from coterie import Policy
from coterie.errors import ContextError, CoterieError, PayoffError, UserError
from coterie.policies import POLICIES

D = 5
Case = tuple[str, Callable[[], Policy], bool]


def cases() -> Iterator[Case]:
    """Every policy, for vectors and for items, with its switches both ways, away from the default alpha."""
    for name, kind in POLICIES.items():
        if name == "vw" and find_spec("vowpalwabbit") is None:
            continue  # an extra
        accepted = inspect.signature(kind).parameters
        if kind.takes_names:
            yield f"{name}-names", lambda k=kind: k(), True  # type: ignore[misc]
        switches: list[dict[str, Any]] = [{}]
        for switch in ("shared", "thompson"):
            if switch in accepted:
                switches = [{**given, switch: value} for given in switches for value in (False, True)]
        if "half_life" in accepted:
            switches.append({"half_life": 7.5})
        for given in switches:
            if "alpha" in accepted:
                given = {**given, "alpha": 0.3}
            named = (switch for switch, on in given.items() if on is True or switch == "half_life")
            label = "-".join([name, *named])
            if "n_features" in accepted:
                yield f"{label}-vectors", lambda k=kind, g=given: k(n_features=D, **g), False  # type: ignore[misc]
            if "one_hot" in accepted:
                yield f"{label}-items", lambda k=kind, g=given: k(one_hot=True, **g), True  # type: ignore[misc]


CASES = list(cases())
each_policy = pytest.mark.parametrize(
    ("make", "one_hot"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)


def candidates(rng: np.random.Generator, one_hot: bool) -> Any:
    if one_hot:
        return [f"item {i}" for i in rng.permutation(8)[:4]]
    x = rng.normal(size=(4, D))
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def play(policy: Policy, one_hot: bool, n_rounds: int, seed: int) -> list[int]:
    """Play seeded rounds and return the choices."""
    rng = np.random.default_rng(seed)
    choices = []
    for _ in range(n_rounds):
        user, contexts = f"user {rng.integers(6)}", candidates(rng, one_hot)
        k = policy.choose(user, contexts)
        choices.append(k)
        policy.learn(user, contexts[k], float(rng.random() < 0.2 + 0.15 * k))
    return choices


def fingerprint(policy: Policy) -> Any:
    """Everything a policy would write to a file, but for its random stream."""
    return policy.learned, {name: (t.dtype, t.tobytes()) for name, t in policy.tensors().items()}


@each_policy
def test_same_seed_same_trace(make: Callable[[], Policy], one_hot: bool) -> None:
    assert play(make(), one_hot, 80, seed=1) == play(make(), one_hot, 80, seed=1)


@each_policy
def test_choosing_ranking_and_explaining_leave_the_state_untouched(
    make: Callable[[], Policy], one_hot: bool
) -> None:
    policy = make()
    play(policy, one_hot, 40, seed=2)
    before = fingerprint(policy)
    contexts = candidates(np.random.default_rng(0), one_hot)
    for user in ("user 0", "a stranger"):
        policy.choose(user, contexts)
        policy.rank(user, contexts)
        policy.explain(user, contexts)
    assert fingerprint(policy) == before
    assert "a stranger" not in policy.users


@each_policy
def test_explain_tells_what_choose_and_rank_then_do(make: Callable[[], Policy], one_hot: bool) -> None:
    policy = make()
    play(policy, one_hot, 40, seed=3)
    rng = np.random.default_rng(4)
    for _ in range(20):
        contexts = candidates(rng, one_hot)
        told = policy.explain("user 1", contexts)
        assert told.ranking == policy.explain("user 1", contexts).ranking
        assert sorted(told.ranking) == list(range(len(contexts)))
        assert told.ranking[0] == told.choice
        twin = copy.deepcopy(policy)
        k = policy.choose("user 1", contexts)
        assert told.probability[k] > 0
        assert k == told.choice or told.probability[told.choice] < 1
        ranking = twin.rank("user 1", contexts)  # from the same place of the random stream
        assert ranking == told.ranking_with(k)
        assert (told.members >= 1).all()
        for column in (told.estimate, told.width, told.near_estimate, told.near_width, told.score):
            assert column.shape == (len(contexts),)
            assert np.isfinite(column).all()


@each_policy
def test_only_choosing_moves_the_random_stream(make: Callable[[], Policy], one_hot: bool) -> None:
    """One number for a choice that is left to chance, and none for another."""
    policy = make()
    play(policy, one_hot, 40, seed=3)
    rng = np.random.default_rng(4)
    expected: Any = copy.deepcopy(policy.rng)
    for t in range(20):
        contexts = candidates(rng, one_hot)
        told = policy.decide("user 1", contexts)
        policy.neighbours("user 1", contexts[0])
        policy.learn(f"user {t % 9}", contexts[0], 0.5)
        policy.learn_many(["user 2", f"new {t}"], contexts[:2], [0.0, 1.0])
        assert policy.rng is None or policy.rng.bit_generator.state == expected.bit_generator.state
        policy.choose("user 1", contexts)
        if told.probability.max() < 1 and policy.decide("user 1", contexts).probability.max() < 1:
            expected.random()
        assert policy.rng is None or policy.rng.bit_generator.state == expected.bit_generator.state


def shares_are_probabilities(policy: Policy, one_hot: bool, times: int) -> None:
    for user in ("user 1", "a stranger"):
        contexts = candidates(np.random.default_rng(8), one_hot)
        p = policy.decide(user, contexts).probability
        shares = np.bincount([policy.choose(user, contexts) for _ in range(times)], minlength=len(p)) / times
        assert (abs(shares - p) <= 4 * np.sqrt(p * (1 - p) / times) + 1e-9).all()


@each_policy
def test_choices_have_the_probabilities_that_decide_tells(make: Callable[[], Policy], one_hot: bool) -> None:
    policy = make()
    play(policy, one_hot, 40, seed=3)
    shares_are_probabilities(policy, one_hot, 400)


@pytest.mark.slow
@each_policy
def test_20_000_choices_have_the_probabilities_that_decide_tells(
    make: Callable[[], Policy], one_hot: bool
) -> None:
    policy = make()
    play(policy, one_hot, 40, seed=3)
    shares_are_probabilities(policy, one_hot, 20_000)


@each_policy
def test_neighbours_are_the_users_that_a_decision_rests_on(make: Callable[[], Policy], one_hot: bool) -> None:
    policy = make()
    context = candidates(np.random.default_rng(0), one_hot)[0]
    assert policy.neighbours("nobody", context) == ["nobody"]
    play(policy, one_hot, 60, seed=12)
    before = fingerprint(policy)
    for user in (*policy.users, "a stranger"):
        near = policy.neighbours(user, context)
        assert user in near
        assert len(near) == len(set(near))
        if policy.name != "hierarchical":  # decides with everybody; neighbours are those alike
            assert len(near) == policy.decide(user, [context]).members[0]
        assert set(near) - {user} <= set(policy.users)
    with pytest.raises(UserError, match="is unhashable"):
        policy.neighbours([], context)  # type: ignore[arg-type]
    with pytest.raises(ContextError):
        policy.neighbours("user 0", [[1]])
    assert fingerprint(policy) == before
    assert not hasattr(policy, "cluster")


@each_policy
def test_a_saved_policy_goes_on_identically(
    make: Callable[[], Policy], one_hot: bool, tmp_path: Path
) -> None:
    policy = make()
    play(policy, one_hot, 40, seed=5)
    policy.add("waiting")
    policy.drop("user 2")
    policy.save(tmp_path / "model")
    for loaded in (type(policy).load(tmp_path / "model"), coterie.load(tmp_path / "model")):
        assert fingerprint(loaded) == fingerprint(policy)
        assert set(loaded.users) == set(policy.users)
        assert loaded.parameters == policy.parameters
    assert play(loaded, one_hot, 60, seed=6) == play(policy, one_hot, 60, seed=6)
    assert fingerprint(loaded) == fingerprint(policy)


@each_policy
def test_copies_and_pickles_go_on_identically(make: Callable[[], Policy], one_hot: bool) -> None:
    policy = make()
    play(policy, one_hot, 40, seed=5)
    policy.learn(
        frozenset("ab"), candidates(np.random.default_rng(1), one_hot)[0], 1.0
    )  # no file could hold this id
    others = [copy.deepcopy(policy), pickle.loads(pickle.dumps(policy))]  # noqa: S301 (our own bytes)
    for other in others:
        assert type(other) is type(policy)
        assert other.parameters == policy.parameters
        assert other.learned == policy.learned
    expected = play(policy, one_hot, 60, seed=6)
    policy.drop(frozenset("ab"))
    for other in others:
        assert play(other, one_hot, 60, seed=6) == expected
        other.drop(frozenset("ab"))
        assert fingerprint(other) == fingerprint(policy)


@each_policy
def test_users_appear_on_first_payoff_and_leave_without_a_trace(
    make: Callable[[], Policy], one_hot: bool
) -> None:
    policy = make()
    policy.add("early")
    policy.add("early")
    assert list(policy.users) == ["early"]
    play(policy, one_hot, 40, seed=7)
    assert set(policy.users) == {"early", *(f"user {i}" for i in range(6))}
    for user in list(policy.users):
        policy.drop(user)
    assert list(policy.users) == []
    with pytest.raises(UserError, match="user 'user 0' is not known, so cannot be dropped"):
        policy.drop("user 0")
    play(policy, one_hot, 20, seed=8)


@each_policy
def test_bad_input_is_named_and_changes_nothing(make: Callable[[], Policy], one_hot: bool) -> None:
    policy = make()
    play(policy, one_hot, 30, seed=9)
    good, most = candidates(np.random.default_rng(0), one_hot), policy.largest_payoff
    before = fingerprint(policy), set(policy.users)
    bad: list[tuple[type[CoterieError], str, Callable[[], Any]]] = [
        (UserError, r"user id \['a'\] is unhashable", lambda: policy.choose(["a"], good)),  # type: ignore[arg-type]
        (UserError, "is unhashable", lambda: policy.learn({}, good[0], 1.0)),  # type: ignore[arg-type]
        (UserError, "is unhashable", lambda: policy.add([])),  # type: ignore[arg-type]
        (UserError, "is unhashable", lambda: policy.drop([])),  # type: ignore[arg-type]
        (ContextError, "the candidate list is empty", lambda: policy.choose("new", [])),
        (
            PayoffError,
            r"payoff is 1\.?5.*, expected a number in",
            lambda: policy.learn("new", good[0], 1.5 * most),
        ),
        (PayoffError, r"payoff is -1\.?1", lambda: policy.learn("new", good[0], -1.1 * most)),
        (PayoffError, "payoff is nan", lambda: policy.learn("new", good[0], float("nan"))),
        (PayoffError, "payoff is inf", lambda: policy.learn("new", good[0], float("inf"))),
        (PayoffError, "payoff is 'yes'", lambda: policy.learn("new", good[0], "yes")),  # type: ignore[arg-type]
        (PayoffError, "payoff is None", lambda: policy.learn("new", good[0], None)),  # type: ignore[arg-type]
    ]
    if one_hot and policy.one_hot:  # one that takes names reads a list as a vector
        bad += [
            (ContextError, r"item id \[1\] is unhashable", lambda: policy.choose("new", [[1]])),
            (ContextError, "is unhashable", lambda: policy.learn("new", [1], 1.0)),
        ]
    if one_hot:
        bad += [
            (ContextError, "contexts is the single string 'jazz'", lambda: policy.choose("new", "jazz")),
            (ContextError, "contexts is 3, expected a sequence", lambda: policy.choose("new", 3)),  # type: ignore[arg-type]
            (
                ContextError,
                "item id nan is not equal to itself",
                lambda: policy.choose("new", [1.0, float("nan")]),
            ),
        ]
    else:
        long, loud, hole = np.zeros((3, D + 1)), np.full((3, D), 0.9), np.zeros((3, D))
        hole[1, 2] = np.nan
        bad += [
            (ContextError, "context has 6 features, this policy was made with n_features=5",
             lambda: policy.choose("new", long)),
            (ContextError, "context 1 holds NaN or infinity", lambda: policy.choose("new", hole)),
            (ContextError, "context 0 holds NaN or infinity",
             lambda: policy.learn("new", np.full(D, np.inf), 1.0)),
            (ContextError, r"contexts have shape \(5,\)", lambda: policy.choose("new", np.zeros(D))),
            (ContextError, "contexts must be numbers", lambda: policy.choose("new", [["a"] * D])),
            (ContextError, "context has 2 features", lambda: policy.learn("new", [0.1, 0.2], 1.0)),
            (ContextError, "complex numbers", lambda: policy.choose("new", np.full((2, D), 0.1 + 0.1j))),
            (ContextError, "complex numbers", lambda: policy.learn("new", np.full(D, 0.1j), 1.0)),
            (ContextError, "masked values",
             lambda: policy.learn("new", np.ma.masked_less(np.array([-1, 0, 0, 0, 0.5]), 0), 1.0)),
        ]  # fmt: skip
        if not policy.takes_both:  # those that do have no bound to keep, and scale features for themselves
            bad.append((ContextError, "context 0 has norm 2.01246, expected at most 1",
                        lambda: policy.choose("new", loud)))  # fmt: skip
            bad.append((ContextError, "norm 1.0002, expected at most 1; it is 0.0002 over",
                        lambda: policy.choose("new", [[0.0] * D, [1.0002] + [0.0] * (D - 1)])))  # fmt: skip
    nan = float("nan")
    bad += [
        (UserError, "user id nan is not equal to itself", lambda: policy.choose(nan, good)),
        (UserError, "not equal to itself", lambda: policy.learn(np.float64("nan"), good[0], 1.0)),
        (UserError, "not equal to itself", lambda: policy.add(("shop", nan))),
        (PayoffError, "payoff is .*2j", lambda: policy.learn("new", good[0], np.complex128(1 + 2j))),  # type: ignore[arg-type]
        (ContextError, "contexts is a set, which has no order", lambda: policy.choose("new", {1, 2})),  # type: ignore[arg-type]
        (ContextError, "is a frozenset, which has no order", lambda: policy.choose("new", frozenset("ab"))),  # type: ignore[arg-type]
        (ContextError, "masked values", lambda: policy.choose("new", np.ma.masked_equal([[1, 2]], 2))),
    ]
    for error, message, call in bad:
        with pytest.raises(error, match=message):
            call()
    assert (fingerprint(policy), set(policy.users)) == before


@each_policy
def test_unit_vectors_may_be_rounded(make: Callable[[], Policy], one_hot: bool) -> None:
    if one_hot:
        return  # items have no norm
    x = candidates(np.random.default_rng(0), one_hot) * (1 + 9e-5)
    exact, rounded = make(), make()
    for k in range(4):
        exact.learn("ann", x[k] / np.linalg.norm(x[k]), 0.5)
        rounded.learn("ann", x[k], 0.5)
    for contexts in (x, x.astype(np.float32), (x / (1 + 9e-5)).astype(np.float32)):
        expected = exact.explain("ann", x / np.linalg.norm(x, axis=1, keepdims=True)).near_estimate
        assert rounded.explain("ann", contexts).near_estimate == pytest.approx(expected, abs=1e-6)
    assert x[0] @ x[0] > 1 + 1e-5  # what the caller gave is as it was


@each_policy
def test_a_batch_gives_what_one_by_one_gives(make: Callable[[], Policy], one_hot: bool) -> None:
    from coterie.policies.base.batch import Batch, run_one_by_one

    rng = np.random.default_rng(10)
    items: Any = [f"item {i}" for i in range(8)]
    if not one_hot:
        x = rng.normal(size=(8, D))
        items = x / np.linalg.norm(x, axis=1, keepdims=True)
    users = [f"user {i}" for i in rng.integers(6, size=60)]
    shown = np.array([rng.permutation(8)[:4] for _ in users])
    known = Batch(users, shown, items, np.round(rng.uniform(-1, 1, size=(60, 4)), 1))
    log = Batch(users, shown, items, np.round(rng.uniform(-1, 1, size=60), 1), rng.integers(4, size=60))
    fast, slow = make(), make()
    for batch in (known, log):
        mine, theirs = fast.run(batch), run_one_by_one(slow, batch)
        for column, expected in zip(mine, theirs, strict=True):
            assert column.tolist() == expected.tolist()
    assert set(fast.users) == set(slow.users)
    contexts = items if one_hot else items[:4]
    for user in ("user 0", "nobody"):
        assert fast.explain(user, contexts).score == pytest.approx(
            slow.explain(user, contexts).score, abs=1e-9
        )


def twin_of(policy: Policy) -> Any:
    """Return the slow twin that the file of the same name in `tests/twins` makes, or None if it makes none."""
    name = f"tests.twins.{type(policy).__module__.rpartition('.')[2]}"
    make = getattr(import_module(name), "twin_of", None) if find_spec(name) else None
    return make and make(policy, D if policy.n_features else 8)


WITH_TWIN = [case for case in CASES if twin_of(case[1]())]


@pytest.mark.parametrize(
    ("make", "one_hot"), [case[1:] for case in WITH_TWIN], ids=[case[0] for case in WITH_TWIN]
)
def test_choices_are_those_of_the_twin(make: Callable[[], Policy], one_hot: bool) -> None:
    policy, rng = make(), np.random.default_rng(11)
    twin = twin_of(policy)
    for _ in range(150):
        user, contexts = f"user {rng.integers(6)}", candidates(rng, one_hot)
        vectors = np.eye(8)[[int(item[5:]) for item in contexts]] if one_hot else contexts
        k = policy.choose(user, contexts)
        assert k == twin.choose(user, vectors)
        payoff = float(rng.random() < 0.2 + 0.15 * k)
        policy.learn(user, contexts[k], payoff)
        twin.learn(user, vectors[k], payoff)


def test_every_policy_says_where_it_comes_from() -> None:
    for name, kind in POLICIES.items():
        assert kind.name == name
        assert kind.reference
        assert (kind.__doc__ or "").strip()
