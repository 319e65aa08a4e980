"""Classes of users with equal histories, in flat arrays.

On an item, the users with equal (times, total) form a class. Each item keeps its classes in one segment of
`classes`, sorted by (times, total), so what is computed from them depends on what was learned and not on
the way there. A user finds the own class in one of two ways:

- by an entry, made when the user learned alone: a small hash table for each user, from item to class id;
- by a mark: when the untouched users of an item learn together, nobody's entry is written. Users are
  numbered in the order in which they became eligible, and the mark says that whoever has a number below
  `until`, no entry, and no earlier mark is in its class. Everybody else is untouched.

Ids of classes that became equal are merged, the one pointing to the other (union-find); an id is free again
when no entry, mark or other id points to it. Segments are powers of two, with a list of free ones for each
size. Nothing grows in here: what lacks room is named to the caller, who enlarges it and calls again.
"""

import math
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from coterie.models._kernels.jit import jit
from coterie.models.protocol import ROUNDING, TIE, Floats

Ints: TypeAlias = NDArray[np.int64]
Records: TypeAlias = NDArray[Any]

NONE = -1

USER = np.dtype([("order", "i8"), ("start", "i8"), ("bits", "i4"), ("count", "i4")], align=True)
ENTRY = np.dtype([("item", "i4"), ("id", "i4")], align=True)
ITEM = np.dtype(
    [
        ("touched", "i8"),
        ("born", "i8"),
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

# `counts`: how many users are eligible, the next user's number, the next item's, ids ever used, a free id.
ELIGIBLE, ORDER, BORN, IDS, FREE_ID, N_COUNTS = range(6)
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
    heaps: Ints  # (3, 1 + SIZES)
    counts: Ints  # (N_COUNTS,)


# What may lack room, as the calls below return it: the place in State.
ENOUGH, ROOM_ENTRIES, ROOM_CLASSES, ROOM_MARKS, ROOM_IDS, ROOM_SCRATCH = 0, 2, 3, 4, 5, 6

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
        np.full((3, 1 + SIZES), NONE, dtype=np.int64),
        np.zeros(N_COUNTS, dtype=np.int64),
    )
    state.heaps[:, 0] = 0
    state.counts[FREE_ID] = NONE
    return state


@jit
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


@jit
def release(heap: Ints, links: Ints, bits: int, start: int) -> None:
    """Take a segment back."""
    links[start] = heap[1 + bits]
    heap[1 + bits] = start


@jit
def find_entry(s: State, row: int, item: int) -> int:
    """Return where a user's entry for an item lies, or NONE."""
    start = s.users[row].start
    if start < 0:
        return NONE
    mask = (1 << s.users[row].bits) - 1
    p = ((item * 0x9E3779B1) >> 8) & mask
    while True:
        found = s.entries[start + p].item
        if found == item:
            return int(start + p)
        if found < 0:
            return NONE
        p = (p + 1) & mask


@jit
def make_entry(s: State, row: int, item: int, id: int) -> None:
    """Write an entry that is not there yet, in room that was reserved."""
    start = s.users[row].start
    mask = (1 << s.users[row].bits) - 1
    p = ((item * 0x9E3779B1) >> 8) & mask
    while s.entries[start + p].item >= 0:
        p = (p + 1) & mask
    s.entries[start + p].item = item
    s.entries[start + p].id = id
    s.users[row].count += 1


@jit
def free_entries(s: State, start: int, bits: int) -> None:
    """Take a user's segment back, with nothing left in it."""
    for p in range(start, start + (1 << bits)):
        s.entries[p].item = NONE
        s.entries[p].id = NONE
    release(s.heaps[ENTRIES], s.entries["item"], bits, start)


@jit
def reserve_entry(s: State, row: int) -> bool:
    """Make sure that a user has room for one more entry, with a quarter of the segment empty."""
    start, bits = s.users[row].start, s.users[row].bits
    if start >= 0 and 4 * (s.users[row].count + 1) <= 3 << bits:
        return True
    more = bits + 1 if start >= 0 else 2
    new = allocate(s.heaps[ENTRIES], s.entries["item"], more)
    if new < 0:
        return False
    for p in range(new, new + (1 << more)):
        s.entries[p].item = NONE
    s.users[row].start, s.users[row].bits, s.users[row].count = new, more, 0
    if start >= 0:
        for p in range(start, start + (1 << bits)):
            if s.entries[p].item >= 0:
                make_entry(s, row, s.entries[p].item, s.entries[p].id)
        free_entries(s, start, bits)
    return True


@jit
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


@jit
def reserve_mark(s: State, item: int) -> bool:
    """Make sure that an item has room for one more mark."""
    start, bits, count = s.items[item].mark_start, s.items[item].mark_bits, s.items[item].mark_count
    if start >= 0 and count < 1 << bits:
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


@jit
def reserve(s: State, row: int, item: int, alone: bool) -> int:
    """Make sure that one payoff can be learned, or return what lacks room."""
    if not reserve_class(s, item):
        return ROOM_CLASSES
    if s.counts[FREE_ID] < 0 and s.counts[IDS] == len(s.ids):
        return ROOM_IDS
    if alone:
        return ENOUGH if find_entry(s, row, item) >= 0 or reserve_entry(s, row) else ROOM_ENTRIES
    if s.items[item].count >= len(s.scratch):
        return ROOM_SCRATCH
    return ENOUGH if reserve_mark(s, item) else ROOM_MARKS


@jit
def new_id(s: State) -> int:
    """Return an id that nothing points to yet, in room that was reserved."""
    id = s.counts[FREE_ID]
    if id >= 0:
        s.counts[FREE_ID] = s.ids[id].parent
    else:
        id = s.counts[IDS]
        s.counts[IDS] += 1
    s.ids[id].parent = NONE
    s.ids[id].refs = 0
    return int(id)


@jit
def unref(s: State, id: int) -> None:
    """Let go of an id: it is free when nothing points to it, and then lets go of what it points to."""
    while id >= 0:
        s.ids[id].refs -= 1
        if s.ids[id].refs > 0:
            return
        parent = s.ids[id].parent
        s.ids[id].parent = s.counts[FREE_ID]
        s.counts[FREE_ID] = id
        id = parent


@jit
def root(s: State, id: int) -> int:
    """Return the id of the class that an id was merged into."""
    while s.ids[id].parent >= 0:
        id = s.ids[id].parent
    return id


@jit
def find_mark(s: State, row: int, item: int) -> int:
    """Return where the first mark above a user's number lies, or NONE."""
    order, count, start = s.users[row].order, s.items[item].mark_count, s.items[item].mark_start
    if order < 0 or count == 0 or order >= s.marks[start + count - 1].until:
        return NONE
    low, high = start, start + count - 1
    while low < high:
        middle = (low + high) >> 1
        if order < s.marks[middle].until:
            high = middle
        else:
            low = middle + 1
    return int(low)


@jit
def find_class(s: State, row: int, item: int, entry: int) -> int:
    """Return the id of a user's class on an item, whose entry is known; NONE if untouched."""
    if entry >= 0:
        id = s.entries[entry].id
        if s.ids[id].parent < 0:
            return int(id)
        top = root(s, id)
        s.entries[entry].id = top
    else:
        mark = find_mark(s, row, item)
        if mark < 0:
            return NONE
        id = s.marks[mark].id
        if s.ids[id].parent < 0:
            return int(id)
        top = root(s, id)
        s.marks[mark].id = top
    s.ids[top].refs += 1  # the next search finds the way in one step
    unref(s, id)
    return top


@jit
def find_pair(s: State, item: int, times: int, total: float) -> int:
    """Return the place of the first class that is not before (times, total)."""
    low, high = 0, s.items[item].count
    start = s.items[item].start
    while low < high:
        middle = (low + high) >> 1
        a = s.classes[start + middle]
        if a.times < times or (a.times == times and a.total < total):
            low = middle + 1
        else:
            high = middle
    return low


@jit
def put_class(s: State, p: int, times: int, total: float, size: int, id: int) -> None:
    """Write one class."""
    s.classes[p].times = times
    s.classes[p].total = total
    s.classes[p].size = size
    s.classes[p].estimate = total / (1 + times)
    s.classes[p].spread = 1 / math.sqrt(1 + times)
    s.classes[p].id = id


@jit
def join(s: State, item: int, times: int, total: float, size: int) -> int:
    """Add users to the class of a pair, made if there is none, and return its id."""
    slot, start, count = find_pair(s, item, times, total), s.items[item].start, s.items[item].count
    p = start + slot
    s.items[item].touched += size
    if slot < count and s.classes[p].times == times and s.classes[p].total == total:
        s.classes[p].size += size
        return int(s.classes[p].id)
    for q in range(start + count, p, -1):
        s.classes[q] = s.classes[q - 1]
        s.ids[s.classes[q].id].slot += 1
    id = new_id(s)
    s.ids[id].slot = slot
    put_class(s, p, times, total, size, id)
    s.items[item].count += 1
    return id


@jit
def leave(s: State, item: int, id: int, entry: int) -> None:
    """Take one user out of a class. An entry, if the user has one, no longer counts."""
    start, slot = s.items[item].start, s.ids[id].slot
    s.items[item].touched -= 1
    s.classes[start + slot].size -= 1
    if s.classes[start + slot].size == 0:
        s.items[item].count -= 1
        for q in range(start + slot, start + s.items[item].count):
            s.classes[q] = s.classes[q + 1]
            s.ids[s.classes[q].id].slot = q - start
        if s.ids[id].refs > (1 if entry >= 0 else 0):
            drop_marks(s, item, id)
    if entry >= 0:
        unref(s, s.entries[entry].id)


@jit
def drop_marks(s: State, item: int, id: int) -> None:
    """Remove the marks of a class without members: nobody is left between them and the marks before."""
    start, kept = s.items[item].mark_start, 0
    s.ids[id].refs += 1  # it stays until the last mark is gone
    for p in range(start, start + s.items[item].mark_count):
        if root(s, s.marks[p].id) == id:
            unref(s, s.marks[p].id)
        else:
            s.marks[start + kept] = s.marks[p]
            kept += 1
    s.items[item].mark_count = kept
    unref(s, id)


@jit
def join_marks(s: State, item: int) -> None:
    """Let neighbouring marks of one class become one."""
    start, kept = s.items[item].mark_start, 0
    for p in range(start, start + s.items[item].mark_count):
        if kept > 0 and root(s, s.marks[p].id) == root(s, s.marks[start + kept - 1].id):
            unref(s, s.marks[start + kept - 1].id)
            kept -= 1
        s.marks[start + kept] = s.marks[p]
        kept += 1
    s.items[item].mark_count = kept


@jit
def make_eligible(s: State, row: int) -> None:
    """Give a user a number, unless the user has one."""
    if s.users[row].order < 0:
        s.users[row].order = s.counts[ORDER]
        s.counts[ORDER] += 1
        s.counts[ELIGIBLE] += 1


@jit
def note_item(s: State, item: int) -> None:
    """Remember in which order items were first learned."""
    if s.items[item].born < 0:
        s.items[item].born = s.counts[BORN]
        s.counts[BORN] += 1


@jit
def learn_alone(s: State, row: int, item: int, payoff: float) -> None:
    """Let one user learn, in room that was reserved."""
    make_eligible(s, row)
    note_item(s, item)
    entry = find_entry(s, row, item)
    old = find_class(s, row, item, entry)
    times, total = 1, 0.0 + payoff
    if old >= 0:
        p = s.items[item].start + s.ids[old].slot
        times, total = s.classes[p].times + 1, s.classes[p].total + payoff
        leave(s, item, old, entry)
    id = join(s, item, times, total, 1)
    s.ids[id].refs += 1
    if entry >= 0:
        s.entries[entry].id = id
    else:
        make_entry(s, row, item, id)


@jit
def scale_after(alpha: float, learned: int) -> float:
    """Return α·√log(1+t), as `policies/clock.py` does."""
    return alpha * math.sqrt(math.log1p(learned + 1))


@jit
def is_near(estimate: float, spread: float, other: float, other_spread: float, scale: float) -> bool:
    """Return whether two users' bounds meet."""
    return abs(estimate - other) <= scale * (spread + other_spread) + ROUNDING


@jit
def learn_together(
    s: State, row: int, item: int, payoff: float, own: tuple[float, float], scale: float, limit: float
) -> int:
    """Let the sure neighbours of a user learn, in room that was reserved, and return how many they are.

    Whole classes move; moved and unmoved ones are each still in order, and are merged.
    """
    make_eligible(s, row)
    note_item(s, item)
    start, count = s.items[item].start, s.items[item].count
    untouched = s.counts[ELIGIBLE] - s.items[item].touched
    updated, moved, unmoved, marks_change = 0, 0, len(s.scratch), False
    if untouched > 0 and is_near(own[0], own[1], 0.0, 1.0, scale) and scale < limit:
        id = new_id(s)
        s.ids[id].refs = 1
        mark = s.items[item].mark_start + s.items[item].mark_count
        s.marks[mark].until = s.counts[ORDER]
        s.marks[mark].id = id
        s.items[item].mark_count += 1
        s.items[item].touched += untouched
        s.scratch[0].times = 1
        s.scratch[0].total = 0.0 + payoff
        s.scratch[0].size = untouched
        s.scratch[0].id = id
        updated, moved, marks_change = untouched, 1, True
    for p in range(start, start + count):
        old = s.classes[p]
        if is_near(own[0], own[1], old.estimate, old.spread, scale) and scale * old.spread < limit:
            s.scratch[moved] = old
            s.scratch[moved].times += 1
            s.scratch[moved].total += payoff
            moved += 1
            updated += old.size
        else:
            unmoved -= 1
            s.scratch[unmoved] = old
    front, back, p = 0, len(s.scratch) - 1, start - 1  # the unmoved lie backwards, from the end
    while front < moved or back >= unmoved:
        take = front < moved
        if take and back >= unmoved:
            x, y = s.scratch[front], s.scratch[back]
            take = x.times < y.times or (x.times == y.times and x.total <= y.total)
        new = s.scratch[front if take else back]
        if take:
            front += 1
        else:
            back -= 1
        if p >= start and s.classes[p].times == new.times and s.classes[p].total == new.total:
            s.classes[p].size += new.size
            s.classes[p].id = unite(s, s.classes[p].id, new.id)
            marks_change = True
        else:
            p += 1
            put_class(s, p, new.times, new.total, new.size, new.id)
        s.ids[s.classes[p].id].slot = p - start
    s.items[item].count = p + 1 - start
    if marks_change:
        join_marks(s, item)
    return int(updated)


@jit
def unite(s: State, a: int, b: int) -> int:
    """Merge two classes' ids and return the one that stays: the one with more pointing to it."""
    if s.ids[a].refs < s.ids[b].refs:
        a, b = b, a
    s.ids[b].parent = a
    s.ids[a].refs += 1
    return a


@jit
def own_view(s: State, row: int, item: int) -> tuple[float, float]:
    """Return a user's estimate and spread on an item; NONE is a user or item never seen."""
    if row < 0 or item < 0:
        return 0.0, 1.0
    id = find_class(s, row, item, find_entry(s, row, item))
    if id < 0:
        return 0.0, 1.0
    a = s.classes[s.items[item].start + s.ids[id].slot]
    return a.estimate, a.spread


@jit
def sum_near(
    s: State, stranger: int, item: int, own: tuple[float, float], scale: float
) -> tuple[int, float, float, float]:
    """Return how many neighbours there are, and the sums of their estimates, spreads and squared spreads.

    `stranger` is 1 for a user who is not eligible yet: untouched, and always in the own neighbourhood.
    """
    members, estimate, spread, square = 0, 0.0, 0.0, 0.0
    untouched = s.counts[ELIGIBLE] + stranger
    if item >= 0:
        untouched -= s.items[item].touched
        for p in range(s.items[item].start, s.items[item].start + s.items[item].count):
            a = s.classes[p]
            size = a.size if is_near(own[0], own[1], a.estimate, a.spread, scale) else 0
            members += size
            estimate += size * a.estimate
            spread += size * a.spread
            square += size * (a.spread * a.spread)
    if is_near(own[0], own[1], 0.0, 1.0, scale):
        members += untouched
        spread += untouched
        square += untouched
    return members, estimate, spread, square


# What follows is called from Python.


@jit
def view(arrays: Arrays, row: int, columns: Ints, estimate: Floats, spread: Floats) -> None:
    """Write a user's own estimates and spreads."""
    s = State(*arrays)
    for k in range(len(columns)):
        estimate[k], spread[k] = own_view(s, row, columns[k])


@jit
def gather(
    arrays: Arrays,
    row: int,
    columns: Ints,
    own: tuple[Floats, Floats],
    scale: float,
    members: Ints,
    sums: Floats,
) -> None:
    """Write the sums over each candidate's neighbours: of estimates, spreads, squared spreads."""
    s = State(*arrays)
    stranger = 1 if row < 0 or s.users[row].order < 0 else 0
    for k in range(len(columns)):
        members[k], sums[0, k], sums[1, k], sums[2, k] = sum_near(
            s, stranger, columns[k], (own[0][k], own[1][k]), scale
        )


@jit
def update(arrays: Arrays, row: int, item: int, payoff: float) -> int:
    """Let one user learn, or return what lacks room."""
    s = State(*arrays)
    code = reserve(s, row, item, True)
    if code == ENOUGH:
        learn_alone(s, row, item, payoff)
    return code


@jit
def share(
    arrays: Arrays, row: int, item: int, payoff: float, own: tuple[float, float], scale: float, limit: float
) -> tuple[int, int]:
    """Let the sure neighbours learn and return (ENOUGH, how many), or what lacks room."""
    s = State(*arrays)
    code = reserve(s, row, item, False)
    if code != ENOUGH:
        return code, 0
    return code, learn_together(s, row, item, payoff, own, scale, limit)


@jit
def add(arrays: Arrays, row: int) -> None:
    """Make a user eligible."""
    make_eligible(State(*arrays), row)


@jit
def drop(arrays: Arrays, row: int, n_items: int) -> None:
    """Forget a user on every item."""
    s = State(*arrays)
    for item in range(n_items):
        if find_mark(s, row, item) >= 0 and find_entry(s, row, item) < 0:
            leave(s, item, find_class(s, row, item, NONE), NONE)
    start, bits = s.users[row].start, s.users[row].bits
    if start >= 0:
        for p in range(start, start + (1 << bits)):
            item = s.entries[p].item
            if item >= 0:
                leave(s, item, find_class(s, row, item, p), p)
        free_entries(s, start, bits)
    if s.users[row].order >= 0:
        s.counts[ELIGIBLE] -= 1
    s.users[row].order, s.users[row].start = NONE, NONE
    s.users[row].bits, s.users[row].count = 0, 0


@jit
def drop_item(arrays: Arrays, item: int) -> None:
    """Give back what an item without touched users holds."""
    s = State(*arrays)
    if s.items[item].start >= 0:
        release(s.heaps[CLASSES], s.classes["id"], s.items[item].bits, s.items[item].start)
    if s.items[item].mark_start >= 0:
        release(s.heaps[MARKS], s.marks["id"], s.items[item].mark_bits, s.items[item].mark_start)
    s.items[item].start, s.items[item].mark_start, s.items[item].born = NONE, NONE, NONE


@jit
def near_users(
    arrays: Arrays, item: int, own: tuple[float, float], scale: float, near: NDArray[np.bool_]
) -> None:
    """Write which of the first rows hold an eligible user who is a neighbour on `item`."""
    s = State(*arrays)
    for row in range(len(near)):
        if s.users[row].order >= 0:
            estimate, spread = own_view(s, row, item)
            near[row] = is_near(own[0], own[1], estimate, spread, scale)


@jit
def put_entries(arrays: Arrays, rows: Ints, items: Ints, ids: Ints, begin: int) -> int:
    """Write entries from `begin` on, and return where room for entries ended: at the last, if it did not."""
    s = State(*arrays)
    for p in range(begin, len(rows)):
        if not reserve_entry(s, rows[p]):
            return p
        make_entry(s, rows[p], items[p], ids[p])
    return len(rows)


@jit
def take_entries(arrays: Arrays, rows: Ints, items: Ints, ids: Ints) -> None:
    """Write all entries of the users in `rows`: rows and items as positions, ids of living classes."""
    s = State(*arrays)
    n = 0
    for row in rows:
        start = s.users[row].start
        if start >= 0:
            for p in range(start, start + (1 << s.users[row].bits)):
                if s.entries[p].item >= 0:
                    items[n], ids[n] = s.entries[p].item, root(s, s.entries[p].id)
                    n += 1


@jit
def draw_sums(columns: Ints, sums: Floats, scale: float, rng: Any, drawn: Floats) -> None:
    """Write for each candidate a draw of its neighbours' sum: one normal for each item listed."""
    normal = np.empty(len(columns))
    for k in range(len(columns)):
        first = 0
        while columns[first] != columns[k]:
            first += 1
        normal[k] = rng.standard_normal() if first == k else normal[first]
        drawn[k] = sums[0, k] + scale * math.sqrt(sums[2, k]) * normal[k]


@jit
def run(
    arrays: Arrays,
    rounds: tuple[Ints, Ints, Ints, Floats, Ints],
    rule: tuple[float, float, bool],
    rng: Any,
    begin: int,
    decided: bool,
    learned: int,
    outcome: tuple[Ints, NDArray[np.bool_], Ints, Ints],
) -> tuple[int, int, int]:
    """Play rounds from `begin` on, whose choice may be made already.

    `rounds` is (row of each user, candidates as positions, column of each position, payoffs, served);
    `rule` is (α, γ, whether to draw). Returns where it stopped, what lacked room there, and how many payoffs
    were learned by then.
    """
    s = State(*arrays)
    rows, candidates, columns, payoffs, served = rounds
    alpha, gamma, thompson = rule
    choices, kept, members, updated = outcome
    c = candidates.shape[1]
    items, near = np.empty(c, np.int64), np.empty(c, np.int64)
    sums, score = np.empty((3, c)), np.empty(c)
    own = np.empty((2, c))
    for t in range(begin, len(rows)):
        row = rows[t]
        scale = scale_after(alpha, learned)
        if not decided:
            stranger = 1 if s.users[row].order < 0 else 0
            for k in range(c):
                items[k] = columns[candidates[t, k]]
                own[0, k], own[1, k] = own_view(s, row, items[k])
            for k in range(c):
                near[k], sums[0, k], sums[1, k], sums[2, k] = sum_near(
                    s, stranger, items[k], (own[0, k], own[1, k]), scale
                )
                score[k] = sums[0, k] / near[k] + scale * sums[1, k] / near[k]
            if thompson:
                draw_sums(items, sums, scale, rng, score)
                score /= near
            best, choice = score.max(), 0
            while best - score[choice] >= TIE:
                choice += 1
            choices[t], members[t] = choice, near[choice]
        decided = False
        choice = choices[t]
        if served[t] >= 0 and served[t] != choice:
            continue
        payoff = payoffs[t, 0 if served[t] >= 0 else choice]
        item = columns[candidates[t, choice]]
        view = own_view(s, row, item)
        alone = scale * view[1] >= gamma / 4
        code = reserve(s, row, item, alone)
        if code != ENOUGH:
            return t, code, learned
        if alone:
            learn_alone(s, row, item, payoff)
            updated[t] = 1
        else:
            updated[t] = learn_together(s, row, item, payoff, view, scale, gamma / 4)
        kept[t] = True
        learned += 1
    return len(rows), ENOUGH, learned
