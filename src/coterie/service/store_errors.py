"""How a store can fail, by what a caller may do then."""

import time
from collections.abc import Callable
from typing import Any, TypeVar

from coterie.errors import CoterieError, FileError

T = TypeVar("T")
PATIENCE = 2.0  # seconds in which work is tried again that failed for a reason that passes
PAUSES = (0.02, 0.5)  # seconds between two tries, at first and at most


class StoreError(CoterieError):
    """The store cannot do what was asked. Nothing of the failed call was kept, unless a child says otherwise.

    `said` is what clients are told. The message is for the log: it may hold what the database itself said.
    """

    said = "the store failed"


class InUseError(FileError):
    """Other processes use the store, or one uses it alone."""


class PassingError(StoreError):
    """The store refused, for a reason that passes by itself. The same call may be made again."""

    said = "the store takes no records for now"


class AloneError(PassingError):
    """A tool has the store for itself, or needs it, and others use it."""

    said = "a tool uses the store"


class FullError(PassingError):
    """There is no room."""

    said = "the store is full"


class LostError(PassingError):
    """The connection to the server is lost, so it is not known whether the call was kept.

    `Store.append` may be called again: it keeps a batch once.
    """

    said = "the connection to the database is lost"


class StaleError(StoreError):
    """The log ends elsewhere, because others have written to it. Read what is new, and try again."""

    said = "others write to the log so often that there was no turn"


class TakenError(StoreError):
    """The log has a decision of one of the events already. Look for it there."""

    said = "the event was decided by another process; send the request again"


class BrokenError(StoreError):
    """A write or a sync failed. What the disk holds is not known until a restart reads it."""

    said = "a write to the store failed; the service ends, and a restart reads what was kept"


def keep_trying(work: Callable[..., T], *arguments: Any, patience: float | None = None) -> T:
    """Return what work returns that may be repeated; while it raises PassingError, try again for some seconds."""
    end = time.monotonic() + (PATIENCE if patience is None else patience)
    pause, longest = PAUSES
    while True:
        try:
            return work(*arguments)
        except PassingError:
            if time.monotonic() + pause > end:
                raise
            time.sleep(pause)
            pause = min(2 * pause, longest)
