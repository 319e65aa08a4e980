"""Reads the values of R data files (.rda, .RData) without R: numbers, text, lists and data frames.

Only data are read; anything else that R can save, such as functions, is refused. The format is R's own
serialisation, version 2 or 3, in its portable form (R Internals, section 1.8).
"""

import bz2
import gzip
import lzma
import struct
from pathlib import Path
from typing import Any

import numpy as np

from coterie.arrays import Array, JsonObject
from coterie.errors import FileError

OPENERS = {b"\x1f\x8b": gzip.decompress, b"BZ": bz2.decompress, b"\xfd7": lzma.decompress}
NUMBERS = {10: ">i4", 13: ">i4", 14: ">f8"}  # by type: logical, integer, double


def read_r(content: bytes, path: Path) -> JsonObject:
    """Return the values of the file at `path` by name. A list with names is a dict; other vectors are arrays.

    A vector with dimensions keeps R's order of columns: (rows, columns). A factor is an array of its codes.
    """
    try:
        raw = OPENERS.get(content[:2], bytes)(content)
        if raw[:7] not in (b"RDX2\nX\n", b"RDX3\nX\n"):
            raise ValueError(f"it begins with {raw[:7]!r}, not with RDX2 or RDX3")
        found = _Reader(raw).values()
    except (OSError, EOFError, ValueError, IndexError, struct.error, lzma.LZMAError) as error:
        raise FileError(f"{path} is not an R data file that can be read ({error}); fetch it again") from error
    return found


class _Reader:
    """A position in the bytes of a file."""

    def __init__(self, raw: bytes) -> None:
        self.raw, self.at, self.symbols = raw, 7, list[Any]()

    def values(self) -> JsonObject:
        """Return what the file holds: one list of pairs."""
        version = self.numbers(">i4", 3)[0]
        if version == 3:
            self.take(int(self.numbers(">i4", 1)[0]))  # the encoding
        return dict(self.item())

    def take(self, n: int) -> bytes:
        if n < 0 or self.at + n > len(self.raw):
            raise EOFError("it was cut short")
        self.at += n
        return self.raw[self.at - n : self.at]

    def numbers(self, kind: str, n: int) -> Array:
        return np.frombuffer(self.take(n * int(kind[-1])), dtype=kind).astype(kind[1:])

    def item(self) -> Any:
        """Return the next value, by its type."""
        flags = int(self.numbers(">i4", 1)[0])
        kind, has_attributes, has_tag = flags & 255, flags & 512, flags & 1024
        if kind in (254, 242, 253, 251):  # nothing, or an environment
            return None
        if kind == 255:
            return self.symbols[(flags >> 8) - 1]
        if kind == 1:
            self.symbols.append(self.item())
            return self.symbols[-1]
        if kind == 2:
            return self.pairs(has_attributes, has_tag)
        if kind == 9:
            length = int(self.numbers(">i4", 1)[0])
            return None if length < 0 else self.take(length).decode("latin-1")
        if kind not in (*NUMBERS, 16, 19):
            raise ValueError(f"it holds a value of type {kind}, which is not data")
        length = int(self.numbers(">i4", 1)[0])
        value: Any = (
            self.numbers(NUMBERS[kind], length) if kind in NUMBERS else [self.item() for _ in range(length)]
        )
        about = dict(self.item()) if has_attributes else {}
        if kind == 19 and "names" in about:
            return dict(zip(about["names"], value, strict=True))
        return value.reshape(about["dim"], order="F") if "dim" in about and kind in NUMBERS else value

    def pairs(self, has_attributes: int, has_tag: int) -> list[tuple[str, Any]]:
        """Return a list of pairs of names and values."""
        found = []
        while True:
            if has_attributes:
                self.item()
            tag = self.item() if has_tag else ""
            found.append((tag, self.item()))
            flags = int(self.numbers(">i4", 1)[0])
            if flags & 255 != 2:
                return found
            has_attributes, has_tag = flags & 512, flags & 1024
