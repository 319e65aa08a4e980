"""What users with equal histories learn, and what is read of them: the calls that `models/users/one_hot.py` makes.

The arrays, and how a user finds the own class in them, are in `classes`.
"""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie.models._kernels.jit import bare
from coterie.models._kernels.users.histories import (
    CLASSES,
    ELIGIBLE,
    ENOUGH,
    FREE_ROW,
    MARKS,
    NONE,
    ORDER,
    ROOM_USERS,
    UNKNOWN,
    Arrays,
    Ints,
    Records,
    State,
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
    reserve_entry,
    root,
)
from coterie.models.protocol import ROUNDING, TIE, Floats


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
    """Return α·√log(1+t), as `policies/base/exploration.py` does."""
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
