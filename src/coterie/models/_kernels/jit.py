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


def bare(function: Compiled) -> Compiled:
    """Compile without the counting of references: for loops that read many arrays and allocate none.

    Numba counts references to arrays in every call, atomically; in short calls that is most of the time.
    """
    return jit(function, _nrt=False, nogil=False)
