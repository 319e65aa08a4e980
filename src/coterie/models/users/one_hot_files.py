"""The file format of one-hot models: the classes, and which users are in each.

A user's class on an item is given by an entry (`pair_`), or for many users by a mark: of the eligible users, numbered
in the order they became eligible, those below `mark_until` without an entry or an earlier mark on that item. So the
size of a file depends on what was learned, not on how many users learned it.
"""

from collections.abc import Hashable, Mapping

import numpy as np

from coterie.arrays import Array, Ints
from coterie.errors import FileError
from coterie.models._kernels.users import history_arrays as layout
from coterie.models._kernels.users import one_hot_pairs as kernel
from coterie.models._kernels.users.history_arrays import ENTRIES, NONE, Histories
from coterie.models.files import Tensors, pack_ids, take, unpack_ids


def pack(state: Histories, rows: Mapping[Hashable, int], columns: Mapping[Hashable, int]) -> Tensors:
    """Return everything as arrays, users and items in the order of `rows` and `columns`."""
    row, column = (np.fromiter(table.values(), np.int64, len(table)) for table in (rows, columns))
    users, items = state.users[row], state.items[column]

    order = users["order"]
    numbers = np.sort(order[order >= 0])  # dropped users leave gaps
    rank = np.where(order >= 0, np.searchsorted(numbers, order), NONE)

    classes = state.classes[_spread(items["start"], items["count"])]
    class_of = np.full(len(state.ids), NONE)
    class_of[classes["id"]] = np.arange(len(classes))

    pair_user = np.repeat(np.arange(len(row)), users["count"])
    pair_item, pair_id = np.empty_like(pair_user), np.empty_like(pair_user)
    kernel.take_entries(tuple(state), row, pair_item, pair_id)
    pair_class = class_of[pair_id]
    sort = np.lexsort((pair_class, pair_user))

    marks = state.marks[_spread(items["mark_start"], items["mark_count"])]
    mark_item = np.repeat(np.arange(len(column)), items["mark_count"])
    until = np.searchsorted(numbers, marks["until"])
    first = np.diff(mark_item, prepend=NONE) != 0
    some = until > np.where(first, 0, np.roll(until, 1))  # else all users between the two marks have left
    mark_id, until = marks["id"][some], until[some]
    while (up := state.ids["parent"][mark_id]).max(initial=NONE) >= 0:
        mark_id = np.where(up >= 0, up, mark_id)
    last = np.diff(mark_id, append=NONE) != 0  # of neighbouring marks of one class

    return {
        "users": pack_ids(rows),
        "order": rank.astype(np.int64),
        "items": pack_ids(columns),
        "class_item": np.repeat(np.arange(len(column)), items["count"]),
        "class_times": classes["times"].copy(),
        "class_total": classes["total"].copy(),
        "pair_user": pair_user[sort],
        "pair_class": pair_class[sort],
        "mark_class": class_of[mark_id[last]],
        "mark_until": until[last].astype(np.int64),
    }


def unpack(tensors: Tensors) -> tuple[list[Hashable], list[Hashable], Histories]:
    """Return users by row, items by column, and the state that `pack` was given, or raise."""
    names, items = unpack_ids(tensors, "users"), unpack_ids(tensors, "items")
    order = take(tensors, "order", "i", (len(names),)).astype(np.int64)
    class_item = take(tensors, "class_item", "i", (None,)).astype(np.int64)
    times = take(tensors, "class_times", "i", class_item.shape).astype(np.int64)
    total = take(tensors, "class_total", "f", class_item.shape).astype(np.float64) + 0.0
    pair_user = take(tensors, "pair_user", "i", (None,)).astype(np.int64)
    pair_class = take(tensors, "pair_class", "i", pair_user.shape).astype(np.int64)
    mark_class = take(tensors, "mark_class", "i", (None,)).astype(np.int64)
    until = take(tensors, "mark_until", "i", mark_class.shape).astype(np.int64)

    n_classes, n_eligible = len(class_item), int((order >= 0).sum())
    _expect(np.array_equal(np.sort(order[order >= 0]), np.arange(n_eligible)))
    _expect(order.min(initial=0) >= NONE)
    _expect(_within(class_item, len(items)) and len(np.unique(class_item)) == len(items))
    _expect(_within(pair_user, len(names)) and _within(pair_class, n_classes))
    _expect(_within(mark_class, n_classes) and _within(until - 1, n_eligible))
    _expect(bool(((times >= 1) & (times < 2**53) & (np.abs(total) <= times)).all()))
    _expect(_rising(class_item, times, total) and _rising(class_item[mark_class], until))
    pair_item = class_item[pair_class]
    _expect(_rising(*np.array([pair_user, pair_item])[:, np.lexsort((pair_item, pair_user))]))
    _expect(bool((order[pair_user] >= 0).all()))

    mark_item = class_item[mark_class]
    size = np.bincount(pair_class, minlength=n_classes)
    first = np.diff(mark_item, prepend=NONE) != 0
    # Users between two marks who have an entry are in the entry's class.
    below = until - np.where(first, 0, np.roll(until, 1))
    span = n_eligible + 1
    mark = np.searchsorted(mark_item * span + until, pair_item * span + order[pair_user], side="right")
    inside = (mark < len(until)) & (np.append(mark_item, NONE)[mark] == pair_item)
    below -= np.bincount(mark[inside], minlength=len(until))
    _expect(bool((below >= 0).all()))
    np.add.at(size, mark_class, below)
    _expect(bool((size >= 1).all()))

    state = layout.empty_state()
    bits, starts, used = _segments(np.bincount(class_item, minlength=len(items)), 2)
    mark_bits, mark_starts, marks_used = _segments(np.bincount(mark_item, minlength=len(items)), 0)
    state = Histories(
        np.zeros(max(16, len(names)), layout.USER),
        np.zeros(max(16, len(items)), layout.ITEM),
        np.zeros(64 + 3 * len(pair_user), layout.ENTRY),
        np.zeros(64 + used, layout.CLASS),
        np.zeros(16 + marks_used, layout.MARK),
        np.zeros(64 + n_classes, layout.ID),
        np.zeros(64 + int(np.bincount(class_item, minlength=1).max()), layout.CLASS),
        np.zeros(64 + used, layout.NEAR),
        np.zeros(max(16, len(items)), layout.NEAR),
        state.heaps,
        state.counts,
    )
    for place, count in (
        (layout.ELIGIBLE, n_eligible),
        (layout.ORDER, n_eligible),
        (layout.BORN, len(items)),
        (layout.IDS, n_classes),
        (layout.VERSION, len(items)),
        (layout.ROWS, len(names)),
    ):
        state.counts[place] = count
    state.heaps[layout.CLASSES, 0], state.heaps[layout.MARKS, 0] = used, marks_used

    users = state.users[: len(names)]
    users["order"], users["start"] = order, NONE
    columns = state.items[: len(items)]
    columns["born"] = np.arange(len(items))
    columns["version"] = 1 + np.arange(len(items))
    columns["start"], columns["bits"] = starts, bits
    columns["count"] = np.bincount(class_item, minlength=len(items))
    columns["mark_count"] = np.bincount(mark_item, minlength=len(items))
    columns["mark_start"] = np.where(columns["mark_count"] > 0, mark_starts, NONE)
    columns["mark_bits"] = np.where(columns["mark_count"] > 0, mark_bits, 0)
    np.add.at(columns["touched"], class_item, size)

    slot = _place(class_item)
    cells = np.zeros(n_classes, layout.CLASS)
    cells["times"], cells["total"], cells["size"] = times, total, size
    cells["estimate"], cells["spread"] = total / (1 + times), 1 / np.sqrt(1 + times)
    cells["id"] = np.arange(n_classes)
    state.classes[starts[class_item] + slot] = cells
    ids = state.ids[:n_classes]
    ids["parent"], ids["slot"] = NONE, slot
    ids["refs"] = np.bincount(pair_class, minlength=n_classes) + np.bincount(mark_class, minlength=n_classes)

    marks = np.zeros(len(until), layout.MARK)
    marks["until"], marks["id"] = until, mark_class
    state.marks[mark_starts[mark_item] + _place(mark_item)] = marks

    done = 0
    while (done := kernel.put_entries(tuple(state), pair_user, pair_item, pair_class, done)) < len(pair_user):
        more = np.zeros(2 * len(state.entries), layout.ENTRY)
        more[: state.heaps[ENTRIES, 0]] = state.entries[: state.heaps[ENTRIES, 0]]
        state = state._replace(entries=more)
    return names, items, state


def _expect(sound: bool) -> None:
    if not sound:
        raise FileError("the histories in the model file contradict each other")


def _within(values: Ints, end: int) -> bool:
    return bool(((values >= 0) & (values < end)).all())


def _rising(first: Ints, *others: Array) -> bool:
    """Return whether each row of keys is greater than the one before, the first key counting most."""
    rising, equal = first[1:] > first[:-1], first[1:] == first[:-1]
    for key in others:
        rising |= equal & (key[1:] > key[:-1])
        equal &= key[1:] == key[:-1]
    return bool(rising.all())


def _spread(starts: Ints, counts: Ints) -> Ints:
    """Return the places start, start + 1, … of each segment, one segment after the other."""
    return np.repeat(starts, counts) + _place(np.repeat(np.arange(len(counts)), counts))


def _place(group: Ints) -> Ints:
    """Return each entry's place in its group, where groups are sorted."""
    places: Ints = np.arange(len(group)) - np.searchsorted(group, group)
    return places


def _segments(counts: Ints, least: int) -> tuple[Ints, Ints, int]:
    """Return the size in bits and the start of a segment for each count, and where the last ends."""
    bits = np.maximum(least, np.ceil(np.log2(np.maximum(counts, 1))).astype(np.int64))
    sizes = np.where(counts > 0, 1 << bits, 0)
    ends = np.cumsum(sizes)
    return bits, ends - sizes, int(ends[-1]) if len(ends) else 0
