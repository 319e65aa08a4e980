"""Reading and updating users with equal histories: the calls of `models/users/one_hot.py`.

The arrays, and how a user's class is found in them, are in `history_arrays`.
"""

import math

import numpy as np
from numpy.typing import NDArray

from coterie.arrays import Floats, Ints
from coterie.models._kernels.bounds import is_near
from coterie.models._kernels.jit import bare
from coterie.models._kernels.users.histories import (
    change,
    find_class,
    find_entry,
    find_mark,
    free_entries,
    join,
    leave,
    make_eligible,
    make_entry,
    new_id,
    new_row,
    note_item,
    put_class,
    release,
    reserve,
)
from coterie.models._kernels.users.history_arrays import (
    CLASSES,
    ELIGIBLE,
    ENOUGH,
    FREE_ROW,
    MARKS,
    NONE,
    ORDER,
    Arrays,
    Histories,
    Records,
)
from coterie.models.protocol import ROUNDING


@bare
def learn_alone(s: Histories, row: int, item: int, payoff: float) -> None:
    """Update one user, in room that was reserved."""
    users, items, entries, classes, ids = s.users, s.items, s.entries, s.classes, s.ids
    make_eligible(s, row)
    note_item(s, item)
    entry = find_entry(users, entries, row, item)
    old = find_class(s, row, item, entry)
    times, total = 1, 0.0 + payoff
    if old >= 0:
        p = items[item].start + ids[old].slot
        times, total = classes[p].times + 1, classes[p].total + payoff
        leave(s, item, old, entry)
    id = join(s, item, times, total, 1)
    ids[id].refs += 1
    if entry >= 0:
        entries[entry].id = id
    else:
        make_entry(s, row, item, id)


@bare
def learn_together(
    s: Histories, row: int, item: int, payoff: float, own: tuple[float, float], scale: float, limit: float
) -> int:
    """Update the certain neighbours of a user, in room that was reserved, and return how many they are.

    Whole classes move; moved and unmoved ones are each still in order, and are merged.
    """
    items, classes, marks, ids, scratch, counts = s.items, s.classes, s.marks, s.ids, s.scratch, s.counts
    make_eligible(s, row)
    note_item(s, item)
    start, count = items[item].start, items[item].count
    untouched = counts[ELIGIBLE] - items[item].touched
    updated, moved, unmoved = 0, 0, len(scratch)
    if untouched > 0 and is_near(own[0], own[1], 0.0, 1.0, scale) and scale < limit:
        id = new_id(s)
        ids[id].refs = 1
        mark = items[item].mark_start + items[item].mark_count
        marks[mark].until = counts[ORDER]
        marks[mark].id = id
        items[item].mark_count += 1
        items[item].touched += untouched
        scratch[0].times = 1
        scratch[0].total = 0.0 + payoff
        scratch[0].size = untouched
        scratch[0].id = id
        updated, moved = untouched, 1
    for p in range(start, start + count):
        old = classes[p]
        if is_near(own[0], own[1], old.estimate, old.spread, scale) and scale * old.spread < limit:
            scratch[moved] = old
            scratch[moved].times += 1
            scratch[moved].total += payoff
            moved += 1
            updated += old.size
        else:
            unmoved -= 1
            scratch[unmoved] = old
    front, back, p = 0, len(scratch) - 1, start - 1  # the unmoved lie backwards, from the end
    while front < moved or back >= unmoved:
        take = front < moved
        if take and back >= unmoved:
            x, y = scratch[front], scratch[back]
            take = x.times < y.times or (x.times == y.times and x.total <= y.total)
        new = scratch[front if take else back]
        if take:
            front += 1
        else:
            back -= 1
        if p >= start and classes[p].times == new.times and classes[p].total == new.total:
            classes[p].size += new.size
            classes[p].id = unite(ids, classes[p].id, new.id)
        else:
            p += 1
            put_class(classes, p, new.times, new.total, new.size, new.id)
        ids[classes[p].id].slot = p - start
    items[item].count = p + 1 - start
    return int(updated)


@bare
def unite(ids: Records, a: int, b: int) -> int:
    """Merge two classes' ids and return the one that stays: the one with more references."""
    if ids[a].refs < ids[b].refs:
        a, b = b, a
    ids[b].parent = a
    ids[a].refs += 1
    return a


@bare
def find_place(s: Histories, row: int, item: int) -> int:
    """Return where a user's class on an item lies, or NONE if untouched."""
    if row < 0 or item < 0:
        return NONE
    id = find_class(s, row, item, find_entry(s.users, s.entries, row, item))
    return s.items[item].start + s.ids[id].slot if id >= 0 else NONE


@bare
def own_view(classes: Records, place: int) -> tuple[float, float]:
    """Return the estimate and spread of a class."""
    if place < 0:
        return 0.0, 1.0
    return classes[place].estimate, classes[place].spread


@bare
def scan(
    items: Records, classes: Records, item: int, own: tuple[float, float], scale: float, near: Records, p: int
) -> None:
    """Write the sums over an item's classes that are neighbours, into one place of `near`.

    They hold at a larger scale too, until another class becomes a neighbour. The margin of 1e-9 is far larger than
    the rounding of the test.
    """
    members, estimate, spread, square, until = 0, 0.0, 0.0, 0.0, math.inf
    if item >= 0:
        near[p].version = items[item].version
        for q in range(items[item].start, items[item].start + items[item].count):
            a = classes[q]
            if is_near(own[0], own[1], a.estimate, a.spread, scale):
                members += a.size
                estimate += a.size * a.estimate
                spread += a.size * a.spread
                square += a.size * (a.spread * a.spread)
            else:
                gap = abs(own[0] - a.estimate) * (1 - 1e-9) - ROUNDING
                until = min(until, gap / (own[1] + a.spread))
    near[p].since = scale
    near[p].until = until
    near[p].members = members
    near[p].estimate = estimate
    near[p].spread = spread
    near[p].square = square


@bare
def untouched_near(
    items: Records, counts: Ints, stranger: int, item: int, own: tuple[float, float], scale: float
) -> int:
    """Return how many untouched users are neighbours.

    `stranger` is 1 for a user who is not eligible yet: untouched, and always in its own neighbourhood.
    """
    if not is_near(own[0], own[1], 0.0, 1.0, scale):
        return 0
    return int(counts[ELIGIBLE] + stranger - (items[item].touched if item >= 0 else 0))


# The functions below are called from Python.


@bare
def view(arrays: Arrays, row: int, columns: Ints, estimate: Floats, spread: Floats) -> None:
    """Write a user's own estimates and spreads."""
    s = Histories(*arrays)
    for k in range(len(columns)):
        estimate[k], spread[k] = own_view(s.classes, find_place(s, row, columns[k]))


@bare
def gather(
    arrays: Arrays,
    row: int,
    columns: Ints,
    own: tuple[Floats, Floats],
    scale: float,
    members: Ints,
    sums: Floats,
    near: Records,
) -> None:
    """Write the sums over each candidate's neighbours: of estimates, spreads, squared spreads."""
    s = Histories(*arrays)
    stranger = 1 if row == NONE or (row >= 0 and s.users[row].order < 0) else 0
    for k in range(len(columns)):
        view = own[0][k], own[1][k]
        scan(s.items, s.classes, columns[k], view, scale, near, 0)
        untouched = untouched_near(s.items, s.counts, stranger, columns[k], view, scale)
        members[k] = near[0].members + untouched
        sums[0, k] = near[0].estimate
        sums[1, k] = near[0].spread + untouched
        sums[2, k] = near[0].square + untouched


@bare
def update(arrays: Arrays, row: int, item: int, payoff: float) -> int:
    """Update one user, or return which array lacks room."""
    s = Histories(*arrays)
    code = reserve(s, row, item, True)
    if code == ENOUGH:
        learn_alone(s, row, item, payoff)
    return code


@bare
def share(
    arrays: Arrays, row: int, item: int, payoff: float, own: tuple[float, float], scale: float, limit: float
) -> tuple[int, int]:
    """Update the certain neighbours and return (ENOUGH, how many), or which array lacks room."""
    s = Histories(*arrays)
    code = reserve(s, row, item, False)
    if code != ENOUGH:
        return code, 0
    return code, learn_together(s, row, item, payoff, own, scale, limit)


@bare
def make_row(arrays: Arrays) -> int:
    """Return a row for a user who has none, or NONE if there is no room."""
    s = Histories(*arrays)
    return new_row(s.users, s.counts)


@bare
def add(arrays: Arrays, row: int) -> None:
    """Make a user eligible."""
    make_eligible(Histories(*arrays), row)


@bare
def drop(arrays: Arrays, row: int, n_items: int) -> None:
    """Forget a user on every item."""
    s = Histories(*arrays)
    for item in range(n_items):
        if (
            find_mark(s.users, s.items, s.marks, row, item) >= 0
            and find_entry(s.users, s.entries, row, item) < 0
        ):
            leave(s, item, find_class(s, row, item, NONE), NONE)
            change(s, item)
    start, bits = s.users[row].start, s.users[row].bits
    if start >= 0:
        for p in range(start, start + (1 << bits)):
            item = s.entries[p].item
            if item >= 0:
                leave(s, item, find_class(s, row, item, p), p)
                change(s, item)
        free_entries(s, start, bits)
    if s.users[row].order >= 0:
        s.counts[ELIGIBLE] -= 1
    s.users[row].order, s.users[row].start = NONE, s.counts[FREE_ROW]
    s.users[row].bits, s.users[row].count = 0, 0
    s.counts[FREE_ROW] = row


@bare
def drop_item(arrays: Arrays, item: int) -> None:
    """Release the segments of an item without touched users."""
    s = Histories(*arrays)
    if s.items[item].start >= 0:
        release(s.heaps[CLASSES], s.classes["id"], s.items[item].bits, s.items[item].start)
    if s.items[item].mark_start >= 0:
        release(s.heaps[MARKS], s.marks["id"], s.items[item].mark_bits, s.items[item].mark_start)
    s.items[item].start, s.items[item].mark_start, s.items[item].born = NONE, NONE, NONE


@bare
def near_users(
    arrays: Arrays, item: int, own: tuple[float, float], scale: float, near: NDArray[np.bool_]
) -> None:
    """Write which of the first rows hold an eligible user who is a neighbour on `item`."""
    s = Histories(*arrays)
    for row in range(len(near)):
        if s.users[row].order >= 0:
            estimate, spread = own_view(s.classes, find_place(s, row, item))
            near[row] = is_near(own[0], own[1], estimate, spread, scale)
