"""The one decorator of all compiled loops."""

from collections.abc import Callable
from typing import Any, TypeVar

from numba import njit

Compiled = TypeVar("Compiled", bound=Callable[..., Any])


def jit(function: Compiled) -> Compiled:
    """Compile on first call, without the interpreter's lock, and keep the machine code on disk.

    Numba's own decorators are untyped. Fast-math stays off: it would let the same rounds give other bits.
    """
    try:
        compiled: Compiled = njit(cache=True, nogil=True, error_model="numpy")(function)
    except RuntimeError:  # nowhere to write the machine code: compile anew in each process
        compiled = njit(nogil=True, error_model="numpy")(function)
    return compiled
