"""Records a run, and saves what is needed to continue after an interruption.

During a run its rows are in a folder beside the trace, `<name>.partial`. Every few thousand rounds the new
rows are written there, then the policy, each atomically. The policy's file is the commit: rows without it are
discarded. So a run killed at any moment continues from the last commit, and its trace equals that of an
uninterrupted run byte for byte.
"""

import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from coterie.errors import FileError
from coterie.experiments.run.play import play_batches
from coterie.experiments.run.runs import Run
from coterie.experiments.run.trace import read_header, write_trace
from coterie.policies import Policy, load


def record(
    run: Run,
    path: str | os.PathLike[str],
    *,
    every: int | None = None,
    tick: Callable[[int], None] = lambda done: None,
    placed: Callable[[Policy], Any] = lambda policy: policy,
) -> None:
    """Play `run` and write its trace to `path`, with the trained policy beside it (see `policy_path`).

    A finished trace of the same run is not changed; an interrupted run continues where it stopped. A file
    that holds another run is an error and is never overwritten. `tick` is called with the rounds done; it may
    raise to stop the run. `placed` is given the policy, and returns what plays and saves it, perhaps elsewhere.
    """
    path = Path(path)
    if _is_finished(path, run):
        return
    partial = path.with_name(path.name + ".partial")
    partial.mkdir(parents=True, exist_ok=True)
    with locked(partial / "lock"):
        if _is_finished(path, run):  # while this process waited for the lock
            return
        resumed, last = _resume(partial, run)
        policy = placed(resumed)
        for done, table in play_batches(
            policy, run.blocks(last), last, every or run.make_world().every, tick
        ):
            write_trace(partial / f"{last:012d}.parquet", [table], run.header())
            if run.can_resume:
                policy.save(partial / f"{done:012d}.policy")
            (partial / f"{last:012d}.policy").unlink(missing_ok=True)
            last = done
        if run.can_resume:
            policy.save(policy_path(path))
        # Some versions of pyarrow make a column of a folder whose name has a "=", as a setting's has.
        chunks = (pq.read_table(file, partitioning=None) for file in _chunks(partial))
        write_trace(path, chunks, run.header())
        shutil.rmtree(partial)


def policy_path(path: str | os.PathLike[str]) -> Path:
    """Return the path of the policy that was trained while the trace at `path` was recorded."""
    return Path(path).with_suffix(".safetensors")


def _is_finished(path: Path, run: Run) -> bool:
    if not path.exists():
        return False
    found, asked = read_header(path), run.header()
    if found != asked:
        differ = ", ".join(f"{key}={found.get(key)!r}" for key in asked if found.get(key) != asked[key])
        raise FileError(f"{path} holds another run ({differ}); move it away or name another path")
    return run.can_resume and policy_path(path).exists()


def _resume(partial: Path, run: Run) -> tuple[Policy, int]:
    """Return the policy of the last commit and the number of its rounds; a new policy if there is none."""
    commits = sorted(partial.glob("*.policy"), reverse=True)
    for commit in commits:
        done = int(commit.stem)
        try:
            if any(read_header(chunk) != run.header() for chunk in _chunks(partial)):
                break
            policy = load(commit)
        except FileError:
            continue  # damaged: use an earlier commit or start again
        _clear(partial, done)
        return policy, done
    _clear(partial, 0)
    return run.make_policy(), 0


def _chunks(partial: Path) -> list[Path]:
    return sorted(partial.glob("*.parquet"))


def _clear(partial: Path, done: int) -> None:
    """Remove files written after the commit at `done`, and incomplete files."""
    for file in partial.iterdir():
        stem = file.name.split(".")[0]
        committed = stem.isdigit() and (int(stem) < done or (int(stem) == done and file.suffix == ".policy"))
        if file.name != "lock" and not committed:
            file.unlink()


try:
    import fcntl
except ImportError:  # not on Windows: there, the user must run one comparison per folder
    fcntl = None  # type: ignore[assignment]


@contextmanager
def locked(path: Path, timeout: float = 10.0) -> Iterator[None]:
    """Hold the lock at `path`; wait for another holder up to `timeout` seconds."""
    with path.open("a") as file:
        until = time.monotonic() + timeout
        while fcntl is not None:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > until:
                    raise FileError(
                        f"another process is recording {path.parent}; wait until it ends"
                    ) from None
                time.sleep(0.05)
        yield
