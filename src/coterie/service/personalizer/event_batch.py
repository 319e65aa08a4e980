"""Batches of events as the reinforcement learning client library sends them: a FlatBuffers `EventBatch`, version 2.

A body has a header of 8 bytes (reserved, version, kind and size of the rest, big-endian), then the batch.

    EventBatch       0 events: [SerializedEvent], 1 metadata: BatchMetadata
    SerializedEvent  0 payload: an Event
    BatchMetadata    0 content_encoding: "IDENTITY" or "DEDUP"
    Event            0 meta: Metadata, 1 payload
    Metadata         0 id, 3 payload_type, 5 encoding: 0 is plain
    CbEvent          0 deferred_action, 1 action_ids, 2 context: JSON, 3 probabilities
    OutcomeEvent     0 value_type, 1 value, 2 index_type, 3 index, 4 action_taken

Bodies are untrusted: every offset is checked.
"""

import struct
from typing import Any, NamedTuple, final

HEAD = 8  # bytes
COLLECTION = 11  # the kind of message that holds a batch of version 2
CB, OUTCOME = 0, 3  # payload types
NUMERIC, LITERAL = 1, 2  # of an outcome's value and index
MOST = 1_000  # events


class Sent(NamedTuple):
    """One event: its id, what it is, and its table."""

    id: str
    kind: int
    table: "Table"


@final
class Table:
    """A FlatBuffers table; fields have numbers, and defaults if they are absent."""

    def __init__(self, data: bytes, place: int | None = None) -> None:
        self.data = data
        self.place = _number(data, "<I", 0) if place is None else place
        self.fields = self.place - _number(data, "<i", self.place)
        self.size = _number(data, "<H", self.fields)

    def _at(self, field: int) -> int | None:
        entry = 4 + 2 * field
        offset = _number(self.data, "<H", self.fields + entry) if entry < self.size else 0
        return self.place + offset if offset else None

    def number(self, field: int, kind: str, default: Any = 0) -> Any:
        """Return a number."""
        at = self._at(field)
        return default if at is None else _number(self.data, f"<{kind}", at)

    def table(self, field: int) -> "Table | None":
        """Return a table that a field points to."""
        at = self._at(field)
        return None if at is None else Table(self.data, at + _number(self.data, "<I", at))

    def _vector(self, field: int, size: int) -> tuple[int, int]:
        """Return where a list of elements of `size` bytes begins, and its length."""
        at = self._at(field)
        if at is None:
            return 0, 0
        at += _number(self.data, "<I", at)
        count = _number(self.data, "<I", at)
        if at + 4 + count * size > len(self.data):
            raise ValueError(f"a list of {count} elements of {size} bytes ends behind the body")
        return at + 4, count

    def numbers(self, field: int, kind: str) -> tuple[Any, ...]:
        """Return a list of numbers."""
        at, count = self._vector(field, struct.calcsize(f"<{kind}"))
        return struct.unpack_from(f"<{count}{kind}", self.data, at)

    def content(self, field: int) -> bytes:
        """Return bytes, or a text as UTF-8."""
        at, size = self._vector(field, 1)
        return self.data[at : at + size]

    def tables(self, field: int, most: int) -> list["Table"]:
        """Return a list of tables, at most so many."""
        at, count = self._vector(field, 4)
        if count > most:
            raise ValueError(f"it has {count} events, expected at most {most}")
        places = range(at, at + 4 * count, 4)
        return [Table(self.data, place + _number(self.data, "<I", place)) for place in places]


def _number(data: bytes, kind: str, at: int) -> Any:
    if at < 0:
        raise ValueError(f"an offset points {-at} bytes before the body")
    try:
        return struct.unpack_from(kind, data, at)[0]
    except struct.error as error:
        raise ValueError(f"an offset points behind the body: {error}") from error


def is_batch(body: bytes) -> bool:
    """Return whether a body begins like a batch; text has no zero byte."""
    return len(body) >= HEAD and body[:1] == b"\0"


def read_batch(body: bytes) -> list[Sent]:
    """Return the events of a body; raise ValueError if it cannot be read."""
    kind, size = struct.unpack_from(">HI", body, 2)
    if kind != COLLECTION:
        raise ValueError(f"its kind is {kind}, expected {COLLECTION}: a batch of events of version 2")
    if size != len(body) - HEAD:
        raise ValueError(f"its head says {size} bytes, but {len(body) - HEAD} follow")
    batch = Table(body[HEAD:])
    about = batch.table(1)
    encoding = about.content(0).decode() if about is not None else ""
    if encoding not in ("", "IDENTITY"):
        raise ValueError(f"its content is encoded as {encoding!r}, expected IDENTITY; turn deduplication off")
    return [_event(part.content(0)) for part in batch.tables(0, MOST)]


def _event(content: bytes) -> Sent:
    event = Table(content)
    meta = event.table(0)
    if meta is None:
        raise ValueError("an event has no metadata")
    if meta.number(5, "B"):
        raise ValueError("an event is compressed; turn compression off")
    return Sent(meta.content(0).decode(), meta.number(3, "B"), Table(event.content(1)))
