"""A store in PostgreSQL as rows of a backup, and back: each in one transaction."""

import sqlite3
import zlib
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

from coterie.errors import FileError, MissingExtraError
from coterie.service.log.store import COLUMNS, as_bytes

MANY = 500  # rows at a time

# The tables that are the same in both kinds of stores; users' names are not, and the head has another key.
TABLES = {table: columns for table, columns in COLUMNS.items() if table not in ("users", "head")}


def read_into(url: str, made: sqlite3.Connection) -> int:
    """Copy a database as it is at one moment into the tables of a backup, and return its store's version."""
    with _connected(url) as connection:
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        if not _has(connection, "version"):
            raise FileError("there is no store in the database; name the one `coterie serve` was given")
        (version,) = connection.execute("SELECT version FROM coterie_version").fetchone()
        for table, columns in TABLES.items():
            marks = ", ".join("?" * len(columns.split(",")))
            made.executemany(f"INSERT INTO {table} VALUES ({marks})", _read(connection, table))
        made.executemany("INSERT INTO users VALUES (?, ?, ?)", _users(connection))
        head = connection.execute("SELECT next, named, fixed FROM coterie_head").fetchone()
        made.execute("INSERT INTO head VALUES (1, ?, ?, ?)", head)
        made.commit()
    return int(version)


def _read(connection: Any, table: str) -> Iterator[Any]:
    with connection.cursor(name=table) as cursor:  # on the server, so that memory holds only some rows
        cursor.itersize = MANY
        cursor.execute(f"SELECT {COLUMNS[table]} FROM coterie_{table}")
        yield from cursor


def _users(connection: Any) -> Iterator[tuple[int, str, int]]:
    for number, name, checksum in _read(connection, "users"):
        if zlib.crc32(name) != checksum:
            raise FileError(f"the name of user {number} is damaged; restore a backup")
        text = name.decode("utf-8", "surrogatepass")
        yield number, text, zlib.crc32(as_bytes(f"{number} {text}"))


def refuse_existing(url: str, replace: bool) -> None:
    """Raise if a database cannot be restored to: it is in use, or holds a store that is not to be replaced."""
    from coterie.service.log.postgres_store import PostgresStore

    with _connected(url) as connection:
        if not _has(connection, "version"):
            return
    with closing(PostgresStore(url)) as store:
        if not replace and (store.bounds()[1] or store.keys()):
            raise FileError("the database holds a store already; choose another one, or say --replace")


def write_from(rows: sqlite3.Connection, url: str, replace: bool) -> None:
    """Write the tables of a checked backup to a database that is not served, in one transaction."""
    from coterie.service.log.postgres_store import PostgresStore

    refuse_existing(url, replace)
    with closing(PostgresStore(url)) as store, store._changing(long=True) as cursor:
        for table in (*TABLES, "users"):
            cursor.execute(f"DELETE FROM @{table}")
        for table, columns in TABLES.items():
            marks = ", ".join("?" * len(columns.split(",")))
            for part in _parts(rows.execute(f"SELECT {columns} FROM {table}")):
                cursor.executemany(f"INSERT INTO @{table} VALUES ({marks})", part)
        for part in _parts(rows.execute("SELECT number, id FROM users")):
            names = [store._pack_name(number, name) for number, name in part]
            cursor.executemany("INSERT INTO @users VALUES (?, ?, ?)", names)
        head = rows.execute("SELECT next, named, fixed FROM head").fetchone()
        cursor.execute("UPDATE @head SET next = ?, named = ?, fixed = ?", head)


def _parts(rows: sqlite3.Cursor) -> Iterator[list[Any]]:
    while part := rows.fetchmany(MANY):
        yield part


def _has(connection: Any, table: str) -> bool:
    return bool(connection.execute("SELECT to_regclass(%s) IS NOT NULL", (f"coterie_{table}",)).fetchone()[0])


@contextmanager
def _connected(url: str) -> Iterator[Any]:
    try:
        import psycopg
    except ImportError as error:
        raise MissingExtraError(
            "a store in PostgreSQL needs psycopg: pip install 'coterie[postgres]'"
        ) from error
    try:
        with psycopg.connect(url, connect_timeout=10) as connection:
            yield connection
    except psycopg.Error as error:  # the URL may hold a password, so it is not part of the message
        raise FileError(f"the database cannot be read: {' '.join(str(error).split())}") from error
