"""Contexts with their payoffs, each stored once for all users who learned from it."""

from collections.abc import Iterator
from itertools import pairwise
from typing import final

import numpy as np

from coterie.arrays import Floats, Ints

# Contexts per chunk. Growth adds a chunk, so it never copies and never needs the memory twice.
CHUNK = 256


@final
class RecordStore:
    """Contexts and payoffs with a count of the users who hold each. A record without holders is cleared, and its
    place is used again."""

    def __init__(self, n_features: int) -> None:
        self.n_features = n_features
        self._contexts: list[Floats] = []  # (CHUNK, n_features) each
        self._payoffs: list[Floats] = []  # (CHUNK,) each
        self._holders: list[Ints] = []  # (CHUNK,) each
        self._free: list[int] = []  # free places, the next one last

    def put(self, context: Floats, payoff: float, holders: int) -> int:
        """Store a record with this many holders, and return its number."""
        if not self._free:
            start = CHUNK * len(self._contexts)
            self._contexts.append(np.zeros((CHUNK, self.n_features)))
            self._payoffs.append(np.zeros(CHUNK))
            self._holders.append(np.zeros(CHUNK, dtype=np.int64))
            self._free = list(range(start + CHUNK - 1, start - 1, -1))
        number = self._free.pop()
        chunk, row = divmod(number, CHUNK)
        self._contexts[chunk][row], self._payoffs[chunk][row] = context, payoff
        self._holders[chunk][row] = holders
        return number

    def release(self, numbers: Ints) -> None:
        """Take one holder from each of these records."""
        for number in numbers.tolist():
            chunk, row = divmod(number, CHUNK)
            self._holders[chunk][row] -= 1
            if self._holders[chunk][row] == 0:
                self._contexts[chunk][row], self._payoffs[chunk][row] = 0.0, 0.0
                self._free.append(number)

    def runs(self, numbers: Ints) -> Iterator[tuple[Floats, Floats, Ints]]:
        """Yield these records in their order, as chunks of contexts and payoffs with the rows to be read."""
        chunks, rows = np.divmod(numbers, CHUNK)
        cuts = [0, *(np.flatnonzero(np.diff(chunks)) + 1).tolist(), len(numbers)]
        for start, stop in pairwise(cuts):
            if start < stop:
                chunk = int(chunks[start])
                yield self._contexts[chunk], self._payoffs[chunk], rows[start:stop]

    def read(self, numbers: Ints) -> tuple[Floats, Floats]:
        """Return copies of the contexts and the payoffs of these records."""
        contexts, payoffs = np.zeros((len(numbers), self.n_features)), np.zeros(len(numbers))
        start = 0
        for chunk, paid, rows in self.runs(numbers):
            stop = start + len(rows)
            contexts[start:stop], payoffs[start:stop] = chunk[rows], paid[rows]
            start = stop
        return contexts, payoffs
