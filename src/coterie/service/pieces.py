"""Snapshots cut into pieces, each kept under the hash of its content.

A piece that two snapshots have in common is written once, so a snapshot costs what has changed. No value of a
database gets large (SQLite's may have 1 GB at most), and no write holds up others for long.
"""

from collections.abc import Callable, Iterator
from hashlib import blake2b

PIECE = 1 << 20  # bytes
NAME = 16  # bytes of a hash
MANIFEST = b"coterie-pieces-1\n"  # what the names of the pieces follow; no state begins so


def cut(state: bytes) -> Iterator[tuple[bytes, memoryview]]:
    """Yield the pieces of a state in order, each with its name."""
    whole = memoryview(state)
    for start in range(0, len(whole), PIECE):
        piece = whole[start : start + PIECE]
        yield blake2b(piece, digest_size=NAME).digest(), piece


def write_manifest(names: list[bytes]) -> bytes:
    """Return what stands for a state that was cut."""
    return MANIFEST + b"".join(names)


def read_manifest(row: bytes) -> list[bytes] | None:
    """Return the names of a state's pieces, or None if it was not cut."""
    if not row.startswith(MANIFEST):
        return None
    body = row[len(MANIFEST) :]
    return [body[start : start + NAME] for start in range(0, len(body), NAME)]


def put_together(row: bytes, find: Callable[[bytes], bytes | None]) -> bytes | None:
    """Return the state that a row stands for; None if a piece is missing or damaged."""
    names = read_manifest(row)
    if names is None:
        return row
    found: list[bytes] = []
    for name in names:
        piece = find(name)
        if piece is None or blake2b(piece, digest_size=NAME).digest() != name:
            return None
        found.append(piece)
    return b"".join(found)


def sound(row: bytes, find: Callable[[bytes], bytes | None]) -> bool:
    """Return whether all pieces of a state are there and whole, looking at one at a time."""
    for name in read_manifest(row) or ():
        piece = find(name)
        if piece is None or blake2b(piece, digest_size=NAME).digest() != name:
            return False
    return True


def unused(known: set[bytes], rows: list[bytes]) -> list[bytes]:
    """Return the pieces that no kept snapshot needs."""
    needed = {name for row in rows for name in read_manifest(row) or ()}
    return [name for name in known if name not in needed]
