"""Nothing that is accepted may kill: random requests to the service, in a process of its own; see `fuzzing`."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.service.fuzzing import SERVED

REQUESTS = int(os.environ.get("FUZZ_REQUESTS", "1000000"))  # of the slow test, over all policies
DEFAULT = "hierarchical"


def fuzzed(folder: Path, seed: int, requests: int, policy: str, *more: str) -> None:
    """Send requests to a service in another process, and raise if it crashes or a promise is broken."""
    command = [
        sys.executable,
        "-m",
        "tests.service.fuzzing",
        str(seed),
        str(requests),
        str(folder / "log.db"),
        policy,
    ]
    done = subprocess.run([*command, *more], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"seed {seed}: ended with {done.returncode}: {done.stderr[-4000:]}"
    assert done.stdout.splitlines()[-1] == f"done {requests}"


def test_random_requests_never_end_the_service_nor_change_anything_with_an_error(tmp_path: Path) -> None:
    fuzzed(tmp_path, 1, 300, DEFAULT)


@pytest.mark.slow
@pytest.mark.parametrize("policy", SERVED)
def test_many_random_requests_against_every_policy(policy: str, tmp_path: Path) -> None:
    """Half of them go to the default policy; each store is empty first, and warm after each restart."""
    share = REQUESTS // 2 if policy == DEFAULT else REQUESTS // 2 // (len(SERVED) - 1)
    fuzzed(tmp_path, 1, max(share, 50), policy, "--loose")
    fuzzed(tmp_path, 2, max(share // 20, 50), policy)
