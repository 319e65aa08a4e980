"""Loops called with tuples that stay the same: the same answers, whatever changes."""

import copy
import pickle
from typing import Any, NamedTuple

import numpy as np
import pytest
from numba import config

from coterie.arrays import Floats
from coterie.models._kernels.given import given
from coterie.models._kernels.jit import jit
from coterie.models.prepared import Prepared


@given
class Pair(NamedTuple):
    first: Floats
    second: Floats


@jit
def weigh(pair: Pair, places: Any, factor: float) -> float:
    """Return a sum that is another one if a type or a stride is taken for another."""
    total = 0.0
    for k in range(len(places)):
        total += factor * pair.first[places[k]] + pair.second[k]
    return total


PAIR = Pair(np.array([1.0, 2.0, 4.0, 8.0]), np.array([0.5, 0.25, 0.125, 0.0625]))
WIDE = Pair(np.arange(8.0)[::2], PAIR.second)  # with a stride, so machine code of its own
PLACES = np.array([3, 1, 0])


def test_it_answers_as_the_loop_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COTERIE_COMPILE", "first")
    prepared, plain = Prepared(weigh), getattr(weigh, "py_func", weigh)
    read_only = PLACES.copy()
    read_only.flags.writeable = False
    rest: list[tuple[Any, float]] = [
        (PLACES, 2.0), (PLACES.astype(np.int32), 2.0), (np.arange(6)[::2] // 2, 3.0), (read_only, 1.0), (PLACES, 4.0),
    ]  # fmt: skip
    for pair in (PAIR, WIDE, PAIR, Pair(WIDE.first, WIDE.first)):
        for places, factor in rest * 2:
            assert prepared((pair,), places, factor) == plain(pair, places, factor)


@pytest.mark.skipif(bool(config.DISABLE_JIT), reason="there is no machine code")
def test_it_finds_machine_code_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COTERIE_COMPILE", "first")
    prepared, look = Prepared(weigh), Prepared._look
    asked: list[Any] = []

    def count(self: Prepared, *given: Any) -> Any:
        asked.append(given)
        return look(self, *given)

    monkeypatch.setattr(Prepared, "_look", count)
    for _ in range(3):
        prepared((Pair(PAIR.first.copy(), PAIR.second),), PLACES.astype(np.int16), 2.0)
    assert len(asked) == 1


def test_a_copy_and_a_pickle_call_the_same_loop() -> None:
    prepared = Prepared(weigh)
    expected = prepared((PAIR,), PLACES, 2.0)
    for other in (copy.deepcopy(prepared), pickle.loads(pickle.dumps(prepared))):  # noqa: S301
        assert other is not prepared
        assert other((PAIR,), PLACES, 2.0) == expected
