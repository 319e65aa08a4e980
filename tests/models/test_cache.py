"""The cache of machine code, written by many processes at once."""

import copy
import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import numba
import pytest

from coterie.models._kernels.rows.sums import total

SOURCE = Path(__file__).parents[2] / "src"
KINDS = 3
MODULE = """
import sys
import time
import numpy as np
from coterie.models._kernels.jit import jit

@jit
def twice(x, n):
    total = x.sum()
    for _ in range(n):
        total = total + x.sum()
    return total

kinds = [np.zeros(3, "i8"), np.zeros(3, "f8"), np.zeros((2, 2), "f8")]
if __name__ == "__main__":
    which = int(sys.argv[1])
    if which >= 0:
        file = twice._cache._cache_file
        read = file._load_index
        def slowly():                            # as if all of them looked at the same moment
            index = read()
            time.sleep(1)
            return index
        file._load_index = slowly
        print("ready", flush=True)
        sys.stdin.readline()                     # all begin together
        twice(kinds[which], 2)
    else:
        file = twice._cache._cache_file
        found = {tuple(map(str, key[0])): name for key, name in file._load_index().items()}
        assert len(found) == len(kinds), found
        assert len(set(found.values())) == len(kinds), found
        for kind in kinds:
            twice(kind, 2)
        assert sum(twice.stats.cache_hits.values()) == len(kinds), twice.stats
        assert {str(s[0]) for s in twice.signatures} == {key[0] for key in found}, twice.signatures
"""

LINKED = """
import sys
import numpy as np
from coterie.models import make_rows
from coterie.models._kernels.rows import dispatch
from coterie.models._kernels.jit import jit

@jit
def refresh(rows, i):
    dispatch.refresh(rows, i)
    if i > 3:                                    # called twice, it is not copied into its caller
        dispatch.refresh(rows, i + 1)

@jit
def clear(rows, i):
    dispatch.clear(rows, i)
    if i > 3:
        dispatch.clear(rows, i + 1)

for name in sys.argv[1:]:
    function = globals()[name]
    rows = make_rows(n_features=4, one_hot=False).rows
    for array in rows:
        array[...] = 3
    function(rows, 1)
    print(name, sum(float(array.sum()) for array in rows), "kept" if function.stats.cache_hits else "compiled")
"""


def run(command: list[str], environment: dict[str, str]) -> list[list[str]]:
    found = subprocess.run(command, check=True, env=environment, capture_output=True, text=True)
    return [line.split() for line in found.stdout.splitlines()]


def test_code_that_two_processes_kept_calls_its_own_functions(tmp_path: Path) -> None:
    module = tmp_path / "kernel.py"
    module.write_text(LINKED)
    command = [sys.executable, str(module)]
    environment = environment_of(tmp_path)
    [refresh] = run([*command, "refresh"], environment)
    [clear] = run([*command, "clear"], environment)
    assert refresh[1] != clear[1]
    for names in (["refresh", "clear"], ["clear", "refresh"]):
        found = {name: (total, how) for name, total, how in run([*command, *names], environment)}
        assert found == {"refresh": (refresh[1], "kept"), "clear": (clear[1], "kept")}


def test_code_is_compiled_again_when_something_it_calls_was_edited(tmp_path: Path) -> None:
    package = tmp_path / "src" / "coterie"
    shutil.copytree(SOURCE / "coterie", package, ignore=shutil.ignore_patterns("__pycache__"))
    module = tmp_path / "kernel.py"
    module.write_text(LINKED)
    command, environment = [sys.executable, str(module), "clear"], environment_of(tmp_path, package.parent)
    [first], [second] = run(command, environment), run(command, environment)
    assert (first[2], second[2]) == ("compiled", "kept")
    with open(package / "models" / "_kernels" / "rows" / "ridges.py", "a") as ridges:
        ridges.write("# edited\n")
    [third] = run(command, environment)
    assert third == first


def environment_of(folder: Path, source: Path = SOURCE) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(source), "NUMBA_CACHE_DIR": str(folder / "cache")}


@pytest.mark.slow
def test_processes_that_compile_together_do_not_take_each_others_code(tmp_path: Path) -> None:
    module = tmp_path / "kernel.py"
    module.write_text(MODULE)
    command = [sys.executable, str(module)]
    environment = environment_of(tmp_path)
    started = [
        subprocess.Popen(
            [*command, str(kind)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        for kind in range(KINDS)
    ]
    for process in started:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in started:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in started:
        process.communicate(timeout=300)
        assert process.returncode == 0
    subprocess.run([*command, "-1"], check=True, env=environment)


def test_an_index_of_other_loops_is_not_unpickled(tmp_path: Path) -> None:
    """It may name a type whose module was moved since: unpickling it would raise ModuleNotFoundError."""
    file = copy.copy(total._cache._cache_file)  # type: ignore[attr-defined]
    file._index_path = str(tmp_path / "index.nbi")
    Path(file._index_path).write_bytes(pickle.dumps(numba.__version__) + b"cno_such_module\nTable\n.")
    assert file._load_index() == {}
