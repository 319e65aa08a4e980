"""The compiled loop of `Hierarchical`: choose, compare with the log, learn, refit a little."""

import numpy as np
from numpy.random import Generator

from coterie.models._kernels.hierarchy import families
from coterie.models._kernels.hierarchy.population import (
    Posterior,
    learn,
    pay_visits,
    prepare,
    room,
    score,
    view_with,
)
from coterie.models._kernels.hierarchy.shared import DUE, ROWS, USED, Floats, Ints, Model
from coterie.models._kernels.jit import inner, jit
from coterie.models._kernels.rounds import Rounds
from coterie.models._kernels.rows import means as pair_table
from coterie.models._kernels.rows.loops import People, best, join

FEW = 64  # items up to which the covariance is over items
# How much more widely to explore with ids alone: only showing an item teaches about it, where features teach about
# all. There are no draws then: with many items a draw would move all candidates alike, and with few the bonus does.
EXPLORE_IDS = 5.0


@inner
def roomy(few: Model, many: Model, deciding: Ints, pairs: pair_table.Table, n_items: int, ids: bool) -> bool:
    """Return whether one more user, item and pair would find room."""
    rows = many.place[ROWS] + 1
    if len(many.users.times) < rows:
        return False
    if not ids:
        return True
    if len(few.users.times) < rows or len(many.effects) < n_items + 1:
        return False
    if deciding[0] and few.prior.means.shape[1] < min(n_items + 1, FEW) + 1:
        return False
    return pair_table.fits(pairs, rows, pair_table.used(pairs) + 1)


@jit
def learn_one(
    few: Model,
    many: Model,
    deciding: Ints,
    pairs: pair_table.Table,
    row: int,
    table: Floats,
    numbers: Ints,
    position: int,
    payoff: float,
    ids: bool,
) -> None:
    """Let a known user learn what the item at `position` paid, and visit a few users."""
    learn_alone(few, many, deciding, pairs, row, table, numbers, position, payoff, ids)
    if deciding[0]:
        pay_visits(few, pairs)
    pay_visits(many, pairs)


@jit
def learn_alone(
    few: Model,
    many: Model,
    deciding: Ints,
    pairs: pair_table.Table,
    row: int,
    table: Floats,
    numbers: Ints,
    position: int,
    payoff: float,
    ids: bool,
) -> None:
    """The same without visits."""
    post = room(many)
    prepare(many, row, post)
    known = families.know(few.prior, pairs, row if deciding[0] else -1)
    learn_with(few, many, deciding, pairs, row, table, numbers, position, payoff, ids, known, post)


@inner
def learn_with(
    few: Model,
    many: Model,
    deciding: Ints,
    pairs: pair_table.Table,
    row: int,
    table: Floats,
    numbers: Ints,
    position: int,
    payoff: float,
    ids: bool,
    known: families.Known,
    post: Posterior,
) -> None:
    """The same, where the user's posteriors are computed: `known` in `few`, if it decides, and `post` in `many`."""
    item = numbers[position] if ids else -1
    if item >= FEW:
        deciding[0] = 0
    if deciding[0]:
        families.learn(few, pairs, row, item, payoff, known)
    learn(many, pairs, row, table[position], item, payoff, post)
    if ids:
        if many.keep[0] < 1.0:
            pair_table.fade(pairs, row, many.keep[0])
        pair_table.update(pairs, row, numbers, position, payoff)


@jit
def add_row(few: Model, many: Model, pairs: pair_table.Table, ids: bool) -> int:
    """Return a new user's row. There must be room."""
    row = many.place[ROWS]
    many.place[ROWS] += 1
    if ids:
        few.place[ROWS] += 1
        pair_table.take(pairs)
    return int(row)


@jit
def play(
    few: Model,
    many: Model,
    deciding: Ints,
    pairs: pair_table.Table,
    table: Floats,
    numbers: Ints,
    named: Ints,
    rounds: Rounds,
    people: People,
    so_far: Ints,
    explore: float,
    draws: bool,
    ids: bool,
    rng: Generator,
) -> None:
    """Play rounds until a pass over the users is due to end. `so_far`: the next round, payoffs learned.

    `deciding[0]` tells whether `few` decides.
    """
    n_candidates = rounds.candidates.shape[1]
    parts, value = np.empty((n_candidates, 6)), np.empty(n_candidates)
    post, noise = room(many), np.zeros(many.place[USED])
    known = families.know(few.prior, pairs, -1)  # anew in each round that `few` decides
    for t in range(so_far[0], len(rounds.who)):
        if few.place[DUE] or many.place[DUE] or not roomy(few, many, deciding, pairs, named[0], ids):
            return
        so_far[0] = t + 1
        row, which = people.row[rounds.who[t]], rounds.candidates[t]
        if deciding[0]:
            known = families.know(few.prior, pairs, row)
            families.assess(few.prior, known, few.place[USED], numbers, which, parts)
        else:
            if draws:
                for i in range(len(noise)):
                    noise[i] = rng.standard_normal()
            prepare(many, row, post)
            view_with(many, pairs, row, table, numbers, which, noise, parts, post)
        score(parts, explore, value)
        k = best(value)
        rounds.choice[t] = k
        rounds.members[t] = many.place[ROWS] + (1 if row < 0 else 0)
        if rounds.served[t] >= 0 and rounds.served[t] != k:
            continue
        if row < 0:
            row = add_row(few, many, pairs, ids)
            join(people, rounds.who[t], row)
        if ids:
            pair_table.name(numbers, which[k], named)
        payoff = rounds.payoffs[t, 0 if rounds.served[t] >= 0 else k]
        if deciding[0]:
            prepare(many, row, post)
        learn_with(few, many, deciding, pairs, row, table, numbers, which[k], payoff, ids, known, post)
        if deciding[0]:
            pay_visits(few, pairs)
        pay_visits(many, pairs)
        rounds.kept[t] = True
        rounds.updated[t] = 1
        so_far[1] += 1
