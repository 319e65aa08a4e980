"""Where the log, the users' names, the snapshots and the keys are kept: one protocol, two stores."""

from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from typing import Protocol

from msgspec import Struct

from coterie.errors import CoterieError, FileError, MissingExtraError
from coterie.service.core.records import Batch
from coterie.service.settings import Durability


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
    """A write or a sync failed. What the disk holds is not known: only a restart, which reads it, can tell."""

    said = "a write to the store failed; the service must be restarted"


class LostError(StoreError):
    """The connection to the server is lost. What it holds is not known until it is read after `reconnect`."""

    said = "the connection to the database is lost"


class Append(Struct, frozen=True):
    """What becomes durable together: records, and what they change in the table of users."""

    batch: Batch
    named: Mapping[int, str] = {}  # new users
    forgotten: Sequence[int] = ()  # users whose names go
    scrub: Sequence[int] = ()  # users whose earlier records are to be scrubbed


class KeyRow(Struct, frozen=True):
    """A key as it is kept: its hash only."""

    name: str
    scopes: tuple[str, ...]
    hash: bytes
    created: int


class Store(Protocol):
    """A durable log. One process owns it at a time; `append` is called from one thread."""

    def append(self, appends: Append) -> None:
        """Keep a batch, durably as configured, or raise FullError or BrokenError and keep nothing of it."""

    def sync(self) -> None:
        """Make everything appended survive a power cut."""

    def read(self, first: int = 0) -> Iterator[Batch]:
        """Yield the batches that hold `first` and what comes after, in order, with no gap."""

    def bounds(self) -> tuple[int, int]:
        """Return the position of the oldest kept record, and of the next one to come."""

    def users(self, first: int = 0) -> dict[int, str]:
        """Return the names of the users that were not forgotten, from the number `first` on."""

    def pieces(self) -> set[bytes]:
        """Return the names of the pieces of snapshots that there are."""

    def save_pieces(self, new: Mapping[bytes, bytes]) -> None:
        """Keep pieces by name, for a snapshot to come."""

    def save_snapshot(
        self, position: int, row: bytes, alone: bool = False, new: Mapping[bytes, bytes] | None = None
    ) -> None:
        """Keep the state after the records before `position`, together with its last pieces.

        Older ones go, all if `alone`, else but one, and with them the pieces that no snapshot needs.
        """

    def snapshots(self) -> Iterator[tuple[int, bytes]]:
        """Yield the kept snapshots with their positions, newest first. Damaged ones are skipped."""

    def piece(self, name: bytes) -> bytes | None:
        """Return a piece of a snapshot, if it is there."""

    def positions(self) -> list[int]:
        """Return the positions of the kept snapshots that are sound, newest first."""

    def rewrite(self, batch: Batch) -> None:
        """Replace a kept batch by one with the same place and count: how a user leaves the log."""

    def scrubs(self) -> list[int]:
        """Return the users who are forgotten, but whose records are not scrubbed yet."""

    def scrubbed(self, users: Sequence[int]) -> None:
        """Say that nothing of these users is left, and leave no trace of them in free pages."""

    def cut(self, at: int) -> int:
        """Give up the log from a position on, to repair it, and return how many records went."""

    def compact(self, before: int) -> int:
        """Remove batches wholly before a position, and return how many records went."""

    def size(self) -> int:
        """Return the bytes used."""

    def version(self) -> int:
        """Return the version of the store's format."""

    def keys(self) -> list[KeyRow]:
        """Return the kept keys."""

    def save_key(self, key: KeyRow) -> None:
        """Keep a key."""

    def drop_key(self, name: str) -> bool:
        """Remove a key, and return whether there was one."""

    def own(self) -> bool:
        """Take the store if nobody owns it, and return whether it is ours.

        Raises LostError if it was ours, and is no longer.
        """

    def epoch(self) -> int:
        """Return a number that changes with the owner."""

    def evaluations(self) -> list[bytes]:
        """Return the kept evaluations. Damaged ones are skipped."""

    def save_evaluation(self, name: str, body: bytes) -> None:
        """Keep an evaluation, in the place of the one of that name."""

    def drop_evaluation(self, name: str) -> None:
        """Remove an evaluation."""

    def reconnect(self) -> None:
        """Connect again after LostError, and own the store if nobody else does; raises FileError if that fails."""

    def close(self) -> None:
        """Release the store."""


def is_postgres(url: str) -> bool:
    """Return whether a store is in PostgreSQL, and not in a file."""
    return url.startswith(("postgresql://", "postgres://"))


def open_store(
    url: str,
    durability: Durability = Durability.LOSE_NOTHING,
    beside_owner: bool = False,
    create: bool = True,
    standby: bool = False,
) -> Store:
    """Open a file with SQLite, or a URL with PostgreSQL.

    `beside_owner` opens it while another process owns it: for its keys, and for nothing else. Without `create` it
    must be there. With `standby`, a database that another process owns is opened too, and `own` takes it later.
    """
    if is_postgres(url):
        if find_spec("psycopg") is None:
            raise MissingExtraError("a store in PostgreSQL needs psycopg: pip install 'coterie[postgres]'")
        from coterie.service.log.postgres_store import PostgresStore

        return PostgresStore(url, durability, beside_owner, create, standby)
    from coterie.service.log.sqlite_store import SqliteStore

    path = url.removeprefix("sqlite://")
    return SqliteStore(path, durability, beside_owner=beside_owner, create=create)
