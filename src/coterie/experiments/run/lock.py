"""A lock on a file, so that two processes never record the same run. It ends with the process that holds it."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from coterie.errors import FileError

try:
    import fcntl
except ImportError:  # no such call on Windows: there, one comparison a folder is up to the user
    fcntl = None  # type: ignore[assignment]


@contextmanager
def locked(path: Path, patience: float = 10.0) -> Iterator[None]:
    """Hold the lock at `path`; wait for another holder up to `patience` seconds."""
    with path.open("a") as file:
        until = time.monotonic() + patience
        while fcntl is not None:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > until:
                    raise FileError(f"another process is recording {path.parent}; let it end first") from None
                time.sleep(0.05)
        yield
