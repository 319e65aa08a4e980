"""The embedded store: one SQLite file in WAL mode, where a commit of many records costs one sync."""

import fcntl
import os
import sqlite3
import threading
import time
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeGuard, Unpack, final

from coterie.errors import FileError
from coterie.service.log.sqlite_owner import Owned
from coterie.service.log.sqlite_wal import check_wal
from coterie.service.log.store import VERSION, Changes, Options, Store, as_bytes
from coterie.service.private import make_private
from coterie.service.settings import Durability
from coterie.service.store_errors import BrokenError, FullError, PassingError, StoreError

APPLICATION = 0x636F7465  # "cote"
PATIENCE = 1.0  # seconds that other writes let commits of the log go first
# Seconds between two looks whether the lock of those who write is free: each costs more than a record. At most less
# than the time between two batches of a service that writes beside others (GATHER in coordination/sequencer.py).
LOOK, LOOK_AT_MOST = 0.0005, 0.002
LOCKED = 10.0  # seconds that a lock of another process is waited for, also to open the file
EMPTIED_WITHIN = 10.0  # seconds in which readers let the write-ahead log be emptied
PAGES = 256  # returned to the file system at a time
PAGE = 4096  # bytes
CHECKPOINT = 1000 * PAGE  # bytes written between two checkpoints, as SQLite has it

SCHEMA = """
CREATE TABLE log (first INTEGER PRIMARY KEY, count INTEGER NOT NULL, version INTEGER NOT NULL,
                  checksum INTEGER NOT NULL, body BLOB NOT NULL);
CREATE TABLE users (number INTEGER PRIMARY KEY, id TEXT NOT NULL, checksum INTEGER NOT NULL);
CREATE TABLE snapshots (position INTEGER PRIMARY KEY, checksum INTEGER NOT NULL, state BLOB NOT NULL);
CREATE TABLE keys (name TEXT PRIMARY KEY, scopes TEXT NOT NULL, hash BLOB NOT NULL, created INTEGER NOT NULL);
CREATE TABLE scrubs (number INTEGER PRIMARY KEY);
CREATE TABLE head (one INTEGER PRIMARY KEY CHECK (one = 1), next INTEGER NOT NULL, named INTEGER NOT NULL,
                   fixed INTEGER NOT NULL);
CREATE TABLE pieces (name BLOB PRIMARY KEY, body BLOB NOT NULL);
CREATE TABLE evaluations (name BLOB PRIMARY KEY, checksum INTEGER NOT NULL, body BLOB NOT NULL);
CREATE TABLE events (id BLOB PRIMARY KEY, position INTEGER NOT NULL) WITHOUT ROWID;
CREATE INDEX events_by_position ON events (position);
CREATE TABLE batches (first INTEGER PRIMARY KEY, users BLOB NOT NULL);
INSERT INTO head VALUES (1, 0, 0, 0);
"""
TABLES = {part.strip() for part in SCHEMA.split(";") if part.strip().startswith("CREATE")}


@final
class SqliteStore(Store):
    """A log in one file. Writes share a connection; reads and checkpoints have their own."""

    _conflict = sqlite3.IntegrityError

    def __init__(self, path: str, trust_wal: bool = False, **options: Unpack[Options]) -> None:
        super().__init__(**options)
        # SQLite puts its write-ahead log beside the file itself, not beside a link to it.
        self.path = Path(os.path.realpath(path))
        self.where = str(self.path)
        if not (self._create or self.path.exists()):
            raise _no_store(self.path)
        self._waiting = False  # whether a commit of the log waits for the lock, or is about to
        self._folding = threading.Lock()  # of the connection that makes checkpoints
        self._connections: list[sqlite3.Connection] = []
        self._leases: dict[str, int] = {}  # handles of locked files
        self._owned = None if self._beside_owner else Owned(self.path, self._shared)
        self._first = self._owned is not None and self._owned.alone  # else another process has checked it
        try:
            if self._first and not trust_wal:
                check_wal(Path(f"{self.path}-wal"))
            self._make_private()
            self._write = self._connect()
            # SQLite's own checkpoints ignore a sync that fails; `_changing` makes them, and raises.
            self._write.execute("PRAGMA wal_autocheckpoint = 0")
            self._written = 0  # about how many bytes since the last checkpoint
            self._prepare()
            # Checkpoints have their own connection, so that commits need not wait for them.
            self._fold = self._connect()
            self._read = self._connect()
            self._fold.execute("PRAGMA busy_timeout = 100")
            self._write.execute("PRAGMA busy_timeout = 0")  # `_begin` waits
            if self._owned is not None and self._shared:
                self._owned.share()
            self._read.execute("PRAGMA query_only = ON")
            if self._moment:
                self._write.execute("PRAGMA query_only = ON")
                self._read.execute("BEGIN")
                self._rows("SELECT next FROM head")  # from here on, nothing newer is seen
        except (sqlite3.DatabaseError, UnicodeDecodeError) as error:  # its message may quote damaged text
            self.close()
            if _is_busy(error):
                raise _named(error) from error
            raise FileError(
                f"{self.path} cannot be opened as a coterie store ({error}); restore a backup, or move it away "
                "to start with an empty one"
            ) from error
        except BaseException:
            self.close()
            raise

    def _release(self) -> None:
        """Close what is open, SQLite's connections first: closing them releases its locks."""
        with self._folding:
            while self._connections:
                self._connections.pop().close()
            for name in list(self._leases):
                self.drop_lease(name)
            if self._owned is not None:
                self._owned.close()

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

    def save_pieces(self, new: Mapping[bytes, bytes]) -> None:
        """Keep pieces in one transaction; commits of the log come in between two."""
        super().save_pieces(new)
        if new:
            self._checkpoint(CHECKPOINT // 2)  # early, so that no commit of the log has to make it

    def _clear_free_pages(self) -> None:
        """Empty the write-ahead log, which may still hold old pages; free pages in the file are cleared already."""
        end = time.monotonic() + EMPTIED_WITHIN
        while True:
            with self._folding:
                self._check_open()
                try:
                    # Commits of all processes wait for it, so it waits for readers only as long as `_fold` may.
                    busy, *_ = self._fold.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
                except sqlite3.Error as error:
                    raise _named(error) from error
            if not busy:
                return
            if time.monotonic() > end:
                raise StoreError(
                    f"the write-ahead log of {self.path} is in use by another process; try again"
                )
            time.sleep(0.05)

    def compact(self, before: int) -> None:
        """Remove old batches, and return their pages, some at a time, so that commits need not wait for all."""
        super().compact(before)
        while self._rows("PRAGMA freelist_count")[0][0]:
            # Under the lock, because commits use the same connection. As a script, because Python stops a statement
            # without columns after its first step, which frees one page.
            with self._lock:
                self._check_open()
                try:
                    self._write.executescript(
                        f"PRAGMA busy_timeout = {1000 * LOCKED:.0f}; PRAGMA incremental_vacuum({PAGES}); "
                        "PRAGMA busy_timeout = 0"
                    )
                except sqlite3.Error as error:
                    raise _named(error) from error

    def version(self) -> int:
        return int(self._rows("PRAGMA user_version")[0][0])

    def take_lease(self, name: str) -> bool:
        """Take a lease: a lock on a file of its own, which the system releases when the process ends."""
        if name not in self._leases:
            try:
                handle = os.open(f"{self.path}.{name}", os.O_RDWR | os.O_CREAT, 0o600)
            except OSError as error:
                raise PassingError(f"the lease {name!r} cannot be taken: {error}") from error
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(handle)
                return False
            self._leases[name] = handle
        return True

    def drop_lease(self, name: str) -> None:
        """Let others have a lease."""
        if (handle := self._leases.pop(name, None)) is not None:
            os.close(handle)

    def time(self) -> int:
        """Return this machine's time of day."""
        return time.time_ns() // 1_000_000

    def _make_private(self) -> None:
        """Let no other user read the file, nor the files that SQLite puts beside it with the same rights."""
        for name in (f"{self.path}-wal", f"{self.path}-shm"):
            if os.path.exists(name):  # of a crash
                make_private(Path(name))
        try:
            make_private(self.path)
        except OSError as error:
            raise FileError(f"cannot open {self.path}: {error}") from error

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False, timeout=LOCKED)
        self._connections.append(connection)
        if (
            not self.path.stat().st_size
        ):  # in a file with tables it would wait for the lock of those who write
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
                f"BEGIN; {SCHEMA} PRAGMA application_id = {APPLICATION}; PRAGMA user_version = {VERSION}; COMMIT;"
            )
            return
        if application != APPLICATION:
            raise FileError(f"{self.path} is a database of something else, not a coterie store")
        if version != VERSION:
            raise FileError(
                f"{self.path} has store version {version}, this coterie reads version {VERSION}; "
                "open it with the coterie that wrote it"
            )
        if not (self._first or self._moment):
            return
        trouble = [row[0] for row in self._write.execute("PRAGMA integrity_check(1)").fetchall()]
        tables = {sql for (sql,) in self._write.execute("SELECT sql FROM sqlite_master").fetchall()}
        if not tables >= TABLES:  # SQLite's check does not see this: with another key, rows have no numbers
            trouble = ["a table is not described as this coterie describes it"]
        if trouble != ["ok"]:
            raise FileError(
                f"{self.path} is damaged: {trouble[0]}; restore a backup, or save what can be read with "
                f"`sqlite3 {self.path} .recover`"
            )

    def _pack_name(self, number: int, name: str) -> tuple[int, str, int]:
        return number, name, zlib.crc32(as_bytes(f"{number} {name}"))

    def _unpack_name(self, number: int, name: Any, checksum: int) -> str | None:
        if not isinstance(name, str):
            return None
        return name if checksum == zlib.crc32(as_bytes(f"{number} {name}")) else None

    def _rows(self, query: str, *values: Any) -> list[Any]:
        try:
            with self._reading:
                self._check_open()
                return self._read.execute(plain(query), values).fetchall()
        except (sqlite3.Error, UnicodeDecodeError) as error:
            if _is_busy(error):
                raise _named(error) from error
            raise FileError(f"{self.path} cannot be read: {error}; restore a backup") from error

    @contextmanager
    def _changing(
        self, size: int = 0, urgent: bool = False, long: bool = False, leased: bool = False
    ) -> Iterator[Changes]:
        if urgent:
            self._waiting = True
        else:
            self._let_commits_by()
        with self._lock:
            if urgent:
                self._waiting = False
            self._check_open()
            try:
                cursor = self._write.cursor()
                self._begin(cursor)
                yield Changes(cursor, plain)
                cursor.execute("COMMIT")
                self._written += size + 2 * PAGE
            except sqlite3.Error as error:
                self._roll_back()
                raise _named(error) from error
            except BaseException:
                self._roll_back()
                raise
        self._checkpoint(CHECKPOINT)

    def _begin(self, cursor: sqlite3.Cursor) -> None:
        """Begin a transaction that writes. SQLite looks for the lock up to ten times a second, and this often."""
        end, pause = time.monotonic() + LOCKED, LOOK
        while True:
            try:
                cursor.execute("BEGIN IMMEDIATE")
                return
            except sqlite3.OperationalError as error:
                if not _is_busy(error) or time.monotonic() > end:
                    raise
            time.sleep(pause)
            pause = min(1.5 * pause, LOOK_AT_MOST)

    def _checkpoint(self, after: int) -> None:
        """Write the write-ahead log into the file if so many bytes were written; raises if a sync fails."""
        if self._written < after or not self._folding.acquire(blocking=False):
            return  # another thread is doing it
        try:
            self._written = 0
            if self._closed:
                return  # which has written it
            self._fold.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
        except sqlite3.Error as error:
            if not _is_busy(error):  # else it is made later; what was committed before is kept all the same
                raise _named(error) from error
        finally:
            self._folding.release()

    def _let_commits_by(self) -> None:
        """Wait until no commit of the log waits. The lock alone is not fair: its last holder may get it again."""
        end = time.monotonic() + PATIENCE
        while self._waiting and time.monotonic() < end:
            time.sleep(0.001)

    def _roll_back(self) -> None:
        with suppress(sqlite3.Error):  # the first error is the one to raise
            if self._write.in_transaction:
                self._write.execute("ROLLBACK")


def plain(statement: str) -> str:
    """Return a shared statement as SQLite reads it."""
    return statement.replace("@", "")


def _no_store(path: Path) -> FileError:
    return FileError(f"there is no store at {path}; name the file that `coterie serve --store` was given")


def _is_busy(error: Exception) -> TypeGuard[sqlite3.Error]:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    return code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL)


def _named(error: sqlite3.Error) -> StoreError:
    """Return the error by its kind; only a full disk and another process's lock pass by themselves."""
    code = getattr(error, "sqlite_errorcode", 0)
    if code & 0xFF == sqlite3.SQLITE_FULL:
        return FullError(f"the store is full: {error}; make room on the disk")
    if _is_busy(error):
        return PassingError(f"another process holds a lock on the store: {error}; end its transaction")
    return BrokenError(f"writing to the store failed: {error}; check the disk")
