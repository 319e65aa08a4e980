"""Startup time: the import, and the first decision of a new process."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from coterie.bench.rows import Row

IMPORT = "import coterie"
DECIDE = """
import numpy, coterie
for policy, contexts in ((coterie.CAB(n_features=25), numpy.eye(25)), (coterie.CAB(one_hot=True), list(range(25)))):
    k = policy.choose("ann", contexts)
    policy.learn("ann", contexts[k], 1.0)
    policy.choose("bob", contexts)
"""


def rows(quick: bool, told: Callable[[str], None]) -> Iterator[Row]:
    """Time new processes with a warm compilation cache; the interpreter's own start is subtracted."""
    told("starting fresh processes")
    seconds(DECIDE)  # fills the compilation cache if it is cold
    times = 3 if quick else 7
    bare = min(seconds("pass") for _ in range(times))
    numpy = min(seconds("import numpy") for _ in range(times)) - bare
    for name, code, most in (("import coterie", IMPORT, 0.5), ("import and first decisions", DECIDE, 2)):
        took = min(seconds(code) for _ in range(times)) - bare
        limit = f"value < {most} s"
        yield Row("startup", name, took, "s", "import numpy", took / numpy, limit, took < most)

    told("a cache directory that cannot be written")
    with tempfile.TemporaryDirectory() as folder:
        locked = Path(folder) / "cache"
        locked.mkdir()
        locked.chmod(0o500)
        cold = seconds(DECIDE, NUMBA_CACHE_DIR=str(locked / "inside"))
        locked.chmod(0o700)
    name, against = "the same without a usable cache", "with a warm cache"
    yield Row("startup", name, cold, "s", against, cold / took, None, None)


def seconds(code: str, **environment: str) -> float:
    """Return the processor time of a new process that runs `code`."""
    command = [sys.executable, "-c", code]
    before, start = os.times(), time.perf_counter()
    subprocess.run(command, check=True, env={**os.environ, **environment}, stdout=subprocess.DEVNULL)
    after = os.times()
    used = after.children_user + after.children_system - before.children_user - before.children_system
    return min(used, time.perf_counter() - start)
