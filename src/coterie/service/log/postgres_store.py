"""The store in PostgreSQL, to which services on several machines append."""

import secrets
import threading
import time
import zlib
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple, Unpack, final

import psycopg
from psycopg import errors
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import TransactionStatus

from coterie.errors import FileError
from coterie.service.log.store import MAINTENANCE, VERSION, Append, Changes, Options, Store, as_bytes
from coterie.service.settings import Durability
from coterie.service.store_errors import (
    AloneError,
    BrokenError,
    FullError,
    InUseError,
    LostError,
    PassingError,
    StoreError,
    TakenError,
)

LOCK = 0x636F746572696500  # held by whoever uses the database: shared by services, alone by a tool
PATIENCE = 2.0  # seconds that a tool waits for a database whose last service has just ended
LEASE = 3.0  # seconds without a beat of its holder after which a lease is free
LOOK = 0.5  # seconds that count at most between two looks at the beat: whoever looks may have been stopped itself
SILENCE = 5.0  # seconds that the server may take for a short statement
LONG = 600.0  # and for a long one
SURE = 1.0  # seconds in which an answer must come for its time to be believed

# Each side notices within 3 s that the other is gone.
HERE = {"keepalives_idle": 1, "keepalives_interval": 1, "keepalives_count": 2, "tcp_user_timeout": 3000}
THERE = {f"tcp_{name.removeprefix('tcp_')}": value for name, value in HERE.items()} | {
    "lock_timeout": 2000,
    "idle_in_transaction_session_timeout": 4000,  # so that a client that is stopped holds nothing for long
}

# What passes by itself, by SQLSTATE: whole classes (rolled back, too few resources, an operator's order), and a
# read-only server, a transaction that failed before, a lock that others hold, and an object that is in use.
PASSING = ("40", "53", "57", "25006", "25P02", "55P03", "55006")
GONE = ("08", "57P01", "57P02", "57P03", "57P05", "25P03")  # with these the session is over

# Refusals of a connection that no waiting ends.
NEVER = ("password authentication failed", "no password supplied", "does not exist", "no pg_hba.conf entry")

SCHEMA = f"""
CREATE TABLE IF NOT EXISTS coterie_version (version INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS coterie_log (first BIGINT PRIMARY KEY, count BIGINT NOT NULL, version INTEGER NOT NULL,
                                        checksum BIGINT NOT NULL, body BYTEA NOT NULL);
CREATE TABLE IF NOT EXISTS coterie_users (number BIGINT PRIMARY KEY, id BYTEA NOT NULL, checksum BIGINT NOT NULL);
CREATE TABLE IF NOT EXISTS coterie_snapshots (position BIGINT PRIMARY KEY, checksum BIGINT NOT NULL,
                                              state BYTEA NOT NULL);
CREATE TABLE IF NOT EXISTS coterie_keys (name TEXT PRIMARY KEY, scopes TEXT NOT NULL, hash BYTEA NOT NULL,
                                         created BIGINT NOT NULL);
CREATE TABLE IF NOT EXISTS coterie_scrubs (number BIGINT PRIMARY KEY);
CREATE TABLE IF NOT EXISTS coterie_head (next BIGINT NOT NULL, named BIGINT NOT NULL, fixed BIGINT NOT NULL);
CREATE TABLE IF NOT EXISTS coterie_pieces (name BYTEA PRIMARY KEY, body BYTEA NOT NULL);
CREATE TABLE IF NOT EXISTS coterie_evaluations (name BYTEA PRIMARY KEY, checksum BIGINT NOT NULL,
                                                body BYTEA NOT NULL);
CREATE TABLE IF NOT EXISTS coterie_events (id BYTEA PRIMARY KEY, position BIGINT NOT NULL);
CREATE INDEX IF NOT EXISTS coterie_events_by_position ON coterie_events (position);
CREATE TABLE IF NOT EXISTS coterie_batches (first BIGINT PRIMARY KEY, users BYTEA NOT NULL);
CREATE TABLE IF NOT EXISTS coterie_leases (name TEXT PRIMARY KEY, holder TEXT NOT NULL, beat BIGINT NOT NULL);
INSERT INTO coterie_version SELECT {VERSION} WHERE NOT EXISTS (SELECT FROM coterie_version);
INSERT INTO coterie_head SELECT 0, 0, 0 WHERE NOT EXISTS (SELECT FROM coterie_head);
"""
TAKEN = """
INSERT INTO coterie_leases VALUES (%(name)s, %(me)s, 1)
ON CONFLICT (name) DO UPDATE SET holder = EXCLUDED.holder, beat = coterie_leases.beat + 1
WHERE coterie_leases.holder IN ('', EXCLUDED.holder)
   OR (coterie_leases.holder, coterie_leases.beat) = (%(holder)s, %(beat)s)
"""
HELD = "SELECT 1 FROM coterie_leases WHERE name = %s AND holder = %s FOR SHARE"
TOOL = """
INSERT INTO coterie_leases VALUES ('tool', '', 1) ON CONFLICT (name) DO UPDATE SET beat = coterie_leases.beat + 1
"""
# One statement, so that no lock is held while the client is asked for more: a client that is stopped stops nobody.
APPEND = """
WITH moved AS (
    UPDATE coterie_head SET next = next + %(count)s,
        named = CASE WHEN %(naming)s THEN next + %(count)s ELSE named END,
        fixed = CASE WHEN %(fixes)s THEN next + %(count)s ELSE fixed END
    WHERE next = %(first)s OR (%(moves)s AND fixed <= %(first)s AND next > %(first)s
                               AND (named <= %(first)s OR NOT %(naming)s))
    RETURNING next - %(count)s AS first
),
named AS (
    INSERT INTO coterie_users
    SELECT new.* FROM moved, unnest(%(numbers)s::bigint[], %(names)s::bytea[], %(sums)s::bigint[]) AS new
    ON CONFLICT (number) DO UPDATE SET id = EXCLUDED.id, checksum = EXCLUDED.checksum
),
gone AS (DELETE FROM coterie_users USING moved WHERE number = ANY(%(forgotten)s::bigint[])),
scrubs AS (
    INSERT INTO coterie_scrubs SELECT number FROM moved, unnest(%(scrub)s::bigint[]) AS new (number)
    ON CONFLICT DO NOTHING
),
events AS (
    INSERT INTO coterie_events
    SELECT id, place - %(first)s + first
    FROM moved, unnest(%(keys)s::bytea[], %(places)s::bigint[]) AS new (id, place)
),
users AS (
    INSERT INTO coterie_batches SELECT first, %(users)s FROM moved WHERE length(%(users)s::bytea) > 0
    ON CONFLICT (first) DO UPDATE SET users = EXCLUDED.users
)
INSERT INTO coterie_log
SELECT first, %(count)s, %(version)s, %(checksum)s # ((first # %(first)s) & 4294967295), %(body)s FROM moved
RETURNING first
"""


@final
class Session(psycopg.Connection[Any]):
    """A connection that ends when the server is silent for too long: its process may be stopped, and the kernel
    answers for it.
    """

    patience = SILENCE

    def wait(self, gen: Any, *arguments: Any, **more: Any) -> Any:
        """Wait as psycopg does, with an end."""
        try:
            return super().wait(_until_silent(gen, self.patience), *arguments, **more)
        except _SilentError as error:
            self.close()
            raise psycopg.OperationalError(str(error)) from error


class _SilentError(Exception):
    pass


def _until_silent(gen: Any, patience: float) -> Generator[Any, Any, Any]:
    """Pass on what psycopg waits for, until nothing has come for so many seconds."""
    end = time.monotonic() + patience
    try:
        wanted = next(gen)
        while True:
            ready = yield wanted
            now = time.monotonic()
            if ready:
                end = now + patience
            elif now > end:
                raise _SilentError(f"the server has not answered for {patience:g} s")
            wanted = gen.send(ready)
    except StopIteration as stop:
        return stop.value


class _Beat(NamedTuple):
    """A lease as it was last seen."""

    holder: str
    beat: int
    looked: float  # when that was
    still: float  # for how many seconds nothing had changed


@final
class PostgresStore(Store):
    """A log in a database. Writes, reads and leases have a session each, opened again when it is lost.

    A lease is a row with its holder and a beat, which the holder raises. It is free if the beat stands still for too
    long: then its holder is gone or stopped, though its kernel answers for it.
    """

    where = "the PostgreSQL store"
    _conflict = errors.UniqueViolation

    def __init__(self, url: str, **options: Unpack[Options]) -> None:
        super().__init__(**options)
        self._url = url
        self._sessions: dict[str, Session] = {}
        self._leasing = threading.Lock()  # of the session with the leases
        self._me = secrets.token_hex(8)  # as the holder of a lease
        self._beats: dict[str, _Beat] = {}
        self._ahead: int | None = None  # milliseconds of the server's time of day, of the steady time here
        self._tools: int | None = None  # how often a tool has used the database alone
        try:
            self._open(time.monotonic() + PATIENCE)
        except psycopg.Error as error:
            self._release()
            # The URL may hold a password, so it is not part of the message.
            kind = LostError if self._shared and _comes_back(error) else FileError
            raise kind(f"the PostgreSQL store cannot be opened: {_line(error)}") from error
        except BaseException:
            self._release()
            raise

    def _open(self, end: float) -> None:
        """Connect; whoever has the database alone may be about to end."""
        while True:
            try:
                self._prepare()
                self._session("read")
                if not self._beside_owner:
                    self.end()  # and the time
                return
            except AloneError as error:
                if time.monotonic() >= end:
                    raise InUseError(f"{error}; stop that one first") from error
                time.sleep(0.05)

    def _session(self, name: str) -> Session:
        """Return a session, connected again if it was lost."""
        found = self._sessions.get(name)
        if found is None or found.closed:
            given: dict[str, Any] = {**HERE, "connect_timeout": 3, **conninfo_to_dict(self._url)}
            found = Session.connect(autocommit=True, **given)
            level = "on" if self.durability is Durability.LOSE_NOTHING else "off"
            found.execute(f"SET synchronous_commit = {level}")
            found.execute(  # an old server may not know all of them
                "SELECT set_config(name, value, false) FROM pg_settings "
                "JOIN unnest(%s::text[], %s::text[]) AS given (name, value) USING (name)",
                (list(THERE), [str(value) for value in THERE.values()]),
            )
            if name == "lease":
                # Not lost by a crash of the server that matters: a lease that nobody renews is free.
                found.execute("SET synchronous_commit = off")
            try:
                self._use(found, name)
            except BaseException:
                found.close()
                raise
            if self._moment:
                found.execute("SET idle_in_transaction_session_timeout = 0")
                found.execute("BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            self._sessions[name] = found
        return found

    @property
    def _write(self) -> Session:
        return self._session("write")

    @property
    def _read(self) -> Session:
        return self._session("read")

    @property
    def _lease(self) -> Session:
        return self._session("lease")

    # Others.

    def _use(self, session: Session, name: str) -> None:
        """Hold the lock of whoever uses the database: a service in all its sessions, a tool in the one that writes.

        A service that was cut off while a tool had the database does not know what the log says now.
        """
        if self._beside_owner or not (self._shared or name == "write"):
            return
        kind = "_shared" if self._shared else ""
        row = session.execute(f"SELECT pg_try_advisory_lock{kind}(%s)", (LOCK,)).fetchone()
        if row is None or not row[0]:
            raise AloneError("the database is in use by another coterie")
        if not self._made("coterie_leases", session):
            return  # it is new
        if not self._shared:
            session.execute(TOOL)
        row = session.execute("SELECT beat FROM coterie_leases WHERE name = 'tool'").fetchone()
        tools = 0 if row is None else int(row[0])
        if self._shared and self._tools not in (None, tools):
            raise BrokenError("a tool has used the database alone while the connection to it was lost")
        self._tools = tools

    def take_lease(self, name: str) -> bool:
        """Take a lease if it is free, or renew it."""
        with self._leasing:
            self._check_open()
            try:
                return self._take(name)
            except psycopg.Error as error:
                named = self._named(error, "lease")
                self._drop("lease")
                raise named from error

    def _take(self, name: str) -> bool:
        session, now = self._lease, time.monotonic()
        row = session.execute("SELECT holder, beat FROM coterie_leases WHERE name = %s", (name,)).fetchone()
        seen = self._beats.get(name, _Beat("", -1, now, 0.0))
        holder, beat = row or ("", -1)
        still = (
            seen.still + min(now - seen.looked, LOOK) if (holder, beat) == (seen.holder, seen.beat) else 0.0
        )
        self._beats[name] = _Beat(holder, beat, now, still)
        if holder not in ("", self._me) and still < LEASE:
            return False
        given = {"name": name, "me": self._me, "holder": holder, "beat": beat}
        return session.execute(TAKEN, given).rowcount == 1

    def drop_lease(self, name: str) -> None:
        """Let others have a lease."""
        with self._leasing:
            try:
                self._lease.execute(
                    "UPDATE coterie_leases SET holder = '' WHERE name = %s AND holder = %s", (name, self._me)
                )
            except (psycopg.Error, StoreError):  # it ends by itself
                self._drop("lease")

    def time(self) -> int:
        """Return the server's time of day, the same for all; each look at the end asks for it."""
        ahead = self._ahead
        return (time.time_ns() if ahead is None else time.monotonic_ns()) // 1_000_000 + (ahead or 0)

    def end(self) -> int:
        """Return the position of the next record to come."""
        asked = time.monotonic_ns()
        row = self._rows("SELECT next, extract(epoch FROM clock_timestamp()) * 1000 FROM @head")[0]
        now = time.monotonic_ns()
        if self._ahead is None or now - asked < SURE * 1e9:  # else the answer was on its way for unknown long
            self._ahead = int(row[1]) - now // 1_000_000
        return int(row[0])

    # Writing.

    def _append(self, appends: Append) -> int | None:
        batch = appends.batch
        index = self._index_of(appends)
        if appends.moves and not index.events:
            index.events[secrets.token_bytes(16)] = batch.first  # finds it again if the connection is lost
        names = [self._pack_name(number, name) for number, name in appends.named.items()]
        numbers, ids, sums = (list(column) for column in zip(*names, strict=True)) if names else ([], [], [])
        given = {
            "first": batch.first,
            "moves": appends.moves,
            "fixes": appends.fixes,
            "naming": bool(appends.named),
            "count": batch.count,
            "version": batch.version,
            "checksum": batch.checksum,
            "body": batch.body,
            "numbers": numbers,
            "names": ids,
            "sums": sums,
            "forgotten": list(appends.forgotten),
            "scrub": list(appends.scrub),
            "keys": list(index.events),
            "places": list(index.events.values()),
            "users": index.users,
        }
        with self._lock:
            self._check_open()
            try:
                row = self._write.execute(APPEND, given).fetchone()
                return None if row is None else int(row[0])
            except errors.UniqueViolation as error:
                raise TakenError("an event of the batch was decided before") from error
            except psycopg.Error as error:
                raise self._named(error, "write") from error

    def sync(self) -> None:
        """Commit once more and wait for the disk, which makes all earlier commits durable too."""
        with self._changing() as cursor:
            cursor.execute("SET LOCAL synchronous_commit = on")
            cursor.execute("UPDATE coterie_version SET version = version")

    def _clear_free_pages(self) -> None:
        self._check_open()
        try:  # in a session of its own, because it is long, and the log goes on
            session = self._session("vacuum")
            session.patience = LONG
            session.execute("VACUUM coterie_log, coterie_users, coterie_snapshots, coterie_pieces")
        except psycopg.Error as error:
            raise self._named(error, "vacuum") from error
        finally:
            self._drop("vacuum")

    @contextmanager
    def _writing(self, patience: float) -> Iterator[Session]:
        """Yield the session that writes, for statements of so many seconds."""
        try:
            session = self._write
            session.execute("SELECT 1")
        except psycopg.Error as error:
            if not isinstance(self._named(error, "write"), LostError):
                raise
            session = self._write  # it was ended while nobody used it
        session.patience = patience
        try:
            yield session
        finally:
            session.patience = SILENCE

    def version(self) -> int:
        return int(self._rows("SELECT version FROM coterie_version")[0][0])

    def _release(self) -> None:
        with self._leasing:
            for name in list(self._sessions):
                self._drop(name)

    def _drop(self, name: str) -> None:
        if (session := self._sessions.pop(name, None)) is not None:
            session.close()

    def _made(self, table: str, session: Session) -> bool:
        """Return whether there is a table."""
        row = session.execute("SELECT to_regclass(%s) IS NOT NULL", (table,)).fetchone()
        return row is not None and bool(row[0])

    def _prepare(self) -> None:
        """Make the tables that are missing, and check the version of the store."""
        if not self._made("coterie_version", self._write) and not self._create:
            raise FileError("there is no store in the database; name the one `coterie serve` was given")
        if not (self._moment or self._made("coterie_leases", self._write)):
            session = self._write
            with session.transaction():
                session.execute("SELECT pg_advisory_xact_lock(%s)", (LOCK - 1,))  # one process at a time
                session.execute(SCHEMA)
        found = self._write.execute("SELECT version FROM coterie_version").fetchone()
        if found is None or found[0] != VERSION:
            raise FileError(
                f"the database has store version {found and found[0]}, this coterie reads version {VERSION}; "
                "open it with the coterie that wrote it"
            )

    def _rows(self, query: str, *values: Any) -> list[Any]:
        with self._reading:
            self._check_open()
            try:
                try:
                    return self._read.execute(_translated(query), values).fetchall()
                except psycopg.Error as error:
                    if self._moment or not isinstance(self._named(error, "read"), LostError):
                        raise
                    return self._read.execute(_translated(query), values).fetchall()  # in a new session
            except psycopg.Error as error:
                named = self._named(error, "read")
                if isinstance(named, PassingError):
                    raise named from error
                raise FileError(f"the PostgreSQL store cannot be read: {_line(error)}") from error

    def _pack_name(self, number: int, name: str) -> tuple[int, bytes, int]:
        packed = as_bytes(name)  # PostgreSQL's text cannot hold U+0000
        return number, packed, zlib.crc32(packed)

    def _unpack_name(self, number: int, name: Any, checksum: int) -> str | None:
        return name.decode("utf-8", "surrogatepass") if zlib.crc32(name) == checksum else None

    @contextmanager
    def _changing(
        self, size: int = 0, urgent: bool = False, long: bool = False, leased: bool = False
    ) -> Iterator[Changes]:
        with self._lock:
            self._check_open()
            try:
                with (
                    self._writing(LONG if long else SILENCE) as session,
                    session.transaction(),
                    session.cursor() as cursor,
                ):
                    yield Changes(cursor, _translated)
                    # As the last statement, with a lock on the row: nobody takes the lease before the commit.
                    if (
                        leased
                        and self._shared
                        and not cursor.execute(HELD, (MAINTENANCE, self._me)).fetchone()
                    ):
                        raise StoreError(
                            "another service has taken over this work, because this one stood still"
                        )
            except psycopg.Error as error:
                raise self._named(error, "write") from error

    def _named(self, error: psycopg.Error, name: str) -> StoreError:
        """Return the error in a session by its kind."""
        state = error.sqlstate or ""
        session = self._sessions.get(name)
        connected = session is not None and not session.closed
        unsaid = not state and isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
        if not connected or unsaid or state.startswith(GONE):
            self._drop(name)
            return LostError(f"the connection to PostgreSQL is lost: {_line(error)}")
        if session is not None and session.info.transaction_status != TransactionStatus.IDLE:
            self._drop(name)  # its transaction could not be ended, because that was cancelled, too
        if isinstance(error, errors.DiskFull):
            return FullError(f"the store is full: {_line(error)}; make room on the server's disk")
        if state.startswith(PASSING):
            return PassingError(f"PostgreSQL takes no records for now: {_line(error)}")
        return BrokenError(f"writing to the store failed: {_line(error)}; check the server")


def _comes_back(error: psycopg.Error) -> bool:
    """Return whether a database that cannot be opened may be opened later; libpq has no code for a refusal."""
    if error.sqlstate:
        return error.sqlstate.startswith((*PASSING, *GONE))
    return isinstance(error, psycopg.OperationalError) and not any(text in str(error) for text in NEVER)


@cache
def _translated(statement: str) -> str:
    """Return a shared statement as PostgreSQL reads it."""
    for theirs, ours in (
        (" WITHOUT ROWID", ""),
        ("@", "coterie_"),
        ("?", "%s"),
        (" BLOB", " BYTEA"),
        (" INTEGER", " BIGINT"),
    ):
        statement = statement.replace(theirs, ours)
    return statement


def _line(error: psycopg.Error) -> str:
    """Return the server's message in one line."""
    return " ".join(str(error).split())
