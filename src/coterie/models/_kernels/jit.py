"""The decorators of all compiled loops."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from numba import njit

with suppress(ImportError):  # not on Windows, which then has no lock
    import fcntl

LOOPS = sorted(
    (file.name, file.stat().st_mtime_ns, file.stat().st_size) for file in Path(__file__).parent.rglob("*.py")
)
Compiled = TypeVar("Compiled", bound=Callable[..., Any])


def jit(function: Compiled, **options: Any) -> Compiled:
    """Compile on first call, without the interpreter's lock, and keep the machine code on disk.

    Numba's own decorators are untyped. Fast-math stays off: it would let the same rounds give other bits.
    """
    options = {"nogil": True, "error_model": "numpy", **options}
    try:
        compiled: Compiled = njit(cache=True, **options)(function)
    except RuntimeError:  # nowhere to write the machine code: compile anew in each process
        return njit(**options)(function)  # type: ignore[no-any-return]
    if compiled is function:  # NUMBA_DISABLE_JIT=1: the loops run in Python, for coverage or a debugger
        return function
    _follow_all_loops(compiled)
    _save_one_at_a_time(compiled)
    return compiled


def _follow_all_loops(compiled: Any) -> None:
    """Forget a function's machine code when any of the compiled loops was edited, not only its own file.

    The code of a function holds that of all it calls, wherever they are; Numba looks at the one file alone.
    """
    file = compiled._cache._cache_file
    # Numba compares the version before it unpickles the index, which may name modules that no longer exist.
    file._version = f"{file._version} {LOOPS}"


def _save_one_at_a_time(compiled: Any) -> None:
    """Let no two processes write a function's machine code at once.

    Numba names the files by counting what is there. Two processes that compile a function for different types at the
    same moment take the same name, and a third would run the code of the one on the arrays of the other.
    """
    file = compiled._cache._cache_file
    save, lock = file.save, Path(file._cache_path) / ".coterie.lock"

    def save_alone(key: Any, data: Any) -> None:
        with open(lock, "w") as held:
            if "fcntl" in globals():
                fcntl.flock(held, fcntl.LOCK_EX)
            save(key, data)

    file.save = save_alone


def bare(function: Compiled) -> Compiled:
    """Compile without the counting of references: for loops that read many arrays and allocate none.

    Numba counts references to arrays in every call, atomically; in short calls that is most of the time.
    """
    return jit(function, _nrt=False, nogil=False)


def inner(function: Compiled) -> Compiled:
    """Compile for calls from compiled code alone: there is no wrapper that takes Python's arguments apart.

    For arguments with dozens of arrays the wrappers take most of the compiler's time.
    """
    return jit(function, no_cpython_wrapper=True, no_cfunc_wrapper=True)
