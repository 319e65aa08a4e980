"""The store: where the log, the users' names, the snapshots and the keys are kept.

There is one in SQLite and one in PostgreSQL. Their statements are written once, as SQLite reads them, with @ before
the name of a table; each store translates them.
"""

import threading
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from importlib.util import find_spec
from typing import Any, TypedDict, Unpack

from msgspec import Struct

from coterie.data.logs.records import Batch, Index, event_key, index_of, user_key
from coterie.errors import FileError, MissingExtraError
from coterie.service.log import pieces
from coterie.service.log.known_ids import KnownIds
from coterie.service.settings import Durability
from coterie.service.store_errors import InUseError, PassingError, StaleError, StoreError, TakenError

VERSION = 4
AT_ONCE = 4  # pieces removed in one transaction
PAGE_OF_LOG = 64  # batches read at a time
PAGE_OF_IDS = 10_000  # event ids read at a time
PAGE_OF_ROWS = 1_000  # rows read at a time of a table that may be long
REMOVED = 4_000_000  # about how many bytes of the log are removed in one transaction
MAINTENANCE = "maintenance"  # the lease of snapshots, retention and erasures
SPARE_IDS = 1_000_000  # of removed events that may stay known
COLUMNS = {  # of each table, the key first
    "log": "first, count, version, checksum, body",
    "users": "number, id, checksum",
    "snapshots": "position, checksum, state",
    "keys": "name, scopes, hash, created",
    "scrubs": "number",
    "head": "one, next, named, fixed",
    "pieces": "name, body",
    "evaluations": "name, checksum, body",
    "events": "id, position",
    "batches": "first, users",
}


class Append(Struct, frozen=True):
    """What becomes durable together: records, and what they change in the table of users.

    The log has to end where the batch begins. If it `moves`, others may have written more meanwhile, and it comes
    after that, unless they have named users as it does, or have written what `fixes`: what was planned before that
    does not hold after it.
    """

    batch: Batch
    named: Mapping[int, str] = {}  # new users
    forgotten: Sequence[int] = ()  # users whose names go
    scrub: Sequence[int] = ()  # users whose earlier records are to be scrubbed
    index: Index | None = None  # of the batch, if it is known already
    moves: bool = False
    fixes: bool = True


class KeyRow(Struct, frozen=True):
    """A key as it is kept: its hash only."""

    name: str
    scopes: tuple[str, ...]
    hash: bytes
    created: int


class Options(TypedDict, total=False):
    """How a store is opened; see `open_store`."""

    durability: Durability
    shared: bool
    beside_owner: bool
    moment: bool
    create: bool


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

    def put(self, table: str, rows: Sequence[Sequence[Any]]) -> None:
        """Write rows, each in the place of the one with the same key."""
        key, *columns = COLUMNS[table].split(", ")
        marks = ", ".join("?" * (1 + len(columns)))
        new = ", ".join(f"{name} = EXCLUDED.{name}" for name in columns)
        statement = f"INSERT INTO @{table} VALUES ({marks}) ON CONFLICT ({key}) DO UPDATE SET {new}"
        self.executemany(statement, rows)


class Store(ABC):
    """A durable log in tables, to which any number of processes append, each from one thread."""

    where: str  # the store in messages
    _conflict: type[Exception]  # what a second row with the same key raises

    def __init__(self, **options: Unpack[Options]) -> None:
        self.durability = options.get("durability", Durability.LOSE_NOTHING)
        self._shared = options.get("shared", False)
        self._moment = options.get("moment", False)
        self._beside_owner = self._moment or options.get("beside_owner", False)
        self._create = options.get("create", True)
        self._lock = threading.Lock()  # of the writing connection
        self._reading = threading.Lock()  # of the reading one
        self._saving = threading.Lock()  # one snapshot at a time
        self._closed = False
        self._known_ids = KnownIds()
        self._unsure: Batch | None = None  # whose outcome is not known

    @abstractmethod
    def _rows(self, query: str, *values: Any) -> list[Any]:
        """Return what a query finds."""

    @abstractmethod
    def _changing(
        self, size: int = 0, urgent: bool = False, long: bool = False, leased: bool = False
    ) -> AbstractContextManager[Changes]:
        """Run what is inside as one transaction of about `size` bytes; others let an `urgent` one go first.

        With `long`, a statement inside may take minutes. If it is `leased`, nothing is changed by a service that has
        lost the lease MAINTENANCE, because it stood still: another one does its work.
        """

    @abstractmethod
    def _pack_name(self, number: int, name: str) -> tuple[int, Any, int]:
        """Return a user's name as a row: number, id, checksum."""

    @abstractmethod
    def _unpack_name(self, number: int, name: Any, checksum: int) -> str | None:
        """Return the name in such a row, or None if it is damaged."""

    @abstractmethod
    def take_lease(self, name: str) -> bool:
        """Take a lease if it is free, or renew it, and return whether it is ours; it must be renewed every second."""

    @abstractmethod
    def drop_lease(self, name: str) -> None:
        """Let others have a lease."""

    @abstractmethod
    def time(self) -> int:
        """Return the time of day in milliseconds, the same for all processes that share the store."""

    def append(self, appends: Append) -> int:
        """Keep a batch, durably as configured, and return its place, or raise.

        After an error it may be tried again: it is kept once. Raises StaleError if the log does not end where it has
        to, TakenError if it has a decision of one of its events, and PassingError or BrokenError.
        """
        batch = appends.batch
        try:
            try:
                place = self._append(appends)
            except TakenError:
                place = self._place_of(appends)
                if place is None:
                    raise
        except PassingError:
            self._unsure = batch
            raise
        if place is None:
            place = self._place_of(appends)
        if place is None:
            raise StaleError(f"the log does not end at {batch.first}")
        self._unsure = None
        return place

    def _append(self, appends: Append) -> int | None:
        """Keep a batch if the log ends where it has to, and return its place."""
        with self._changing(len(appends.batch.body), urgent=True) as changes:
            end, named, fixed = changes.execute("SELECT next, named, fixed FROM @head").fetchone()
            first = appends.batch.first
            if end != first and not (
                appends.moves and fixed <= first < end and (named <= first or not appends.named)
            ):
                return None
            batch = appends.batch.at(end)
            last = end + batch.count
            changes.execute(
                "UPDATE @head SET next = ?, named = ?, fixed = ?",
                (last, last if appends.named else named, last if appends.fixes else fixed),
            )
            changes.execute(
                "INSERT INTO @log VALUES (?, ?, ?, ?, ?)",
                (batch.first, batch.count, batch.version, batch.checksum, batch.body),
            )
            index = self._index_of(appends)
            events = [(key, position - first + end) for key, position in index.events.items()]
            try:
                changes.executemany("INSERT INTO @events VALUES (?, ?)", events)
            except self._conflict as error:
                raise TakenError("an event of the batch was decided before") from error
            if index.users:
                changes.put("batches", [(end, index.users)])
            names = [self._pack_name(number, name) for number, name in appends.named.items()]
            changes.put("users", names)
            changes.executemany("DELETE FROM @users WHERE number = ?", [(n,) for n in appends.forgotten])
            scrubs = [(number,) for number in appends.scrub]
            changes.executemany("INSERT INTO @scrubs VALUES (?) ON CONFLICT DO NOTHING", scrubs)
        return int(end)

    def _place_of(self, appends: Append) -> int | None:
        """Return where a batch is in the log, if an earlier try whose outcome is not known has kept it.

        Another process may have written an equal batch; else nobody has written one with its event ids.
        """
        batch, index = appends.batch, appends.index
        if self._unsure != batch:
            return None
        place = batch.first
        if appends.moves and index is not None and index.events:
            key, position = next(iter(index.events.items()))
            found = self._rows("SELECT position FROM @events WHERE id = ?", key)
            if not found:
                return None
            place += found[0][0] - position
        rows = self._rows("SELECT count, body FROM @log WHERE first = ?", place)
        same = bool(rows) and (rows[0][0], bytes(rows[0][1])) == (batch.count, bytes(batch.body))
        return place if same else None

    def _index_of(self, appends: Append) -> Index:
        """Return the index of a batch, whose ids are known from now on: nobody may miss one that is there."""
        batch = appends.batch
        found = appends.index or index_of(batch.first, batch.content())
        for key in found.events:
            self._known_ids.add(key)
        return found

    def locate(self, event: str) -> int | None:
        """Return the position of an event's decision."""
        key = event_key(event)
        if key not in self._known_ids:
            return None
        found = self._rows("SELECT position FROM @events WHERE id = ?", key)
        return found[0][0] if found else None

    def read_ids(self) -> None:
        """Read all event ids of the index, so that new ones need not be looked for there.

        Does so once, and again when most of those that are known are no longer in the log.
        """
        first, end = self.bounds()
        known = self._known_ids
        if not known.complete or known.count > SPARE_IDS + 2 * (end - first):
            known.read(self._ids())

    def _ids(self) -> Iterator[bytes]:
        last = b""
        while rows := self._rows(
            f"SELECT id FROM @events WHERE id > ? ORDER BY id LIMIT {PAGE_OF_IDS}", last
        ):
            for (last,) in rows:
                yield last

    def know(self, events: Iterable[str]) -> None:
        """Note that other processes have written decisions of these events."""
        for event in events:
            self._known_ids.add(event_key(event))

    def may_have(self, event: str) -> bool:
        """Return whether `locate` has to look for an event on the disk."""
        return event_key(event) in self._known_ids

    def batch_at(self, position: int) -> Batch | None:
        """Return the batch that holds a position, if the log still has it."""
        rows = self._rows(
            "SELECT first, count, body, checksum, version FROM @log WHERE first <= ? ORDER BY first DESC LIMIT 1",
            position,
        )
        return Batch(*rows[0]) if rows and position < rows[0][0] + rows[0][1] else None

    def batches_of(self, users: Iterable[int]) -> list[int]:
        """Return where the batches begin that have records of some users; a few others may be among them."""
        keys, found = [user_key(user) for user in users], []
        for first, named in self._pages("SELECT first, users FROM @batches"):
            if any(key in named for key in keys):
                found.append(first)
        return found

    def log_bytes(self) -> int:
        """Return how many bytes the records take."""
        return sum(size for _, size in self._pages("SELECT first, length(body) FROM @log"))

    def _pages(self, query: str) -> Iterator[Any]:
        """Yield all rows of a table whose key is `first`, in its order, read so that nobody waits for long."""
        last = -1
        while rows := self._rows(f"{query} WHERE first > ? ORDER BY first LIMIT {PAGE_OF_ROWS}", last):
            yield from rows
            last = rows[-1][0]

    @abstractmethod
    def sync(self) -> None:
        """Make everything appended survive a power cut."""

    def read(self, first: int = 0) -> Iterator[Batch]:
        """Yield the batches that hold `first` and what comes after, in order, with no gap."""
        start, end = self.bounds()
        position = max(first, start)
        found = self._rows("SELECT max(first) FROM @log WHERE first <= ?", position)[0][0]
        position = found if found is not None else position
        while position < end:
            page = self.tail(position)
            found = page[0].first if page else end
            if found > position:
                if self.bounds()[0] < found:
                    raise self._gap(position, found)
                position = found
                continue
            for batch in page:
                if batch.first != position:
                    raise self._gap(position, batch.first)
                yield batch
                position += batch.count

    def tail(self, position: int, until: int = 2**62) -> list[Batch]:
        """Return some of the batches that begin at a position or later, and before another one, in order."""
        rows = self._rows(
            "SELECT first, count, body, checksum, version FROM @log WHERE first >= ? AND first < ? "
            f"ORDER BY first LIMIT {PAGE_OF_LOG}",
            position,
            until,
        )
        return [Batch(*row) for row in rows]

    def scan(self, first: int = 0) -> Iterator[Batch]:
        """Yield the batch that holds `first` and all after it, unchecked, and also after a gap."""
        found = self._rows("SELECT max(first) FROM @log WHERE first <= ?", first)[0][0]
        position = first if found is None else found
        while True:
            page = self.tail(position)
            yield from page
            if len(page) < PAGE_OF_LOG:
                return
            position = page[-1].first + 1

    def replace_batches(self, first: int, last: int, new: Sequence[Batch]) -> None:
        """Put batches in the place of all that begin from `first` to `last`."""
        with self._changing(sum(len(batch.body) for batch in new), leased=True) as changes:
            changes.execute("DELETE FROM @log WHERE first >= ? AND first <= ?", (first, last))
            changes.execute("DELETE FROM @events WHERE position >= ? AND position <= ?", (first, last))
            changes.execute("DELETE FROM @batches WHERE first >= ? AND first <= ?", (first, last))
            changes.put("log", [(one.first, one.count, one.version, one.checksum, one.body) for one in new])

    def _gap(self, expected: int, found: int) -> FileError:
        return FileError(
            f"{self.where} is damaged: log records {expected} to {found - 1} are missing; restore a backup, or keep "
            f"what comes before with `coterie store cut --at {expected}`"
        )

    def end(self) -> int:
        """Return the position of the next record to come."""
        return int(self._rows("SELECT next FROM @head")[0][0])

    def bounds(self) -> tuple[int, int]:
        """Return the position of the oldest kept record, and of the next one to come."""
        rows = self._rows(  # in one query, so that no commit comes in between
            "SELECT next, (SELECT min(first) FROM @log), (SELECT max(first) FROM @log) FROM @head"
        )
        if len(rows) != 1 or (rows[0][2] is not None and rows[0][2] >= rows[0][0]):
            raise FileError(f"{self.where} does not know where its log ends: it is damaged; restore a backup")
        end, first, _ = rows[0]
        return (end if first is None else first), end

    def users(self, first: int = 0) -> dict[int, str]:
        """Return the names of the users that were not forgotten, from the number `first` on."""
        found = {}
        query = "SELECT number, id, checksum FROM @users WHERE number >= ?"
        for number, name, checksum in self._rows(query, first):
            text = self._unpack_name(number, name, checksum)
            if text is None:
                raise FileError(f"the name of user {number} in {self.where} is damaged; restore a backup")
            found[number] = text
        return found

    def pieces(self) -> set[bytes]:
        """Return the names of the pieces of snapshots that there are."""
        return {name for (name,) in self._rows("SELECT name FROM @pieces")}

    @abstractmethod
    def version(self) -> int:
        """Return the version of the store's format."""

    def save_pieces(self, new: Mapping[bytes, bytes]) -> None:
        """Keep pieces by name, for a snapshot to come."""
        if new:
            with self._changing(sum(map(len, new.values())), leased=True) as changes:
                self._insert_pieces(changes, new)

    def save_snapshot(
        self, position: int, row: bytes, alone: bool = False, new: Mapping[bytes, bytes] | None = None
    ) -> None:
        """Keep the state after the records before `position`, together with its last pieces.

        Of the older ones the newest stays, or none if `alone`; pieces that no snapshot needs are removed.
        """
        with self._saving:
            with self._changing(len(row) + sum(map(len, (new or {}).values())), leased=True) as changes:
                self._insert_pieces(changes, new or {})
                changes.put("snapshots", [(position, zlib.crc32(row), row)])
                changes.execute(
                    "DELETE FROM @snapshots WHERE position NOT IN "
                    "(SELECT position FROM @snapshots ORDER BY position DESC LIMIT ?)",
                    (1 if alone else 2,),
                )
            self._drop_pieces()

    def _insert_pieces(self, changes: Changes, new: Mapping[bytes, bytes]) -> None:
        changes.executemany("INSERT INTO @pieces VALUES (?, ?) ON CONFLICT DO NOTHING", list(new.items()))

    def _drop_pieces(self) -> None:
        """Remove the pieces that no snapshot needs, also those of a snapshot that a crash interrupted."""
        rows = [bytes(state) for (state,) in self._rows("SELECT state FROM @snapshots")]
        unused = pieces.unused(self.pieces(), rows)
        for start in range(0, len(unused), AT_ONCE):
            some = [(name,) for name in unused[start : start + AT_ONCE]]
            with self._changing(leased=True) as changes:
                changes.executemany("DELETE FROM @pieces WHERE name = ?", some)

    def piece(self, name: bytes) -> bytes | None:
        """Return a piece of a snapshot, if it is there."""
        found = self._rows("SELECT body FROM @pieces WHERE name = ?", name)
        return found[0][0] if found and isinstance(found[0][0], bytes) else None

    def snapshots(self) -> Iterator[tuple[int, bytes]]:
        """Yield the kept snapshots with their positions, newest first. Damaged ones are skipped."""
        for (position,) in self._rows("SELECT position FROM @snapshots ORDER BY position DESC"):
            rows = self._rows("SELECT checksum, state FROM @snapshots WHERE position = ?", position)
            yield from ((position, state) for state in _whole(rows))

    def listed(self) -> list[tuple[int, int]]:
        """Return the positions of the kept snapshots and their checksums, newest first."""
        return list(self._rows("SELECT position, checksum FROM @snapshots ORDER BY position DESC"))

    def newest(self) -> int:
        """Return the position of the newest snapshot, 0 if there is none."""
        return int(self._rows("SELECT max(position) FROM @snapshots")[0][0] or 0)

    def positions(self) -> list[int]:
        """Return the positions of the kept snapshots that are sound, newest first."""
        return [position for position, state in self.snapshots() if pieces.sound(state, self.piece)]

    def scrubs(self) -> list[int]:
        """Return the users who are forgotten but not scrubbed yet."""
        return [number for (number,) in self._rows("SELECT number FROM @scrubs ORDER BY number")]

    @abstractmethod
    def _clear_free_pages(self) -> None:
        """Leave nothing of deleted rows behind."""

    def scrubbed(self, users: Sequence[int]) -> None:
        """Clear what deleted rows left in free pages, and then note that nothing of these users is left."""
        self._clear_free_pages()
        with self._changing(leased=True) as changes:
            changes.executemany("DELETE FROM @scrubs WHERE number = ?", [(user,) for user in users])

    def cut(self, at: int) -> int:
        """Remove the log from a position on, to repair it, and return how many records were removed."""
        _, end = self.bounds()
        with self._changing() as changes:
            first = changes.execute("SELECT max(first) FROM @log WHERE first <= ?", (at,)).fetchone()[0]
            place = at if first is None else first
            changes.execute("DELETE FROM @log WHERE first >= ?", (place,))
            changes.execute("DELETE FROM @events WHERE position >= ?", (place,))
            changes.execute("DELETE FROM @batches WHERE first >= ?", (place,))
            changes.execute("DELETE FROM @snapshots WHERE position > ?", (place,))
            changes.execute("UPDATE @head SET next = ?, named = ?, fixed = ?", (place, place, place))
        return int(end - place)

    def rewrite(self, batch: Batch, renamed: Mapping[str, int] | None = None) -> None:
        """Replace a kept batch by one with the same place and count: how a user is scrubbed.

        `renamed` has the events of decisions that have another id now, and their positions.
        """
        with self._changing(len(batch.body), leased=True) as changes:
            changed = changes.execute(
                "UPDATE @log SET version = ?, checksum = ?, body = ? WHERE first = ? AND count = ?",
                (batch.version, batch.checksum, batch.body, batch.first, batch.count),
            )
            if changed.rowcount != 1:
                raise StoreError(f"there is no batch at {batch.first} with {batch.count} records")
            keys = [(event_key(event), position) for event, position in (renamed or {}).items()]
            changes.executemany("DELETE FROM @events WHERE id = ? AND position = ?", keys)

    def drop_event(self, event: str, position: int) -> None:
        """Remove an event from the index whose decision is no longer at its position."""
        with self._changing() as changes:
            changes.execute("DELETE FROM @events WHERE id = ? AND position = ?", (event_key(event), position))

    def compact(self, before: int) -> None:
        """Remove batches that end before a position, the oldest first, some at a time: commits come in between."""
        while (end := self._end_of_some(before)) is not None:
            with self._changing(leased=True) as changes:
                changes.execute("DELETE FROM @log WHERE first < ?", (end,))
                changes.execute("DELETE FROM @events WHERE position < ?", (end,))
                changes.execute("DELETE FROM @batches WHERE first < ?", (end,))

    def _end_of_some(self, before: int) -> int | None:
        """Return where some of the oldest batches end that end before a position; None if there is none."""
        rows = self._rows(
            f"SELECT first, count, length(body) FROM @log WHERE first < ? ORDER BY first LIMIT {PAGE_OF_ROWS}",
            before,
        )
        end, left = None, REMOVED
        for first, count, size in rows:
            if first + count > before or left <= 0:
                break
            end, left = first + count, left - size
        return end

    def keys(self) -> list[KeyRow]:
        """Return the kept keys."""
        rows = self._rows("SELECT name, scopes, hash, created FROM @keys ORDER BY name")
        return [KeyRow(name, tuple(scopes.split()), hash_, created) for name, scopes, hash_, created in rows]

    def save_key(self, key: KeyRow) -> None:
        """Keep a key."""
        row = (key.name, " ".join(key.scopes), key.hash, key.created)
        with self._changing() as changes:
            changes.put("keys", [row])

    def drop_key(self, name: str) -> bool:
        """Remove a key, and return whether there was one."""
        with self._changing() as changes:
            return bool(changes.execute("DELETE FROM @keys WHERE name = ?", (name,)).rowcount)

    def close(self) -> None:
        """Release the store, once no thread reads or writes it; threads that come later get a StoreError."""
        with self._lock, self._reading:
            self._closed = True
            self._release()

    @abstractmethod
    def _release(self) -> None: ...

    def _check_open(self) -> None:
        if self._closed:
            raise StoreError(f"{self.where} is closed")

    def evaluations(self) -> list[bytes]:
        """Return the kept evaluations. Damaged ones are skipped."""
        rows = self._rows("SELECT checksum, body FROM @evaluations")
        return list(_whole(rows))

    def evaluation_sums(self) -> dict[bytes, int]:
        """Return the names of the kept evaluations, and a checksum of each."""
        rows = self._rows("SELECT name, checksum FROM @evaluations")
        return {bytes(name): checksum for name, checksum in rows}

    def save_evaluation(self, name: str, body: bytes) -> None:
        """Keep an evaluation, in the place of the one of that name."""
        with self._changing(len(body)) as changes:
            changes.put("evaluations", [(as_bytes(name), zlib.crc32(body), body)])

    def drop_evaluation(self, name: str) -> None:
        """Remove an evaluation."""
        with self._changing() as changes:
            changes.execute("DELETE FROM @evaluations WHERE name = ?", (as_bytes(name),))


def is_postgres(url: str) -> bool:
    """Return whether a store is in PostgreSQL, and not in a file."""
    return url.startswith(("postgresql://", "postgres://"))


def open_store(url: str, **options: Unpack[Options]) -> Store:
    """Open a file with SQLite, or a URL with PostgreSQL: for this process alone, or with `shared` beside others.

    `beside_owner` opens it while others use it, only to change its keys; `moment` does so only to read it, always as
    it is now. Without `create` it must exist.
    """
    if is_postgres(url):
        if find_spec("psycopg") is None:
            raise MissingExtraError("a store in PostgreSQL needs psycopg: pip install 'coterie[postgres]'")
        from coterie.service.log.postgres_store import PostgresStore

        return PostgresStore(url, **options)
    from coterie.service.log.sqlite_store import SqliteStore

    return SqliteStore(url.removeprefix("sqlite://"), **options)


def open_to_read(url: str) -> Store:
    """Open a store only to read it: if a process owns it, beside that process, as it is at this moment."""
    if not is_postgres(url):
        with suppress(InUseError):
            return open_store(url, create=False)
    return open_store(url, moment=True, create=False)


def as_bytes(name: str) -> bytes:
    """Return an id as bytes; it may have characters that a database's text cannot have."""
    return name.encode("utf-8", "surrogatepass")


def _whole(rows: Iterable[tuple[int, Any]]) -> Iterator[bytes]:
    """Yield the bodies whose checksum is right; others are damaged."""
    for checksum, body in rows:
        if isinstance(body, bytes) and zlib.crc32(body) == checksum:
            yield body
