"""CAB over a sample of the updated users: against its slow twin, by counting, and through a file."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coterie import CAB
from coterie.bench.suites.dense_growth import sampled
from coterie.errors import ParameterError
from coterie.experiments.run.specs import make_policy, parse_spec
from coterie.models.files import read_file, write_file
from tests.naive import SampledCAB
from tests.policies.test_cab import play_both
from tests.worlds import unit_vectors


@pytest.mark.parametrize(("alpha", "gamma"), [(0.5, 0.0), (0.1, 0.2), (0.02, 0.2), (0.1, 2.0)])
@pytest.mark.parametrize("sample", [1, 3])
def test_every_choice_equals_the_twin(alpha: float, gamma: float, sample: int) -> None:
    policy = CAB(n_features=5, alpha=alpha, gamma=gamma, sample=sample)
    shared = play_both(policy, SampledCAB(5, alpha, gamma, sample), False, seed=7)
    if gamma == 2.0 and sample > 1:
        assert shared > 0  # the comparison did reach the shared updates


def grown(n_users: int, sample: int | None, d: int = 4, rounds: int = 1) -> CAB:
    """Return a policy to which so many users have come."""
    rng = np.random.default_rng(0)
    policy = CAB(n_features=d, alpha=0.3, gamma=0.0, sample=sample)
    for _ in range(rounds):
        policy.learn_many(range(n_users), unit_vectors(rng, n_users, d), rng.uniform(0, 1, n_users))
    return policy


def test_a_sample_of_everybody_decides_as_cab_does() -> None:
    whole, sampled = grown(50, None, rounds=3), grown(50, 50, rounds=3)
    rng = np.random.default_rng(1)
    for user in range(60):
        contexts = unit_vectors(rng, 6, 4)
        mine, theirs = sampled.explain(user, contexts), whole.explain(user, contexts)
        assert mine.score == pytest.approx(theirs.score, abs=1e-12)
        assert mine.members.tolist() == theirs.members.tolist()
        assert mine.choice == theirs.choice


def test_the_own_opinion_counts_outside_of_the_sample_too() -> None:
    """α is so large that all are neighbours: 8 of the sample, and the user if not one of them."""
    policy = CAB(n_features=4, alpha=100.0, gamma=0.0, sample=8)
    policy.learn_many(range(30), unit_vectors(np.random.default_rng(0), 30, 4), np.ones(30))
    x = [1.0, 0.0, 0.0, 0.0]
    sample = {other for other in range(30) if len(policy.neighbours(other, x)) == 8}
    assert len(sample) == 8
    for user in range(30):
        found = policy.neighbours(user, x)
        assert set(found) == sample | {user}
        assert policy.explain(user, [x]).members[0] == len(found)
    assert set(policy.neighbours("stranger", x)) == sample | {"stranger"}


def test_decide_many_is_decide() -> None:
    policy = grown(30, 8)
    rng = np.random.default_rng(2)
    lists = [unit_vectors(rng, 5, 4) for _ in range(40)]
    many = policy.decide_many(range(40), lists)
    for user, contexts, told in zip(range(40), lists, many, strict=True):
        alone = policy.decide(user, contexts)
        assert alone.score == pytest.approx(told.score, abs=1e-12)
        assert alone.members.tolist() == told.members.tolist()


def test_every_user_is_as_likely_in_the_sample_whenever_they_came() -> None:
    """Of 4,000 users, 400 are sampled: of each quarter about 100. The deviation of a quarter is under 9.

    A sample of the first would have 400 of the first quarter, one of the last 400 of the fourth.
    """
    policy = grown(4000, 400, d=2)
    x = [1.0, 0.0]
    policy.alpha = 100.0
    found = np.array(policy.neighbours(0, x))
    quarters = np.bincount(found // 1000, minlength=4)
    assert abs(quarters - 100).max() < 35
    for user in range(2000):
        policy.drop(user)  # whoever leaves is replaced
    left = np.array(policy.neighbours(3999, x))
    assert len(set(left) | {3999}) == len(set(left))
    assert 400 <= len(left) <= 401
    assert abs(np.bincount(left // 1000, minlength=4)[2:] - 200).max() < 50


def test_a_file_goes_on_with_the_same_sample(tmp_path: Path) -> None:
    policy = grown(40, 5)
    policy.drop(7)
    policy.save(tmp_path / "policy.safetensors")
    again = CAB.load(tmp_path / "policy.safetensors")
    assert again.sample == 5
    rng = np.random.default_rng(3)
    for user in range(40, 120):  # newcomers renew both samples alike
        contexts = unit_vectors(rng, 5, 4)
        assert policy.neighbours(user % 60, contexts[0]) == again.neighbours(user % 60, contexts[0])
        k = policy.choose(user, contexts)
        assert again.choose(user, contexts) == k
        policy.learn(user, contexts[k], 0.5)
        again.learn(user, contexts[k], 0.5)


def test_a_file_that_miscounts_is_refused(tmp_path: Path) -> None:
    grown(40, 5).save(tmp_path / "policy.safetensors")
    state = read_file(tmp_path / "policy.safetensors", "cab")
    state.tensors["joined"][0] = 3
    write_file(tmp_path / "policy.safetensors", "cab", state)
    with pytest.raises(Exception, match="counts 3 users who joined, but has 40"):
        CAB.load(tmp_path / "policy.safetensors")


def test_the_benchmark_compares_many_users_with_few() -> None:
    row = sampled(400, lambda _: None, few=200)
    assert (row.against, row.limit) == ("n_users = 200", "<= 1.2")
    assert row.ratio > 0


def test_a_spec_names_the_sample() -> None:
    spec = parse_spec("cab:sample=256")
    policy = make_policy("cab", spec.complete(view="features", n_features=3, seed=0))
    assert policy.parameters["sample"] == 256


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"n_features": 2, "sample": 0}, "sample is 0, expected an integer of at least 1"),
        ({"n_features": 2, "sample": 2.5}, "sample is 2.5, expected an integer"),
        (
            {"one_hot": True, "sample": 9},
            "sample is 9 and one_hot is True, but over item ids a decision costs",
        ),
        ({"n_features": 2, "sample": 9, "thompson": True}, "sample is 9 and thompson is True"),
        ({"n_features": 2, "sample": 9, "half_life": 5}, "sample is 9 and half_life is 5"),
        ({"n_features": 2, "sample": 9, "eligible": "all"}, "sample is 9 and eligible is 'all'"),
    ],
)
def test_what_cannot_be_is_named(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        CAB(**parameters)
