"""The compiled loop of `Hierarchical`: choose, compare with the log, learn, refit a little."""

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from coterie.models._kernels import means as pair_table
from coterie.models._kernels.jit import inner, jit
from coterie.models._kernels.loops import People, Rounds, best, join
from coterie.models._kernels.population import (
    DUE,
    ROWS,
    USED,
    Model,
    Posterior,
    admit,
    learn,
    pay_visits,
    prepare,
    room,
    score,
    view_with,
)

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

FEW = 64  # items up to which the covariance is over items
# How much more widely to explore with ids alone: only showing an item teaches about it, where features teach about
# all. With many items the posterior draw moves all candidates alike, so the bonus explores alone.
EXPLORE_FEW, EXPLORE_MANY = 2.5, 5.0


@inner
def roomy(few: Model, many: Model, pairs: pair_table.Table, n_items: int, ids: bool) -> bool:
    """Return whether one more user, item and pair would find room."""
    rows = many.place[ROWS] + 1
    if len(many.users.times) < rows:
        return False
    if not ids:
        return True
    if len(few.users.times) < rows or len(many.effects) < n_items + 1:
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
    post, post_few = room(many), room(few)
    prepare(many, pairs, row, post)
    if deciding[0]:
        prepare(few, pairs, row, post_few)
    learn_with(few, many, deciding, pairs, row, table, numbers, position, payoff, ids, post_few, post)


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
    post_few: Posterior,
    post: Posterior,
) -> None:
    """The same, where the user's posteriors are prepared."""
    item = numbers[position] if ids else -1
    if item >= FEW:
        deciding[0] = 0
    if deciding[0]:
        if admit(few, item):
            prepare(few, pairs, row, post_few)
        learn(few, pairs, row, table[position], item, payoff, post_few)
    learn(many, pairs, row, table[position], item, payoff, post)
    if ids:
        if many.keep[0] < 1.0:
            pair_table.fade(pairs, row, many.keep[0])
        pair_table.update(pairs, row, numbers, position, payoff)
    if deciding[0]:
        pay_visits(few, pairs)
    pay_visits(many, pairs)


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
    wider: float,
    ids: bool,
    rng: Generator,
) -> None:
    """Play rounds until a pass over the users is due to end. `so_far`: the next round, payoffs learned.

    `deciding[0]` tells whether `few` decides; `wider` multiplies `explore` where it does not.
    """
    n_candidates = rounds.candidates.shape[1]
    parts, value = np.empty((n_candidates, 6)), np.empty(n_candidates)
    post, post_few = room(many), room(few)
    for t in range(so_far[0], len(rounds.who)):
        if few.place[DUE] or many.place[DUE] or not roomy(few, many, pairs, named[0], ids):
            return
        so_far[0] = t + 1
        row, which = people.row[rounds.who[t]], rounds.candidates[t]
        model = few if deciding[0] else many
        noise = np.empty(model.place[USED])
        for i in range(len(noise)):
            noise[i] = rng.standard_normal()
        ready = post_few if deciding[0] else post
        prepare(model, pairs, row, ready)
        view_with(model, pairs, row, table, numbers, which, noise, parts, ready)
        score(parts, explore * (EXPLORE_FEW if deciding[0] else wider), value)
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
            prepare(many, pairs, row, post)
        learn_with(few, many, deciding, pairs, row, table, numbers, which[k], payoff, ids, post_few, post)
        rounds.kept[t] = True
        rounds.updated[t] = 1
        so_far[1] += 1
