"""Pairs of users and items, from files into arrays and back."""

from coterie.arrays import Ints
from coterie.models._kernels.jit import bare
from coterie.models._kernels.users.histories import make_entry, reserve_entry, root
from coterie.models._kernels.users.history_arrays import Arrays, Histories


@bare
def put_entries(arrays: Arrays, rows: Ints, items: Ints, ids: Ints, begin: int) -> int:
    """Write entries from `begin` on, and return how many are written when the room ends: all, if it is enough."""
    s = Histories(*arrays)
    for p in range(begin, len(rows)):
        if not reserve_entry(s, rows[p]):
            return p
        make_entry(s, rows[p], items[p], ids[p])
    return len(rows)


@bare
def take_entries(arrays: Arrays, rows: Ints, items: Ints, ids: Ints) -> None:
    """Write all entries of the users in `rows`: rows and items as positions, ids of living classes."""
    s = Histories(*arrays)
    n = 0
    for row in rows:
        start = s.users[row].start
        if start >= 0:
            for p in range(start, start + (1 << s.users[row].bits)):
                if s.entries[p].item >= 0:
                    items[n], ids[n] = s.entries[p].item, root(s.ids, s.entries[p].id)
                    n += 1
