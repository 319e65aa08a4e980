"""The one place where functions are compiled: cached on disk where there is a disk to write to."""

from collections.abc import Callable
from typing import TypeVar

from numba import njit

F = TypeVar("F", bound=Callable[..., object])


def jit(function: F) -> F:
    """Return `function`, compiled on its first call; exact arithmetic, no fastmath."""
    try:
        return njit(cache=True)(function)  # type: ignore[return-value]
    except RuntimeError:  # no place to write a cache: compile in every process instead
        return njit(function)  # type: ignore[no-any-return]
