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
