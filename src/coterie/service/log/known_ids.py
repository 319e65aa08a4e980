"""Which event ids may be in the index: a Bloom filter, so that a new event need not be looked for on the disk.

It never denies an id that is there. Of the others it lets about one in 200 through, which are then looked for. When
it is full, another one of twice the size is put beside it, so no id has to be read again. Ids cannot be taken out:
when many are no longer in the index, all are read anew.
"""

import struct
import threading
from collections import deque
from collections.abc import Iterable
from typing import final

BITS = 16  # per id, of which each sets four
FIRST = 1 << 23  # bits
ON_THEIR_WAY = 10_000  # ids that may be known already, but not yet in the index

_words = struct.Struct("<4I")


@final
class KnownIds:
    """Takes the hashes of ids, of 16 bytes, from any thread."""

    def __init__(self) -> None:
        self.complete = False  # whether it has all ids that were there before
        self._filters = _Filters()
        self._fresh: _Filters | None = None  # while all are read
        self._last: deque[bytes] = deque(maxlen=ON_THEIR_WAY)

    @property
    def count(self) -> int:
        """How many ids it has, some of them twice."""
        return self._filters.count

    def __contains__(self, key: bytes) -> bool:
        """Return False only if the id is certainly not there."""
        return not self.complete or key in self._filters

    def add(self, key: bytes) -> None:
        """Take an id."""
        self._last.append(key)
        self._filters.add(key)
        if (fresh := self._fresh) is not None:
            fresh.add(key)

    def read(self, keys: Iterable[bytes]) -> None:
        """Know these ids, which are all that there are, and those that are added meanwhile."""
        fresh = self._fresh = _Filters()
        try:
            for key in self._last.copy():
                fresh.add(key)
            for key in keys:
                fresh.add(key)
            self._filters, self.complete = fresh, True
        finally:
            self._fresh = None


@final
class _Filters:
    """Bloom filters, each of twice the size of the one before."""

    def __init__(self) -> None:
        self.count = 0
        self._bits: list[bytearray] = [bytearray(FIRST >> 3)]
        self._room = FIRST // BITS  # ids until the last filter is full
        self._adding = threading.Lock()

    def __contains__(self, key: bytes) -> bool:
        a, b, c, d = _words.unpack(key)
        for bits in self._bits:
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
        with self._adding:  # two threads that set bits of one byte would lose some
            if not self._room:
                size = min(len(self._bits[-1]) << 4, 1 << 32)  # bits; words have no more
                self._bits = [*self._bits, bytearray(size >> 3)]
                self._room = size // BITS
            self._room -= 1
            self.count += 1
            bits = self._bits[-1]
            most = (len(bits) << 3) - 1
            for word in _words.unpack(key):
                bits[(word & most) >> 3] |= 1 << (word & 7)
