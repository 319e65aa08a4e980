"""Backups: one file for stores of both kinds, made while a service writes, and checked before it is restored.

The file is a SQLite database with the tables of a store and one more, `backup`, which has a SHA-256 over the rows of
the others. So a backup of PostgreSQL can be restored to a file, and the other way round.
"""

import hashlib
import os
import sqlite3
import tempfile
import time
import zlib
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
from msgspec import Struct

from coterie import __version__
from coterie.data.logs.records import Batch, checksum
from coterie.errors import FileError
from coterie.models.files import publish
from coterie.service.log import postgres_copy
from coterie.service.log.damage import Damaged, check_before, lost
from coterie.service.log.pieces import name_of
from coterie.service.log.sqlite_owner import Owned
from coterie.service.log.sqlite_store import APPLICATION, SCHEMA, TABLES, SqliteStore
from coterie.service.log.sqlite_wal import check_wal
from coterie.service.log.store import COLUMNS, VERSION, is_postgres
from coterie.service.private import open_private
from coterie.service.snapshots.checking import Checked, check
from coterie.service.store_errors import InUseError


class Made(Struct, frozen=True):
    """A backup, as it describes itself."""

    coterie: str  # the version that made it
    made: int  # seconds since 1970
    store_version: int
    first: int  # the oldest record
    end: int  # where its log ends
    users: int
    sha256: str
    dropped: int = 0  # damaged records that it has not; a snapshot has what they said


def back_up(store: str, path: Path, replace: bool = False) -> Made:
    """Copy a store as it is at one moment into a new file, which only its owner may read.

    The file gets its name when it is complete. A file of that name is kept unless `replace` is true.
    """
    _refuse_existing(path, replace)
    with _beside(path, "making") as part:
        with closing(_open(part)) as made:
            if is_postgres(store):
                made.executescript(f"BEGIN; {SCHEMA} DELETE FROM head; COMMIT;")
                version = postgres_copy.read_into(store, made)
                made.execute(f"PRAGMA application_id = {APPLICATION}")
                made.execute(f"PRAGMA user_version = {version}")
            else:
                _copy_file(Path(os.path.realpath(store.removeprefix("sqlite://"))), made)
            _check_database(made, path)
            made.execute("DROP TABLE IF EXISTS backup")  # of a backup that was served as a store
            dropped = _drop_damaged(made)
            told = msgspec.structs.replace(_describe(made), dropped=dropped)
            made.execute("CREATE TABLE backup (about TEXT NOT NULL)")
            made.execute("INSERT INTO backup VALUES (?)", (msgspec.json.encode(told).decode(),))
            made.commit()
        publish(part, path)
    return told


def restore(path: Path, store: str, replace: bool = False, replay: bool = True) -> Checked:
    """Put a backup in the place of a store, after checking all of it. An existing store is kept without `replace`."""
    if not path.is_file():
        raise FileError(f"there is no backup at {path}; name a file that `coterie backup` wrote")
    if is_postgres(store):
        postgres_copy.refuse_existing(store, replace)  # before the long check
        with tempfile.TemporaryDirectory(prefix="coterie-restore-") as folder:
            copy = Path(folder) / "store.db"
            found = _checked_copy(path, copy, replay)
            with closing(_open(copy)) as rows:
                postgres_copy.write_from(rows, store, replace)
        return found
    target = Path(os.path.realpath(store.removeprefix("sqlite://")))
    _refuse_existing(target, replace)
    with _beside(target, "restoring") as copy:
        found = _checked_copy(path, copy, replay)
        owned = Owned(target)  # no process serves it, or can start to
        try:
            # The files that SQLite keeps beside the old file must never be read with the new one.
            for name in (f"{target}-wal", f"{target}-shm"):
                Path(name).unlink(missing_ok=True)
            publish(copy, target)
        finally:
            owned.close()
    return found


def _checked_copy(path: Path, copy: Path, replay: bool) -> Checked:
    """Copy a backup to where it can be opened as a store, and raise if it is damaged."""
    source = sqlite3.connect(f"file:{quote(str(path))}?mode=ro&immutable=1", uri=True)
    with closing(source), closing(_open(copy)) as made:
        try:
            told = _about(source, path)
            source.backup(made)
            _check_database(made, path)
            found = _describe(made)
        except sqlite3.Error as error:
            raise FileError(f"{path} is damaged: {error}; restore another backup") from error
        if found.sha256 != told.sha256:
            raise FileError(f"{path} is damaged: its rows do not give its SHA-256; restore another backup")
        made.execute("DROP TABLE backup")
        made.commit()
    with closing(SqliteStore(str(copy), create=False)) as store:
        checked = check(store, replay)
    Path(f"{copy}.lock").unlink(missing_ok=True)
    if checked.same is False:
        raise FileError(f"the snapshot in {path} is not what its log says; restore another backup")
    return checked


def _about(connection: sqlite3.Connection, path: Path) -> Made:
    try:
        rows = connection.execute("SELECT about FROM backup").fetchall()
        return msgspec.json.decode(rows[0][0], type=Made)
    except (sqlite3.Error, IndexError, msgspec.MsgspecError, UnicodeDecodeError, TypeError) as error:
        raise FileError(f"{path} was not written by `coterie backup`, or is damaged: {error}") from error


def _copy_file(path: Path, made: sqlite3.Connection) -> None:
    if not path.exists():
        raise FileError(f"there is no store at {path}; name the file that `coterie serve --store` was given")
    with suppress(InUseError):  # the process that serves it has checked it
        owned = Owned(path)
        try:
            check_wal(Path(f"{path}-wal"))
        finally:
            owned.close()
    try:
        with closing(sqlite3.connect(f"file:{quote(str(path))}?mode=rw", uri=True, timeout=10)) as source:
            source.execute("PRAGMA query_only = ON")
            source.backup(made)  # in one step, which is one reading transaction
        made.execute("PRAGMA journal_mode = DELETE")  # a backup is one file
    except sqlite3.Error as error:
        raise FileError(f"{path} cannot be copied: {error}") from error


def _check_database(made: sqlite3.Connection, path: Path) -> None:
    """Raise unless it is a store of a known version without damage that SQLite finds."""
    application = made.execute("PRAGMA application_id").fetchone()[0]
    version = made.execute("PRAGMA user_version").fetchone()[0]
    tables = {sql for (sql,) in made.execute("SELECT sql FROM sqlite_master").fetchall()}
    if application != APPLICATION or not tables >= TABLES:
        raise FileError(f"{path} does not hold a coterie store")
    if version != VERSION:
        raise FileError(f"{path} has store version {version}, this coterie reads version {VERSION}")
    trouble = made.execute("PRAGMA integrity_check(1)").fetchone()[0]
    if trouble != "ok":
        raise FileError(f"{path} is damaged: {trouble}; restore another backup")


def _describe(made: sqlite3.Connection) -> Made:
    """Return the description of a copy, after checking every row that has a checksum."""
    digest = hashlib.sha256()
    there = {name for (name,) in made.execute("SELECT name FROM sqlite_master").fetchall()}
    for table, columns in COLUMNS.items():  # in the order of the hash
        if table in there:
            for row in made.execute(f"SELECT {columns} FROM {table} ORDER BY 1"):
                _check_row(table, row)
                digest.update(msgspec.msgpack.encode((table, row)))
    users = made.execute("SELECT count(*) FROM users").fetchone()[0]
    first, end = made.execute("SELECT min(first), (SELECT next FROM head) FROM log").fetchone()
    version = made.execute("PRAGMA user_version").fetchone()[0]
    first = end if first is None else first
    return Made(__version__, int(time.time()), version, first, end, users, digest.hexdigest())


def _drop_damaged(made: sqlite3.Connection) -> int:
    """Write lost records in the place of damaged ones, and return how many these were."""
    newest = made.execute("SELECT coalesce(max(position), 0) FROM snapshots").fetchone()[0]
    end = made.execute("SELECT next FROM head").fetchone()[0]
    rows = made.execute("SELECT first, count, body, checksum, version FROM log ORDER BY first")
    before: Batch | None = None
    damaged: list[tuple[int, Batch | None]] = []
    dropped = 0
    for row in rows:
        batch = Batch(*row)
        if not batch.is_sound():
            damaged.append((batch.first, before))
        else:
            before = batch
    for first, before in damaged:
        after = made.execute("SELECT min(first) FROM log WHERE first > ?", (first,)).fetchone()[0]
        until = end if after is None else after
        check_before(Damaged(first, until - 1), newest)
        made.execute("DELETE FROM log WHERE first = ?", (first,))
        new = [
            (one.first, one.count, one.version, one.checksum, one.body) for one in lost(first, until, before)
        ]
        made.executemany("INSERT INTO log VALUES (?, ?, ?, ?, ?)", new)
        dropped += until - first
    made.commit()
    return dropped


def _check_row(table: str, row: tuple[Any, ...]) -> None:
    """Raise if a row's checksum is wrong."""
    if table == "log":
        first, count, version, kept, body = row
        if checksum(Batch(first, count, body, kept, version)) != kept:
            last = first + count - 1
            raise FileError(f"log records {first} to {last} are damaged; see `coterie store check`")
    elif table == "snapshots" and zlib.crc32(row[2]) != row[1]:
        raise FileError(f"the snapshot at {row[0]} is damaged; start the service, which replaces it")
    elif table == "evaluations" and zlib.crc32(row[2]) != row[1]:
        raise FileError(f"the evaluation {bytes(row[0])!r} is damaged; delete it, or restore a backup")
    elif table == "pieces" and name_of(row[1]) != row[0]:
        raise FileError(f"snapshot piece {row[0].hex()} is damaged; start the service, which replaces it")


def _refuse_existing(path: Path, replace: bool) -> None:
    if path.exists() and not replace:
        raise FileError(f"{path} is there already; choose another name, or say --replace")
    if not path.parent.is_dir():
        raise FileError(f"there is no folder {path.parent}")


def _open(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA synchronous = OFF")  # `publish` syncs the whole file
    return connection


@contextmanager
def _beside(path: Path, doing: str) -> Iterator[Path]:
    """Yield an empty private file in the same folder, and remove it in the end."""
    part = path.with_name(f"{path.name}.{doing}")
    open_private(part).close()
    try:
        yield part
    finally:
        for end in ("", "-journal", "-wal", "-shm", ".lock"):
            Path(f"{part}{end}").unlink(missing_ok=True)
