"""Packages of npm for tests: installed once by name and version into the user's cache, never into the repository."""

import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest

PACKAGES = ("@azure-rest/ai-personalizer@1.0.0-beta.1", "@azure/cognitiveservices-personalizer@2.0.1")
CLIENTS = Path(__file__).with_name("clients.cjs")


def packages() -> Path:
    """Return the folder of the installed packages; the test is skipped where they cannot be installed."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("there is no node and npm (apt install nodejs npm)")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "coterie-tests"
    folder = cache / "-".join(name.rpartition("@")[2] for name in PACKAGES)
    modules = folder / "node_modules"
    if modules.is_dir():
        return modules
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as made:
        command = [
            "npm",
            "install",
            "--no-package-lock",
            "--no-audit",
            "--no-fund",
            "--ignore-scripts",
            *PACKAGES,
        ]
        try:
            done = subprocess.run(command, cwd=made, capture_output=True, text=True, timeout=300)
        except subprocess.TimeoutExpired:
            pytest.skip("npm could not fetch the packages within 300 s")
        if done.returncode:
            pytest.skip(f"npm could not fetch the packages: {done.stderr.strip()[-300:]}")
        try:
            os.rename(made, folder)
        except OSError:  # another run was faster
            assert modules.is_dir()
            return modules
        os.mkdir(made)  # for the clean-up
    return modules


def drive(url: str, key: str, calls: list[Any]) -> list[Any]:
    """Let the packages make calls, and return the answers."""
    done = subprocess.run(
        ["node", str(CLIENTS), url, key],
        env={**os.environ, "NODE_PATH": str(packages()), "NODE_NO_WARNINGS": "1"},
        input=json.dumps(calls),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    found: list[Any] = json.loads(done.stdout)
    return found
