"""Numbers of any size: every policy refuses them or stays finite, and no loop crashes."""

import inspect
import warnings
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
import pytest

from coterie import Action, Candidates, Hierarchical
from coterie.errors import ContextError, CoterieError, FileError, NumberError, ParameterError
from coterie.models._kernels.hierarchy import effects
from coterie.models._kernels.probability import first_best as best
from coterie.models.encoded import Encoded
from coterie.models.features import flatten
from coterie.models.hierarchy.named import NamedModel
from coterie.models.ranges import LARGEST, MOST_LEARNED, MOST_STORED, PRODUCT, TINY
from coterie.policies import POLICIES, Batch, Policy
from tests.policies.test_contract import D, candidates, each_policy, fingerprint, play
from tests.policies.test_hierarchical_names import effects_of

SMALL = (0.0, -0.0, 5e-324, 1e-310, 1e-161, 1e-160, 1e-155, 1e-80, 1e-21, 1e-20, 1e-9, 0.3, -0.3)
LARGE = (1.0, -7.0, 1e3, 1e6, -1e9, 1e12)
REFUSED = (1.1e12, 1e13, 1e160, 1e308, -1e308, float("inf"), float("nan"))


def all_finite(policy: Policy) -> bool:
    return all(np.isfinite(t).all() for t in policy.tensors().values() if t.dtype.kind == "f")


def learn_extremes(policy: Policy, one_hot: bool, values: tuple[float, ...], rounds: int = 60) -> int:
    """Learn contexts of extreme numbers, and return how many payoffs were refused."""
    rng, refused = np.random.default_rng(3), 0
    for t in range(rounds):
        shown = candidates(rng, one_hot) if one_hot else rng.choice(values, size=(4, D))
        user = f"user {t % 4}"
        try:
            k = policy.choose(user, shown)
            policy.learn(user, shown[k], float(rng.choice([-1.0, 5e-324, 0.0, 1.0])))
        except NumberError:
            refused += 1
    return refused


@each_policy
def test_every_policy_stays_finite_with_the_smallest_numbers(
    make: Callable[[], Policy], one_hot: bool
) -> None:
    policy = make()
    assert learn_extremes(policy, one_hot, SMALL) == 0
    assert all_finite(policy)
    assert policy.learned > 50
    play(policy, one_hot, 20, seed=5)
    assert all_finite(policy)


@pytest.mark.parametrize("values", [LARGE, SMALL + LARGE], ids=["large", "mixed"])
@pytest.mark.parametrize("both", [False, True], ids=["vectors", "both"])
def test_hierarchical_takes_any_units(values: tuple[float, ...], both: bool) -> None:
    """It stays finite, and whatever it refuses changes nothing."""
    policy, rng = Hierarchical(n_features=D, one_hot=both), np.random.default_rng(3)
    for t in range(150):
        rows = rng.choice(values, size=(4, D))
        shown: Any = Candidates([f"item {i}" for i in range(4)], rows) if both else rows
        before = fingerprint(policy)
        try:
            k = policy.choose(f"user {t % 4}", shown)
            policy.learn(f"user {t % 4}", shown[k], float(rng.choice([-1.0, 0.0, 1.0])))
        except NumberError:
            assert fingerprint(policy) == before
        assert all_finite(policy)


@pytest.mark.parametrize("value", REFUSED)
def test_a_vector_out_of_range_is_refused_and_changes_nothing(value: float) -> None:
    policy = Hierarchical(n_features=2)
    policy.learn("ann", [1.0, 2.0], 1.0)
    before = fingerprint(policy)
    with pytest.raises(ContextError, match=r"NaN or infinity|expected at most 1e\+12; use another unit"):
        policy.learn("bob", [1.0, value], 1.0)
    assert fingerprint(policy) == before
    assert "bob" not in policy.users


def test_tiny_numbers_count_as_nothing() -> None:
    policy, plain = Hierarchical(), Hierarchical()
    for value, other in ((0.99 * TINY, policy), (0.0, plain)):
        other.learn("ann", Action("tea", {"hot": value}, {"hour": 1.0}), 1.0)
        other.learn("ann", Action("tea", {"hot": 1e-11}, {"hour": 1e-11}), 1.0)  # their product is below TINY
    assert fingerprint(policy) == fingerprint(plain)
    assert flatten([{"a": 5e-324, "b": -1e-21, "c": 1e-19}]) == {"a": 0.0, "b": 0.0, "c": 1e-19}


def test_features_that_add_up_to_too_much_are_refused() -> None:
    with pytest.raises(ContextError, match="'a' adds up to"):
        flatten([{"a": [1e308] * 2000}])
    assert abs(flatten([{"a": [1e308] * 1000}])["a"]) <= LARGEST


@pytest.mark.parametrize("first", [1e-155, 1e-160, 1e-161, 5e-324, 1e-78, 1e-80, 1e-20, 1e-10, 1.0, 1e6])
@pytest.mark.parametrize("context", [1e-300, 1e-80, 1e-20, 1.0, 1e6])
def test_the_first_value_of_a_kind_of_feature_decides_nothing_for_others(
    first: float, context: float
) -> None:
    policy = Hierarchical()
    policy.learn("ann", Action("tea", {"hot": first}, {"hour": context}), 1.0)
    for x in (1e-20, 1.0, 1e6):
        shown = [Action(name, {"hot": x}, {"hour": 1e6}) for name in ("tea", "milk", "juice")]
        decision = policy.decide("bob", shown)
        assert decision.probability is not None
        assert decision.probability.sum() == pytest.approx(1.0)
        policy.learn("bob", shown[decision.choice], -1.0)
    assert all_finite(policy)


@pytest.mark.parametrize("crossed", [False, True])
def test_an_update_out_of_range_is_refused_before_it_is_applied(crossed: bool) -> None:
    """Values that are not read today may be in a log: START / 1e-320 is not finite, and neither is 1e160 squared."""
    policy, context = Hierarchical(), {"now": 1.0} if crossed else {}
    policy.learn("ann", Action("tea", {"hot": 1.0} if crossed else {}, context), 1.0)
    before = fingerprint(policy)
    shown = policy.read([Action("tea", {"hot": 1.0}, context)])
    hashed = shown.hashed._replace(values=np.array([1.0, 1e160 if crossed else 1e-160]))
    with pytest.raises(NumberError, match="cannot be learned: a number of the model would not be finite"):
        policy.learn("bob", Encoded(hashed), 1.0)
    assert fingerprint(policy) == before
    assert "bob" not in policy.users


@pytest.mark.parametrize("compiled", [False, True])
def test_a_batch_learns_all_but_the_refused_payoffs(compiled: bool) -> None:
    policy = Hierarchical()
    policy.learn("ann", [1.0, 0.0], 1.0)
    model = policy._model
    assert isinstance(model, NamedModel)
    model.plain.population.model.prior.means[:] = 1e61  # as a model file might have it
    vectors = np.array([[0.6, 0.0], [0.0, 0.6]])
    batch = Batch(["ann", "bob"], np.array([[0], [1]]), vectors, np.array([1.0, 1.0]), np.array([0, 0]))
    learn = (
        partial(policy.run, batch)
        if compiled
        else partial(policy.learn_many, ["ann", "bob"], vectors, [1.0, 1.0])
    )
    with pytest.raises(NumberError, match="of 2 payoffs were not learned, the first at position 0"):
        learn()
    assert all_finite(policy)


def test_a_loop_never_indexes_by_what_is_not_a_number() -> None:
    for bad in (np.nan, np.inf, -np.inf):
        assert best(np.array([bad, bad, bad])) == 0
        assert 0 <= best(np.array([1.0, bad, 2.0])) < 3


def test_a_decision_that_is_not_finite_is_an_error() -> None:
    policy = Hierarchical()
    effects_of(policy).figures[:] = np.nan
    with pytest.raises(NumberError, match="the score of candidate 0 is nan, expected a finite number"):
        policy.choose("ann", [Action(name, context={"now": 1.0}) for name in ("tea", "milk")])


@each_policy
def test_a_model_file_with_extreme_numbers_is_refused_or_works(
    make: Callable[[], Policy], one_hot: bool
) -> None:
    """Whatever is restored, no loop crashes, and no number that is not finite is ever learned."""
    source = make()
    play(source, one_hot, 60, seed=7)
    sound = source.tensors()
    everywhere = (np.nan, np.inf, 1e308, -1e308, 1e101, 1e99, 1e59, -1e59, 1e15, -1e15, 5e-324, 0.0, -1.0)
    damages = [(value, slice(None)) for value in everywhere]
    damages += [(value, slice(1)) for value in (np.nan, 1e59, 5e-324, -1.0)]  # the first number alone
    for name, tensor in sound.items():
        if tensor.dtype.kind != "f" or not tensor.size:
            continue
        policy = make()
        for value, part in damages:
            damaged = tensor.copy()
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", RuntimeWarning)
                    damaged.reshape(-1)[part] = value
                    policy.restore({**sound, name: damaged})
            except FileError:
                continue
            assert abs(value) <= MOST_STORED, name
            policy.learned = source.learned
            for t in range(4):
                shown = candidates(np.random.default_rng(t), one_hot)
                with suppress(CoterieError):
                    policy.learn(f"user {t}", shown[policy.choose(f"user {t}", shown)], 1.0)
            assert all_finite(policy), (name, value, part)


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        ("club", "component", 2**31 - 1),  # these would need 16 GB
        ("sclub", "home", 2**31 - 1),
        ("cofiba", "layers", 2**31 - 1),
        ("dynucb", "home", 1),  # and this would take away what a cluster never had
        ("locb", "user_times", 2**63 - 1),  # and to this nothing can be added
    ],
)
def test_a_model_file_whose_counts_cannot_be_is_refused(kind: str, name: str, value: int) -> None:
    policy: Any = POLICIES[kind](n_features=2)
    policy.learn("ann", [1.0, 0.0], 1.0)
    policy.learn("bob", [0.0, 1.0], 0.0)
    tensors = policy.tensors()
    with pytest.raises(FileError):
        policy.restore({**tensors, name: np.full_like(tensors[name], value)})


def test_the_limits_of_the_range() -> None:
    """Within the range no product of the models overflows."""
    assert PRODUCT == LARGEST**2
    assert effects.START / TINY**2 <= MOST_LEARNED
    assert np.isfinite(MOST_LEARNED * MOST_LEARNED * PRODUCT * PRODUCT)
    assert np.isfinite((MOST_LEARNED * MOST_LEARNED) ** 2)


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_a_parameter_out_of_range_is_refused(name: str) -> None:
    """No parameter may make a score infinite."""
    accepted = inspect.signature(POLICIES[name]).parameters
    given = {"one_hot": True} if "one_hot" in accepted else {"n_features": 2, "sparsity": 1}
    kind: dict[str, Any] = {key: value for key, value in given.items() if key in accepted}
    for parameter in {"alpha", "explore", "gamma", "alpha2", "alpha_p", "alpha_theta"} & set(accepted):
        for value in (1e13, 1e308, 10**400, float("nan")):
            with pytest.raises(ParameterError, match=parameter):
                POLICIES[name](**kind, **{parameter: value})
