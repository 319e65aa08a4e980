"""The store in PostgreSQL: one process serves it, and others can wait to take it over."""

import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, Unpack, final

import psycopg
from psycopg import errors
from psycopg.conninfo import conninfo_to_dict

from coterie.errors import FileError
from coterie.service.log.errors import BrokenError, FullError, InUseError, LostError, StoreError
from coterie.service.log.store import READ, Changes, Options, Store, as_bytes
from coterie.service.settings import Durability

LOCK = 0x636F746572696500  # one process owns a database at a time
PATIENCE = 2.0  # seconds
FRESH = 10.0  # seconds that an owner may take to make the tables of a new store

# Each side notices within 3 s that the other is gone; the server then gives the lock to the next process.
HERE = {"keepalives_idle": 1, "keepalives_interval": 1, "keepalives_count": 2, "tcp_user_timeout": 3000}
THERE = {f"tcp_{name.removeprefix('tcp_')}": value for name, value in HERE.items()}

SCHEMA = """
CREATE TABLE coterie_version (version INTEGER NOT NULL);
CREATE TABLE coterie_log (first BIGINT PRIMARY KEY, count BIGINT NOT NULL, version INTEGER NOT NULL,
                          checksum BIGINT NOT NULL, body BYTEA NOT NULL);
CREATE TABLE coterie_users (number BIGINT PRIMARY KEY, id BYTEA NOT NULL, checksum BIGINT NOT NULL);
CREATE TABLE coterie_snapshots (position BIGINT PRIMARY KEY, checksum BIGINT NOT NULL, state BYTEA NOT NULL);
CREATE TABLE coterie_keys (name TEXT PRIMARY KEY, scopes TEXT NOT NULL, hash BYTEA NOT NULL,
                           created BIGINT NOT NULL);
CREATE TABLE coterie_scrubs (number BIGINT PRIMARY KEY);
CREATE TABLE coterie_head (next BIGINT NOT NULL);
INSERT INTO coterie_version VALUES (1);
INSERT INTO coterie_head VALUES (0);
"""


@final
class PostgresStore(Store):
    """A log in a database. Writes and reads have a connection each.

    The writing session holds a lock, and each owner raises a number, the epoch, by one. Every transaction that writes
    first checks the epoch and keeps it from being raised until it ends, so two owners never write.
    """

    where = "the PostgreSQL store"

    def __init__(self, url: str, standby: bool = False, **options: Unpack[Options]) -> None:
        super().__init__(**options)
        self._url, self._standby = url, standby
        self._owned, self._epoch = False, 0
        self._connect()

    def _connect(self) -> None:
        try:
            self._owned = False
            self._write = self._session()
            level = "on" if self.durability is Durability.LOSE_NOTHING else "off"
            self._write.execute(f"SET synchronous_commit = {level}")
            for name, value in THERE.items():  # an old server may not know all of them
                self._write.execute(
                    "SELECT set_config(name, %s, false) FROM pg_settings WHERE name = %s", (str(value), name)
                )
            if self._beside_owner:
                self._prepare()
            elif not self._take(0.0 if self._standby else PATIENCE):
                if not self._standby:
                    self._write.close()
                    raise InUseError("the database is in use by another coterie; stop that one first")
                self._wait_for_tables()
            self._read = self._session()
        except psycopg.Error as error:
            # The URL may hold a password, so it is not part of the message.
            raise FileError(f"the PostgreSQL store cannot be opened: {_line(error)}") from error

    def _session(self) -> psycopg.Connection[Any]:
        given: dict[str, Any] = {**HERE, "connect_timeout": 10, **conninfo_to_dict(self._url)}
        return psycopg.connect(autocommit=True, **given)

    def _take(self, patience: float) -> bool:
        """Take the database if it is free; an owner that has just ended may hold it for a moment more."""
        end = time.monotonic() + patience
        while True:
            row = self._write.execute("SELECT pg_try_advisory_lock(%s)", (LOCK,)).fetchone()
            if row is not None and row[0]:
                break
            if time.monotonic() >= end:
                return False
            time.sleep(0.05)
        self._prepare()
        with self._write.transaction():
            self._write.execute("CREATE TABLE IF NOT EXISTS coterie_owner (epoch BIGINT NOT NULL)")
            self._write.execute(
                "INSERT INTO coterie_owner SELECT 0 WHERE NOT EXISTS (SELECT * FROM coterie_owner)"
            )
            row = self._write.execute("UPDATE coterie_owner SET epoch = epoch + 1 RETURNING epoch").fetchone()
        assert row is not None
        self._owned, self._epoch = True, row[0]
        return True

    def _wait_for_tables(self) -> None:
        """Wait until the owner of a new database has made the tables."""
        end = time.monotonic() + FRESH
        while not self._made("coterie_owner"):
            if time.monotonic() > end:
                self._write.close()
                raise FileError("the database is in use by another coterie that has made no store in it")
            time.sleep(0.05)
        self._prepare()

    def own(self) -> bool:
        """Take the database if it is free, or check that it is still ours; raises LostError if it is not."""
        with self._lock:
            try:
                if not self._owned:
                    return self._take(0.0)
                self._check_epoch(self._write.execute("SELECT epoch FROM coterie_owner").fetchone())
            except psycopg.Error as error:
                raise self._named(error) from error
        return True

    def epoch(self) -> int:
        """Return how many owners there have been."""
        return int(self._rows("SELECT epoch FROM coterie_owner")[0][0])

    def _check_epoch(self, row: Any) -> None:
        if row != (self._epoch,):
            raise LostError("the database was taken over by another coterie")

    def reconnect(self) -> None:
        """Close the old connections, and connect again; by then the server has recovered."""
        with self._lock, self._reading:
            self._check_open()
            self._standby = True  # there may be another owner now
            self._release()
            self._connect()

    def sync(self) -> None:
        """Commit once more and wait for the disk, which makes all earlier commits durable too."""
        with self._changing() as cursor:
            cursor.execute("SET LOCAL synchronous_commit = on")
            cursor.execute("UPDATE coterie_head SET next = next")

    def _clear_free_pages(self) -> None:
        more = ", coterie_pieces" if self._has("pieces") else ""
        with self._lock:
            try:
                self._write.execute(f"VACUUM coterie_log, coterie_users, coterie_snapshots{more}")
            except psycopg.Error as error:
                raise self._named(error) from error

    def version(self) -> int:
        return int(self._rows("SELECT version FROM coterie_version")[0][0])

    def _release(self) -> None:
        self._read.close()
        self._write.close()

    def _has(self, table: str) -> bool:
        return bool(self._rows("SELECT to_regclass(?) IS NOT NULL", f"coterie_{table}")[0][0])

    def _made(self, table: str) -> bool:
        """Do what `_has` does, before there is a reading connection."""
        row = self._write.execute("SELECT to_regclass(%s) IS NOT NULL", (table,)).fetchone()
        return row is not None and bool(row[0])

    def _prepare(self) -> None:
        if not self._made("coterie_version"):
            if not self._create:
                self._write.close()
                raise FileError("there is no store in the database; name the one `coterie serve` was given")
            with self._write.transaction():
                self._write.execute(SCHEMA)
            return
        found = self._write.execute("SELECT version FROM coterie_version").fetchone()
        if found is None or found[0] not in READ:
            raise FileError(
                f"the database has store version {found and found[0]}, this coterie reads versions {READ[0]} to "
                f"{READ[-1]}; open it with the coterie that wrote it"
            )

    def _rows(self, query: str, *values: Any) -> list[Any]:
        try:
            with self._reading:
                self._check_open()
                return self._read.execute(_translated(query), values).fetchall()
        except psycopg.Error as error:
            if self._read.closed:
                raise LostError(f"the connection to PostgreSQL is lost: {_line(error)}") from error
            raise FileError(f"the PostgreSQL store cannot be read: {_line(error)}") from error

    def _set_version(self, changes: Changes, version: int) -> None:
        changes.execute("UPDATE @version SET version = ?", (version,))

    def _pack_name(self, number: int, name: str) -> tuple[int, bytes, int]:
        packed = as_bytes(name)  # PostgreSQL's text cannot hold U+0000
        return number, packed, zlib.crc32(packed)

    def _unpack_name(self, number: int, name: Any, checksum: int) -> str | None:
        return name.decode("utf-8", "surrogatepass") if zlib.crc32(name) == checksum else None

    @contextmanager
    def _changing(self, size: int = 0, urgent: bool = False) -> Iterator[Changes]:
        with self._lock:
            self._check_open()
            try:
                with self._write.transaction(), self._write.cursor() as cursor:
                    if not self._beside_owner:
                        # A process that raises the epoch has to wait until this transaction has ended.
                        cursor.execute("SELECT epoch FROM coterie_owner FOR SHARE")
                        self._check_epoch(cursor.fetchone() if self._owned else None)
                    yield Changes(cursor, _translated)
            except psycopg.Error as error:
                raise self._named(error) from error

    def _named(self, error: psycopg.Error) -> StoreError:
        """Return the error by its kind; only a full disk, reported before the commit, may be tried again."""
        if self._write.closed:
            return LostError(f"the connection to PostgreSQL is lost: {_line(error)}")
        if isinstance(error, errors.DiskFull):
            return FullError(f"the store is full: {_line(error)}; make room on the server's disk")
        return BrokenError(f"writing to the store failed: {_line(error)}; restart once the server is well")


@cache
def _translated(statement: str) -> str:
    """Return a shared statement as PostgreSQL reads it."""
    for theirs, ours in (("@", "coterie_"), ("?", "%s"), (" BLOB", " BYTEA"), (" INTEGER", " BIGINT")):
        statement = statement.replace(theirs, ours)
    return statement


def _line(error: psycopg.Error) -> str:
    """Return the server's message in one line."""
    return " ".join(str(error).split())
