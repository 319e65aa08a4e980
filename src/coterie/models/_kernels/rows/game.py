"""The compiled loop over rounds: `play`, for every policy whose state has the steps `has_room`, `pick` and `learn`.

They are in the module that defines the type of the state. The loop stops before a round for which there may not be
enough room; the caller makes room and calls it again.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.random import Generator

from coterie.arrays import Ints
from coterie.models._kernels.bounds import scale_after
from coterie.models._kernels.given import given
from coterie.models._kernels.jit import jit
from coterie.models._kernels.probability import draw_from, first_best
from coterie.models._kernels.rounds import Rounds
from coterie.models._kernels.rows.dispatch import by_type, chances, view

has_room = by_type("has_room")  # (state, game): for one more round
pick = by_type("pick")  # (state, game, row, candidates, rng): the choice, and how many users' models it used
learn = by_type("learn")  # (state, game, user, candidates, k, payoff): how many users' models learned


@given
class People(NamedTuple):
    """The users of these rounds."""

    row: Ints  # (users,) the user's row, -1 if there is none yet
    joined: Ints  # (1 + users,) how many got a row, then these users, in order


@given
class Game(NamedTuple):
    """What a loop plays, and how far it is."""

    rounds: Rounds
    people: People
    items: Any  # all items of these rounds, in the format of rows
    named: Ints  # the next item's number, how many got one, then their positions
    so_far: Ints  # the next round, payoffs learned, and a count of users that the policy keeps


@jit
def play(state: Any, game: Game, rng: Generator) -> None:
    """Play rounds until they are over or there is no room."""
    rounds, people, _, _, so_far = game
    for t in range(so_far[0], len(rounds.who)):
        if not has_room(state, game):
            return
        so_far[0] = t + 1
        user, which = rounds.who[t], rounds.candidates[t]
        k, members = pick(state, game, people.row[user], which, rng)
        rounds.choice[t], rounds.members[t] = k, members
        logged = rounds.served[t] >= 0
        if logged and rounds.served[t] != k:
            continue
        rounds.updated[t] = learn(state, game, user, which, k, rounds.payoffs[t, 0 if logged else k])
        rounds.kept[t] = True
        so_far[1] += 1


@jit
def choose(rows: Any, row: int, game: Game, which: Ints, alpha: float, thompson: bool, rng: Generator) -> int:
    """Return the choice by a row's bound, or by the probability of being best."""
    learned = game.so_far[1]
    scale = scale_after(alpha, learned)
    if thompson:
        return draw_from(chances(rows, row, game.items, which, scale, learned), rng)
    score, spread = np.empty(len(which)), np.empty(len(which))
    view(rows, row, game.items, which, score, spread)
    for k in range(len(which)):
        score[k] = score[k] + scale * spread[k]
    return first_best(score)


@jit
def join(people: People, user: int, row: int) -> None:
    """Record that a user got a row."""
    people.row[user] = row
    people.joined[0] += 1
    people.joined[people.joined[0]] = user
