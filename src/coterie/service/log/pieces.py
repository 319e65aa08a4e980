"""Pieces of snapshots, each stored under the hash of its content.

A piece that two snapshots share is written once, so a snapshot costs as much as has changed. No value in a database
gets large (SQLite's limit is 1 GB), and no write delays others for long.
"""

from collections.abc import Callable
from hashlib import blake2b

import msgspec
from msgspec import Struct

PIECE = 1 << 20  # bytes; about what is written at a time
NAME = 16  # bytes of a hash
PARTS = b"coterie-parts-1\n"  # before a state that names its pieces

Find = Callable[[bytes], bytes | None]


class DamagedError(Exception):
    """A piece of a snapshot is missing, or is not what was written."""


class _Parts(Struct):
    parts: dict[str, dict[str, bytes]]


def name_of(piece: bytes) -> bytes:
    """Return the name of a piece."""
    return blake2b(piece, digest_size=NAME).digest()


def names(row: bytes) -> list[bytes]:
    """Return the names of the pieces that a snapshot needs; none if it holds its whole state."""
    if row.startswith(PARTS):
        parts = msgspec.msgpack.decode(memoryview(row)[len(PARTS) :], type=_Parts).parts
        return [name for source in parts.values() for name in source.values()]
    return []


def get(name: bytes, find: Find) -> bytes:
    """Return a piece, or raise DamagedError."""
    piece = find(name)
    if piece is None or name_of(piece) != name:
        raise DamagedError(f"piece {name.hex()} of a snapshot is missing or damaged")
    return piece


def sound(row: bytes, find: Find) -> bool:
    """Return whether all pieces of a snapshot are there and undamaged, reading one at a time."""
    try:
        for name in names(row):
            get(name, find)
    except (DamagedError, msgspec.MsgspecError):
        return False
    return True


def unused(known: set[bytes], rows: list[bytes]) -> list[bytes]:
    """Return the pieces that no kept snapshot needs."""
    needed = {name for row in rows for name in names(row)}
    return [name for name in known if name not in needed]
