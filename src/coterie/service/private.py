"""Files that only their owner may read, from the first byte on, because stores and exports name users."""

import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from coterie.service.logs import log

OTHERS = stat.S_IRWXG | stat.S_IRWXO


def make_private(path: Path) -> None:
    """Make an empty file if there is none; remove all rights of other users if there is one."""
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
        return
    # By name, because closing a second handle of a database would release the locks of the first.
    mode = path.stat().st_mode
    if mode & OTHERS and stat.S_ISREG(mode):
        try:
            path.chmod(stat.S_IMODE(mode) & ~OTHERS)
        except PermissionError as error:
            log.warning("others can read %s, and it cannot be changed: %s", path, error)


def open_private(path: Path) -> BinaryIO:
    """Open a new file for writing; an old one of that name is unlinked, so that its readers see nothing new."""
    if path.is_file() and not path.is_symlink():
        path.unlink()
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    if stat.S_ISREG(os.fstat(handle).st_mode):
        os.fchmod(handle, 0o600)
    return os.fdopen(handle, "wb")
