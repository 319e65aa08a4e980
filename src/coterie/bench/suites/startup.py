"""Startup time: the import, and the first decisions of a new process, with and without machine code."""

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from coterie.bench.measuring import Measured

IMPORT = "import coterie"
DECIDE = """
import numpy, coterie
for policy, contexts in ((coterie.CAB(n_features=25), numpy.eye(25)), (coterie.CAB(one_hot=True), list(range(25)))):
    k = policy.choose("ann", contexts)
    policy.learn("ann", contexts[k], 1.0)
    policy.choose("bob", contexts)
"""
EVERY = """
import numpy, coterie
from coterie.errors import MissingExtraError, ParameterError
from coterie.policies import POLICIES
for policy in POLICIES.values():
    for kind, contexts in (({"one_hot": True}, list("abcde")), ({"n_features": 25}, numpy.eye(25))):
        try:
            made = policy(**kind)
        except (MissingExtraError, ParameterError, TypeError):  # not installed, or for vectors only
            continue
        made.learn("ann", contexts[made.choose("ann", contexts)], 1.0)
"""
# The ten lines of the README.
FIRST_PAGE = """
import random
from coterie import Hierarchical

random.seed(1)
policy = Hierarchical(one_hot=True)
for visit in range(600):
    user, items = visit % 40, random.sample(["jazz", "rock", "news", "sport"], 2)
    k = policy.choose(user, items)
    likes = ["jazz", "rock"] if user % 2 else ["news", "sport"]
    policy.learn(user, items[k], 1.0 if items[k] in likes else 0.0)

policy.learn("zoe", "jazz", 1.0)
print(policy.explain("zoe", ["rock", "news"]))
"""

COMPARE = """
import sys
from coterie.cli import main
sys.argv = ["coterie", "compare", "--out", "{folder}/out"]
main()
"""


def rows(quick: bool, on_progress: Callable[[str], None]) -> Iterator[Measured]:
    """Time new processes; the interpreter's own start is subtracted."""
    on_progress("starting fresh processes")
    seconds(DECIDE)  # fills the compilation cache if it is cold
    times = 3 if quick else 7
    bare = min(seconds("pass") for _ in range(times))
    numpy = min(seconds("import numpy") for _ in range(times)) - bare
    for name, code, most in (("import coterie", IMPORT, 0.5), ("import and first decisions", DECIDE, 2)):
        took = min(seconds(code) for _ in range(times)) - bare
        yield _row(name, took, most, numpy)

    on_progress("without machine code")
    for name, code, most in (
        ("import, first choose and first learn of every policy, without machine code", EVERY, 5),
        ("the ten lines of the README, without machine code", FIRST_PAGE, 8),
    ):
        with tempfile.TemporaryDirectory() as folder:
            yield _row(name, seconds(code, NUMBA_CACHE_DIR=folder, COTERIE_COMPILE="") - bare, most, numpy)
    with suppress(ImportError):
        yield _row("a service until it is ready, without machine code", _service() - bare, 8, numpy)
    if not quick:
        with tempfile.TemporaryDirectory() as folder:
            compared = seconds(COMPARE.format(folder=folder), NUMBA_CACHE_DIR=f"{folder}/cache") - bare
        yield _row("`coterie compare`, without machine code", compared, 60, numpy)
        with tempfile.TemporaryDirectory() as folder:
            compiled = seconds(FIRST_PAGE, NUMBA_CACHE_DIR=folder) - bare
        name = "the ten lines of the README, compiled before the first answer"
        yield Measured("startup", name, compiled, "s", "import numpy", compiled / numpy, None, None)

    on_progress("a cache directory that cannot be written")
    with tempfile.TemporaryDirectory() as folder:
        locked = Path(folder) / "cache"
        locked.mkdir()
        locked.chmod(0o500)
        cold = seconds(DECIDE, NUMBA_CACHE_DIR=str(locked / "inside"))
        locked.chmod(0o700)
    name, against = "the same without a usable cache", "with a warm cache"
    yield Measured("startup", name, cold, "s", against, cold / took, None, None)


def _row(name: str, took: float, most: float, numpy: float) -> Measured:
    return Measured(
        "startup", name, took, "s", "import numpy", took / numpy, f"value < {most} s", took < most
    )


def seconds(code: str, **environment: str) -> float:
    """Return the processor time of a new process that runs `code`, without what is compiled beside it."""
    command = [sys.executable, "-c", code]
    before, start = os.times(), time.perf_counter()
    subprocess.run(command, check=True, env={**os.environ, **environment}, stdout=subprocess.DEVNULL)
    return min(_used(before), time.perf_counter() - start)


def _used(before: os.times_result) -> float:
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


def _service() -> float:
    """Return the processor time of a first `coterie serve` until it is ready, and of its stop."""
    import coterie.service.serve  # noqa: F401 - raises ImportError if the service is not installed

    before = os.times()
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "coterie.cli", "serve", "--port", "0", "--store", f"{folder}/log.db"]
        environment = {**os.environ, "NUMBA_CACHE_DIR": f"{folder}/cache", "COTERIE_COMPILE": ""}
        with subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        ) as process:
            assert process.stdout is not None
            found = re.search(r"http://\S+", process.stdout.readline())
            assert found is not None
            while not _answers(f"{found[0].rstrip('/')}/readyz") and process.poll() is None:
                time.sleep(0.05)
            process.send_signal(signal.SIGTERM)
    return _used(before)


def _answers(url: str) -> bool:
    """Return whether a service answers 200."""
    with suppress(OSError), urllib.request.urlopen(url) as answer:
        return bool(answer.status == 200)
    return False
