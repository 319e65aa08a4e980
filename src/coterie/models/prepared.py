"""Compiled loops that are called again and again with the same tuples of arrays.

Numba looks for machine code by the types of all arguments, anew in each call. For a model of a hundred arrays that
takes longer than a decision. Here the types of tuples that stay the same are found once, those of the other arguments
in each call.
"""

from collections.abc import Callable
from importlib import import_module
from operator import is_not
from typing import Any, final

from numba import _dispatcher

# Machine code by a loop and by Numba's short form of the types, of what stays the same and of the rest.
_codes: dict[tuple[Any, bytes], dict[bytes, Callable[..., Any]]] = {}


@final
class Prepared:
    """A loop for one owner of arrays, who gives it the same tuples as long as they hold the same arrays.

    >>> from coterie.models._kernels.spd import dot
    >>> import numpy as np
    >>> Prepared(dot)((np.array([1.0, 2.0]), np.array([3.0, 4.0])), 2)
    11.0
    """

    __slots__ = ("_found", "_held", "_loop")

    def __init__(self, loop: Any) -> None:
        self._loop = loop
        self._held: tuple[Any, ...] | None = None
        self._found: dict[bytes, Callable[..., Any]] = {}  # by the types of the rest

    def __reduce__(self) -> tuple[Any, ...]:
        return _prepare, (self._loop.__module__, self._loop.__qualname__)

    def __call__(self, held: tuple[Any, ...], *rest: Any) -> Any:
        """Call the loop; the first arguments are those that stay the same."""
        if self._held is None or any(map(is_not, held, self._held)):
            self._hold(held)
        code = self._found.get(_dispatcher.compute_fingerprint(rest))
        return self._look(held, rest) if code is None else code(*held, *rest)

    def _hold(self, held: tuple[Any, ...]) -> None:
        self._found = _codes.setdefault((self._loop, _dispatcher.compute_fingerprint(held)), {})
        self._held = held

    def _look(self, held: tuple[Any, ...], rest: tuple[Any, ...]) -> Any:
        """Call the loop as usual, and keep its machine code if there is some now."""
        given, loop = (*held, *rest), self._loop
        answer = loop(*given)
        overloads = getattr(loop, "overloads", None)  # a function of Python has none
        if overloads:
            code = overloads.get(tuple(map(loop.typeof_pyval, given)))
            if code is not None:
                self._found[_dispatcher.compute_fingerprint(rest)] = code.entry_point
        return answer


def _prepare(module: str, name: str) -> Prepared:
    return Prepared(getattr(import_module(module), name))
