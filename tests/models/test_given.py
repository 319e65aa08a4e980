"""NamedTuples of arrays as arguments: compiled code writes into them, and counts no references."""

import sys
from typing import Any, NamedTuple

import numba
import numpy as np
import pytest

from coterie.arrays import Floats
from coterie.models._kernels.given import given
from coterie.models._kernels.jit import jit

pytestmark = pytest.mark.skipif(bool(numba.config.DISABLE_JIT), reason="is about machine code")


@given
class Row(NamedTuple):
    values: Floats
    factor: float


class Plain(NamedTuple):
    values: Floats
    factor: float


@given
class Rows(NamedTuple):
    first: Row
    total: Floats


def scale(row: Any) -> None:
    row.values[0] *= row.factor


inner: Any = jit(scale)


def add(rows: Any) -> Floats:
    inner(rows.first)
    rows.total[0] += rows.first.values[0]
    return rows.total + 1.0  # type: ignore[no-any-return]


def test_loops_write_into_the_arrays_of_a_tuple_and_count_no_references() -> None:
    values, total = np.array([3.0]), np.array([1.0])
    loop: Any = jit(add)
    before = sys.getrefcount(values), sys.getrefcount(total)
    assert loop(Rows(Row(values, 2.0), total)).tolist() == [8.0]
    assert (values[0], total[0]) == (6.0, 7.0)
    assert (sys.getrefcount(values), sys.getrefcount(total)) == before


@pytest.mark.parametrize("kind", [Row, Plain])
def test_numbas_own_tuple_is_the_obvious_twin(kind: Any) -> None:
    row, loop = kind(np.array([3.0]), 2.0), jit(scale)
    loop(row)
    assert row.values.tolist() == [6.0]
