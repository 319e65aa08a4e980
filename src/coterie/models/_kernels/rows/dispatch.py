"""Common functions of several kinds of state: compiled code picks one by the type of its first argument.

A kind is a NamedTuple, and its functions are those of the module that defines it. So `view(rows, …)` calls
`ridges.view` for rows of vectors and `means.view` for rows of items.
"""

import sys
from collections.abc import Callable
from typing import Any

from numba.extending import overload

from coterie.models._kernels.jit import NESTED, jit


def by_type(name: str) -> Callable[..., Any]:
    """Return a function for compiled code: the one of this name beside the type of the first argument."""

    def stub(state: Any, *rest: Any) -> Any:  # called where the compiler is off
        return getattr(sys.modules[type(state).__module__], name)(state, *rest)

    @overload(stub, jit_options={"pipeline_class": NESTED})  # type: ignore[untyped-decorator]
    def pick(state: Any, *rest: Any) -> Any:
        module = state.instance_class.__module__
        chosen = getattr(sys.modules[module], name)

        def call(state: Any, *rest: Any) -> Any:
            return chosen(state, *rest)

        # Machine code is linked by this name, the types and a number that starts at 1 in every process: with
        # one name for all, code cached by two processes would call each other's functions.
        call.__qualname__ = f"{name}.{module}"
        return call

    return stub


add_covariance = by_type("add_covariance")
add_facts = by_type("add_facts")
chances = by_type("chances")
clear = by_type("clear")
distance = by_type("distance")
fade = by_type("fade")
fits = by_type("fits")
name = by_type("name")
pool = by_type("pool")
refresh = by_type("refresh")
squared_distance = by_type("squared_distance")
update = by_type("update")
used = by_type("used")
view = by_type("view")


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
