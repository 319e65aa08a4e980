"""Common functions for both kinds of rows: compiled code picks the kind by the type of its argument."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numba.extending import overload

from coterie.models._kernels.jit import jit
from coterie.models._kernels.rows import means, ridges


def _either(name: str) -> Callable[..., Any]:
    """Return a function for compiled code: `ridges.name` for vectors, `means.name` for items."""
    vectors, items = getattr(ridges, name), getattr(means, name)

    def stub(first: Any, *rest: Any) -> Any:  # called where the compiler is off
        one_hot = first.ndim == 1 if isinstance(first, np.ndarray) else isinstance(first, means.Table)
        return (items if one_hot else vectors)(first, *rest)

    @overload(stub)  # type: ignore[untyped-decorator]
    def pick(first: Any, *rest: Any) -> Any:
        # `name` takes the contexts first: a matrix of vectors, or a list of numbers.
        kind = getattr(first, "instance_class", None)
        one_hot = first.ndim == 1 if kind is None else kind is means.Table
        chosen = items if one_hot else vectors

        def call(first: Any, *rest: Any) -> Any:
            return chosen(first, *rest)

        # Machine code is linked by this name, the types and a number that starts at 1 in every process: with
        # one name for all, code cached by two processes would call each other's functions.
        call.__qualname__ = f"{name}.{'items' if one_hot else 'vectors'}"
        return call

    return stub


add_covariance = _either("add_covariance")
add_facts = _either("add_facts")
chances = _either("chances")
clear = _either("clear")
distance = _either("distance")
fade = _either("fade")
fits = _either("fits")
name = _either("name")
pool = _either("pool")
refresh = _either("refresh")
squared_distance = _either("squared_distance")
update = _either("update")
used = _either("used")
view = _either("view")


@jit
def take(rows: Any) -> int:
    """Return an unused row, cleared. There must be room."""
    if rows.size[1] > 0:
        rows.size[1] -= 1
        row = rows.free[rows.size[1]]
    else:
        row = rows.size[0]
        rows.size[0] += 1
    clear(rows, row)
    return row  # type: ignore[no-any-return]


@jit
def release(rows: Any, row: int) -> None:
    """Release a row and clear it."""
    clear(rows, row)
    rows.free[rows.size[1]] = row
    rows.size[1] += 1
