"""What the stores in SQLite and PostgreSQL share: the statements that read and write the tables.

Statements are written once, as SQLite reads them, with @ before the name of a table; `translate` adapts them.
"""

import threading
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from coterie.errors import FileError
from coterie.service.core.records import Batch
from coterie.service.log.store import Append, BrokenError, KeyRow, StoreError
from coterie.service.snapshots import pieces

VERSION = 3  # 1 has no pieces, 2 has pieces of 1 MB; a store becomes 3 with its first snapshot in parts
READ = (1, 2, 3)
AT_ONCE = 4  # pieces removed in one transaction
PAGE_OF_LOG = 64  # batches read at a time


class Changes:
    """One transaction: a cursor of either database that takes the shared statements."""

    def __init__(self, cursor: Any, translate: Callable[[str], str]) -> None:
        self._cursor = cursor
        self._translate = translate

    def execute(self, statement: str, values: Sequence[Any] | None = None) -> Any:
        """Run a statement, and return the cursor."""
        statement = self._translate(statement)
        return self._cursor.execute(statement) if values is None else self._cursor.execute(statement, values)

    def executemany(self, statement: str, rows: Sequence[Sequence[Any]]) -> None:
        """Run a statement once for each row."""
        if rows:
            self._cursor.executemany(self._translate(statement), rows)

    def put(self, table: str, key: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        """Write rows, each in the place of the one with the same key."""
        marks = ", ".join("?" * (1 + len(columns)))
        new = ", ".join(f"{name} = EXCLUDED.{name}" for name in columns)
        self.executemany(
            f"INSERT INTO @{table} VALUES ({marks}) ON CONFLICT ({key}) DO UPDATE SET {new}", rows
        )


class SqlStore(ABC):
    """A log in tables. A kind of database adds its connections, its transactions and its errors."""

    where: str  # the store in messages
    PIECES: str  # the statement that makes the table of pieces, …
    EVALUATIONS: str  # … and that of evaluations

    def __init__(self) -> None:
        self._lock = threading.Lock()  # of the writing connection
        self._reading = threading.Lock()  # of the reading one
        self._saving = threading.Lock()  # one snapshot at a time

    @abstractmethod
    def _rows(self, query: str, *values: Any) -> list[Any]:
        """Return what a query finds."""

    @abstractmethod
    def _changing(self, size: int = 0, urgent: bool = False) -> AbstractContextManager[Changes]:
        """Run what is inside as one transaction of about `size` bytes; others let an `urgent` one go first."""

    @abstractmethod
    def _has(self, table: str) -> bool:
        """Return whether there is a table that not every store has."""

    @abstractmethod
    def _set_version(self, changes: Changes, version: int) -> None: ...

    @abstractmethod
    def _pack_name(self, number: int, name: str) -> tuple[int, Any, int]:
        """Return a user's name as a row: number, id, checksum."""

    @abstractmethod
    def _unpack_name(self, number: int, name: Any, checksum: int) -> str | None:
        """Return the name in such a row, or None if it is damaged."""

    def append(self, appends: Append) -> None:
        """Keep a batch: one transaction, one sync."""
        batch = appends.batch
        with self._changing(len(batch.body), urgent=True) as changes:
            changes.execute(
                "INSERT INTO @log VALUES (?, ?, ?, ?, ?)",
                (batch.first, batch.count, batch.version, batch.checksum, batch.body),
            )
            moved = changes.execute(
                "UPDATE @head SET next = ? WHERE next = ?", (batch.first + batch.count, batch.first)
            )
            if moved.rowcount != 1:
                raise BrokenError(f"the log does not end at {batch.first}: another process wrote to it")
            names = [self._pack_name(number, name) for number, name in appends.named.items()]
            changes.put("users", "number", ["id", "checksum"], names)
            changes.executemany("DELETE FROM @users WHERE number = ?", [(n,) for n in appends.forgotten])
            changes.executemany(
                "INSERT INTO @scrubs VALUES (?) ON CONFLICT DO NOTHING", [(n,) for n in appends.scrub]
            )

    def read(self, first: int = 0) -> Iterator[Batch]:
        """Yield batches from the one that holds `first`; batches that `compact` removes meanwhile are left out."""
        start, end = self.bounds()
        position = max(first, start)
        found = self._rows("SELECT max(first) FROM @log WHERE first <= ?", position)[0][0]
        position = found if found is not None else position
        while position < end:
            rows = self._rows(
                "SELECT first, count, body, checksum, version FROM @log WHERE first >= ? "
                f"ORDER BY first LIMIT {PAGE_OF_LOG}",
                position,
            )
            found = rows[0][0] if rows else end
            if found > position:
                if self.bounds()[0] < found:
                    raise self._gap(position, found)
                position = found
                continue
            for row in rows:
                batch = Batch(*row)
                if batch.first != position:
                    raise self._gap(position, batch.first)
                yield batch
                position += batch.count

    def _gap(self, expected: int, found: int) -> FileError:
        return FileError(
            f"{self.where} is damaged: log records {expected} to {found - 1} are missing; restore a backup, or keep "
            f"what comes before with `coterie store cut --at {expected}`"
        )

    def bounds(self) -> tuple[int, int]:
        """Return where the log begins and ends."""
        rows = self._rows(  # in one query, so that no commit comes in between
            "SELECT next, (SELECT min(first) FROM @log), (SELECT max(first) FROM @log) FROM @head"
        )
        if len(rows) != 1 or (rows[0][2] is not None and rows[0][2] >= rows[0][0]):
            raise FileError(f"{self.where} does not know where its log ends: it is damaged; restore a backup")
        end, first, _ = rows[0]
        return (end if first is None else first), end

    def users(self, first: int = 0) -> dict[int, str]:
        """Return the names."""
        found = {}
        for number, name, checksum in self._rows(
            "SELECT number, id, checksum FROM @users WHERE number >= ?", first
        ):
            text = self._unpack_name(number, name, checksum)
            if text is None:
                raise FileError(f"the name of user {number} in {self.where} is damaged; restore a backup")
            found[number] = text
        return found

    def pieces(self) -> set[bytes]:
        """Return the names of the pieces."""
        return {name for (name,) in self._rows("SELECT name FROM @pieces")} if self._has("pieces") else set()

    def save_pieces(self, new: Mapping[bytes, bytes]) -> None:
        """Keep pieces in one transaction; commits of the log come in between two."""
        if new:
            with self._changing(sum(map(len, new.values()))) as changes:
                self._insert_pieces(changes, new)

    def save_snapshot(
        self, position: int, row: bytes, alone: bool = False, new: Mapping[bytes, bytes] | None = None
    ) -> None:
        """Keep a snapshot and the one before it."""
        with self._saving:
            with self._changing(len(row) + sum(map(len, (new or {}).values()))) as changes:
                self._insert_pieces(changes, new or {})
                changes.put(
                    "snapshots", "position", ["checksum", "state"], [(position, zlib.crc32(row), row)]
                )
                changes.execute(
                    "DELETE FROM @snapshots WHERE position NOT IN "
                    "(SELECT position FROM @snapshots ORDER BY position DESC LIMIT ?)",
                    (1 if alone else 2,),
                )
            self._drop_pieces()

    def _insert_pieces(self, changes: Changes, new: Mapping[bytes, bytes]) -> None:
        changes.execute(self.PIECES)
        self._set_version(changes, VERSION)
        changes.executemany("INSERT INTO @pieces VALUES (?, ?) ON CONFLICT DO NOTHING", list(new.items()))

    def _drop_pieces(self) -> None:
        """Remove the pieces that no snapshot needs, also those of a snapshot that a crash interrupted."""
        rows = [bytes(state) for (state,) in self._rows("SELECT state FROM @snapshots")]
        unused = pieces.unused(self.pieces(), rows)
        for start in range(0, len(unused), AT_ONCE):
            with self._changing() as changes:
                changes.executemany(
                    "DELETE FROM @pieces WHERE name = ?",
                    [(name,) for name in unused[start : start + AT_ONCE]],
                )

    def piece(self, name: bytes) -> bytes | None:
        """Return a piece."""
        found = self._rows("SELECT body FROM @pieces WHERE name = ?", name)
        return found[0][0] if found and isinstance(found[0][0], bytes) else None

    def snapshots(self) -> Iterator[tuple[int, bytes]]:
        """Yield snapshots, newest first."""
        for (position,) in self._rows("SELECT position FROM @snapshots ORDER BY position DESC"):
            rows = self._rows("SELECT checksum, state FROM @snapshots WHERE position = ?", position)
            yield from ((position, state) for state in _whole(rows))

    def positions(self) -> list[int]:
        """Return where sound snapshots stand, newest first."""
        return [position for position, state in self.snapshots() if pieces.sound(state, self.piece)]

    def scrubs(self) -> list[int]:
        """Return whose records are still to be scrubbed."""
        return [number for (number,) in self._rows("SELECT number FROM @scrubs ORDER BY number")]

    def scrubbed(self, users: Sequence[int]) -> None:
        """Leave no trace in free pages, and only then note that nothing is left."""
        self._clear_free_pages()
        with self._changing() as changes:
            changes.executemany("DELETE FROM @scrubs WHERE number = ?", [(user,) for user in users])

    @abstractmethod
    def _clear_free_pages(self) -> None: ...

    def cut(self, at: int) -> int:
        """Give up the log from a position on."""
        _, end = self.bounds()
        with self._changing() as changes:
            first = changes.execute("SELECT max(first) FROM @log WHERE first <= ?", (at,)).fetchone()[0]
            place = at if first is None else first
            changes.execute("DELETE FROM @log WHERE first >= ?", (place,))
            changes.execute("DELETE FROM @snapshots WHERE position > ?", (place,))
            changes.execute("UPDATE @head SET next = ?", (place,))
        return int(end - place)

    def rewrite(self, batch: Batch) -> None:
        """Replace a batch in its place."""
        with self._changing(len(batch.body)) as changes:
            changed = changes.execute(
                "UPDATE @log SET checksum = ?, body = ? WHERE first = ? AND count = ?",
                (batch.checksum, batch.body, batch.first, batch.count),
            )
            if changed.rowcount != 1:
                raise StoreError(f"there is no batch at {batch.first} with {batch.count} records")

    def compact(self, before: int) -> int:
        """Remove old batches."""
        start, _ = self.bounds()
        with self._changing() as changes:
            changes.execute("DELETE FROM @log WHERE first + count <= ?", (before,))
        return self.bounds()[0] - start

    def keys(self) -> list[KeyRow]:
        """Return the keys."""
        rows = self._rows("SELECT name, scopes, hash, created FROM @keys ORDER BY name")
        return [KeyRow(name, tuple(scopes.split()), hash_, created) for name, scopes, hash_, created in rows]

    def save_key(self, key: KeyRow) -> None:
        """Keep a key."""
        row = (key.name, " ".join(key.scopes), key.hash, key.created)
        with self._changing() as changes:
            changes.put("keys", "name", ["scopes", "hash", "created"], [row])

    def drop_key(self, name: str) -> bool:
        """Remove a key."""
        with self._changing() as changes:
            return bool(changes.execute("DELETE FROM @keys WHERE name = ?", (name,)).rowcount)

    def evaluations(self) -> list[bytes]:
        """Return the evaluations."""
        rows = self._rows("SELECT checksum, body FROM @evaluations") if self._has("evaluations") else []
        return list(_whole(rows))

    def save_evaluation(self, name: str, body: bytes) -> None:
        """Keep an evaluation; the table is made with the first one."""
        with self._changing(len(body)) as changes:
            changes.execute(self.EVALUATIONS)
            row = (as_bytes(name), zlib.crc32(body), body)
            changes.put("evaluations", "name", ["checksum", "body"], [row])

    def drop_evaluation(self, name: str) -> None:
        """Remove an evaluation that was kept."""
        with self._changing() as changes:
            changes.execute("DELETE FROM @evaluations WHERE name = ?", (as_bytes(name),))


def as_bytes(name: str) -> bytes:
    """Return an id as bytes; it may hold what a text of a database cannot."""
    return name.encode("utf-8", "surrogatepass")


def _whole(rows: Iterable[tuple[int, Any]]) -> Iterator[bytes]:
    """Yield what has the checksum before it; the rest is damaged."""
    for checksum, body in rows:
        if isinstance(body, bytes) and zlib.crc32(body) == checksum:
            yield body
