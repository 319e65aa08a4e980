"""What the compiled loops of policies share: the rounds that they play, and a choice by a row's bound.

A loop stops before a round for which there may not be enough room; the caller makes room and calls it again.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.random import Generator

from coterie.arrays import Ints
from coterie.models._kernels.bounds import scale_after
from coterie.models._kernels.jit import jit
from coterie.models._kernels.probability import draw_from, first_best
from coterie.models._kernels.rounds import Rounds
from coterie.models._kernels.rows.dispatch import chances, view


class People(NamedTuple):
    """The users of these rounds."""

    row: Ints  # (users,) the user's row, -1 if there is none yet
    joined: Ints  # (1 + users,) how many got a row, then these users, in order


class Game(NamedTuple):
    """What a loop plays, and how far it is."""

    rounds: Rounds
    people: People
    items: Any  # all items of these rounds, in the format of rows
    named: Ints  # the next item's number, how many got one, then their positions
    so_far: Ints  # the next round, payoffs learned, and a count that the policy keeps (LinUCB: known users)


@jit
def choose(
    rows: Any, row: int, items: Any, which: Ints, alpha: float, learned: int, thompson: bool, rng: Generator
) -> int:
    """Return the choice by a row's bound, or by the probability of being best."""
    scale = scale_after(alpha, learned)
    if thompson:
        return draw_from(chances(rows, row, items, which, scale, learned), rng)
    score, spread = np.empty(len(which)), np.empty(len(which))
    view(rows, row, items, which, score, spread)
    for k in range(len(which)):
        score[k] = score[k] + scale * spread[k]
    return first_best(score)


@jit
def join(people: People, user: int, row: int) -> None:
    """Record that a user got a row."""
    people.row[user] = row
    people.joined[0] += 1
    people.joined[people.joined[0]] = user
