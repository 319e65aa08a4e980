"""Which event ids may be in the index: a Bloom filter, so that a new event need not be looked for on the disk.

It never denies an id that is there. Of the others it lets about one in 200 through, which are then looked for. When
it is full, another one of twice the size is put beside it, so no id has to be read again.
"""

import struct
from typing import final

BITS = 16  # per id, of which each sets four
FIRST = 1 << 23  # bits

_words = struct.Struct("<4I")


@final
class KnownIds:
    """Takes the hashes of ids, of 16 bytes."""

    def __init__(self) -> None:
        self.complete = False  # whether it has all ids that were there before
        self._filters: list[bytearray] = [bytearray(FIRST >> 3)]
        self._room = FIRST // BITS  # ids until the last filter is full

    def __contains__(self, key: bytes) -> bool:
        """Return False only if the id is certainly not there."""
        if not self.complete:
            return True
        a, b, c, d = _words.unpack(key)
        for bits in self._filters:
            most = (len(bits) << 3) - 1
            if (
                bits[(a & most) >> 3] >> (a & 7) & 1
                and bits[(b & most) >> 3] >> (b & 7) & 1
                and bits[(c & most) >> 3] >> (c & 7) & 1
                and bits[(d & most) >> 3] >> (d & 7) & 1
            ):
                return True
        return False

    def add(self, key: bytes) -> None:
        """Take an id."""
        if not self._room:
            size = min(len(self._filters[-1]) << 4, 1 << 32)  # bits; words have no more
            self._filters = [*self._filters, bytearray(size >> 3)]
            self._room = size // BITS
        self._room -= 1
        bits = self._filters[-1]
        most = (len(bits) << 3) - 1
        for word in _words.unpack(key):
            bits[(word & most) >> 3] |= 1 << (word & 7)
