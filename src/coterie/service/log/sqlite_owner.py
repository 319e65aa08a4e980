"""Ownership of a store in a file: one process at a time, whatever path leads to the file."""

import fcntl
import os
from pathlib import Path
from typing import final

from coterie.errors import FileError
from coterie.service.log.errors import InUseError

_here: set[tuple[int, int]] = set()  # device and number of the files that this process owns


@final
class Owned:
    """Two locks, held until closed: on a file beside the store, and on the store.

    The first holds the path, with SQLite's write-ahead log, even if another file is moved there. The second holds the
    file, whichever hard link leads to it.
    """

    def __init__(self, path: Path) -> None:
        self._handles: list[int] = []
        self._file: tuple[int, int] | None = None
        try:
            self._lock(f"{path}.lock")
            # Closing a file releases all of SQLite's locks on it in this process, so do not open it needlessly.
            if path.exists() and _identity(path) in _here:
                raise BlockingIOError
            self._lock(str(path))
        except BlockingIOError as error:
            self.close()
            raise InUseError(f"{path} is in use by another process; stop that one first") from error
        except OSError as error:
            self.close()
            raise FileError(f"cannot open {path}: {error}") from error
        self._file = _identity(path)
        _here.add(self._file)

    def _lock(self, name: str) -> None:
        handle = os.open(name, os.O_RDWR | os.O_CREAT, 0o600)
        self._handles.append(handle)
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def close(self) -> None:
        """Give up the locks."""
        while self._handles:
            os.close(self._handles.pop())
        if self._file is not None:
            _here.discard(self._file)
            self._file = None


def _identity(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_dev, found.st_ino
