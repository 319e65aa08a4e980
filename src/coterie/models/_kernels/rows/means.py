"""Numbered ridge regressions over item ids: on one-hot contexts a row is a mean for each item it was shown.

The facts are one entry a touched (row, item): how often, and the sum of payoffs. w = total / (1 + times) and
the spread 1 / √(1 + times) are read off them. Entries are found by hashing and chained by row, so memory
follows the touched pairs. `square` = ‖w‖² of a row follows from its entries; `_put` writes both.
Items are numbers from 0; a negative number is an item that nobody was shown yet. Row -1 has learned nothing.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from coterie.models._kernels.jit import jit

FORGOTTEN = 1e-6  # payoffs that count less than this in all change nothing that anybody could see
REFRESH = 1024  # the sum of squares is computed anew after so many payoffs of a row, before rounding adds up


class Table(NamedTuple):
    """The arrays behind all rows: first those with one element an entry, then those with one a row."""

    slots: NDArray[np.int32]  # (a power of two,) the hash table: 1 + an entry, or 0
    row: NDArray[np.int32]  # (room,)
    item: NDArray[np.int32]  # (room,)
    tally: NDArray[
        np.float64
    ]  # (room,) how often the item was paid for; a fraction where what is old counts less
    total: NDArray[np.float64]  # (room,) what it paid in all
    next: NDArray[np.int32]  # (room,) the row's next entry, or the next free one; -1 ends the chain
    prev: NDArray[np.int32]  # (room,)
    head: NDArray[np.int32]  # (row room,) the row's first entry, -1 if none
    square: NDArray[np.float64]  # (row room,) ‖w‖²
    times: NDArray[np.int64]  # (row room,) payoffs learned
    free: NDArray[np.int64]  # (row room,) a stack of rows given back
    size: NDArray[
        np.int64
    ]  # rows ever taken, rows given back, entries ever used, first free entry, live entries


def make(room: int, entries: int = 16) -> Table:
    """Return a table with room for so many rows and entries, a power of two."""
    return Table(
        np.zeros(2 * entries, dtype=np.int32),
        np.zeros(entries, dtype=np.int32),
        np.zeros(entries, dtype=np.int32),
        np.zeros(entries),
        np.zeros(entries),
        np.zeros(entries, dtype=np.int32),
        np.zeros(entries, dtype=np.int32),
        np.zeros(room, dtype=np.int32),
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
    """Return whether there is room for so many rows and entries in all."""
    return len(table.head) >= n_rows and len(table.row) >= entries


@jit
def used(table: Table) -> int:
    """Return how many entries there are."""
    return table.size[4]  # type: ignore[no-any-return]


@jit
def _home(row: int, item: int, mask: int) -> int:
    """Return where an entry would like to lie."""
    key = np.uint64(row) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(item) * np.uint64(0xC2B2AE3D27D4EB4F)
    key ^= key >> np.uint64(29)
    key *= np.uint64(0xBF58476D1CE4E5B9)
    key ^= key >> np.uint64(32)
    return np.int64(key & np.uint64(mask))  # type: ignore[return-value]


@jit
def _slot(table: Table, row: int, item: int) -> int:
    """Return the slot of an entry, or the empty one where it belongs."""
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
    return int(table.slots[_slot(table, row, item)]) - 1


@jit
def _rehash(marks: NDArray[np.int32], table: Table) -> None:
    """Hash all entries anew, into slots that are empty."""
    mask = len(table.slots) - 1
    for mark in marks:
        if mark:
            at = _home(table.row[mark - 1], table.item[mark - 1], mask)
            while table.slots[at]:
                at = (at + 1) & mask
            table.slots[at] = mark


@jit
def _insert(table: Table, row: int, item: int) -> int:
    """Return the entry of a row and item, made if there is none. There must be room."""
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
    table.slots[_slot(table, row, item)] = entry + 1
    table.row[entry], table.item[entry], table.tally[entry], table.total[entry] = row, item, 0, 0.0
    table.next[entry], table.prev[entry] = table.head[row], -1
    if table.head[row] >= 0:
        table.prev[table.head[row]] = entry
    table.head[row] = entry
    return int(entry)


@jit
def _unhash(table: Table, row: int, item: int) -> None:
    """Empty an entry's slot, and close the gap it leaves in the chain of probes."""
    mask = len(table.slots) - 1
    hole = _slot(table, row, item)
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
def _remove(table: Table, entry: int) -> None:
    """Forget an entry."""
    row = table.row[entry]
    _unhash(table, row, table.item[entry])
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


@jit
def _put(table: Table, entry: int, count: float, total: float) -> None:
    """Set an entry's facts, and the row's sum of squares with them; an entry without payoffs is forgotten."""
    row = table.row[entry]
    old = table.total[entry] / (1 + table.tally[entry])
    if count == 0:
        table.square[row] -= old * old
        _remove(table, entry)
    else:
        new = total / (1 + count)
        table.square[row] += new * new - old * old
        table.tally[entry], table.total[entry] = count, total
    if table.head[row] < 0:
        table.square[row] = 0.0


@jit
def refresh(table: Table, row: int) -> None:
    """Compute a row's sum of squares anew from its entries."""
    total = 0.0
    entry = table.head[row]
    while entry >= 0:
        w = table.total[entry] / (1 + table.tally[entry])
        total += w * w
        entry = table.next[entry]
    table.square[row] = total


@jit
def clear(table: Table, row: int) -> None:
    """Let a row have learned nothing."""
    while table.head[row] >= 0:
        _remove(table, table.head[row])
    table.square[row] = 0.0
    table.times[row] = 0


@jit
def take(table: Table) -> int:
    """Return a row that nobody uses. There must be room."""
    if table.size[1] > 0:
        table.size[1] -= 1
        row = table.free[table.size[1]]
    else:
        row = table.size[0]
        table.size[0] += 1
    table.head[row] = -1
    table.square[row] = 0.0
    table.times[row] = 0
    return row  # type: ignore[no-any-return]


@jit
def give(table: Table, row: int) -> None:
    """Take a row back; nothing of it stays."""
    clear(table, row)
    table.free[table.size[1]] = row
    table.size[1] += 1


@jit
def view(
    table: Table,
    row: int,
    items: NDArray[np.int64],
    which: NDArray[np.int64],
    estimate: NDArray[np.float64],
    spread: NDArray[np.float64],
) -> None:
    """Write w·x and √(xᵀM⁻¹x) of each item items[which[k]]."""
    for k in range(len(which)):
        entry = find(table, row, items[which[k]])
        count, total = (table.tally[entry], table.total[entry]) if entry >= 0 else (0.0, 0.0)
        estimate[k] = total / (1 + count)
        spread[k] = 1.0 / math.sqrt(1.0 + count)


@jit
def update(table: Table, row: int, items: NDArray[np.int64], position: int, payoff: float) -> None:
    """Let a row learn what items[position] paid."""
    entry = _insert(table, row, items[position])
    _put(table, entry, table.tally[entry] + 1, table.total[entry] + payoff)
    table.times[row] += 1
    if table.times[row] % REFRESH == 0:
        refresh(table, row)


@jit
def fade(table: Table, row: int, keep: float) -> None:
    """Let all that a row has learned count less. What hardly counts any more is forgotten."""
    entry = table.head[row]
    while entry >= 0:
        after = table.next[entry]
        count = keep * table.tally[entry]
        _put(table, entry, count if count > FORGOTTEN else 0.0, keep * table.total[entry])
        entry = after


@jit
def move(table: Table, row: int, source: Table, source_row: int, sign: int) -> None:
    """Add (or, with sign -1, subtract) another row's facts."""
    entry = source.head[source_row]
    while entry >= 0:
        mine = _insert(table, row, source.item[entry])
        count = table.tally[mine] + sign * source.tally[entry]
        _put(table, mine, count, table.total[mine] + sign * source.total[entry])
        entry = source.next[entry]
    table.times[row] += sign * source.times[source_row]


@jit
def pool(table: Table, row: int, source: Table, source_row: int, sign: int) -> None:
    """Add (or subtract) another row's facts: the sum of squares has followed."""
    move(table, row, source, source_row, sign)


@jit
def swap_in(table: Table, row: int) -> None:
    """Let the last row take the place of `row`, which is forgotten. For rows that are never given back."""
    clear(table, row)
    last = table.size[0] - 1
    if row != last:
        entry = table.head[last]
        while entry >= 0:
            _unhash(table, last, table.item[entry])
            table.row[entry] = row
            table.slots[_slot(table, row, table.item[entry])] = entry + 1
            entry = table.next[entry]
        table.head[row], table.head[last] = table.head[last], -1
        table.square[row], table.times[row] = table.square[last], table.times[last]
    table.square[last] = 0.0
    table.times[last] = 0
    table.size[0] = last


@jit
def gap(table: Table, row: int, others: Table, other: int) -> float:
    """Return the squared distance of two profiles, ‖w − w'‖², by a walk over the first one's entries only."""
    total = others.square[other]
    entry = table.head[row]
    while entry >= 0:
        w = table.total[entry] / (1 + table.tally[entry])
        found = find(others, other, table.item[entry])
        v = others.total[found] / (1 + others.tally[found]) if found >= 0 else 0.0
        total += (w - v) * (w - v) - v * v
        entry = table.next[entry]
    return float(max(total, 0.0))


@jit
def apart(table: Table, row: int, others: Table, other: int) -> float:
    """Return the distance of two profiles, exact to rounding also where they are equal."""
    total = 0.0
    entry = table.head[row]
    while entry >= 0:
        w = table.total[entry] / (1 + table.tally[entry])
        found = find(others, other, table.item[entry])
        if found >= 0:
            w -= others.total[found] / (1 + others.tally[found])
        total += w * w
        entry = table.next[entry]
    entry = others.head[other]
    while entry >= 0:
        if find(table, row, others.item[entry]) < 0:
            w = others.total[entry] / (1 + others.tally[entry])
            total += w * w
        entry = others.next[entry]
    return math.sqrt(total)


@jit
def draw(
    table: Table,
    row: int,
    items: NDArray[np.int64],
    which: NDArray[np.int64],
    scale: float,
    rng: Generator,
    score: NDArray[np.float64],
) -> None:
    """Write a draw of each candidate's payoff: one normal an item, shared where it is listed twice."""
    for k in range(len(which)):
        twin = 0
        while items[which[twin]] != items[which[k]]:
            twin += 1
        if twin < k:
            score[k] = score[twin]
            continue
        entry = find(table, row, items[which[k]])
        count, total = (table.tally[entry], table.total[entry]) if entry >= 0 else (0.0, 0.0)
        score[k] = total / (1 + count) + scale * (1.0 / math.sqrt(1.0 + count)) * rng.standard_normal()


@jit
def name(items: NDArray[np.int64], position: int, named: NDArray[np.int64]) -> None:
    """Give an item its number before it is learned; `named` holds the next number, then who got one."""
    if items[position] < 0:
        n = named[1]
        items[position] = named[0]
        named[0] += 1
        named[1] += 1
        named[2 + n] = position


@jit
def dump(
    table: Table, rows: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]:
    """Return the entries of rows[i], in the order of their chains: i, item, count, total."""
    length = 0
    for row in rows:
        entry = table.head[row]
        while entry >= 0:
            length += 1
            entry = table.next[entry]
    which = np.empty(length, dtype=np.int64)
    item = np.empty(length, dtype=np.int64)
    count = np.empty(length)
    total = np.empty(length)
    at = 0
    for i in range(len(rows)):
        entry = table.head[rows[i]]
        while entry >= 0:
            which[at], item[at], count[at] = i, table.item[entry], table.tally[entry]
            total[at] = table.total[entry]
            at += 1
            entry = table.next[entry]
    return which, item, count, total


@jit
def fill(
    table: Table,
    row: NDArray[np.int64],
    item: NDArray[np.int64],
    count: NDArray[np.float64],
    total: NDArray[np.float64],
) -> bool:
    """Take in what `dump` returned, in the same order, and return whether all pairs differed."""
    for at in range(len(row) - 1, -1, -1):
        before = table.size[4]
        entry = _insert(table, row[at], item[at])
        if table.size[4] == before:
            return False
        table.tally[entry], table.total[entry] = count[at], total[at]
    return True
