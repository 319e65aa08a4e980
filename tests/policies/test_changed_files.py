"""A model file with one changed array is refused, or the policy goes on without errors of its own."""

from typing import Any

import numpy as np
import pytest

from coterie.errors import CoterieError
from coterie.models.files import Tensors
from coterie.policies import POLICIES, Policy

VECTORS = np.eye(4)[:3]
MADE: list[tuple[str, dict[str, Any]]] = [
    (name, given)
    for name in ("cab", "linucb", "club", "sclub", "dynucb", "cofiba", "dccb", "hierarchical")
    for given in ({"one_hot": True}, {"n_features": 4})
]


def learned(policy: Policy, n: int) -> Policy:
    """Let a policy decide and learn; an error of arithmetic in it is an error of the test."""
    shown: Any = ["a", "b", "c"] if policy.one_hot else VECTORS
    for t in range(n):
        k = policy.choose(f"user {t % 5}", shown)
        try:
            policy.learn(f"user {t % 5}", shown[k], float((t + k) % 3 == 0))
        except CoterieError:
            continue
    return policy


def changed(tensors: Tensors, name: str, by: int) -> Tensors:
    return {**tensors, name: (tensors[name] + by).astype(tensors[name].dtype)}


@pytest.mark.parametrize("by", [-90, 90])
@pytest.mark.parametrize(("name", "given"), MADE, ids=str)
def test_a_changed_array_is_refused_or_does_no_harm(name: str, given: dict[str, Any], by: int) -> None:
    tensors = learned(POLICIES[name](**given), 40).tensors()
    numbers = [key for key, tensor in tensors.items() if tensor.dtype.kind in "if" and tensor.size]
    refused = 0
    for key in numbers:
        policy = POLICIES[name](**given)
        try:
            policy.restore(changed(tensors, key, by))
        except CoterieError:
            refused += 1
            continue
        policy.learned = 40
        learned(policy, 20)
    assert refused > 0
