"""BASS, by hand and against its twin; the contract suite compares their choices, too."""

import math

import numpy as np
import pytest

from coterie import BASS
from coterie.errors import FileError, ParameterError
from tests.twins.bass import twin_of

X = [1.0]


def test_users_part_when_their_intervals_do() -> None:
    """With one feature, n payoffs of 1 and of -1: weights ±n/(n+1), and an ellipsoid is an interval.

    Its half width is √(ε/(n+1)) with ε = 0.1 + 0.3·√(2·log(1/0.5) + log(n+1)). They part when 2n/(n+1) is above two
    half widths.
    """
    policy, together = BASS(n_features=1, noise=0.3, size=0.1, delta=0.5), []
    for n in range(1, 6):
        policy.learn("ann", X, 1.0)
        policy.learn("bob", X, -1.0)
        reach = 0.1 + 0.3 * math.sqrt(2 * math.log(2) + math.log(n + 1))
        together.append(n / (n + 1) <= math.sqrt(reach / (n + 1)))
        assert (set(policy.neighbours("bob", X)) == {"ann", "bob"}) == together[-1]
    assert set(together) == {True, False}
    assert policy.explain("bob", [X]).near_estimate[0] == pytest.approx(-5 / 6)
    assert policy.neighbours("eve", X) == ["ann", "bob", "eve"]
    policy.add("eve")  # connects both again: nothing tells the newcomer from either
    assert set(policy.neighbours("bob", X)) == {"ann", "bob", "eve"}
    policy.drop("eve")
    assert policy.neighbours("bob", X) == ["bob"]


def test_choices_and_components_are_those_of_the_twin() -> None:
    rng = np.random.default_rng(5)
    policy = BASS(n_features=3, alpha=0.3, noise=0.1, size=0.1)
    twin = twin_of(policy, 3)
    for _ in range(250):
        user = int(rng.integers(6))
        shown = rng.normal(size=(3, 3))
        shown /= np.linalg.norm(shown, axis=1, keepdims=True)
        k = policy.choose(user, shown)
        assert k == twin.choose(user, list(shown))
        payoff = float(np.clip(shown[k] @ [0.7, 0.5, 0.1 * user] * (1 if user % 2 else -1), -1, 1))
        policy.learn(user, shown[k], payoff)
        twin.learn(user, shown[k], payoff)
        assert set(policy.neighbours(user, shown[0])) == set(twin.component(user))
    assert len(twin.cut) > 3
    assert {len(twin.component(user)) for user in twin.users} == {3}


def test_bad_parameters_and_files_are_named() -> None:
    with pytest.raises(ParameterError, match="delta is 2"):
        BASS(n_features=2, delta=2)
    policy = BASS(n_features=1)
    policy.learn("ann", X, 1.0)
    tensors = policy.tensors()
    for name, value, said in (
        ("cut", np.array([[0, 4]]), "a cut edge of a user who is not known"),
        ("user_gram", np.array([[-2.0]]), "contradict each other"),
    ):
        with pytest.raises(FileError, match=said):
            BASS(n_features=1).restore({**tensors, name: value})
