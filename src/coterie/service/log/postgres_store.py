"""The shared store: PostgreSQL. The server's write-ahead log does what SQLite's does in a file."""

import threading
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, final

import psycopg
from psycopg import errors
from psycopg.conninfo import conninfo_to_dict

from coterie.errors import FileError
from coterie.service.core.records import Batch
from coterie.service.log.store import (
    Append,
    BrokenError,
    FullError,
    InUseError,
    KeyRow,
    LostError,
    StoreError,
    pages,
)
from coterie.service.settings import Durability
from coterie.service.snapshots import pieces

VERSION = 3  # 1 has no pieces, 2 has pieces of 1 MB; a store becomes 3 with its first snapshot in parts
READ = (1, 2, 3)
AT_ONCE = 4  # pieces removed in one transaction
LOCK = 0x636F746572696500  # one process owns a database at a time
PATIENCE = 2.0  # seconds
FRESH = 10.0  # seconds that an owner may take to make the tables of a new store

# A peer that is silently gone is noticed within 3 s, here and on the server, which then gives the lock to the next.
HERE = {"keepalives_idle": 1, "keepalives_interval": 1, "keepalives_count": 2, "tcp_user_timeout": 3000}
THERE = {
    "tcp_keepalives_idle": 1,
    "tcp_keepalives_interval": 1,
    "tcp_keepalives_count": 2,
    "tcp_user_timeout": 3000,
}

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
PIECES = "CREATE TABLE IF NOT EXISTS coterie_pieces (name BYTEA PRIMARY KEY, body BYTEA NOT NULL)"


@final
class PostgresStore:
    """A log in a database. Writes and reads have a connection each.

    The writing session holds a lock, and a number, the epoch, that each owner raises by one. Every transaction that
    writes first checks the number and keeps it from being raised until it ends, so two owners never write.
    """

    def __init__(
        self,
        url: str,
        durability: Durability = Durability.LOSE_NOTHING,
        beside_owner: bool = False,
        create: bool = True,
        standby: bool = False,
    ) -> None:
        self.durability = durability
        self._url, self._beside_owner, self._create = url, beside_owner, create
        self._standby = standby
        self._owned, self._epoch = False, 0
        self._lock, self._reading = threading.Lock(), threading.Lock()
        self._saving = threading.Lock()  # one snapshot at a time
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
        """Take the database if it is free; an owner who has just gone may hold it for another moment."""
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
        while not self._has("coterie_owner"):
            if time.monotonic() > end:
                self._write.close()
                raise FileError("the database is in use by another coterie that has made no store in it")
            time.sleep(0.05)
        self._prepare()

    def own(self) -> bool:
        """Take the database if it is free, or look whether it is still ours; raises LostError if it is not."""
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
        """Leave the old connections, and connect anew; the server has read its own log by then."""
        with self._lock, self._reading:
            self._standby = True  # who was away may find another owner
            self.close()
            self._connect()

    def append(self, appends: Append) -> None:
        """Keep a batch: one transaction, one sync on the server."""
        batch = appends.batch
        with self._changing() as cursor:
            cursor.execute(
                "INSERT INTO coterie_log VALUES (%s, %s, %s, %s, %s)",
                (batch.first, batch.count, batch.version, batch.checksum, batch.body),
            )
            cursor.execute(
                "UPDATE coterie_head SET next = %s WHERE next = %s", (batch.first + batch.count, batch.first)
            )
            if cursor.rowcount != 1:
                raise BrokenError(f"the log does not end at {batch.first}: another process wrote to it")
            if appends.named:
                cursor.executemany(
                    "INSERT INTO coterie_users VALUES (%s, %s, %s) ON CONFLICT (number) DO UPDATE "
                    "SET id = EXCLUDED.id, checksum = EXCLUDED.checksum",
                    [(n, _bytes(name), zlib.crc32(_bytes(name))) for n, name in appends.named.items()],
                )
            if appends.forgotten:
                cursor.execute("DELETE FROM coterie_users WHERE number = ANY(%s)", (list(appends.forgotten),))
            for number in appends.scrub:
                cursor.execute("INSERT INTO coterie_scrubs VALUES (%s) ON CONFLICT DO NOTHING", (number,))

    def sync(self) -> None:
        """Make a commit that waits for the disk, and with it everything before."""
        with self._changing() as cursor:
            cursor.execute("SET LOCAL synchronous_commit = on")
            cursor.execute("UPDATE coterie_head SET next = next")

    def read(self, first: int = 0) -> Iterator[Batch]:
        """Yield batches from the one that holds `first`."""
        start, end = self.bounds()
        position = max(first, start)
        found = self._rows("SELECT max(first) FROM coterie_log WHERE first <= %s", position)[0][0]
        position = found if found is not None else position

        def page(place: int) -> list[Batch]:
            rows = self._rows(
                "SELECT first, count, body, checksum, version FROM coterie_log WHERE first >= %s "
                "ORDER BY first LIMIT 64",
                place,
            )
            return [Batch(row[0], row[1], bytes(row[2]), row[3], row[4]) for row in rows]

        yield from pages(self, position, end, page, _gap)

    def bounds(self) -> tuple[int, int]:
        """Return where the log begins and ends."""
        next_ = self._rows("SELECT next FROM coterie_head")
        first = self._rows("SELECT min(first) FROM coterie_log")[0][0]
        if len(next_) != 1:
            raise FileError("the PostgreSQL store does not know where its log ends; restore a backup")
        return (next_[0][0] if first is None else first), next_[0][0]

    def users(self, first: int = 0) -> dict[int, str]:
        """Return the names."""
        rows = self._rows("SELECT number, id, checksum FROM coterie_users WHERE number >= %s", first)
        for number, name, checksum in rows:
            if zlib.crc32(name) != checksum:
                raise FileError(f"the name of user {number} is damaged; restore a backup")
        return {number: bytes(name).decode("utf-8", "surrogatepass") for number, name, _ in rows}

    def pieces(self) -> set[bytes]:
        """Return the names of the pieces."""
        there = self._rows("SELECT to_regclass('coterie_pieces') IS NOT NULL")[0][0]
        return {bytes(name) for (name,) in self._rows("SELECT name FROM coterie_pieces")} if there else set()

    def save_pieces(self, new: Mapping[bytes, bytes]) -> None:
        """Keep pieces in one transaction; commits of the log come in between two."""
        if new:
            with self._changing() as cursor:
                _insert_pieces(cursor, new)

    def save_snapshot(
        self, position: int, row: bytes, alone: bool = False, new: Mapping[bytes, bytes] | None = None
    ) -> None:
        """Keep a snapshot and the one before it."""
        with self._saving:
            with self._changing() as cursor:
                _insert_pieces(cursor, new or {})
                cursor.execute("DELETE FROM coterie_snapshots WHERE position = %s", (position,))
                cursor.execute(
                    "INSERT INTO coterie_snapshots VALUES (%s, %s, %s)", (position, zlib.crc32(row), row)
                )
                cursor.execute(
                    "DELETE FROM coterie_snapshots WHERE position NOT IN "
                    "(SELECT position FROM coterie_snapshots ORDER BY position DESC LIMIT %s)",
                    (1 if alone else 2,),
                )
            self._drop_pieces()

    def _drop_pieces(self) -> None:
        """Remove the pieces that no snapshot needs, also those of a snapshot that a crash interrupted."""
        rows = [bytes(state) for (state,) in self._rows("SELECT state FROM coterie_snapshots")]
        unused = pieces.unused(self.pieces(), rows)
        for start in range(0, len(unused), AT_ONCE):
            with self._changing() as cursor:
                cursor.execute(
                    "DELETE FROM coterie_pieces WHERE name = ANY(%s)", (unused[start : start + AT_ONCE],)
                )

    def piece(self, name: bytes) -> bytes | None:
        """Return a piece."""
        found = self._rows("SELECT body FROM coterie_pieces WHERE name = %s", name)
        return bytes(found[0][0]) if found else None

    def snapshots(self) -> Iterator[tuple[int, bytes]]:
        """Yield snapshots, newest first."""
        for (position,) in self._rows("SELECT position FROM coterie_snapshots ORDER BY position DESC"):
            for checksum, state in self._rows(
                "SELECT checksum, state FROM coterie_snapshots WHERE position = %s", position
            ):
                if zlib.crc32(state) == checksum:
                    yield position, bytes(state)

    def positions(self) -> list[int]:
        """Return where sound snapshots stand, newest first."""
        rows = self._rows("SELECT position, checksum, state FROM coterie_snapshots ORDER BY position DESC")
        return [
            position
            for position, checksum, state in rows
            if zlib.crc32(state) == checksum and pieces.sound(bytes(state), self.piece)
        ]

    def scrubs(self) -> list[int]:
        """Return whose records are still to be scrubbed."""
        return [number for (number,) in self._rows("SELECT number FROM coterie_scrubs ORDER BY number")]

    def scrubbed(self, users: Sequence[int]) -> None:
        """Let the server give the old rows' place back, and note it: only then nothing is left."""
        more = ", coterie_pieces" if self.pieces() else ""
        with self._lock:
            try:
                self._write.execute(f"VACUUM coterie_log, coterie_users, coterie_snapshots{more}")
            except psycopg.Error as error:
                raise self._named(error) from error
        with self._changing() as cursor:
            cursor.execute("DELETE FROM coterie_scrubs WHERE number = ANY(%s)", (list(users),))

    def cut(self, at: int) -> int:
        """Give up the log from a position on."""
        _, end = self.bounds()
        with self._changing() as cursor:
            cursor.execute("SELECT max(first) FROM coterie_log WHERE first <= %s", (at,))
            row = cursor.fetchone()
            place = at if row is None or row[0] is None else row[0]
            cursor.execute("DELETE FROM coterie_log WHERE first >= %s", (place,))
            cursor.execute("DELETE FROM coterie_snapshots WHERE position > %s", (place,))
            cursor.execute("UPDATE coterie_head SET next = %s", (place,))
        return end - place

    def rewrite(self, batch: Batch) -> None:
        """Replace a batch in its place."""
        with self._changing() as cursor:
            cursor.execute(
                "UPDATE coterie_log SET checksum = %s, body = %s WHERE first = %s AND count = %s",
                (batch.checksum, batch.body, batch.first, batch.count),
            )
            if cursor.rowcount != 1:
                raise StoreError(f"there is no batch at {batch.first} with {batch.count} records")

    def compact(self, before: int) -> int:
        """Remove old batches."""
        start, _ = self.bounds()
        with self._changing() as cursor:
            cursor.execute("DELETE FROM coterie_log WHERE first + count <= %s", (before,))
        return self.bounds()[0] - start

    def size(self) -> int:
        """Return the bytes of the tables."""
        tables = ["log", "users", "snapshots", "keys", "head", *(["pieces"] if self.pieces() else [])]
        total = " + ".join(f"pg_total_relation_size('coterie_{table}')" for table in tables)
        return int(self._rows(f"SELECT {total}")[0][0])

    def version(self) -> int:
        """Return the version of the tables' format."""
        return int(self._rows("SELECT version FROM coterie_version")[0][0])

    def keys(self) -> list[KeyRow]:
        """Return the keys."""
        rows = self._rows("SELECT name, scopes, hash, created FROM coterie_keys ORDER BY name")
        return [KeyRow(name, tuple(scopes.split()), bytes(h), created) for name, scopes, h, created in rows]

    def save_key(self, key: KeyRow) -> None:
        """Keep a key."""
        with self._changing() as cursor:
            cursor.execute("DELETE FROM coterie_keys WHERE name = %s", (key.name,))
            cursor.execute(
                "INSERT INTO coterie_keys VALUES (%s, %s, %s, %s)",
                (key.name, " ".join(key.scopes), key.hash, key.created),
            )

    def drop_key(self, name: str) -> bool:
        """Remove a key."""
        with self._changing() as cursor:
            cursor.execute("DELETE FROM coterie_keys WHERE name = %s", (name,))
            return bool(cursor.rowcount)

    def close(self) -> None:
        """Let the database go."""
        self._read.close()
        self._write.close()

    def _has(self, table: str) -> bool:
        row = self._write.execute("SELECT to_regclass(%s) IS NOT NULL", (table,)).fetchone()
        return row is not None and bool(row[0])

    def _prepare(self) -> None:
        if not self._has("coterie_version"):
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
                return self._read.execute(query, values).fetchall()
        except psycopg.Error as error:
            if self._read.closed:
                raise LostError(f"the connection to PostgreSQL is lost: {_line(error)}") from error
            raise FileError(f"the PostgreSQL store cannot be read: {_line(error)}") from error

    @contextmanager
    def _changing(self) -> Iterator[psycopg.Cursor[Any]]:
        """Run what is inside as one transaction, whole or not at all."""
        with self._lock:
            try:
                with self._write.transaction(), self._write.cursor() as cursor:
                    if not self._beside_owner:
                        # Whoever wants to raise the epoch waits until this transaction has ended.
                        cursor.execute("SELECT epoch FROM coterie_owner FOR SHARE")
                        self._check_epoch(cursor.fetchone() if self._owned else None)
                    yield cursor
            except psycopg.Error as error:
                raise self._named(error) from error

    def _named(self, error: psycopg.Error) -> StoreError:
        """Return which kind of failure it was; only a full disk, told before the commit, may be tried again."""
        if self._write.closed:
            return LostError(f"the connection to PostgreSQL is lost: {_line(error)}")
        if isinstance(error, errors.DiskFull):
            return FullError(f"the store is full: {_line(error)}; make room on the server's disk")
        return BrokenError(f"writing to the store failed: {_line(error)}; restart once the server is well")


def _line(error: psycopg.Error) -> str:
    """Return what the server said, in one line."""
    return " ".join(str(error).split())


def _insert_pieces(cursor: psycopg.Cursor[Any], new: Mapping[bytes, bytes]) -> None:
    cursor.execute(PIECES)
    cursor.execute("UPDATE coterie_version SET version = %s", (VERSION,))
    cursor.executemany("INSERT INTO coterie_pieces VALUES (%s, %s) ON CONFLICT DO NOTHING", list(new.items()))


def _bytes(name: str) -> bytes:
    # PostgreSQL's text cannot hold U+0000, so ids are kept as bytes.
    return name.encode("utf-8", "surrogatepass")


def _gap(expected: int, found: int) -> FileError:
    return FileError(
        f"the PostgreSQL store is damaged: log records {expected} to {found - 1} are missing; restore a backup, "
        f"or keep what comes before with `coterie store cut --at {expected}`"
    )
