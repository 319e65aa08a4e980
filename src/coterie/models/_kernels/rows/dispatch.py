"""Common functions for both kinds of rows: compiled code picks the kind by the type of its argument."""

from collections.abc import Callable
from typing import Any

from numba.extending import overload

from coterie.models._kernels.rows import means, ridges


def _either(name: str) -> Callable[..., Any]:
    """Return a function for compiled code: `ridges.name` for vectors, `means.name` for items."""
    vectors, items = getattr(ridges, name), getattr(means, name)

    def stub(first: Any, *rest: Any) -> Any:
        raise NotImplementedError(f"{name} is for compiled code")

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


view = _either("view")
update = _either("update")
draw = _either("draw")
fade = _either("fade")
take = _either("take")
release = _either("release")
add_facts = _either("add_facts")
pool = _either("pool")
refresh = _either("refresh")
squared_distance = _either("squared_distance")
distance = _either("distance")
clear = _either("clear")
fits = _either("fits")
used = _either("used")
name = _either("name")
