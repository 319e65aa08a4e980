"""How a store can fail, by what a caller may do then."""

from coterie.errors import CoterieError, FileError


class StoreError(CoterieError):
    """The store cannot do what was asked. Nothing of the failed call was kept.

    `said` is what clients are told. The message is for the log: it may hold what the database itself said.
    """

    said = "the store failed"


class InUseError(FileError):
    """Another process owns the store."""


class FullError(StoreError):
    """There is no room. The batch was not kept, and may be tried again when there is room."""

    said = "the store is full"


class BrokenError(StoreError):
    """A write or a sync failed. What the disk holds is not known until a restart reads it."""

    said = "a write to the store failed; the service must be restarted"


class LostError(StoreError):
    """The connection to the server is lost. What it holds is not known until it is read after `reconnect`."""

    said = "the connection to the database is lost"
