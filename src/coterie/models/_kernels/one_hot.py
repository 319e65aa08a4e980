"""Classes of users with equal histories, in flat arrays.

On an item, the users with equal (times, total) form a class. Each item keeps its classes in one segment of
`classes`, sorted by (times, total), so what is computed from them depends on what was learned and not on
the way there. A user finds the own class in one of two ways:

- by an entry, made when the user learned alone: a small hash table for each user, from item to class id;
- by a mark: when the untouched users of an item learn together, nobody's entry is written. Users are
  numbered in the order in which they became eligible, and the mark says that whoever has a number below
  `until`, no entry, and no earlier mark is in its class. Everybody else is untouched.

A scan over an item's classes serves every user of a class until the item changes or the bounds have grown
enough to meet another class: `near` keeps its sums, with the item's version and the scales they are good for.

Ids of classes that became equal are merged, the one pointing to the other (union-find); an id is free again
when no entry, mark or other id points to it. Segments are powers of two, with a list of free ones for each
size. Nothing grows in here: what lacks room is named to the caller, who enlarges it and calls again.
"""

import math
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from coterie.models._kernels.jit import bare
from coterie.models.protocol import ROUNDING, TIE, Floats

Ints: TypeAlias = NDArray[np.int64]
Records: TypeAlias = NDArray[Any]

NONE, UNKNOWN = -1, -2
ELSEWHERE = -2  # in place of a row: the user's models are not among these

USER = np.dtype([("order", "i8"), ("start", "i8"), ("bits", "i4"), ("count", "i4")], align=True)
ENTRY = np.dtype([("item", "i4"), ("id", "i4")], align=True)
ITEM = np.dtype(
    [
        ("touched", "i8"),
        ("born", "i8"),
        ("version", "i8"),
        ("start", "i8"),
        ("bits", "i4"),
        ("count", "i4"),
        ("mark_start", "i8"),
        ("mark_bits", "i4"),
        ("mark_count", "i4"),
    ],
    align=True,
)
CLASS = np.dtype(
    [("times", "i8"), ("total", "f8"), ("size", "i8"), ("estimate", "f8"), ("spread", "f8"), ("id", "i8")],
    align=True,
)
ID = np.dtype([("parent", "i4"), ("refs", "i4"), ("slot", "i4")], align=True)
MARK = np.dtype([("until", "i8"), ("id", "i8")], align=True)
NEAR = np.dtype(
    [
        ("version", "i8"),
        ("since", "f8"),
        ("until", "f8"),
        ("members", "i8"),
        ("estimate", "f8"),
        ("spread", "f8"),
        ("square", "f8"),
    ],
    align=True,
)

# `counts`: how many users are eligible, the next user's number, the next item's, ids ever used, a free id,
# the last version given to an item, rows ever used, and a free row.
ELIGIBLE, ORDER, BORN, IDS, FREE_ID, VERSION, ROWS, FREE_ROW, N_COUNTS = range(9)
# `heaps`: a row for each array of segments; how much of it is in use, then a free segment of each size.
ENTRIES, CLASSES, MARKS = range(3)
SIZES = 40


class State(NamedTuple):
    """Everything that is known, as arrays."""

    users: Records  # USER, by row
    items: Records  # ITEM, by column
    entries: Records  # ENTRY, in a segment for each user
    classes: Records  # CLASS, in a segment for each item
    marks: Records  # MARK, in a segment for each item
    ids: Records  # ID, by class id
    scratch: Records  # CLASS, as long as the longest segment of classes
    near: Records  # NEAR, by place in `classes`
    near_untouched: Records  # NEAR, by column
    heaps: Ints  # (3, 1 + SIZES)
    counts: Ints  # (N_COUNTS,)


# What may lack room, as the calls below return it: the place in State.
ENOUGH, ROOM_USERS, ROOM_ENTRIES, ROOM_CLASSES, ROOM_MARKS, ROOM_IDS, ROOM_SCRATCH = -1, 0, 2, 3, 4, 5, 6

# The arrays as the calls below take them. A NamedTuple would cost ten times more to hand over.
Arrays: TypeAlias = tuple[Any, ...]


def empty_state() -> State:
    """Return the arrays of nobody."""
    state = State(
        np.zeros(16, USER),
        np.zeros(16, ITEM),
        np.zeros(64, ENTRY),
        np.zeros(64, CLASS),
        np.zeros(16, MARK),
        np.zeros(64, ID),
        np.zeros(64, CLASS),
        np.zeros(64, NEAR),
        np.zeros(16, NEAR),
        np.full((3, 1 + SIZES), NONE, dtype=np.int64),
        np.zeros(N_COUNTS, dtype=np.int64),
    )
    state.heaps[:, 0] = 0
    state.counts[FREE_ID] = state.counts[FREE_ROW] = NONE
    return state


@bare
def allocate(heap: Ints, links: Ints, bits: int) -> int:
    """Return the start of a segment of 2**bits, or NONE if there is no room."""
    start = heap[1 + bits]
    if start >= 0:
        heap[1 + bits] = links[start]
        return int(start)
    start = heap[0]
    if start + (1 << bits) > len(links):
        return NONE
    heap[0] += 1 << bits
    return int(start)


@bare
def release(heap: Ints, links: Ints, bits: int, start: int) -> None:
    """Take a segment back."""
    links[start] = heap[1 + bits]
    heap[1 + bits] = start


@bare
def new_row(users: Records, counts: Ints) -> int:
    """Return a row for a user who has none, or NONE if there is no room."""
    row = counts[FREE_ROW]
    if row >= 0:
        counts[FREE_ROW] = users[row].start
    elif counts[ROWS] < len(users):
        row = counts[ROWS]
        counts[ROWS] += 1
    else:
        return NONE
    users[row].order, users[row].start = NONE, NONE
    users[row].bits, users[row].count = 0, 0
    return int(row)


@bare
def find_entry(users: Records, entries: Records, row: int, item: int) -> int:
    """Return where a user's entry for an item lies, or NONE."""
    start = users[row].start
    if start < 0:
        return NONE
    mask = (1 << users[row].bits) - 1
    p = ((item * 0x9E3779B1) >> 8) & mask
    while True:
        found = entries[start + p].item
        if found == item:
            return int(start + p)
        if found < 0:
            return NONE
        p = (p + 1) & mask


@bare
def make_entry(s: State, row: int, item: int, id: int) -> None:
    """Write an entry that is not there yet, in room that was reserved."""
    users, entries = s.users, s.entries
    start = users[row].start
    mask = (1 << users[row].bits) - 1
    p = ((item * 0x9E3779B1) >> 8) & mask
    while entries[start + p].item >= 0:
        p = (p + 1) & mask
    entries[start + p].item = item
    entries[start + p].id = id
    users[row].count += 1


@bare
def free_entries(s: State, start: int, bits: int) -> None:
    """Take a user's segment back, with nothing left in it."""
    for p in range(start, start + (1 << bits)):
        s.entries[p].item = NONE
        s.entries[p].id = NONE
    release(s.heaps[ENTRIES], s.entries["item"], bits, start)


@bare
def reserve_entry(s: State, row: int) -> bool:
    """Make sure that a user has room for one more entry, with a quarter of the segment empty."""
    users, entries, heaps = s.users, s.entries, s.heaps
    start, bits = users[row].start, users[row].bits
    if start >= 0 and 4 * (users[row].count + 1) <= 3 << bits:
        return True
    more = bits + 1 if start >= 0 else 2
    new = allocate(heaps[ENTRIES], entries["item"], more)
    if new < 0:
        return False
    for p in range(new, new + (1 << more)):
        entries[p].item = NONE
    users[row].start, users[row].bits, users[row].count = new, more, 0
    if start >= 0:
        for p in range(start, start + (1 << bits)):
            if entries[p].item >= 0:
                make_entry(s, row, entries[p].item, entries[p].id)
        free_entries(s, start, bits)
    return True


@bare
def reserve_class(s: State, item: int) -> bool:
    """Make sure that an item has room for one more class."""
    start, bits, count = s.items[item].start, s.items[item].bits, s.items[item].count
    if start >= 0 and count < 1 << bits:
        return True
    more = bits + 1 if start >= 0 else 2
    new = allocate(s.heaps[CLASSES], s.classes["id"], more)
    if new < 0:
        return False
    for p in range(count):
        s.classes[new + p] = s.classes[start + p]
    if start >= 0:
        release(s.heaps[CLASSES], s.classes["id"], bits, start)
    s.items[item].start, s.items[item].bits = new, more
    return True


@bare
def new_id(s: State) -> int:
    """Return an id that nothing points to yet, in room that was reserved."""
    ids, counts = s.ids, s.counts
    id = counts[FREE_ID]
    if id >= 0:
        counts[FREE_ID] = ids[id].parent
    else:
        id = counts[IDS]
        counts[IDS] += 1
    ids[id].parent = NONE
    ids[id].refs = 0
    return int(id)


@bare
def unref(s: State, id: int) -> None:
    """Let go of an id: it is free when nothing points to it, and then lets go of what it points to."""
    ids, counts = s.ids, s.counts
    while id >= 0:
        ids[id].refs -= 1
        if ids[id].refs > 0:
            return
        parent = ids[id].parent
        ids[id].parent = counts[FREE_ID]
        counts[FREE_ID] = id
        id = parent


@bare
def root(ids: Records, id: int) -> int:
    """Return the id of the class that an id was merged into."""
    while ids[id].parent >= 0:
        id = ids[id].parent
    return id


@bare
def find_mark(users: Records, items: Records, marks: Records, row: int, item: int) -> int:
    """Return where the first mark above a user's number lies, or NONE."""
    order, count, start = users[row].order, items[item].mark_count, items[item].mark_start
    if order < 0 or count == 0 or order >= marks[start + count - 1].until:
        return NONE
    low, rest = (
        start,
        count - 1,
    )  # the mark is at low … low + rest; without branches, for they are a coin toss
    while rest > 0:
        half = (rest + 1) >> 1
        low += half if order >= marks[low + half - 1].until else 0
        rest -= half
    return int(low)


@bare
def find_class(s: State, row: int, item: int, entry: int) -> int:
    """Return the id of a user's class on an item, whose entry is known; NONE if untouched."""
    users, items, entries, marks, ids = s.users, s.items, s.entries, s.marks, s.ids
    if entry >= 0:
        id = entries[entry].id
        if ids[id].parent < 0:
            return int(id)
        top = root(ids, id)
        entries[entry].id = top
    else:
        mark = find_mark(users, items, marks, row, item)
        if mark < 0:
            return NONE
        id = marks[mark].id
        if ids[id].parent < 0:
            return int(id)
        top = root(ids, id)
        marks[mark].id = top
    ids[top].refs += 1  # the next search finds the way in one step
    unref(s, id)
    return top


@bare
def find_pair(s: State, item: int, times: int, total: float) -> int:
    """Return the place of the first class that is not before (times, total)."""
    items, classes = s.items, s.classes
    low, high = 0, items[item].count
    start = items[item].start
    while low < high:
        middle = (low + high) >> 1
        a = classes[start + middle]
        if a.times < times or (a.times == times and a.total < total):
            low = middle + 1
        else:
            high = middle
    return low


@bare
def put_class(classes: Records, p: int, times: int, total: float, size: int, id: int) -> None:
    """Write one class."""
    classes[p].times = times
    classes[p].total = total
    classes[p].size = size
    classes[p].estimate = total / (1 + times)
    classes[p].spread = 1 / math.sqrt(1 + times)
    classes[p].id = id


@bare
def join(s: State, item: int, times: int, total: float, size: int) -> int:
    """Add users to the class of a pair, made if there is none, and return its id."""
    items, classes, ids = s.items, s.classes, s.ids
    slot, start, count = find_pair(s, item, times, total), items[item].start, items[item].count
    p = start + slot
    items[item].touched += size
    if slot < count and classes[p].times == times and classes[p].total == total:
        classes[p].size += size
        return int(classes[p].id)
    for q in range(start + count, p, -1):
        classes[q] = classes[q - 1]
        ids[classes[q].id].slot += 1
    id = new_id(s)
    ids[id].slot = slot
    put_class(classes, p, times, total, size, id)
    items[item].count += 1
    return id


@bare
def leave(s: State, item: int, id: int, entry: int) -> None:
    """Take one user out of a class. An entry, if the user has one, no longer counts."""
    items, entries, classes, ids = s.items, s.entries, s.classes, s.ids
    start, slot = items[item].start, ids[id].slot
    items[item].touched -= 1
    classes[start + slot].size -= 1
    if classes[start + slot].size == 0:
        items[item].count -= 1
        for q in range(start + slot, start + items[item].count):
            classes[q] = classes[q + 1]
            ids[classes[q].id].slot = q - start
        if ids[id].refs > (1 if entry >= 0 else 0):
            drop_marks(s, item, id)
    if entry >= 0:
        unref(s, entries[entry].id)


@bare
def drop_marks(s: State, item: int, id: int) -> None:
    """Remove the marks of a class without members: nobody is left between them and the marks before."""
    items, marks, ids = s.items, s.marks, s.ids
    start, kept = items[item].mark_start, 0
    ids[id].refs += 1  # it stays until the last mark is gone
    for p in range(start, start + items[item].mark_count):
        if root(ids, marks[p].id) == id:
            unref(s, marks[p].id)
        else:
            marks[start + kept] = marks[p]
            kept += 1
    items[item].mark_count = kept
    unref(s, id)


@bare
def join_marks(s: State, item: int) -> None:
    """Let neighbouring marks of one class become one."""
    items, marks, ids = s.items, s.marks, s.ids
    start, kept = items[item].mark_start, 0
    for p in range(start, start + items[item].mark_count):
        if kept > 0 and root(ids, marks[p].id) == root(ids, marks[start + kept - 1].id):
            unref(s, marks[start + kept - 1].id)
            kept -= 1
        marks[start + kept] = marks[p]
        kept += 1
    items[item].mark_count = kept


@bare
def reserve_mark(s: State, item: int) -> bool:
    """Make sure that an item has room for one more mark; only what does not become one makes it grow."""
    start, bits, count = s.items[item].mark_start, s.items[item].mark_bits, s.items[item].mark_count
    if start >= 0 and count < 1 << bits:
        return True
    if start >= 0:
        join_marks(s, item)
        count = s.items[item].mark_count
        if 2 * count <= 1 << bits:
            return True
    more = bits + 1 if start >= 0 else 0
    new = allocate(s.heaps[MARKS], s.marks["id"], more)
    if new < 0:
        return False
    for p in range(count):
        s.marks[new + p] = s.marks[start + p]
    if start >= 0:
        release(s.heaps[MARKS], s.marks["id"], bits, start)
    s.items[item].mark_start, s.items[item].mark_bits = new, more
    return True


@bare
def reserve(s: State, row: int, item: int, alone: bool) -> int:
    """Make sure that one payoff can be learned, or return what lacks room."""
    if not reserve_class(s, item):
        return ROOM_CLASSES
    if s.counts[FREE_ID] < 0 and s.counts[IDS] == len(s.ids):
        return ROOM_IDS
    if alone:
        return (
            ENOUGH
            if find_entry(s.users, s.entries, row, item) >= 0 or reserve_entry(s, row)
            else ROOM_ENTRIES
        )
    if s.items[item].count >= len(s.scratch):
        return ROOM_SCRATCH
    return ENOUGH if reserve_mark(s, item) else ROOM_MARKS


@bare
def make_eligible(s: State, row: int) -> None:
    """Give a user a number, unless the user has one."""
    users, counts = s.users, s.counts
    if row >= 0 and users[row].order < 0:
        users[row].order = counts[ORDER]
        counts[ORDER] += 1
        counts[ELIGIBLE] += 1


@bare
def change(s: State, item: int) -> None:
    """Make all sums kept for an item old."""
    items, counts = s.items, s.counts
    counts[VERSION] += 1
    items[item].version = counts[VERSION]


@bare
def note_item(s: State, item: int) -> None:
    """Remember that an item changes, and in which order items were first learned."""
    items, counts = s.items, s.counts
    change(s, item)
    if items[item].born < 0:
        items[item].born = counts[BORN]
        counts[BORN] += 1


@bare
def learn_alone(s: State, row: int, item: int, payoff: float) -> None:
    """Let one user learn, in room that was reserved."""
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
def scale_after(alpha: float, learned: int) -> float:
    """Return α·√log(1+t), as `policies/clock.py` does."""
    return alpha * math.sqrt(math.log1p(learned + 1))


@bare
def is_near(estimate: float, spread: float, other: float, other_spread: float, scale: float) -> bool:
    """Return whether two users' bounds meet."""
    return abs(estimate - other) <= scale * (spread + other_spread) + ROUNDING


@bare
def learn_together(
    s: State, row: int, item: int, payoff: float, own: tuple[float, float], scale: float, limit: float
) -> int:
    """Let the sure neighbours of a user learn, in room that was reserved, and return how many they are.

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
    """Merge two classes' ids and return the one that stays: the one with more pointing to it."""
    if ids[a].refs < ids[b].refs:
        a, b = b, a
    ids[b].parent = a
    ids[a].refs += 1
    return a


@bare
def find_place(s: State, row: int, item: int) -> int:
    """Return where a user's class on an item lies, or NONE if untouched."""
    if row < 0 or item < 0:
        return NONE
    id = find_class(s, row, item, find_entry(s.users, s.entries, row, item))
    return s.items[item].start + s.ids[id].slot if id >= 0 else NONE


@bare
def find_place_quickly(
    users: Records, items: Records, entries: Records, marks: Records, ids: Records, row: int, item: int
) -> int:
    """Do what `find_place` does, or return UNKNOWN if ids must be followed."""
    p = find_entry(users, entries, row, item)
    if p >= 0:
        id = entries[p].id
    else:
        p = find_mark(users, items, marks, row, item)
        if p < 0:
            return NONE
        id = marks[p].id
    return items[item].start + ids[id].slot if ids[id].parent < 0 else UNKNOWN


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

    They are the same at a larger scale, until it meets another class. The margin of 1e-9 is far more than the
    test rounds.
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

    `stranger` is 1 for a user who is not eligible yet: untouched, and always in the own neighbourhood.
    """
    if not is_near(own[0], own[1], 0.0, 1.0, scale):
        return 0
    return int(counts[ELIGIBLE] + stranger - (items[item].touched if item >= 0 else 0))


# What follows is called from Python.


@bare
def view(arrays: Arrays, row: int, columns: Ints, estimate: Floats, spread: Floats) -> None:
    """Write a user's own estimates and spreads."""
    s = State(*arrays)
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
    s = State(*arrays)
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
    """Let one user learn, or return what lacks room."""
    s = State(*arrays)
    code = reserve(s, row, item, True)
    if code == ENOUGH:
        learn_alone(s, row, item, payoff)
    return code


@bare
def share(
    arrays: Arrays, row: int, item: int, payoff: float, own: tuple[float, float], scale: float, limit: float
) -> tuple[int, int]:
    """Let the sure neighbours learn and return (ENOUGH, how many), or what lacks room."""
    s = State(*arrays)
    code = reserve(s, row, item, False)
    if code != ENOUGH:
        return code, 0
    return code, learn_together(s, row, item, payoff, own, scale, limit)


@bare
def make_row(arrays: Arrays) -> int:
    """Return a row for a user who has none, or NONE if there is no room."""
    s = State(*arrays)
    return new_row(s.users, s.counts)


@bare
def add(arrays: Arrays, row: int) -> None:
    """Make a user eligible."""
    make_eligible(State(*arrays), row)


@bare
def drop(arrays: Arrays, row: int, n_items: int) -> None:
    """Forget a user on every item."""
    s = State(*arrays)
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
    """Give back what an item without touched users holds."""
    s = State(*arrays)
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
    s = State(*arrays)
    for row in range(len(near)):
        if s.users[row].order >= 0:
            estimate, spread = own_view(s.classes, find_place(s, row, item))
            near[row] = is_near(own[0], own[1], estimate, spread, scale)


@bare
def put_entries(arrays: Arrays, rows: Ints, items: Ints, ids: Ints, begin: int) -> int:
    """Write entries from `begin` on, and return where room for entries ended: at the last, if it did not."""
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
    """Write pairs of users who have none on these items yet; return where room ended, and which."""
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


@bare
def draw_sums(columns: Ints, sums: Floats, scale: float, rng: Any, normal: Floats, drawn: Floats) -> None:
    """Write for each candidate a draw of its neighbours' sum: one normal for each item listed."""
    for k in range(len(columns)):
        first = 0
        while columns[first] != columns[k]:
            first += 1
        normal[k] = rng.standard_normal() if first == k else normal[first]
        drawn[k] = sums[0, k] + scale * math.sqrt(sums[2, k]) * normal[k]


@bare
def learn(
    s: State, row_of: Ints, user: int, item: int, payoff: float, scale: float, limit: float
) -> tuple[int, int]:
    """Learn as CAB does and return (ENOUGH, how many users), or what lacks room. A user may get a row."""
    if row_of[user] < 0:
        row_of[user] = new_row(s.users, s.counts)
        if row_of[user] < 0:
            return ROOM_USERS, 0
    row = row_of[user]
    own = own_view(s.classes, find_place(s, row, item))
    alone = scale * own[1] >= limit
    code = reserve(s, row, item, alone)
    if code != ENOUGH:
        return code, 0
    if not alone:
        return code, learn_together(s, row, item, payoff, own, scale, limit)
    learn_alone(s, row, item, payoff)
    return code, 1


@bare
def run(
    arrays: Arrays,
    row_of: Ints,
    rounds: tuple[Ints, Ints, Ints, Floats, Ints],
    rule: tuple[float, float, bool],
    rng: Any,
    begin: int,
    decided: bool,
    learned: int,
    outcome: tuple[Ints, NDArray[np.bool_], Ints, Ints],
    desk: tuple[Ints, Ints, Ints, Floats, Floats, Floats],
) -> tuple[int, int, int]:
    """Play rounds from `begin` on, whose choice may be made already.

    `row_of` has the row of each user, NONE for a new one, who gets one with the first payoff. `rounds` is
    (users and candidates as positions, the column of each candidate's position, payoffs, served); `rule` is
    (α, γ, whether to draw). Returns where it stopped, what lacked room there, and how many payoffs were
    learned by then.
    """
    s = State(*arrays)
    users, items, entries, classes, marks, ids, _, near, near_untouched, _, counts = arrays
    who, candidates, columns, payoffs, served = rounds
    alpha, gamma, thompson = rule
    choices, kept, members, updated = outcome
    listed, places, found, sums, normal, score = desk
    c = candidates.shape[1]
    for t in range(begin, len(who)):
        row = row_of[who[t]]
        scale = scale_after(alpha, learned)
        if not decided:
            stranger = 1 if row < 0 or users[row].order < 0 else 0
            for k in range(c):
                item = listed[k] = columns[candidates[t, k]]
                places[k] = NONE
                if row >= 0:
                    places[k] = find_place_quickly(users, items, entries, marks, ids, row, item)
            for k in range(c):
                item, place = listed[k], places[k]
                if place == UNKNOWN:
                    place = find_place(s, row, item)
                own = own_view(classes, place)
                if place >= 0:
                    a = near[place]
                    if a.version != items[item].version or not a.since <= scale < a.until:
                        scan(items, classes, item, own, scale, near, place)
                else:
                    a = near_untouched[item]
                    if a.version != items[item].version or not a.since <= scale < a.until:
                        scan(items, classes, item, own, scale, near_untouched, item)
                untouched = untouched_near(items, counts, stranger, item, own, scale)
                found[k] = a.members + untouched
                sums[0, k] = a.estimate
                sums[1, k] = a.spread + untouched
                sums[2, k] = a.square + untouched
                score[k] = sums[0, k] / found[k] + scale * sums[1, k] / found[k]
            if thompson:
                draw_sums(listed, sums, scale, rng, normal, score)
                for k in range(c):
                    score[k] /= found[k]
            best, choice = score[0], 0
            for k in range(1, c):
                best = max(best, score[k])
            while best - score[choice] >= TIE:
                choice += 1
            choices[t], members[t] = choice, found[choice]
        decided = False
        choice = choices[t]
        if served[t] >= 0 and served[t] != choice:
            continue
        payoff = payoffs[t, 0 if served[t] >= 0 else choice]
        item = columns[candidates[t, choice]]
        code, updated[t] = learn(s, row_of, who[t], item, payoff, scale, gamma / 4)
        if code != ENOUGH:
            return t, code, learned
        kept[t] = True
        learned += 1
    return len(who), ENOUGH, learned
