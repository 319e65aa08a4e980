"""The table of effects: arrays with one element per effect, in the order of first sight, and an index by key.

Each effect has a Gaussian posterior. What the payoffs say of it, a precision and a pull, is stored apart from the
prior variance v₀, so that a new v₀ re-weights all that was learned:

    v = 1 / (1/v₀ + precision)        w = pull · v

The index `lookup` is a hash table with open addressing and linear probing. The effects of one user are a linked list
that starts at the user's own effect.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from coterie.arrays import Floats, Ints
from coterie.models._kernels.given import given
from coterie.models._kernels.hierarchy.effect_keys import USER, USER_ID, Hash, Hashes, mix, user_key
from coterie.models._kernels.jit import jit, step

# Places of `counts`.
USED, FREED, CURSOR, REFIT = 0, 1, 2, 3
# Marks of a piece: changed since the last copy; not copied yet by the copy in progress; copied to `aside`, because it
# changed first. A piece is PIECE effects in a row, and the elements of `free` with the same positions.
CHANGED, WANTED, ASIDE = 1, 2, 4
PIECE = 1 << 11
SAMPLE = 8  # in a full table, the one of so many effects that was unchanged for longest is removed
NOBODY = -1
ONE = np.uint64(1)


@given
class Columns(NamedTuple):
    """The columns of `Table` that a snapshot holds."""

    keys: Hashes
    kinds: NDArray[np.uint8]
    owners: NDArray[np.int32]
    nexts: NDArray[np.int32]
    touched: Ints
    precision: Floats
    pull: Floats
    free: NDArray[np.int32]


@given
class Table(NamedTuple):
    """The effects. `place` means a position in the columns with one element per effect."""

    lookup: NDArray[np.int32]  # (a power of two,) 1 + the place of an effect, or 0
    keys: Hashes  # (slots,)
    kinds: NDArray[np.uint8]  # (slots,) 0 is a free place
    owners: NDArray[np.int32]  # (slots,) the place of the user's own effect, -1 for effects of all users
    nexts: NDArray[np.int32]  # (slots,) the place of the user's next effect, -1 for the last
    touched: Ints  # (slots,) the number of the last payoff that changed it, from 1
    precision: Floats  # (slots,)
    pull: Floats  # (slots,)
    free: NDArray[np.int32]  # (slots,) a stack of free places
    counts: Ints  # see USED
    marks: NDArray[np.uint8]  # (pieces,) see CHANGED
    aside: Columns  # pieces as they were when the copy began; (0,) before the first copy


@jit
def find(table: Table, key: Hash) -> int:
    """Return the place of an effect, -1 if it has none."""
    last = np.uint64(table.lookup.shape[0] - 1)
    i = key & last
    while table.lookup[i]:
        e = int(table.lookup[i]) - 1
        if table.keys[e] == key:
            return e
        i = (i + ONE) & last
    return -1


@jit
def mark_changed(table: Table, e: int) -> None:
    """Mark the piece of place e as changed. If a copy in progress still needs the piece, save it first."""
    p = e // PIECE
    mark = table.marks[p]
    if not mark & CHANGED:
        if mark & WANTED:
            save_piece(table, p)
        table.marks[p] |= CHANGED


@jit
def save_piece(table: Table, p: int) -> None:
    """Copy a piece to `aside`."""
    first, end = p * PIECE, min((p + 1) * PIECE, table.keys.shape[0])
    aside = table.aside
    aside.keys[first:end] = table.keys[first:end]
    aside.kinds[first:end] = table.kinds[first:end]
    aside.owners[first:end] = table.owners[first:end]
    aside.nexts[first:end] = table.nexts[first:end]
    aside.touched[first:end] = table.touched[first:end]
    aside.precision[first:end] = table.precision[first:end]
    aside.pull[first:end] = table.pull[first:end]
    aside.free[first:end] = table.free[first:end]
    table.marks[p] |= ASIDE


@jit
def remove(table: Table, e: int) -> None:
    """Clear one effect and remove it from the index. Later elements of the probe sequence move into the gap."""
    mark_changed(table, e)
    last = np.uint64(table.lookup.shape[0] - 1)
    i = table.keys[e] & last
    while table.lookup[i] != e + 1:
        i = (i + ONE) & last
    hole, i = i, (i + ONE) & last
    while table.lookup[i]:
        home = table.keys[table.lookup[i] - 1] & last
        if ((i - home) & last) >= ((i - hole) & last):
            table.lookup[hole], hole = table.lookup[i], i
        i = (i + ONE) & last
    table.lookup[hole] = 0
    table.keys[e] = 0
    table.kinds[e] = 0
    table.owners[e] = NOBODY
    table.nexts[e] = NOBODY
    table.touched[e] = 0
    table.precision[e] = 0.0
    table.pull[e] = 0.0


@jit
def release(table: Table, e: int) -> None:
    """Clear one effect and free its place."""
    remove(table, e)
    mark_changed(table, table.counts[FREED])
    table.free[table.counts[FREED]] = e
    table.counts[FREED] += 1


@jit
def forget(table: Table, head: int) -> None:
    """Clear all effects of the user whose own effect has the place `head`."""
    e = head
    while e != NOBODY:
        after = table.nexts[e]
        release(table, e)
        e = after


@step
def forget_user(table: Table, user: int) -> None:
    """Clear all effects of the user with this number."""
    forget(table, find(table, user_key(user)))


@jit
def make_place(table: Table, key: Hash, now: int) -> bool:
    """Free a place in a full table, and return whether there is one now.

    Among SAMPLE effects, removes the one unchanged for longest; with a user's own effect, all effects of the user.
    Never removes effects of the current payoff.
    """
    oldest, when = -1, now
    n = np.uint64(table.keys.shape[0])
    for i in range(SAMPLE):
        e: Any = np.int64(mix(key + np.uint64(i)) % n)  # Numba turns mixed signed and unsigned into float
        if table.touched[e] < when:
            oldest, when = e, table.touched[e]
    if oldest < 0:
        return False
    owner = table.owners[oldest]
    if owner == oldest:
        forget(table, oldest)
        return True
    if owner != NOBODY:
        before = owner
        while table.nexts[before] != oldest:
            before = table.nexts[before]
        mark_changed(table, before)
        table.nexts[before] = table.nexts[oldest]
    release(table, oldest)
    return True


@jit
def find_or_add(table: Table, key: Hash, kind: int, head: int, now: int) -> int:
    """Return the place of an effect, a new one on first sight; -1 if no place can be freed.

    `head` is the place of the user's own effect, for effects of one user.
    """
    e = find(table, key)
    if e >= 0:
        return e
    counts = table.counts
    if counts[FREED] == 0 and counts[USED] == table.keys.shape[0] and not make_place(table, key, now):
        return -1
    if counts[FREED]:
        counts[FREED] -= 1
        mark_changed(table, counts[FREED])
        e = int(table.free[counts[FREED]])
    else:
        e = counts[USED]
        counts[USED] += 1
    mark_changed(table, e)
    last = np.uint64(table.lookup.shape[0] - 1)
    i = key & last
    while table.lookup[i]:
        i = (i + ONE) & last
    table.lookup[i] = e + 1
    table.keys[e] = key
    table.kinds[e] = kind
    table.owners[e] = NOBODY
    table.nexts[e] = NOBODY
    if kind == USER:
        table.owners[e] = e
    elif kind >= USER_ID:
        mark_changed(table, head)
        table.owners[e] = head
        table.nexts[e] = table.nexts[head]
        table.nexts[head] = e
    return e


@jit
def rebuild(table: Table) -> bool:
    """Rebuild the index; return whether all keys differ."""
    last = np.uint64(table.lookup.shape[0] - 1)
    for e in range(table.counts[USED]):
        if not table.kinds[e]:
            continue
        i = table.keys[e] & last
        while table.lookup[i]:
            if table.keys[table.lookup[i] - 1] == table.keys[e]:
                return False
            i = (i + ONE) & last
        table.lookup[i] = e + 1
    return True
