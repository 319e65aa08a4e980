"""Users with equal histories: entries, marks, classes and their ids, in the arrays of `history_arrays`."""

import math

from coterie.arrays import Ints
from coterie.models._kernels.jit import bare
from coterie.models._kernels.users.history_arrays import (
    BORN,
    CLASSES,
    ELIGIBLE,
    ENOUGH,
    ENTRIES,
    FREE_ID,
    FREE_ROW,
    IDS,
    MARKS,
    NONE,
    ORDER,
    ROOM_CLASSES,
    ROOM_ENTRIES,
    ROOM_IDS,
    ROOM_MARKS,
    ROOM_SCRATCH,
    ROWS,
    VERSION,
    Histories,
    Records,
)


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
    """Release a segment."""
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
    p = ((int(item) * 0x9E3779B1) >> 8) & mask
    while True:
        found = entries[start + p].item
        if found == item:
            return int(start + p)
        if found < 0:
            return NONE
        p = (p + 1) & mask


@bare
def make_entry(s: Histories, row: int, item: int, id: int) -> None:
    """Write an entry that is not there yet, in room that was reserved."""
    users, entries = s.users, s.entries
    start = users[row].start
    mask = (1 << users[row].bits) - 1
    p = ((int(item) * 0x9E3779B1) >> 8) & mask
    while entries[start + p].item >= 0:
        p = (p + 1) & mask
    entries[start + p].item = item
    entries[start + p].id = id
    users[row].count += 1


@bare
def free_entries(s: Histories, start: int, bits: int) -> None:
    """Release a user's segment, cleared."""
    for p in range(start, start + (1 << bits)):
        s.entries[p].item = NONE
        s.entries[p].id = NONE
    release(s.heaps[ENTRIES], s.entries["item"], bits, start)


@bare
def reserve_entry(s: Histories, row: int) -> bool:
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
def widen(heap: Ints, records: Records, start: int, bits: int, count: int, least: int) -> tuple[int, int]:
    """Move a segment's first `count` records to one of twice the size, or make one of 2**least.

    Returns its start, NONE if there is no room, and its size in bits.
    """
    more = bits + 1 if start >= 0 else least
    new = allocate(heap, records["id"], more)
    if new >= 0:
        for p in range(count):
            records[new + p] = records[start + p]
        if start >= 0:
            release(heap, records["id"], bits, start)
    return new, more


@bare
def reserve_class(s: Histories, item: int) -> bool:
    """Make sure that an item has room for one more class."""
    start, bits, count = s.items[item].start, s.items[item].bits, s.items[item].count
    if start >= 0 and count < 1 << bits:
        return True
    new, more = widen(s.heaps[CLASSES], s.classes, start, bits, count, 2)
    if new >= 0:
        s.items[item].start, s.items[item].bits = new, more
    return new >= 0


@bare
def new_id(s: Histories) -> int:
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
def unref(s: Histories, id: int) -> None:
    """Remove a reference to an id. An id without references is free, and its own reference is removed."""
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
    low, rest = start, count - 1  # the mark is at low … low + rest; no branches: they could not be predicted
    while rest > 0:
        half = (rest + 1) >> 1
        low += half if order >= marks[low + half - 1].until else 0
        rest -= half
    return int(low)


@bare
def find_class(s: Histories, row: int, item: int, entry: int) -> int:
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
    ids[top].refs += 1  # the next search needs one step
    unref(s, id)
    return top


@bare
def find_pair(s: Histories, item: int, times: int, total: float) -> int:
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
def join(s: Histories, item: int, times: int, total: float, size: int) -> int:
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
def leave(s: Histories, item: int, id: int, entry: int) -> None:
    """Take one user out of a class. If the user has an entry, its reference is removed."""
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
def drop_marks(s: Histories, item: int, id: int) -> None:
    """Remove the marks of a class without members: no user is left between them and the marks before."""
    items, marks, ids = s.items, s.marks, s.ids
    start, kept = items[item].mark_start, 0
    ids[id].refs += 1  # so that it is not freed before the last mark
    for p in range(start, start + items[item].mark_count):
        if root(ids, marks[p].id) == id:
            unref(s, marks[p].id)
        else:
            marks[start + kept] = marks[p]
            kept += 1
    items[item].mark_count = kept
    unref(s, id)


@bare
def join_marks(s: Histories, item: int) -> None:
    """Join neighbouring marks of one class."""
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
def reserve_mark(s: Histories, item: int) -> bool:
    """Make sure that an item has room for one more mark; neighbouring marks of one class are joined first."""
    start, bits, count = s.items[item].mark_start, s.items[item].mark_bits, s.items[item].mark_count
    if start >= 0 and count < 1 << bits:
        return True
    if start >= 0:
        join_marks(s, item)
        count = s.items[item].mark_count
        if 2 * count <= 1 << bits:
            return True
    new, more = widen(s.heaps[MARKS], s.marks, start, bits, count, 0)
    if new >= 0:
        s.items[item].mark_start, s.items[item].mark_bits = new, more
    return new >= 0


@bare
def reserve(s: Histories, row: int, item: int, alone: bool) -> int:
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
def make_eligible(s: Histories, row: int) -> None:
    """Give a user a number, unless the user has one."""
    users, counts = s.users, s.counts
    if row >= 0 and users[row].order < 0:
        users[row].order = counts[ORDER]
        counts[ORDER] += 1
        counts[ELIGIBLE] += 1


@bare
def change(s: Histories, item: int) -> None:
    """Invalidate the sums kept for an item."""
    items, counts = s.items, s.counts
    counts[VERSION] += 1
    items[item].version = counts[VERSION]


@bare
def note_item(s: Histories, item: int) -> None:
    """Record that an item changes, and in which order items were first learned."""
    items, counts = s.items, s.counts
    change(s, item)
    if items[item].born < 0:
        items[item].born = counts[BORN]
        counts[BORN] += 1
