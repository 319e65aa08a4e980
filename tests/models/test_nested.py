"""Inner functions without machine code of their own, and what happens with a Numba that has other insides."""

import os
import pickle
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import numba
import pytest
from numba.core.codegen import JITCodeLibrary

from coterie.models._kernels import jit, nested
from tests.models.test_beside import POLICIES

pytestmark = pytest.mark.skipif(bool(numba.config.DISABLE_JIT), reason="compares machine code")

ANOTHER = """
import numba
numba.version_info = numba.version_info._replace(short=(99, 0))
from numba.core.compiler import Compiler
from coterie.models._kernels import jit
assert jit.NESTED is jit.OUTER is Compiler
"""


def played(script: str, *names: str, **environment: str) -> object:
    """Return all choices of policies, and the bits of their models."""
    done = subprocess.run(
        [sys.executable, "-c", script, *names], env={**os.environ, **environment}, check=True, stdout=-1
    )
    return pickle.loads(done.stdout)  # noqa: S301


@pytest.mark.parametrize(
    "names", [("linucb",), pytest.param((), marks=pytest.mark.slow)], ids=["linucb", "all"]
)
def test_another_numba_compiles_in_its_own_way_and_gives_the_same_bits(
    names: tuple[str, ...], tmp_path: Path
) -> None:
    ours = played(POLICIES, *names)
    cache = {"NUMBA_CACHE_DIR": str(tmp_path)}
    assert played(ANOTHER + POLICIES, *names, **cache) == ours
    assert list(tmp_path.rglob("*.nbc"))
    assert played(ANOTHER + POLICIES, *names, **cache) == ours  # from the disk


def test_this_numba_is_one_that_was_tried() -> None:
    assert vars(jit)["NESTED"] is nested.NESTED
    assert vars(jit)["OUTER"] is nested.OUTER


@pytest.mark.parametrize("short", [(0, 60), (0, 69), (1, 0)])
def test_a_numba_that_was_not_tried_is_refused(
    short: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(numba, "version_info", numba.version_info._replace(short=short))
    with pytest.raises(ImportError, match=f"Numba is {numba.__version__}, tried were"):
        runpy.run_path(nested.__file__)


@pytest.mark.parametrize("part", ["_finalize_specific", "_get_module_for_linking"])
def test_a_numba_with_other_insides_is_refused(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in JITCodeLibrary.__mro__:
        if part in vars(kind):
            monkeypatch.delattr(kind, part)
    with pytest.raises(ImportError, match=f"JITCodeLibrary of Numba has no {part}"):
        runpy.run_path(nested.__file__)


def double(x: float) -> float:
    return 2 * x


twice: Any = jit.jit(double)


def four_times(x: float) -> float:
    return twice(twice(x))  # type: ignore[no-any-return]


def test_code_that_is_called_becomes_a_part_of_its_caller() -> None:
    """It has no machine code of its own, and Python finds only one function in the caller's."""
    loop: Any = jit.jit(four_times)
    assert loop(3.0) == 12.0
    assert not twice.signatures
    [code] = loop.overloads.values()
    kept = [
        function for function in code.library.get_defined_functions() if function.linkage.name == "external"
    ]
    assert [function.name for function in kept] == [code.fndesc.llvm_cpython_wrapper_name]
    assert twice(3.0) == 6.0
    assert twice.signatures


def test_a_numba_with_another_cache_compiles_anew_in_each_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("numba.core.caching.IndexDataCacheFile.save")
    loop = jit.jit(double)
    assert loop(3.0) == 6.0
    assert loop.signatures  # type: ignore[attr-defined]
    assert not hasattr(loop._cache, "_cache_file")  # type: ignore[attr-defined]
