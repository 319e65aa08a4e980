"""Pairs of users and items, from files into arrays and back."""

from coterie.arrays import Floats, Ints
from coterie.models._kernels.jit import bare
from coterie.models._kernels.users.histories import (
    find_entry,
    join,
    make_eligible,
    make_entry,
    note_item,
    reserve,
    reserve_entry,
    root,
)
from coterie.models._kernels.users.history_arrays import (
    ENOUGH,
    Arrays,
    State,
)
from coterie.models._kernels.users.one_hot import (
    find_place,
)


@bare
def put_entries(arrays: Arrays, rows: Ints, items: Ints, ids: Ints, begin: int) -> int:
    """Write entries from `begin` on, and return how many are written when the room ends: all, if it is enough."""
    s = State(*arrays)
    for p in range(begin, len(rows)):
        if not reserve_entry(s, rows[p]):
            return p
        make_entry(s, rows[p], items[p], ids[p])
    return len(rows)


@bare
def take_entries(arrays: Arrays, rows: Ints, items: Ints, ids: Ints) -> None:
    """Write all entries of the users in `rows`: rows and items as positions, ids of living classes."""
    s = State(*arrays)
    n = 0
    for row in rows:
        start = s.users[row].start
        if start >= 0:
            for p in range(start, start + (1 << s.users[row].bits)):
                if s.entries[p].item >= 0:
                    items[n], ids[n] = s.entries[p].item, root(s.ids, s.entries[p].id)
                    n += 1


@bare
def take_pairs(
    arrays: Arrays, rows: Ints, marked: Ints, who: Ints, items: Ints, times: Ints, total: Floats
) -> int:
    """Write what the users in `rows` learned, by position in `rows` and column; return how many pairs.

    `marked` are the columns with marks. With no room at all in `who`, pairs are only counted.
    """
    s = State(*arrays)
    n = 0
    for u in range(len(rows)):
        row = rows[u]
        start = s.users[row].start
        size = 1 << s.users[row].bits if start >= 0 else 0
        for p in range(size + len(marked)):
            item = s.entries[start + p].item if p < size else marked[p - size]
            if item < 0 or (p >= size and find_entry(s.users, s.entries, row, item) >= 0):
                continue
            place = find_place(s, row, item)
            if place < 0:
                continue
            if len(who):
                who[n], items[n] = u, item
                times[n], total[n] = s.classes[place].times, s.classes[place].total
            n += 1
    return n


@bare
def put_pairs(
    arrays: Arrays, rows: Ints, columns: Ints, times: Ints, total: Floats, begin: int
) -> tuple[int, int]:
    """Write pairs of users who have none on these items yet; return how many are written, and what lacks room."""
    s = State(*arrays)
    for p in range(begin, len(rows)):
        code = reserve(s, rows[p], columns[p], True)
        if code != ENOUGH:
            return p, code
        make_eligible(s, rows[p])
        note_item(s, columns[p])
        id = join(s, columns[p], times[p], total[p], 1)
        s.ids[id].refs += 1
        make_entry(s, rows[p], columns[p], id)
    return len(rows), ENOUGH
