"""A file lock, so that two processes never record the same run. It is released when its process ends."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from coterie.errors import FileError

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
