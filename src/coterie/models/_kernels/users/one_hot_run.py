"""The compiled loop of CAB over users with equal histories."""

import math
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from coterie.arrays import Floats, Ints
from coterie.models._kernels.bounds import scale_after
from coterie.models._kernels.given import given
from coterie.models._kernels.jit import NEVER, bare
from coterie.models._kernels.probability import draw_from, first_best, write_probability_of_best
from coterie.models._kernels.rounds import Plain
from coterie.models._kernels.users.cab import score_of
from coterie.models._kernels.users.histories import (
    find_entry,
    find_mark,
    new_row,
    reserve,
)
from coterie.models._kernels.users.history_arrays import (
    ENOUGH,
    NONE,
    ROOM_USERS,
    UNKNOWN,
    Arrays,
    Histories,
    Records,
)
from coterie.models._kernels.users.one_hot import (
    find_place,
    learn_alone,
    learn_together,
    own_view,
    scan,
    untouched_near,
)


@given
class Scratch(NamedTuple):
    """Arrays that the loop overwrites in each round."""

    listed: Ints  # (candidates,) columns
    places: Ints  # (candidates,) where the user's classes are
    found: Ints  # (candidates,) members
    sums: Floats  # (3, candidates)
    score: Floats  # (candidates,)
    spread: Floats  # (candidates,) of the score
    chances: Floats  # (candidates,)
    room: Floats  # (candidates,)


def make_scratch(c: int) -> Scratch:
    """Return the arrays for c candidates."""
    listed, places, found = np.empty((3, c), dtype=np.int64)
    score, spread, chances, room = np.empty((4, c))
    return Scratch(listed, places, found, np.empty((3, c)), score, spread, chances, room)


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
def write_chances(
    columns: Ints,
    members: Ints,
    sums: Floats,
    scale: float,
    score: Floats,
    spread: Floats,
    chances: Floats,
    room: Floats,
) -> None:
    """Write the probability that each candidate is best; of an item that is listed twice, the first counts."""
    for k in range(len(columns)):
        first = 0
        while columns[first] != columns[k]:
            first += 1
        score[k] = sums[0, k] / members[k] if first == k else -math.inf
        spread[k] = scale * math.sqrt(sums[2, k]) / members[k] if first == k else 0.0
    write_probability_of_best(score, spread, chances, room)


@bare
def learn(
    s: Histories, row_of: Ints, user: int, item: int, payoff: float, scale: float, limit: float
) -> tuple[int, int]:
    """Learn as CAB does; return (ENOUGH, how many users), or which array lacks room. A new user gets a row."""
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


@partial(bare, most=NEVER)
def run(
    arrays: Arrays,
    row_of: Ints,
    columns: Ints,
    batch: Plain,
    rule: Plain,
    rng: Any,
    begin: int,
    decided: bool,
    scratch: Plain,
) -> tuple[int, int, int]:
    """Play rounds from `begin` on; with `decided`, the first of them has its choice already.

    `row_of` has the row of each user, NONE for a new user, who gets one with the first payoff; `columns` has the
    column of each candidate's position. `batch` is Rounds, `rule` is Rule and `scratch` is Scratch. Returns the round
    where it stopped, which array lacked room, and how many payoffs were learned by then.
    """
    s = Histories(*arrays)
    users, items, entries, classes, marks, ids, _, near, near_untouched, _, counts = arrays
    who, candidates, payoffs, served, choices, kept, members, updated = batch
    alpha, gamma, learned, thompson = rule
    listed, places, found, sums, score, spread, chances, room = scratch
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
                score[k] = score_of(found[k], sums[0, k], sums[1, k], scale)
            if thompson:
                write_chances(listed, found, sums, scale, score, spread, chances, room)
                choice = draw_from(chances, rng)
            else:
                choice = first_best(score)
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
