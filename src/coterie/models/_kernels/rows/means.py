"""Numbered ridge regressions over item ids: on one-hot contexts, a row is a shrunken mean per item.

The facts are one entry per row and item with data: the number of payoffs and their sum. w = total / (1 + times) and
the spread 1 / √(1 + times) follow from them. `square` = ‖w‖² of a row follows from its entries; `_put` writes both.
Items are numbers from 0; a negative number is an item without data. Row -1 has learned nothing.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from coterie.arrays import Bools, Floats, Ints
from coterie.models._kernels.given import given
from coterie.models._kernels.jit import jit
from coterie.models._kernels.probability import probability_of_best

__all__ = [
    "Table", "add_covariance", "add_facts", "chances", "clear", "distance", "dump", "fade", "fill", "find", "fits",
    "grown", "make", "name", "pool", "pooled", "refresh", "replace_by_last", "squared_distance", "update", "used",
    "view", "views",
]  # fmt: skip

FORGOTTEN = 1e-6  # payoffs with a smaller total weight have no visible effect
REFRESH = 1024  # the sum of squares is recomputed after this many payoffs of a row, to limit rounding


@given
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


@jit
def _put(table: Table, entry: int, count: float, total: float) -> None:
    """Set an entry's facts, and update the row's sum of squares; an entry without payoffs is removed."""
    row = table.row[entry]
    old = table.total[entry] / (1 + table.tally[entry])
    if count == 0:
        table.square[row] -= old * old
        remove(table, entry)
    else:
        new = total / (1 + count)
        table.square[row] += new * new - old * old
        table.tally[entry], table.total[entry] = count, total
    if table.head[row] < 0:
        table.square[row] = 0.0


@jit
def refresh(table: Table, row: int) -> None:
    """Recompute a row's sum of squares from its entries."""
    total = 0.0
    entry = table.head[row]
    while entry >= 0:
        w = table.total[entry] / (1 + table.tally[entry])
        total += w * w
        entry = table.next[entry]
    table.square[row] = total


@jit
def clear(table: Table, row: int) -> None:
    """Reset a row to the prior."""
    while table.head[row] >= 0:
        remove(table, table.head[row])
    table.square[row] = 0.0
    table.times[row] = 0


@jit
def view(table: Table, row: int, items: Ints, which: Ints, estimate: Floats, spread: Floats) -> None:
    """Write w·x and √(xᵀM⁻¹x) of each item items[which[k]]."""
    for k in range(len(which)):
        entry = find(table, row, items[which[k]])
        count, total = (table.tally[entry], table.total[entry]) if entry >= 0 else (0.0, 0.0)
        estimate[k] = total / (1 + count)
        spread[k] = 1.0 / math.sqrt(1.0 + count)


@jit
def views(table: Table, rows: Ints, items: Ints, estimate: Floats, spread: Floats) -> None:
    """Write the views of several rows, all on the same items: (rows, items) each."""
    which = np.arange(len(items))
    for i in range(len(rows)):
        view(table, rows[i], items, which, estimate[i], spread[i])


@jit
def pooled(table: Table, rows: Ints, items: Ints, estimate: Floats, spread: Floats) -> None:
    """Write the view of the sum of some rows."""
    for k in range(len(items)):
        count, total = 0.0, 0.0
        for row in rows:
            entry = find(table, row, items[k])
            if entry >= 0:
                count += table.tally[entry]
                total += table.total[entry]
        estimate[k] = total / (1 + count)
        spread[k] = 1.0 / math.sqrt(1.0 + count)


@jit
def update(table: Table, row: int, items: Ints, position: int, payoff: float) -> None:
    """Update a row with the payoff of items[position]."""
    entry = insert(table, row, items[position])
    _put(table, entry, table.tally[entry] + 1, table.total[entry] + payoff)
    table.times[row] += 1
    if table.times[row] % REFRESH == 0:
        refresh(table, row)


@jit
def fade(table: Table, row: int, keep: float) -> None:
    """Reduce the weight of all that a row has learned; entries of negligible weight are removed."""
    entry = table.head[row]
    while entry >= 0:
        after = table.next[entry]
        count = keep * table.tally[entry]
        _put(table, entry, count if count > FORGOTTEN else 0.0, keep * table.total[entry])
        entry = after


@jit
def add_facts(table: Table, row: int, source: Table, source_row: int, sign: int) -> None:
    """Add another row's facts, or subtract them (sign -1)."""
    entry = source.head[source_row]
    while entry >= 0:
        mine = insert(table, row, source.item[entry])
        count = table.tally[mine] + sign * source.tally[entry]
        _put(table, mine, count, table.total[mine] + sign * source.total[entry])
        entry = source.next[entry]
    table.times[row] += sign * source.times[source_row]


@jit
def pool(table: Table, row: int, source: Table, source_row: int, sign: int) -> None:
    """Do as `add_facts`, which also updates the sum of squares."""
    add_facts(table, row, source, source_row, sign)


@jit
def replace_by_last(table: Table, row: int) -> None:
    """Forget `row` and move the last row into its place; for rows that are never released."""
    clear(table, row)
    last = table.size[0] - 1
    if row != last:
        entry = table.head[last]
        while entry >= 0:
            unhash(table, last, table.item[entry])
            table.row[entry] = row
            table.slots[slot(table, row, table.item[entry])] = entry + 1
            entry = table.next[entry]
        table.head[row], table.head[last] = table.head[last], -1
        table.square[row], table.times[row] = table.square[last], table.times[last]
    table.square[last] = 0.0
    table.times[last] = 0
    table.size[0] = last


@jit
def squared_distance(table: Table, row: int, others: Table, other: int) -> float:
    """Return the squared distance of two profiles, ‖w − w'‖², visiting the first one's entries only."""
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
def distance(table: Table, row: int, others: Table, other: int) -> float:
    """Return the distance of two profiles, exact up to rounding even if they are equal."""
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
def chances(table: Table, row: int, items: Ints, which: Ints, scale: float, seed: int) -> Floats:
    """Return the probability that each candidate is best; of an item that is listed twice, the first counts."""
    estimate, sd = np.empty(len(which)), np.empty(len(which))
    view(table, row, items, which, estimate, sd)
    for k in range(len(which)):
        sd[k] *= scale
        for twin in range(k):
            if items[which[twin]] == items[which[k]]:
                estimate[k], sd[k] = -np.inf, 0.0
    return probability_of_best(estimate, sd)


@jit
def add_covariance(table: Table, row: int, items: Ints, which: Ints, near: Bools, out: Floats) -> None:
    """Add the covariance of w·x between candidates, those of `near` only: of an item with itself."""
    for k in range(len(which)):
        for other in range(k + 1):
            if near[k] and near[other] and items[which[k]] == items[which[other]]:
                entry = find(table, row, items[which[k]])
                count = table.tally[entry] if entry >= 0 else 0.0
                out[k, other] += 1 / (1 + count)


@jit
def name(table: Table, items: Ints, position: int, named: Ints) -> None:
    """Give an item its number before it is learned; `named`: the next number, a count, the positions numbered."""
    if items[position] < 0:
        n = named[1]
        items[position] = named[0]
        named[0] += 1
        named[1] += 1
        named[2 + n] = position


@jit
def dump(table: Table, rows: Ints) -> tuple[Ints, Ints, Floats, Floats]:
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
def fill(table: Table, row: Ints, item: Ints, count: Floats, total: Floats) -> bool:
    """Insert what `dump` returned, in the same order, and return whether all pairs differed."""
    for at in range(len(row) - 1, -1, -1):
        before = table.size[4]
        entry = insert(table, row[at], item[at])
        if table.size[4] == before:
            return False
        table.tally[entry], table.total[entry] = count[at], total[at]
    return True
