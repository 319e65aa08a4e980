"""M-CNB, by hand and against its twin; the contract suite compares their choices, too."""

import numpy as np
import pytest

from coterie import MCNB
from coterie.errors import FileError, ParameterError
from coterie.policies.clustering.m_cnb import MOST, _answers, _slope
from tests.twins.m_cnb import twin_of


def test_gradients_are_those_of_small_differences() -> None:
    rng = np.random.default_rng(0)
    net, slope = rng.normal(size=4 * 3 + 5), np.zeros(17)  # 4 hidden units, 2 features and a constant
    x, payoff, small = np.array([0.3, -0.8, 1.0]), 0.7, 1e-6
    _slope(net, x, payoff, slope)
    total = 0.0
    for at in range(len(net)):
        losses, answers = [], []
        for step in (small, -2 * small, small):
            net[at] += step
            answers.append(float(_answers(net, x[None])[0][0]))
            losses.append((answers[-1] - payoff) ** 2)
        assert (losses[0] - losses[1]) / (2 * small) == pytest.approx(slope[at], abs=1e-5)
        total += ((answers[0] - answers[1]) / (2 * small)) ** 2
    assert _answers(net, x[None])[1][0] == pytest.approx(total, rel=1e-6)


def test_one_payoff_by_hand() -> None:
    """Trained on one payoff of 1 until the squared error is 0.001, so the answer is within √0.001 of 1."""
    policy = MCNB(n_features=1)
    policy.learn("ann", [1.0], 1.0)
    told = policy.explain("ann", [[1.0]])
    assert told.estimate[0] == pytest.approx(1, abs=0.04)
    visits = 2  # this decision and the payoff
    slope = _answers(policy._meta, np.array([[1.0, 1.0]]))[1][0]
    assert told.width[0] == pytest.approx(np.sqrt(1e-4 * slope) + 1e-4 * np.sqrt(1 / visits))


def test_users_who_answer_alike_are_one_group() -> None:
    """A payoff of 1 and one of -1 for the same context, each learned by the user's own network: 2 apart."""
    policy = MCNB(n_features=1, gamma=0.4)
    for user, payoff in [
        ("ann", 1.0),
        *[("ann", 1.0)] * 9,
        ("bob", -1.0),
        *[("bob", -1.0)] * 9,
        ("cleo", 1.0),
    ]:
        policy.learn(user, [1.0], payoff)
    assert set(policy.neighbours("ann", [1.0])) == {"ann", "cleo"}
    assert policy.neighbours("bob", [1.0]) == ["bob"]


def test_choices_are_those_of_the_twin_for_long() -> None:
    rng = np.random.default_rng(3)
    policy = MCNB(n_features=2, hidden=8, gamma=0.2, nu=0.01)
    twin = twin_of(policy, 2)
    for t in range(121):
        user, shown = int(rng.integers(12)), rng.normal(size=(3, 2))
        shown /= np.linalg.norm(shown, axis=1, keepdims=True)
        k = policy.choose(user, shown)
        assert k == twin.choose(user, list(shown)), t
        payoff = float(np.clip(shown[k, 0] * (1 if user % 2 else -1), -1, 1))
        policy.learn(user, shown[k], payoff)
        twin.learn(user, shown[k], payoff)


def test_nothing_of_a_dropped_user_remains_but_the_meta_network() -> None:
    policy = MCNB(n_features=1, hidden=4)
    policy.learn_many(["ann", "bob"], [[1.0], [0.5]], [1, 0])
    policy.drop("ann")
    assert list(policy.users) == ["bob"]
    assert policy.tensors()["payoffs"].tolist() == [0]
    assert b"ann" not in b"".join(tensor.tobytes() for tensor in policy.tensors().values())


def test_bad_parameters_and_files_are_named() -> None:
    with pytest.raises(ParameterError, match="hidden is 0"):
        MCNB(n_features=2, hidden=0)
    policy = MCNB(n_features=1, hidden=2)
    policy.learn("ann", [1.0], 1.0)
    with pytest.raises(FileError, match="a payoff of a user who is not known"):
        MCNB(n_features=1, hidden=2).restore({**policy.tensors(), "of": np.array([1])})


@pytest.mark.parametrize(
    ("name", "value"), [("nets", 1e31), ("meta", -1e31), ("contexts", 1.1), ("payoffs", 1.1)]
)
def test_a_model_file_is_refused_if_training_could_overflow(name: str, value: float) -> None:
    policy = MCNB(n_features=2, hidden=4)
    policy.learn("ann", [1.0, 0.0], 1.0)
    tensors = policy.tensors()
    with pytest.raises(FileError, match=f"tensor '{name}' in the model file holds a number above"):
        policy.restore({**tensors, name: np.full_like(tensors[name], value)})


def test_training_from_the_largest_weights_of_a_model_file_does_not_overflow() -> None:
    """Adam's steps are small; the adaptation by SGD diverges, and the decision is that of the network as it was."""
    policy, shown = MCNB(n_features=2, hidden=4), [[0.6, 0.8], [-0.6, 0.8]]
    policy.learn("ann", [0.6, 0.8], 1.0)
    tensors = policy.tensors()
    policy.restore({**tensors, **{name: np.full_like(tensors[name], MOST) for name in ("nets", "meta")}})
    policy.learned = 10
    expected, _ = _answers(policy._meta, np.column_stack([shown, np.ones(2)]))
    assert policy.explain("ann", shown).estimate == pytest.approx(expected)
    for _ in range(21):
        policy.learn("ann", shown[policy.choose("ann", shown)], -1.0)
    assert all(np.abs(policy.tensors()[name]).max() <= MOST for name in ("nets", "meta"))
