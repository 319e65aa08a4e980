"""Hashing of features: as documented, stable for ever, and of norm at most 1."""

import math
from hashlib import blake2b
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.errors import ContextError
from coterie.models.features import count, flatten
from coterie.service.core.encoding import encode_question

scalars = (
    st.none() | st.booleans() | st.floats(-1e6, 1e6) | st.integers(-(10**20), 10**20) | st.text(max_size=8)
)
objects = st.dictionaries(
    st.text(max_size=5),
    st.recursive(scalars, lambda inner: st.lists(inner, max_size=3), max_leaves=5),
    max_size=4,
)


def plain(name: str, features: list[Any], context: list[Any], dimensions: int) -> list[float]:
    """The recipe of the module's docstring, in plain Python, as a client would write it."""
    mask = 2**64 - 1

    def h(text: str) -> int:
        return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little")

    def mix(z: int) -> int:
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        return z ^ (z >> 31)

    x = [0.0] * dimensions
    for action, weight in flatten([{"id": name}, *features]).items():
        pairs = [(mix(h(action)), weight)]
        for around, value in flatten(context).items():
            pairs.append((mix((h(around) * 0x9E3779B97F4A7C15 + h(action)) & mask), value * weight))
        for z, value in pairs:
            x[(z % 2**63) % dimensions] += -value if z >= 2**63 else value
    norm = math.sqrt(sum(value * value for value in x))
    return [value / norm for value in x] if norm else x


@given(st.text(max_size=8), st.lists(objects, max_size=3), st.lists(objects, max_size=2), st.integers(2, 40))
def test_hashing_is_as_documented(
    name: str, features: list[Any], context: list[Any], dimensions: int
) -> None:
    x = encode_question([name], [features], context).vectors(dimensions)[0]
    assert np.allclose(x, plain(name, features, context, dimensions), atol=1e-9)
    assert np.linalg.norm(x) <= 1 + 1e-9
    assert np.isfinite(x).all()


def test_a_vector_never_changes() -> None:
    """Models on disk rest on these numbers."""
    own = [{"tone": "calm", "minutes": 3}]
    x = encode_question(["jazz"], [own], [{"device": {"mobile": True}}]).vectors(6)[0]
    assert x.round(6).tolist() == STABLE


STABLE = [-0.573475, -0.413675, 0.573475, 0.0, 0.413675, 0.0]


def test_features_are_flattened_by_path() -> None:
    found = flatten([{"a": {"b": "x", "c": [True, 2], "d": None, "e": False}}, {"a": {"b": "x"}}])
    assert found == {"a.b=x": 2.0, "a.c": 1.0 + math.log1p(2)}


def test_equal_actions_have_equal_rows() -> None:
    rows = encode_question(["a", "b", "a"], [[{"x": 1}]] * 3, [{"y": "z"}]).vectors(16)
    assert (rows[0] == rows[2]).all()
    assert (rows[0] != rows[1]).any()


def test_what_is_not_finite_or_too_deep_is_refused() -> None:
    with pytest.raises(ContextError, match=r"feature 'a' is inf, expected a finite number"):
        flatten([{"a": math.inf}])
    deep: Any = 1
    for _ in range(20):
        deep = {"a": deep}
    with pytest.raises(ContextError, match="nest deeper than 16 levels"):
        flatten([deep])


def test_counting_sees_every_value() -> None:
    assert count([{"a": 1, "b": {"c": [1, 2, "x"]}}], 10) == 4
