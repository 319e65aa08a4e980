"""The arrays of users with equal histories.

On an item, the users with equal (times, total) form a class. Each item keeps its classes in one segment of
`classes`, sorted by (times, total), so what is computed from them depends on what was learned and not on
the way there. A user's class is found in one of two ways:

- by an entry, made when the user learned alone: a small hash table for each user, from item to class id;
- by a mark: when the untouched users of an item learn together, no entries are written. Users are
  numbered in the order in which they became eligible, and the mark means that all users with a number below
  `until`, no entry, and no earlier mark are in its class. All other users are untouched.

A scan over an item's classes serves every user of a class until the item changes or the bounds have grown
enough to reach another class: `near` keeps its sums, with the item's version and the scales for which they hold.

Ids of classes that became equal are merged, the one pointing to the other (union-find); an id is free again
when no entry, mark or other id points to it. Segments are powers of two, with a list of free ones for each
size. Kernels do not enlarge arrays: they return which array lacks room; the caller enlarges it and calls again.
"""

from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from coterie.arrays import Ints
from coterie.models._kernels.given import given

Records: TypeAlias = NDArray[Any]

NONE, UNKNOWN = -1, -2

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


@given
class Histories(NamedTuple):
    """The whole state, as arrays."""

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


# Which array lacks room, as kernels return it: the place in Histories.
ENOUGH, ROOM_USERS, ROOM_ENTRIES, ROOM_CLASSES, ROOM_MARKS, ROOM_IDS, ROOM_SCRATCH = -1, 0, 2, 3, 4, 5, 6

# A Histories as a plain tuple: Numba takes ten times longer to recognise the type of a NamedTuple.
Arrays: TypeAlias = tuple[Any, ...]


def empty_state() -> Histories:
    """Return the arrays of a state without users."""
    state = Histories(
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
