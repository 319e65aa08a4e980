"""A store in PostgreSQL as rows of a backup, and back: each in one transaction."""

import sqlite3
import zlib
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

from coterie.errors import FileError, MissingExtraError
from coterie.service.log.sqlite_store import plain
from coterie.service.log.store import OPTIONAL, as_bytes

MANY = 500  # rows at a time

# Tables and columns, which are the same in both kinds of stores, except for the names of users.
TABLES = {
    "log": "first, count, version, checksum, body",
    "snapshots": "position, checksum, state",
    "keys": "name, scopes, hash, created",
    "scrubs": "number",
}

# Tables that are made when they are first needed.
LATER = {"pieces": "name, body", "evaluations": "name, checksum, body"}


def read_into(url: str, made: sqlite3.Connection) -> int:
    """Copy a database as it is at one moment into the tables of a backup, and return its store's version."""
    with _connected(url) as connection:
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        if not _has(connection, "version"):
            raise FileError("there is no store in the database; name the one `coterie serve` was given")
        (version,) = connection.execute("SELECT version FROM coterie_version").fetchone()
        tables = dict(TABLES)
        for table, columns in LATER.items():
            if _has(connection, table):
                made.execute(plain(OPTIONAL[table]))
                tables[table] = columns
        for table, columns in tables.items():
            marks = ", ".join("?" * len(columns.split(",")))
            _copy(
                connection,
                f"SELECT {columns} FROM coterie_{table}",
                made,
                f"INSERT INTO {table} VALUES ({marks})",
            )
        made.executemany("INSERT INTO users VALUES (?, ?, ?)", _users(connection))
        (end,) = connection.execute("SELECT next FROM coterie_head").fetchone()
        made.execute("INSERT INTO head VALUES (1, ?)", (end,))
        made.commit()
    return int(version)


def _copy(connection: Any, query: str, made: sqlite3.Connection, insert: str) -> None:
    with connection.cursor(name="backup") as cursor:  # on the server, so that memory holds only some rows
        cursor.itersize = MANY
        cursor.execute(query)
        made.executemany(insert, cursor)


def _users(connection: Any) -> Iterator[tuple[int, str, int]]:
    with connection.cursor(name="users") as cursor:
        cursor.itersize = MANY
        cursor.execute("SELECT number, id, checksum FROM coterie_users")
        for number, name, checksum in cursor:
            if zlib.crc32(name) != checksum:
                raise FileError(f"the name of user {number} is damaged; restore a backup")
            text = bytes(name).decode("utf-8", "surrogatepass")
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
    there = {name for (name,) in rows.execute("SELECT name FROM sqlite_master").fetchall()}
    with closing(PostgresStore(url)) as store, store._changing() as cursor:
        for table in LATER:
            cursor.execute(OPTIONAL[table])
        for table in (*TABLES, *LATER, "users"):
            cursor.execute(f"DELETE FROM coterie_{table}")
        for table, columns in {**TABLES, **LATER}.items():
            if table in there:
                marks = ", ".join(["%s"] * len(columns.split(",")))
                for part in _parts(rows.execute(f"SELECT {columns} FROM {table}")):
                    cursor.executemany(f"INSERT INTO coterie_{table} VALUES ({marks})", part)
        for part in _parts(rows.execute("SELECT number, id FROM users")):
            names = [(number, as_bytes(name)) for number, name in part]
            cursor.executemany(
                "INSERT INTO coterie_users VALUES (%s, %s, %s)",
                [(number, name, zlib.crc32(name)) for number, name in names],
            )
        (end,) = rows.execute("SELECT next FROM head").fetchone()
        (version,) = rows.execute("PRAGMA user_version").fetchone()
        cursor.execute("UPDATE coterie_head SET next = %s", (end,))
        cursor.execute("UPDATE coterie_version SET version = %s", (version,))


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
