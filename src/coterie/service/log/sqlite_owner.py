"""Who uses a store in a file, whatever path leads to the file: one process alone, or any number that share it."""

import fcntl
import os
import time
from pathlib import Path
from typing import final

from coterie.errors import FileError
from coterie.service.store_errors import InUseError

EVERY = 0.05  # seconds between two looks whether the process that uses it alone is done

# Of the files in use in this process, by device and number: how often, and handles that are to be closed at last.
_here: dict[tuple[int, int], tuple[int, list[int]]] = {}


@final
class Owned:
    """Two locks, held until closed: on a file beside the store, and on the store.

    The first holds the path, with SQLite's write-ahead log, even if another file is moved there. The second holds the
    file, whichever hard link leads to it. Whoever finds the store unused has it alone at first, to check it; others
    that share it wait until `share` is called.
    """

    def __init__(self, path: Path, shared: bool = False) -> None:
        self._handles: list[int] = []
        self._file: tuple[int, int] | None = None
        self.alone = True
        try:
            self._lock(f"{path}.lock", shared)
            # Closing a file releases all of SQLite's locks on it in this process, so its handles stay open until
            # nothing here uses it.
            if path.exists() and _identity(path) in _here and not shared:
                raise BlockingIOError
            self._lock(str(path), shared)
        except BlockingIOError as error:
            self.close()
            raise InUseError(f"{path} is in use by another process; stop that one first") from error
        except OSError as error:
            self.close()
            raise FileError(f"cannot open {path}: {error}") from error
        self._file = _identity(path)
        count, left = _here.get(self._file, (0, []))
        _here[self._file] = count + 1, left

    def _lock(self, name: str, shared: bool) -> None:
        handle = os.open(name, os.O_RDWR | os.O_CREAT, 0o600)
        self._handles.append(handle)
        while self.alone or shared:
            try:
                fcntl.flock(handle, (fcntl.LOCK_EX if self.alone else fcntl.LOCK_SH) | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if not shared:
                    raise
                if not self.alone:
                    time.sleep(EVERY)
                self.alone = False

    def share(self) -> None:
        """Let others share the store."""
        for handle in self._handles:
            fcntl.flock(handle, fcntl.LOCK_SH)

    def close(self) -> None:
        """Give up the locks."""
        handles, self._handles = self._handles, []
        if self._file is not None:
            count, left = _here.pop(self._file)
            if count > 1:
                fcntl.flock(handles[-1], fcntl.LOCK_UN)
                _here[self._file] = count - 1, [*left, handles.pop()]
            else:
                handles += left
            self._file = None
        for handle in handles:
            os.close(handle)


def _identity(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_dev, found.st_ino
