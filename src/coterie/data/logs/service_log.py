"""The service's own log as interactions: its store, opened read-only, and its Parquet export.

Both hold the records of `coterie.service.core.records`, as MessagePack and as JSON; here they are plain
dicts. A decision becomes an interaction when its reward is final (see `pending.py`).
"""

import base64
import json
import sqlite3
import sys
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, final
from urllib.parse import quote

import numpy as np

from coterie.arrays import Floats
from coterie.data.logs.interactions import (
    SHARED,
    SLOTS,
    Interaction,
    InteractionLog,
    Named,
    check_interaction,
)
from coterie.data.logs.pending import Pending, Settled
from coterie.errors import ContextError, FileError, MissingExtraError
from coterie.models.features import flatten

APPLICATION = 0x636F7465  # "cote": SQLite's application id of a store
VERSION = 2  # of batches
FORMAT = "1"  # of the Parquet export
SQLITE = b"SQLite format 3\0"
RULES = (
    "wait",
    "default_reward",
    "aggregation",
)  # the settings that say when a reward is final, and what it is
NOTES = {  # what is counted in `left_out`
    "waiting": "{:,} decisions could still get a reward when the log ended; they count with what they had by then.",
    "deferred": "{:,} decisions were never shown, and were left out.",
    "forgotten": "{:,} decisions for forgotten users were left out.",
    "holdback": "{:,} decisions for users who were held back were left out: they were shown the baseline whatever "
    "the policy preferred. Chance decided who is held back, so the others stand for all.",
    "slots": SLOTS,
}

MOST_SHARED = 100_000  # features that are kept once

Record = Mapping[str, Any]


def is_store(path: Path) -> bool:
    """Tell whether a file is an SQLite database."""
    with path.open("rb") as file:
        return file.read(len(SQLITE)) == SQLITE


def is_export(path: Path) -> bool:
    """Tell whether a Parquet file is a service's export."""
    return _export_format(path) is not None


def columns_of(path: Path) -> list[str]:
    """Return the columns of a Parquet file; empty if it cannot be read."""
    schema = _schema(path)
    return [] if schema is None else list(schema.names)


def read_store(path: Path) -> InteractionLog:
    """Read a service's SQLite store. It is opened read-only; a service may continue to write to it."""
    names: dict[int, str] = {}
    try:
        with closing(sqlite3.connect(_address(path), uri=True)) as connection:
            connection.execute("BEGIN")  # one view of all tables
            if connection.execute("PRAGMA application_id").fetchone()[0] != APPLICATION:
                raise FileError(f"{path} is a database of something else, not a coterie store")
            names.update(connection.execute("SELECT number, id FROM users"))
            rows = connection.execute("SELECT first, count, version, checksum, body FROM log ORDER BY first")
            return from_records(str(path), _unpacked(str(path), rows), names)
    except sqlite3.Error as error:
        raise FileError(f"{path} cannot be read as a coterie store: {error}") from error


def read_database(url: str) -> InteractionLog:
    """Read a service's PostgreSQL store as it is at one moment; a service may continue to write to it."""
    try:
        import psycopg
    except ImportError as error:
        message = "a store in PostgreSQL needs psycopg: pip install 'coterie[postgres]'"
        raise MissingExtraError(message) from error
    try:
        with psycopg.connect(url, connect_timeout=10) as connection:
            connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            names = {
                number: bytes(name).decode("utf-8", "surrogatepass")
                for number, name in connection.execute("SELECT number, id FROM coterie_users")
            }
            with connection.cursor(
                name="log"
            ) as rows:  # on the server, so that memory holds only some of them
                rows.itersize = 500
                rows.execute("SELECT first, count, version, checksum, body FROM coterie_log ORDER BY first")
                where = f"the PostgreSQL store {connection.info.dbname}"
                return from_records(where, _unpacked(where, rows), names)
    except psycopg.errors.UndefinedTable as error:
        raise FileError(
            "there is no store in the database; name the one `coterie serve` was given"
        ) from error
    except psycopg.Error as error:  # the URL may hold a password, so it is not part of the message
        raise FileError(f"the PostgreSQL store cannot be read: {' '.join(str(error).split())}") from error


def read_export(path: Path) -> InteractionLog:
    """Read a service's Parquet export."""
    found = _export_format(path)
    if found != FORMAT:
        raise FileError(
            f"{path} has log format {found!r}, expected {FORMAT!r}: a log to evaluate has the probabilities of its "
            "choices, as `coterie store export log.parquet` writes it"
        )
    parquet = _parquet()
    names: dict[int, str] = {}

    def records() -> Iterator[tuple[int, Record]]:
        with parquet.ParquetFile(path) as file:
            for part in file.iter_batches(batch_size=20_000, columns=["position", "user", "record"]):
                for row in part.to_pylist():
                    record = json.loads(row["record"])
                    if row["user"] is not None:
                        names[record["user"]] = row["user"]
                    yield row["position"], record

    try:
        return from_records(str(path), records(), names)
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise FileError(f"{path} cannot be read as an exported log: {error}") from error


def _address(path: Path) -> str:
    """Return the URL with which SQLite opens a file without creating other files beside it."""
    place = quote(str(path.absolute()))
    # Without a write-ahead log no process is writing; SQLite would create one to read, unless `immutable` is
    # set.
    waiting = Path(f"{path}-wal")
    return f"file:{place}?mode=ro" + ("" if waiting.exists() else "&immutable=1")


def _unpacked(path: str, rows: Iterable[Any]) -> Iterator[tuple[int, Record]]:
    """Yield each record with its position."""
    try:
        import msgspec
    except ImportError as error:
        raise MissingExtraError("a service's store needs msgspec: pip install 'coterie[service]'") from error
    expected = None
    for first, count, version, checksum, body in rows:
        where = f"log records {first} to {first + count - 1} of {path}"
        if version != VERSION:
            raise FileError(f"{where} have format version {version}, this coterie reads version {VERSION}")
        if zlib.crc32(body, zlib.crc32(b"%d %d %d " % (version, first, count))) != checksum:
            raise FileError(
                f"{where} are damaged: their checksum does not fit; restore a backup of the store"
            )
        if expected not in (None, first):
            raise FileError(f"{path} is damaged: log records {expected} to {first - 1} are missing")
        expected = first + count
        try:
            found = msgspec.msgpack.decode(zlib.decompress(body))
        except (msgspec.MsgspecError, zlib.error) as error:
            raise FileError(f"{where} cannot be read: {error}") from error
        yield from enumerate(found, first)


def from_records(
    where: str, records: Iterable[tuple[int, Record]], names: Mapping[int, str]
) -> InteractionLog:
    """Return the interactions of records, each a dict with its position; errors name `where` they come from."""
    left_out: Counter[str] = Counter()
    found = [*_settled(where, records, names, left_out)]
    if not found:
        raise FileError(f"{where} has no decision that was shown; there is nothing to evaluate")
    notes = tuple(note.format(left_out[why]) for why, note in NOTES.items() if left_out[why])
    return InteractionLog(Path(where).name, found, notes)


def _settled(
    where: str, records: Iterable[tuple[int, Record]], names: Mapping[int, str], left_out: Counter[str]
) -> Iterator[Interaction]:
    """Yield the decisions in order, each when its reward is final."""
    pending: Pending[tuple[int, Record]] = Pending()
    activated: set[str] = set()  # deferred decisions that were shown
    shared = Shared()
    for position, record in records:
        done: Iterable[Settled] = ()
        kind = record["type"]
        if kind == "configure":
            rules = ((name, record["config"].get(name.replace("_", "-"))) for name in RULES)
            pending.configure(**{name: value for name, value in rules if value is not None})
        elif kind == "rank":
            pending.add(record["event"], record["at"], (position, record))
        elif kind == "reward" and record["outcome"] == "applied":
            pending.reward(record["event"], record["value"])
        elif kind == "activate":
            activated.add(record["event"])
        elif kind == "tick":
            done = pending.tick(record["at"], record.get("jump", 0))
        for one in done:
            if _counts(one, activated, left_out):
                yield _interaction(where, one, names, shared)
    for one in pending.rest():
        if _counts(one, activated, left_out):
            left_out["waiting"] += not one.has_reward
            yield _interaction(where, one, names, shared)


def _counts(one: Settled, activated: set[str], left_out: Counter[str]) -> bool:
    """Return whether a decision was shown to a known user by the policy; count why not, and the slots."""
    _, record = one.decision
    shown = not record.get("deferred") or one.event in activated
    activated.discard(one.event)
    if not shown:
        left_out["deferred"] += 1
    elif one.event.startswith("\0"):
        left_out["forgotten"] += 1
    elif record.get("arm") == "holdback":
        left_out["holdback"] += 1
    else:
        left_out["slots"] += record.get("slot") is not None
        return True
    return False


@final
class Shared:
    """Keeps equal features and ids once: most actions are offered many times."""

    def __init__(self) -> None:
        self._features: dict[tuple[tuple[str, float], ...], Named] = {}

    def features(self, parts: Any) -> Named:
        """Return features by name; those that were returned before, if they are equal."""
        flat = flatten(parts or ())
        key = tuple((sys.intern(name), value) for name, value in flat.items())
        if len(self._features) >= MOST_SHARED:
            self._features.clear()
        return self._features.setdefault(key, dict(key))


def _interaction(source: str, settled: Settled, names: Mapping[int, str], shared: "Shared") -> Interaction:
    position, record = settled.decision
    where = f"log record {position} of {source}"
    excluded = set(record.get("excluded", ()))
    allowed = [k for k in range(len(record["actions"])) if k not in excluded]
    sent = (
        json.loads(_bytes(record["features"])) if record.get("features") else {"context": [], "actions": []}
    )
    try:
        flat = [shared.features(part) for part in sent["actions"]]
        context = shared.features(sent["context"])
    except ContextError as error:
        raise FileError(f"{where}: {error}") from error
    found = Interaction(
        user=names.get(record["user"], SHARED if not names else f"user {record['user']}"),
        actions=tuple(sys.intern(record["actions"][k]) for k in allowed),
        features=tuple(flat[k] for k in allowed) if any(flat) else None,
        context=context,
        chosen=allowed.index(record["choice"]),
        probability=float(record["probability"]),
        chances=_chances(record, allowed),
        reward=settled.reward,
        baseline=allowed.index(record["baseline"]),
        at=record["at"] / 1000,
    )
    return check_interaction(where, found)


def _chances(record: Record, allowed: list[int]) -> Floats:
    """Return the probability of each action that is not excluded."""
    if record.get("chances"):
        return np.frombuffer(_bytes(record["chances"])).copy()
    n = len(allowed)
    if record.get("shown") == "baseline":
        return np.array([float(k == record["choice"]) for k in allowed])
    share = record["exploration"]
    return np.array([share / n + (1 - share if k == record["best"] else 0.0) for k in allowed])


def _bytes(value: Any) -> bytes:
    """Return the original bytes, which JSON holds as base64."""
    return base64.b64decode(value) if isinstance(value, str) else value


def _export_format(path: Path) -> str | None:
    """Return the log format that a Parquet file names; None if it names none or cannot be read."""
    schema = _schema(path)
    found: bytes | None = None if schema is None else (schema.metadata or {}).get(b"coterie-log")
    return None if found is None else found.decode()


def _schema(path: Path) -> Any:
    try:
        return _parquet().read_schema(path)
    except (OSError, ValueError):
        return None


def _parquet() -> Any:
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise MissingExtraError("Parquet needs pyarrow: pip install 'coterie[experiments]'") from error
    return pyarrow.parquet
