"""The decorators of all compiled loops."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from numba import njit, types
from numba.core.caching import NullCache

from coterie.models._kernels.beside import MOST, alone, run_in_python_first

try:
    from coterie.models._kernels.nested import NESTED as NESTED
    from coterie.models._kernels.nested import OUTER, keep_unfinished
except ImportError:  # another Numba: every function has machine code of its own
    from numba.core.compiler import Compiler

    NESTED = OUTER = Compiler

    def keep_unfinished(nested: Any) -> None:
        """Do nothing: all functions are finished."""


KERNELS = Path(__file__).parent
LOOPS = sorted(
    (file.name, file.stat().st_mtime_ns, file.stat().st_size)
    for file in (*KERNELS.rglob("*.py"), KERNELS.parent / "bounds.py", KERNELS.parent / "ranges.py")
)
NEVER = -1  # runs in Python
Compiled = TypeVar("Compiled", bound=Callable[..., Any])


def jit(function: Compiled, most: float = MOST, **options: Any) -> Compiled:
    """Compile for calls without Python's global lock, and keep the machine code on disk.

    Until it is there, the function runs in Python if its arrays hold at most `most` numbers. Compiled code that calls
    the function includes it in its own machine code. Numba's own decorators are untyped. Fast-math stays off,
    because it would change the bits of results.
    """
    options = {"nogil": True, "error_model": "numpy", "no_cfunc_wrapper": True, **options}
    compiled: Any = njit(pipeline_class=OUTER, **options)(function)
    if compiled is function:  # NUMBA_DISABLE_JIT=1: the loops run in Python, for coverage or a debugger
        return function
    nested: Any = njit(pipeline_class=NESTED, no_cpython_wrapper=True, **options)(function)

    def called(kinds: Any, keywords: Any) -> Any:
        """Return the signature of a call in compiled code. A number in the code is a number like any other."""
        return nested.get_call_template(tuple(map(types.unliteral, kinds)), keywords)

    compiled.get_call_template, compiled.get_overload = called, nested.get_overload  # Numba asks these
    try:
        _keep(compiled, "outer")
        _keep(nested, "nested")
        keep_unfinished(nested)
        run_in_python_first(compiled, most)
    except (RuntimeError, AttributeError):
        # Nowhere to write the machine code, or a Numba with another cache: compile anew in each process.
        compiled._cache = nested._cache = NullCache()
    return compiled  # type: ignore[no-any-return]


def _keep(loop: Any, kind: str) -> None:
    """Keep machine code on disk."""
    loop.enable_caching()
    file = loop._cache._cache_file
    file._index_name = f"{kind}-{file._index_name}"
    file._index_path = str(Path(file._cache_path) / file._index_name)
    file._data_name_pattern = f"{kind}-{file._data_name_pattern}"
    # Machine code contains that of the functions it calls, and Numba checks only the function's own file. It compares
    # the version before it unpickles the index, which may name modules that no longer exist.
    file._version = f"{file._version} {LOOPS}"
    # Numba numbers the files by counting those that exist. Two processes that compile a function for different types
    # at the same moment would use the same name, and a third process would run code for the wrong types.
    save, lock = file.save, Path(file._cache_path) / ".coterie.lock"

    def save_alone(key: Any, data: Any) -> None:
        with alone(lock):
            save(key, data)

    file.save = save_alone


def bare(function: Compiled, most: float = MOST) -> Compiled:
    """Compile without reference counting: for loops that read many arrays and allocate none.

    Numba counts references to arrays atomically in every call, which is most of the time of a short call.
    """
    return jit(function, most, _nrt=False, nogil=False)


def step(function: Compiled) -> Compiled:
    """Compile the work of one decision or payoff, which is small however large the arrays are."""
    return jit(function, math.inf)


def at_once(function: Compiled) -> Compiled:
    """Compile a loop over many rounds before its first call: Python would take longer."""
    return jit(function, NEVER)
