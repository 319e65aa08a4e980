"""Functions for compiled code to call: lowered once, and optimised only as a part of the loops that call them.

Numba optimises every function, makes its machine code, and does both again in every function that calls it. That is
most of the time it takes to compile a loop with a hundred functions. What only compiled code calls needs no machine
code of its own.

This is built on private parts of Numba. The import fails with a Numba that was not tried or has other parts; then
jit.py compiles as Numba does by itself, which takes half as long again.
"""

from types import SimpleNamespace
from typing import Any

import llvmlite.binding
import numba
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler, CompileResult
from numba.core.environment import lookup_environment

OLDEST, NEWEST = (0, 61), (0, 68)  # versions that were tried
PARTS = {
    JITCodeLibrary: (
        "_finalize_dynamic_globals _finalize_final_module _finalize_specific _get_module_for_linking"
        " _optimize_final_module enable_object_caching get_pointer_to_function serialize_using_object_code"
    ),
    Compiler: "_compile_core",
    CompileResult: "_rebuild _replace",
}
if not OLDEST <= numba.version_info.short <= NEWEST:
    raise ImportError(f"Numba is {numba.__version__}, tried were {OLDEST} to {NEWEST}")
for kind, names in PARTS.items():
    missing = [name for name in names.split() if not hasattr(kind, name)]
    if missing:
        raise ImportError(f"{kind.__name__} of Numba has no {', '.join(missing)}")

ENVIRONMENT = (
    "_ZN08NumbaEnv"  # how the names of environments start: Python's objects that a function refers to
)
WRAPPER = "_ZN7cpython"  # how the names of functions start that Python calls


class Nested(JITCodeLibrary):  # type: ignore[misc]
    """The code of a function before it is optimised as a whole. It is never loaded."""

    @property
    def codegen(self) -> Any:
        """Set no environment here: `Outer` sets those of all functions in it."""
        return SimpleNamespace(set_env=lambda name, environment: None)

    def _optimize_final_module(self) -> None:
        pass

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()
        self._finalized = True

    def get_pointer_to_function(self, name: str) -> int:
        """Return 0: there is no machine code."""
        return 0

    def serialize_using_object_code(self) -> tuple[str, str, bytes]:
        """Return what `read` reads."""
        return self.name, "nested", self._get_module_for_linking().as_bitcode()

    @classmethod
    def read(cls, codegen: Any, data: tuple[str, str, bytes]) -> "Nested":
        """Return a library from the disk."""
        name, _, code = data
        library = cls(codegen, name)
        library._final_module = llvmlite.binding.parse_bitcode(code)
        library._finalize_final_module()
        return library


class Outer(JITCodeLibrary):  # type: ignore[misc]
    """The machine code of a function that Python calls, with all functions that it calls."""

    def _optimize_final_module(self) -> None:
        """Let Python call the wrapper alone: all other functions may change, or be left out."""
        for function in self._final_module.functions:
            if not function.is_declaration and not function.name.startswith(WRAPPER):
                function.linkage = llvmlite.binding.Linkage.internal
        super()._optimize_final_module()

    def _finalize_specific(self) -> None:
        super()._finalize_specific()
        for variable in self._final_module.global_variables:
            if variable.name.startswith(ENVIRONMENT):
                environment = lookup_environment(variable.name)
                if environment is not None:
                    self._codegen.set_env(variable.name, environment)


def _compiler(kind: type[JITCodeLibrary]) -> type[Compiler]:
    """Return a compiler whose functions are kept in libraries of this kind."""

    class Kind(Compiler):  # type: ignore[misc]
        def _compile_core(self) -> Any:
            if self.state.library is None:
                name = self.state.func_id.func_qualname
                self.state.library = kind(self.state.targetctx.codegen(), name)
                self.state.library.enable_object_caching()
            return super()._compile_core()

    return Kind


OUTER, NESTED = _compiler(Outer), _compiler(Nested)


def keep_unfinished(nested: Any) -> None:
    """Let the cache of a nested function read what `Nested` writes."""
    implementation = getattr(nested._cache, "_impl", None)  # without one, nothing is kept on disk
    if implementation is not None:
        implementation.rebuild = _rebuild


def _rebuild(target: Any, payload: Any) -> Any:
    """Return what was kept of a nested function."""
    codegen = target.codegen()
    reader = SimpleNamespace(unserialize_library=lambda data: Nested.read(codegen, data))
    shown = SimpleNamespace(
        codegen=lambda: reader, get_executable=target.get_executable, typing_context=target.typing_context
    )
    return CompileResult._rebuild(shown, *payload)._replace(target_context=target)
