"""What tests share: long timeouts, and skips where the compiler is off."""

import os
from collections.abc import Generator
from pathlib import Path
from typing import Any

import httpx._config
import numba
import pytest
from hypothesis import HealthCheck, settings
from threadpoolctl import threadpool_limits
from xdist.scheduler import LoadScopeScheduling

# A busy machine may take long to answer; the default of httpx is 5 s.
for name in ("connect", "read", "write", "pool"):
    setattr(httpx._config.DEFAULT_TIMEOUT_CONFIG, name, 300.0)
# For the same reason an example of hypothesis may take longer than 200 ms. Examples are the same in every run, so
# that a test that passes always passes; `make slow` looks for new ones, with the profile `search`.
settings.register_profile("search", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("same", settings.get_profile("search"), derandomize=True)
settings.load_profile("same")


# Threads of NumPy's linear algebra wait for each other in loops: on a busy machine a small matrix takes seconds. And
# the last bits of a product depend on how many there are: the processes that tests start must agree with the tests.
os.environ["OPENBLAS_NUM_THREADS"] = "1"
threadpool_limits(1, "blas")

# What is tested is machine code, also in the processes that tests start; test_beside.py tests the loops in Python.
os.environ["COTERIE_COMPILE"] = "first"


class Groups(LoadScopeScheduling):  # type: ignore[misc]
    """Runs all tests of a file, and all of a folder of the policies, in one process each.

    Two processes would load the same loops and start the same servers. The examples of docstrings come after the
    policies: they begin with the same loops, which two processes would compile at the same time.
    """

    def _split_scope(self, nodeid: str) -> str:
        file = Path(nodeid.partition("::")[0])
        if file.name == "test_docstrings.py":
            return str(file.parent / "policies")
        return str(file.parent if "policies" in file.parts else file)

    def remove_node(self, node: Any) -> str | None:
        """Return the test in which a process crashed, if it did; what it had still to run is given up."""
        units = self.assigned_work.pop(node).values()
        return next((test for unit in units for test, done in unit.items() if not done), None)

    def _reschedule(self, node: Any) -> None:
        """Give a process that is ready more tests than two, or let it end: it runs one when it knows the next."""
        while (
            node in self.registered_collections
            and not node.shutting_down
            and self._pending_of(self.assigned_work[node]) <= 2
        ):
            super()._reschedule(node)


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Start one process more than there are cores: tests often wait for a server or a timeout."""
    return (os.cpu_count() or 1) + 1


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Groups:
    """Distribute tests over processes."""
    return Groups(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, Any, Any]:
    """With NUMBA_DISABLE_JIT=1, skip tests of loops that run only when compiled."""
    try:
        return (yield)
    except Exception as error:
        if numba.config.DISABLE_JIT and needs_compiler(error):
            pytest.skip(f"needs the compiler: {error}")
        raise


def needs_compiler(error: Exception) -> bool:
    """Say whether an error comes from what Python does not have: LLVM vectors, fields of records, 64-bit integers."""
    if isinstance(error, ExceptionGroup):  # of hypothesis
        return all(map(needs_compiler, error.exceptions))
    return isinstance(error, NotImplementedError | OverflowError) or "'numpy.void' object" in str(error)
