"""The decorators of all compiled loops."""

from collections.abc import Callable
from typing import Any, TypeVar

from numba import njit

Compiled = TypeVar("Compiled", bound=Callable[..., Any])


def jit(function: Compiled, **options: Any) -> Compiled:
    """Compile on first call, without the interpreter's lock, and keep the machine code on disk.

    Numba's own decorators are untyped. Fast-math stays off: it would let the same rounds give other bits.
    """
    options = {"nogil": True, "error_model": "numpy", **options}
    try:
        compiled: Compiled = njit(cache=True, **options)(function)
    except RuntimeError:  # nowhere to write the machine code: compile anew in each process
        compiled = njit(**options)(function)
    return compiled


def inline(function: Compiled) -> Compiled:
    """Compile as a part of whoever calls it: a call that hands over many arrays costs more than a short loop."""
    return jit(function, forceinline=True)


def locked(function: Compiled) -> Compiled:
    """Compile as `jit` does, but hold the interpreter's lock: no two threads are in such calls at once."""
    return jit(function, nogil=False)
