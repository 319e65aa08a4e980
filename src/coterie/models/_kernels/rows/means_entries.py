"""The entries of rows over item ids: one per row and item with data, found by hashing and chained by row."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from coterie.arrays import Floats, Ints
from coterie.models._kernels.jit import jit


class Table(NamedTuple):
    """The arrays of all rows: first per entry, then per row."""

    slots: NDArray[np.int32]  # (a power of two,) the hash table: 1 + an entry, or 0
    row: NDArray[np.int32]  # (room,)
    item: NDArray[np.int32]  # (room,)
    tally: Floats  # (room,) the number of payoffs; a fraction with fading
    total: Floats  # (room,) the sum of payoffs
    next: NDArray[np.int32]  # (room,) the row's next entry, or the next free one; -1 ends the chain
    prev: NDArray[np.int32]  # (room,)
    head: NDArray[np.int32]  # (row room,) the row's first entry, -1 if none
    square: Floats  # (row room,) ‖w‖²
    times: Ints  # (row room,) payoffs learned
    free: Ints  # (row room,) a stack of released rows
    size: Ints  # rows ever taken, released rows, entries ever used, first free entry, live entries


def make(room: int, entries: int = 16) -> Table:
    """Return a table with room for `room` rows and `entries` entries, a power of two."""
    return Table(
        np.zeros(2 * entries, dtype=np.int32),
        np.zeros(entries, dtype=np.int32),
        np.zeros(entries, dtype=np.int32),
        np.zeros(entries),
        np.zeros(entries),
        np.zeros(entries, dtype=np.int32),
        np.zeros(entries, dtype=np.int32),
        np.full(room, -1, dtype=np.int32),
        np.zeros(room),
        np.zeros(room, dtype=np.int64),
        np.zeros(room, dtype=np.int64),
        np.array([0, 0, 0, -1, 0], dtype=np.int64),
    )


def grown(table: Table, room: int, entries: int) -> Table:
    """Return the same rows in more room."""
    fresh = make(room, entries)
    for name in table._fields[1:-1]:
        old = getattr(table, name)
        getattr(fresh, name)[: len(old)] = old
    fresh = fresh._replace(size=table.size)
    _rehash(table.slots, fresh)
    return fresh


@jit
def fits(table: Table, n_rows: int, entries: int) -> bool:
    """Return whether there is room for this total of rows and entries."""
    return len(table.head) >= n_rows and len(table.row) >= entries


@jit
def used(table: Table) -> int:
    """Return how many entries there are."""
    return table.size[4]  # type: ignore[no-any-return]


@jit
def _home(row: int, item: int, mask: int) -> int:
    """Return the preferred slot of an entry."""
    key = np.uint64(row) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(item) * np.uint64(0xC2B2AE3D27D4EB4F)
    key ^= key >> np.uint64(29)
    key *= np.uint64(0xBF58476D1CE4E5B9)
    key ^= key >> np.uint64(32)
    return np.int64(key & np.uint64(mask))  # type: ignore[return-value]


@jit
def slot(table: Table, row: int, item: int) -> int:
    """Return the slot of an entry, or the empty slot for it."""
    mask = len(table.slots) - 1
    at = _home(row, item, mask)
    while table.slots[at]:
        entry = table.slots[at] - 1
        if table.row[entry] == row and table.item[entry] == item:
            return at
        at = (at + 1) & mask
    return at


@jit
def find(table: Table, row: int, item: int) -> int:
    """Return the entry of a row and item, or -1."""
    if row < 0 or item < 0:
        return -1
    return int(table.slots[slot(table, row, item)]) - 1


@jit
def _rehash(marks: NDArray[np.int32], table: Table) -> None:
    """Hash all entries again, into empty slots."""
    mask = len(table.slots) - 1
    for mark in marks:
        if mark:
            at = _home(table.row[mark - 1], table.item[mark - 1], mask)
            while table.slots[at]:
                at = (at + 1) & mask
            table.slots[at] = mark


@jit
def insert(table: Table, row: int, item: int) -> int:
    """Return the entry of a row and item, created if there is none. There must be room."""
    entry = find(table, row, item)
    if entry >= 0:
        return int(entry)
    if table.size[3] >= 0:
        entry = table.size[3]
        table.size[3] = table.next[entry]
    else:
        entry = table.size[2]
        table.size[2] += 1
    table.size[4] += 1
    table.slots[slot(table, row, item)] = entry + 1
    table.row[entry], table.item[entry], table.tally[entry], table.total[entry] = row, item, 0, 0.0
    table.next[entry], table.prev[entry] = table.head[row], -1
    if table.head[row] >= 0:
        table.prev[table.head[row]] = entry
    table.head[row] = entry
    return int(entry)


@jit
def unhash(table: Table, row: int, item: int) -> None:
    """Empty an entry's slot, and close the gap in the probe sequence."""
    mask = len(table.slots) - 1
    hole = slot(table, row, item)
    at = hole
    while True:
        at = (at + 1) & mask
        mark = table.slots[at]
        if not mark:
            break
        home = _home(table.row[mark - 1], table.item[mark - 1], mask)
        if ((at - home) & mask) >= ((at - hole) & mask):
            table.slots[hole] = mark
            hole = at
    table.slots[hole] = 0


@jit
def remove(table: Table, entry: int) -> None:
    """Remove an entry."""
    row = table.row[entry]
    unhash(table, row, table.item[entry])
    before, after = table.prev[entry], table.next[entry]
    if before >= 0:
        table.next[before] = after
    else:
        table.head[row] = after
    if after >= 0:
        table.prev[after] = before
    table.row[entry], table.item[entry], table.tally[entry], table.total[entry] = 0, 0, 0, 0.0
    table.next[entry], table.prev[entry] = table.size[3], -1
    table.size[3] = entry
    table.size[4] -= 1
