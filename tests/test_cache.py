"""The cache of machine code, written by many processes at once."""

import os
import subprocess
import sys
from pathlib import Path

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


def test_processes_that_compile_together_do_not_take_each_others_code(tmp_path: Path) -> None:
    module = tmp_path / "kernel.py"
    module.write_text(MODULE)
    command = [sys.executable, str(module)]
    source = str(Path(__file__).parents[1] / "src")
    environment = {**os.environ, "PYTHONPATH": source, "NUMBA_CACHE_DIR": str(tmp_path / "cache")}
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
        process.communicate(timeout=120)
        assert process.returncode == 0
    subprocess.run([*command, "-1"], check=True, env=environment)
