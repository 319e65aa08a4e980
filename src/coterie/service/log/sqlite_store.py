"""The embedded store: one SQLite file in WAL mode, where a commit of many records costs one sync."""

import os
import sqlite3
import threading
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, final

from coterie.errors import FileError
from coterie.service.core.records import Batch
from coterie.service.log.sqlite_owner import Owned
from coterie.service.log.sqlite_wal import check_wal
from coterie.service.log.store import Append, BrokenError, FullError, KeyRow, StoreError, pages
from coterie.service.private import make_private
from coterie.service.settings import Durability
from coterie.service.snapshots import pieces

APPLICATION = 0x636F7465  # "cote"
VERSION = 3  # 1 has no pieces, 2 has pieces of 1 MB; a store becomes 3 with its first snapshot in parts
READ = (1, 2, 3)
AT_ONCE = 4  # pieces removed in one transaction
PATIENCE = 1.0  # seconds that a snapshot's writes let those of the log go first
PAGES = 256  # given back at a time
PAGE = 4096  # bytes
CHECKPOINT = 1000 * PAGE  # written between two checkpoints, about: as SQLite would

SCHEMA = """
CREATE TABLE log (first INTEGER PRIMARY KEY, count INTEGER NOT NULL, version INTEGER NOT NULL,
                  checksum INTEGER NOT NULL, body BLOB NOT NULL);
CREATE TABLE users (number INTEGER PRIMARY KEY, id TEXT NOT NULL, checksum INTEGER NOT NULL);
CREATE TABLE snapshots (position INTEGER PRIMARY KEY, checksum INTEGER NOT NULL, state BLOB NOT NULL);
CREATE TABLE keys (name TEXT PRIMARY KEY, scopes TEXT NOT NULL, hash BLOB NOT NULL, created INTEGER NOT NULL);
CREATE TABLE scrubs (number INTEGER PRIMARY KEY);
CREATE TABLE head (one INTEGER PRIMARY KEY CHECK (one = 1), next INTEGER NOT NULL);
INSERT INTO head VALUES (1, 0);
"""
TABLES = {part.strip() for part in SCHEMA.split(";") if part.strip().startswith("CREATE")}


@final
class SqliteStore:
    """A log in one file. `append`, `sync` and `rewrite` share a connection; reads have their own."""

    def __init__(
        self,
        path: str,
        durability: Durability = Durability.LOSE_NOTHING,
        trust_wal: bool = False,
        beside_owner: bool = False,
        create: bool = True,
    ) -> None:
        # SQLite puts its write-ahead log beside the file itself, not beside a link to it.
        self.path = Path(os.path.realpath(path))
        if not create and not self.path.exists():
            raise _no_store(self.path)
        self.durability = durability
        self._lock = threading.Lock()  # of the writing connection
        self._waiting = False  # whether a commit of the log waits for the lock, or is about to
        self._reading = threading.Lock()
        self._saving = threading.Lock()  # one snapshot at a time
        self._beside_owner = beside_owner
        self._create = create
        self._connections: list[sqlite3.Connection] = []
        self._owned = None if beside_owner else Owned(self.path)
        try:
            if not (trust_wal or beside_owner):
                check_wal(Path(f"{self.path}-wal"))
            self._make_private()
            self._write = self._connect()
            # SQLite's own checkpoints swallow a sync that fails; `_changing` makes them, and tells.
            self._write.execute("PRAGMA wal_autocheckpoint = 0")
            self._written = 0  # bytes since the last checkpoint, about
            self._prepare()
            # Checkpoints have a connection of their own, so that commits need not wait for them.
            self._fold, self._folding = self._connect(), threading.Lock()
            self._read = self._connect()
            self._read.execute("PRAGMA query_only = ON")
        except (
            sqlite3.DatabaseError,
            UnicodeDecodeError,
        ) as error:  # it may quote damaged text in its message
            self._let_go()
            raise FileError(
                f"{self.path} cannot be opened as a coterie store ({error}); restore a backup, or move it away "
                "to start with an empty one"
            ) from error
        except BaseException:
            self._let_go()
            raise

    def _let_go(self) -> None:
        """Close what is open, SQLite's connections first: with them go its locks."""
        while self._connections:
            self._connections.pop().close()
        if self._owned is not None:
            self._owned.close()

    def append(self, appends: Append) -> None:
        """Keep a batch: one transaction, one sync."""
        batch = appends.batch
        self._waiting = True
        with self._changing(len(batch.body)) as cursor:
            self._waiting = False
            cursor.execute(
                "INSERT INTO log VALUES (?, ?, ?, ?, ?)",
                (batch.first, batch.count, batch.version, batch.checksum, batch.body),
            )
            moved = cursor.execute(
                "UPDATE head SET next = ? WHERE next = ?", (batch.first + batch.count, batch.first)
            )
            if moved.rowcount != 1:
                raise BrokenError(f"the log does not end at {batch.first}: another process wrote to it")
            if appends.named:
                cursor.executemany(
                    "INSERT OR REPLACE INTO users VALUES (?, ?, ?)",
                    [(number, name, _crc(f"{number} {name}")) for number, name in appends.named.items()],
                )
            if appends.forgotten or appends.scrub:
                cursor.executemany("DELETE FROM users WHERE number = ?", [(n,) for n in appends.forgotten])
                cursor.executemany("INSERT OR REPLACE INTO scrubs VALUES (?)", [(n,) for n in appends.scrub])

    def sync(self) -> None:
        """Sync the write-ahead log, for the level that does not sync on every commit."""
        try:
            handle = os.open(f"{self.path}-wal", os.O_RDONLY)
        except FileNotFoundError:
            return
        try:
            os.fsync(handle)
        except OSError as error:
            raise BrokenError(f"syncing {self.path} failed: {error}") from error
        finally:
            os.close(handle)

    def read(self, first: int = 0) -> Iterator[Batch]:
        """Yield batches from the one that holds `first`."""
        start, end = self.bounds()
        position = max(first, start)
        found = self._rows("SELECT max(first) FROM log WHERE first <= ?", position)[0][0]
        position = found if found is not None else position

        def page(place: int) -> list[Batch]:
            rows = self._rows(
                "SELECT first, count, body, checksum, version FROM log WHERE first >= ? "
                "ORDER BY first LIMIT 64",
                place,
            )
            return [Batch(*row) for row in rows]

        yield from pages(self, position, end, page, partial(_gap, self.path))

    def bounds(self) -> tuple[int, int]:
        """Return where the log begins and ends."""
        rows = self._rows(  # in one query, so that no commit comes in between
            "SELECT next, (SELECT min(first) FROM log), (SELECT max(first) FROM log) FROM head"
        )
        if len(rows) != 1 or (rows[0][2] is not None and rows[0][2] >= rows[0][0]):
            raise FileError(f"{self.path} does not know where its log ends: it is damaged; restore a backup")
        end, first, _ = rows[0]
        return (end if first is None else first), end

    def users(self, first: int = 0) -> dict[int, str]:
        """Return the names."""
        rows = self._rows("SELECT number, id, checksum FROM users WHERE number >= ?", first)
        for number, name, checksum in rows:
            texts = (f"{number} {name}", f"{name}")  # the latter in rows of earlier versions
            if not isinstance(name, str) or checksum not in map(_crc, texts):
                raise FileError(f"the name of user {number} in {self.path} is damaged; restore a backup")
        return {number: name for number, name, _ in rows}

    def pieces(self) -> set[bytes]:
        """Return the names of the pieces."""
        there = self._rows("SELECT count(*) FROM sqlite_master WHERE name = 'pieces'")[0][0]
        return {name for (name,) in self._rows("SELECT name FROM pieces")} if there else set()

    def save_pieces(self, new: Mapping[bytes, bytes]) -> None:
        """Keep pieces in one transaction; commits of the log come in between two."""
        if new:
            self._let_commits_by()
            with self._changing(sum(map(len, new.values()))) as cursor:
                _insert_pieces(cursor, new)
            self._checkpoint(CHECKPOINT // 2)  # early, so that no commit of the log has to make it

    def save_snapshot(
        self, position: int, row: bytes, alone: bool = False, new: Mapping[bytes, bytes] | None = None
    ) -> None:
        """Keep a snapshot and the one before it."""
        with self._saving:
            with self._changing(len(row) + sum(map(len, (new or {}).values()))) as cursor:
                _insert_pieces(cursor, new or {})
                cursor.execute(
                    "INSERT OR REPLACE INTO snapshots VALUES (?, ?, ?)", (position, zlib.crc32(row), row)
                )
                cursor.execute(
                    "DELETE FROM snapshots WHERE position NOT IN "
                    "(SELECT position FROM snapshots ORDER BY position DESC LIMIT ?)",
                    (1 if alone else 2,),
                )
            self._drop_pieces()

    def _drop_pieces(self) -> None:
        """Remove the pieces that no snapshot needs, also those of a snapshot that a crash interrupted."""
        rows = [bytes(state) for (state,) in self._rows("SELECT state FROM snapshots")]
        unused = pieces.unused(self.pieces(), rows)
        for start in range(0, len(unused), AT_ONCE):
            self._let_commits_by()
            with self._changing() as cursor:
                cursor.executemany(
                    "DELETE FROM pieces WHERE name = ?", [(name,) for name in unused[start : start + AT_ONCE]]
                )

    def piece(self, name: bytes) -> bytes | None:
        """Return a piece."""
        found = self._rows("SELECT body FROM pieces WHERE name = ?", name)
        return found[0][0] if found and isinstance(found[0][0], bytes) else None

    def snapshots(self) -> Iterator[tuple[int, bytes]]:
        """Yield snapshots, newest first."""
        for (position,) in self._rows("SELECT position FROM snapshots ORDER BY position DESC"):
            for checksum, state in self._rows(
                "SELECT checksum, state FROM snapshots WHERE position = ?", position
            ):
                if isinstance(state, bytes) and zlib.crc32(state) == checksum:
                    yield position, state

    def positions(self) -> list[int]:
        """Return where sound snapshots stand, newest first."""
        rows = self._rows("SELECT position, checksum, state FROM snapshots ORDER BY position DESC")
        return [
            position
            for position, checksum, state in rows
            if isinstance(state, bytes) and zlib.crc32(state) == checksum and pieces.sound(state, self.piece)
        ]

    def scrubs(self) -> list[int]:
        """Return whose records are still to be scrubbed."""
        return [number for (number,) in self._rows("SELECT number FROM scrubs ORDER BY number")]

    def scrubbed(self, users: Sequence[int]) -> None:
        """Empty the write-ahead log, which may still hold the old pages, and note it: only then nothing is left."""
        self._empty_wal()
        with self._changing() as cursor:
            cursor.executemany("DELETE FROM scrubs WHERE number = ?", [(user,) for user in users])

    def _empty_wal(self) -> None:
        """Write all pages to the file, those that were cleared too, and cut the write-ahead log to nothing."""
        with self._lock, self._reading:
            try:
                busy, *_ = self._write.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            except sqlite3.Error as error:
                raise _named(error) from error
        if busy:
            raise StoreError(f"the write-ahead log of {self.path} is in use by another process; try again")

    def cut(self, at: int) -> int:
        """Give up the log from a position on."""
        _, end = self.bounds()
        with self._changing() as cursor:
            first = cursor.execute("SELECT max(first) FROM log WHERE first <= ?", (at,)).fetchone()[0]
            place = at if first is None else first
            cursor.execute("DELETE FROM log WHERE first >= ?", (place,))
            cursor.execute("DELETE FROM snapshots WHERE position > ?", (place,))
            cursor.execute("UPDATE head SET next = ?", (place,))
        return end - place

    def rewrite(self, batch: Batch) -> None:
        """Replace a batch in its place."""
        with self._changing(len(batch.body)) as cursor:
            changed = cursor.execute(
                "UPDATE log SET checksum = ?, body = ? WHERE first = ? AND count = ?",
                (batch.checksum, batch.body, batch.first, batch.count),
            )
            if changed.rowcount != 1:
                raise StoreError(f"there is no batch at {batch.first} with {batch.count} records")

    def compact(self, before: int) -> int:
        """Remove old batches and give their pages back."""
        start, _ = self.bounds()
        with self._changing() as cursor:
            cursor.execute("DELETE FROM log WHERE first + count <= ?", (before,))
        self._give_back()
        return self.bounds()[0] - start

    def _give_back(self) -> None:
        """Return free pages to the file system, some at a time, so that commits need not wait for all."""
        while self._rows("PRAGMA freelist_count")[0][0]:
            # Under the lock: the committer cannot commit while this runs on its connection. As a script, because
            # a statement without columns is left by Python after its first step, which frees one page.
            with self._lock:
                self._write.executescript(f"PRAGMA incremental_vacuum({PAGES})")

    def size(self) -> int:
        """Return the bytes of the file and its write-ahead log."""
        files = (self.path, Path(f"{self.path}-wal"))
        return sum(file.stat().st_size for file in files if file.exists())

    def version(self) -> int:
        """Return the version of the file's format."""
        return int(self._rows("PRAGMA user_version")[0][0])

    def keys(self) -> list[KeyRow]:
        """Return the keys."""
        rows = self._rows("SELECT name, scopes, hash, created FROM keys ORDER BY name")
        return [KeyRow(name, tuple(scopes.split()), hash_, created) for name, scopes, hash_, created in rows]

    def save_key(self, key: KeyRow) -> None:
        """Keep a key."""
        with self._changing() as cursor:
            cursor.execute(
                "INSERT OR REPLACE INTO keys VALUES (?, ?, ?, ?)",
                (key.name, " ".join(key.scopes), key.hash, key.created),
            )

    def drop_key(self, name: str) -> bool:
        """Remove a key."""
        with self._changing() as cursor:
            return bool(cursor.execute("DELETE FROM keys WHERE name = ?", (name,)).rowcount)

    def own(self) -> bool:
        """Say that the file is ours: it is as long as it is open."""
        return True

    def epoch(self) -> int:
        """Return 0: nobody waits for a file, so its owners are not counted."""
        return 0

    def reconnect(self) -> None:
        """Do nothing: a file is not lost."""

    def close(self) -> None:
        """Fold the write-ahead log into the file, and let the file go."""
        self._let_go()

    def _make_private(self) -> None:
        """Let nobody else read the file, nor what SQLite puts beside it, which gets the rights of the file."""
        for name in (f"{self.path}-wal", f"{self.path}-shm"):
            if os.path.exists(name):  # of a crash
                make_private(Path(name))
        try:
            make_private(self.path)
        except OSError as error:
            raise FileError(f"cannot open {self.path}: {error}") from error

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False, timeout=10)
        self._connections.append(connection)
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        connection.execute("PRAGMA journal_mode = WAL")
        full = self.durability is Durability.LOSE_NOTHING
        connection.execute(f"PRAGMA synchronous = {'FULL' if full else 'NORMAL'}")
        connection.execute("PRAGMA fullfsync = ON")  # macOS: a plain sync stops at the drive's cache
        connection.execute("PRAGMA checkpoint_fullfsync = ON")
        connection.execute("PRAGMA secure_delete = ON")  # what is forgotten leaves no bytes behind
        return connection

    def _prepare(self) -> None:
        application = self._write.execute("PRAGMA application_id").fetchone()[0]
        version = self._write.execute("PRAGMA user_version").fetchone()[0]
        empty = not self._write.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        if empty and application == 0:
            if not self._create:
                raise _no_store(self.path)
            self._write.executescript(
                f"BEGIN; {SCHEMA} PRAGMA application_id = {APPLICATION}; PRAGMA user_version = 1; COMMIT;"
            )
            return
        if application != APPLICATION:
            raise FileError(f"{self.path} is a database of something else, not a coterie store")
        if version not in READ:
            raise FileError(
                f"{self.path} has store version {version}, this coterie reads versions {READ[0]} to {READ[-1]}; "
                "open it with the coterie that wrote it"
            )
        if self._beside_owner:
            return  # the owner has looked
        trouble = [row[0] for row in self._write.execute("PRAGMA integrity_check(1)").fetchall()]
        tables = {sql for (sql,) in self._write.execute("SELECT sql FROM sqlite_master").fetchall()}
        if not tables >= TABLES:  # which the check does not look at: with another key, rows have no numbers
            trouble = ["a table is not described as this coterie describes it"]
        if trouble != ["ok"]:
            raise FileError(
                f"{self.path} is damaged: {trouble[0]}; restore a backup, or save what can be read with "
                f"`sqlite3 {self.path} .recover`"
            )

    def _rows(self, query: str, *values: Any) -> list[Any]:
        try:
            with self._reading:
                return self._read.execute(query, values).fetchall()
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise FileError(f"{self.path} cannot be read: {error}; restore a backup") from error

    @contextmanager
    def _changing(self, size: int = 0) -> Iterator[sqlite3.Cursor]:
        """Run what is inside as one transaction of about `size` bytes, whole or not at all."""
        with self._lock:
            try:
                cursor = self._write.cursor()
                cursor.execute("BEGIN IMMEDIATE")
                yield cursor
                cursor.execute("COMMIT")
                self._written += size + 2 * PAGE
            except sqlite3.Error as error:
                self._roll_back()
                raise _named(error) from error
            except BaseException:
                self._roll_back()
                raise
        self._checkpoint(CHECKPOINT)

    def _checkpoint(self, after: int) -> None:
        """Fold the write-ahead log into the file if so many bytes were written; a sync that fails is told."""
        if self._written < after or not self._folding.acquire(blocking=False):
            return  # another thread is at it
        try:
            self._written = 0
            self._fold.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
        except sqlite3.Error as error:
            raise _named(error) from error
        finally:
            self._folding.release()

    def _let_commits_by(self) -> None:
        """Wait until no commit of the log waits: a lock alone would be taken again before it gets its turn."""
        end = time.monotonic() + PATIENCE
        while self._waiting and time.monotonic() < end:
            time.sleep(0.001)

    def _roll_back(self) -> None:
        with suppress(sqlite3.Error):  # the first error is the one to tell
            if self._write.in_transaction:
                self._write.execute("ROLLBACK")


def _insert_pieces(cursor: sqlite3.Cursor, new: Mapping[bytes, bytes]) -> None:
    cursor.execute("CREATE TABLE IF NOT EXISTS pieces (name BLOB PRIMARY KEY, body BLOB NOT NULL)")
    cursor.execute(f"PRAGMA user_version = {VERSION}")
    cursor.executemany("INSERT OR IGNORE INTO pieces VALUES (?, ?)", list(new.items()))


def _crc(text: str) -> int:
    return zlib.crc32(text.encode("utf-8", "surrogatepass"))


def _no_store(path: Path) -> FileError:
    return FileError(f"there is no store at {path}; name the file that `coterie serve --store` was given")


def _gap(path: Path, expected: int, found: int) -> FileError:
    return FileError(
        f"{path} is damaged: log records {expected} to {found - 1} are missing; restore a backup, or keep what "
        f"comes before with `coterie store cut --at {expected}`"
    )


def _named(error: sqlite3.Error) -> StoreError:
    """Return which kind of failure it was; only a full disk may be tried again."""
    code = getattr(error, "sqlite_errorcode", 0)
    if code & 0xFF == sqlite3.SQLITE_FULL:
        return FullError(f"the store is full: {error}; make room on the disk")
    return BrokenError(f"writing to the store failed: {error}; restart once the disk is well")
