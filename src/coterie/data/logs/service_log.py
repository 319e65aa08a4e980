"""The service's own log as interactions: its store, opened read-only, and its Parquet export.

A decision becomes an interaction when its reward is final (see `settling.py`).
"""

import sqlite3
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, final
from urllib.parse import quote

import msgspec

from coterie.data.files import need
from coterie.data.logs.interactions import (
    SHARED,
    SLOTS,
    Interaction,
    InteractionLog,
    Named,
    check_interaction,
)
from coterie.data.logs.records import Batch, Record, flatten
from coterie.data.logs.settling import Settled, settled
from coterie.errors import ContextError, FileError
from coterie.models.features import flatten as flat_features

APPLICATION = 0x636F7465  # "cote": SQLite's application id of a store
FORMAT = "2"  # of the Parquet export
ROWS = 20_000  # of it, read at once
NOTES = {  # what is counted in `left_out`
    "waiting": "{:,} decisions could still get a reward when the log ended; they count with what they had by then.",
    "deferred": "{:,} decisions were never shown, and were left out.",
    "forgotten": "{:,} decisions for forgotten users were left out.",
    "holdback": "{:,} decisions for users who were held back were left out: they were shown the baseline whatever "
    "the policy preferred. Chance decided who is held back, so the others stand for all.",
    "slots": SLOTS,
}

MOST_SHARED = 100_000  # features that are kept once

_json = msgspec.json.Decoder(Record)


def read_store(path: Path) -> InteractionLog:
    """Read a service's SQLite store. It is opened read-only; a service may continue to write to it."""
    names: dict[int, str] = {}
    try:
        with closing(sqlite3.connect(_address(path), uri=True)) as connection:
            connection.execute("BEGIN")  # one view of all tables
            if connection.execute("PRAGMA application_id").fetchone()[0] != APPLICATION:
                raise FileError(f"{path} is a database of something else, not a coterie store")
            names.update(connection.execute("SELECT number, id FROM users"))
            rows = connection.execute("SELECT first, count, body, checksum, version FROM log ORDER BY first")
            return from_records(str(path), _unpacked(str(path), rows), names)
    except sqlite3.Error as error:
        raise FileError(f"{path} cannot be read as a coterie store: {error}") from error


def read_database(url: str) -> InteractionLog:
    """Read a service's PostgreSQL store as it is at one moment; a service may continue to write to it."""
    psycopg = need("psycopg", "a store in PostgreSQL", "postgres")
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
                rows.execute("SELECT first, count, body, checksum, version FROM coterie_log ORDER BY first")
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
    names: dict[int, str] = {}

    def records() -> Iterator[tuple[int, Record]]:
        for position, user, record in exported(path):
            if user is not None:
                names[record.user] = user  # type: ignore[union-attr]
            yield position, record

    return from_records(str(path), records(), names)


def exported(path: Path) -> Iterator[tuple[int, str | None, Record]]:
    """Yield the records of a Parquet export in order, each with its position and the name of its user."""
    parquet = need("pyarrow.parquet", "Parquet")
    try:
        with parquet.ParquetFile(path) as file:
            found = (file.schema_arrow.metadata or {}).get(b"coterie-log", b"none").decode()
            if found != FORMAT:
                raise FileError(
                    f"{path} has log format {found!r}, expected {FORMAT!r}: a log to evaluate has the probabilities "
                    "of its choices, as `coterie store export log.parquet` writes it"
                )
            expected = None
            for part in file.iter_batches(batch_size=ROWS, columns=["position", "user", "record"]):
                for row in part.to_pylist():
                    if expected is not None and row["position"] != expected:
                        raise FileError(f"{path} lacks record {expected}")
                    expected = row["position"] + 1
                    yield row["position"], row["user"], _json.decode(row["record"])
    except (
        OSError,
        ValueError,
        TypeError,
        KeyError,
        msgspec.MsgspecError,
    ) as error:  # Arrow's errors are of these
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

    def batches() -> Iterator[Batch]:
        expected = None
        for row in rows:
            batch = Batch(*row)
            if expected not in (None, batch.first):
                raise FileError(f"log records {expected} to {batch.first - 1} are missing; restore a backup")
            expected = batch.first + batch.count
            yield batch

    try:
        yield from flatten(batches())
    except FileError as error:
        raise FileError(f"{path} cannot be read: {error}") from error


def from_records(
    where: str, records: Iterable[tuple[int, Record]], names: Mapping[int, str]
) -> InteractionLog:
    """Return the interactions of records; errors name `where` they come from."""
    return from_settled(where, settled(records), names)


def from_settled(where: str, decisions: Iterable[Settled], names: Mapping[int, str]) -> InteractionLog:
    """Return the interactions of decisions whose rewards are final; `names` is filled as these are read."""
    left_out: Counter[str] = Counter()
    shared = Shared()
    found = [_interaction(where, one, names, shared) for one in decisions if _counts(one, left_out)]
    if not found:
        raise FileError(f"{where} has no decision that was shown; there is nothing to evaluate")
    notes = tuple(note.format(left_out[why]) for why, note in NOTES.items() if left_out[why])
    return InteractionLog(Path(where).name, found, notes)


def _counts(one: Settled, left_out: Counter[str]) -> bool:
    """Return whether a decision was shown to a known user by the policy; count why not, and the slots."""
    if not one.was_shown:
        left_out["deferred"] += 1
    elif one.decision.event.startswith("\0"):
        left_out["forgotten"] += 1
    elif one.decision.arm == "holdback":
        left_out["holdback"] += 1
    else:
        left_out["slots"] += one.decision.slot is not None
        left_out["waiting"] += not one.is_over and not one.count
        return True
    return False


@final
class Shared:
    """Keeps equal features and ids once: most actions are offered many times."""

    def __init__(self) -> None:
        self._features: dict[tuple[tuple[str, float], ...], Named] = {}

    def features(self, parts: Any) -> Named:
        """Return features by name; those that were returned before, if they are equal."""
        flat = flat_features(parts or ())
        key = tuple((sys.intern(name), value) for name, value in flat.items())
        if len(self._features) >= MOST_SHARED:
            self._features.clear()
        return self._features.setdefault(key, dict(key))


def _interaction(source: str, one: Settled, names: Mapping[int, str], shared: Shared) -> Interaction:
    record, where = one.decision, f"log record {one.position} of {source}"
    open_to, (around, sent) = record.open_to, record.sent
    try:
        flat = [shared.features(part) for part in sent]
        context = shared.features(around)
    except ContextError as error:
        raise FileError(f"{where}: {error}") from error
    found = Interaction(
        user=names.get(record.user, SHARED if not names else f"user {record.user}"),
        actions=tuple(sys.intern(record.actions[k]) for k in open_to),
        features=tuple(flat[k] for k in open_to) if any(flat) else None,
        context=context,
        chosen=open_to.index(record.choice),
        probability=record.probability,
        chances=record.likely.copy(),
        reward=one.reward,
        baseline=open_to.index(record.baseline),
        at=record.at / 1000,
    )
    return check_interaction(where, found)
