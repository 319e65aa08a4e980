"""`.ci/install`, with a venv, uv and pip that only write down how they were called."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SCRIPT = """#!/bin/sh
echo "{name} $*" >> {log}
{more}
"""


def install(folder: Path, *, uv: str | None, pip: str = "exit 0") -> tuple[list[str], str, int]:
    """Run it where `uv` and `pip` end so; return the calls, what was printed, and the exit code."""
    (folder / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "install", folder / ".ci")
    log = folder / "calls"
    (folder / ".venv" / "bin").mkdir(parents=True)
    for name, more in (("python", pip), ("uv", uv)):
        if more is not None:
            path = folder / ".venv" / "bin" / name
            path.write_text(SCRIPT.format(name=name, log=log, more=more))
            path.chmod(0o755)
    command = [str(folder / ".ci" / "install"), "what is needed", "--editable", ".[a]"]
    done = subprocess.run(command, capture_output=True, text=True, env={"PATH": os.environ["PATH"]})
    return log.read_text().splitlines(), done.stdout, done.returncode


def test_uv_installs_what_is_asked_for_and_pip_is_left_alone(tmp_path: Path) -> None:
    calls, said, code = install(tmp_path, uv="exit 0")
    assert calls == [
        "uv pip install --quiet --python .venv/bin/python --constraint constraints.txt --editable .[a]"
    ]
    assert (said, code) == ("Installing what is needed with uv\n", 0)


PIP = "python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt"


def test_where_uv_fails_pip_does_it(tmp_path: Path) -> None:
    calls, said, code = install(tmp_path, uv="exit 2")
    assert [call.split()[0] for call in calls] == ["uv", "python"]
    assert calls[1] == f"{PIP} --editable .[a]"
    assert "uv failed. Installing what is needed with pip instead" in said
    assert code == 0


def test_where_uv_cannot_be_installed_pip_does_it(tmp_path: Path) -> None:
    """pip cannot install uv, but it can move itself and do the rest."""
    calls, said, code = install(tmp_path, uv=None, pip='case "$*" in *uv) exit 1;; esac')
    assert calls == [f"{PIP} --upgrade pip>=25.1 uv", f"{PIP} --upgrade pip>=25.1", f"{PIP} --editable .[a]"]
    assert "with pip, which takes minutes: uv cannot be installed here" in said
    assert code == 0


@pytest.mark.parametrize("uv", ["exit 2", None])
def test_a_failure_of_pip_is_the_end(tmp_path: Path, uv: str | None) -> None:
    assert install(tmp_path, uv=uv, pip="exit 1")[2] != 0
