"""The compiled loop of CAB over users with models of their own: Algorithm 1, whatever the models are.

They are `dense.Panels` or `fading.FadingRows`, and the module of each has the functions named here. Users have
numbered rows, in the order of their first payoffs.
"""

from typing import Any, NamedTuple

from numpy.random import Generator

from coterie.arrays import Floats, Ints
from coterie.models._kernels.bounds import scale_after
from coterie.models._kernels.given import given
from coterie.models._kernels.jit import at_once, jit
from coterie.models._kernels.probability import draw_from, first_best
from coterie.models._kernels.rounds import Rule
from coterie.models._kernels.rows.dispatch import by_type, chances, name, view
from coterie.models._kernels.rows.game import Game, join, play

NAMES = ("has_room", "gather", "learn_one", "learn_together")
have_room, gather, learn_one, learn_together = map(by_type, NAMES)


@given
class Cab(NamedTuple):
    """The state of CAB. The third of the game's `so_far` counts the rows."""

    models: Any
    rule: Rule
    own: (
        Floats  # (3, candidates): the user's estimates and spreads, and the scores; overwritten in each round
    )


@jit
def score_of(members: float, estimate: float, spread: float, scale: float) -> float:
    """Return a neighbourhood's average estimate plus average bound."""
    return estimate / members + scale * spread / members


@jit
def has_room(state: Cab, game: Game) -> bool:
    """Return whether everybody and a newcomer may learn a new item."""
    return have_room(state.models, game.so_far[2])  # type: ignore[no-any-return]


@jit
def pick(state: Cab, game: Game, row: int, which: Ints, rng: Generator) -> tuple[int, int]:
    """Choose by the neighbourhoods. A user without a row is only in the user's own neighbourhood."""
    models, rule, own = state
    estimate, spread, score = own[0], own[1], own[2]
    _, learned, n = game.so_far
    scale = scale_after(rule.alpha, learned)
    view(models, row, game.items, which, estimate, spread)
    if rule.thompson:
        near, likely = chances(models, n, game.items, which, estimate, spread, scale, row < 0, learned)
        k = draw_from(likely, rng)
        return k, int(near[0, k])
    near = gather(models, n, game.items, which, estimate, spread, scale)
    for k in range(len(which)):
        if row < 0:
            near[0, k] += 1.0
            near[2, k] += spread[k]
        score[k] = score_of(near[0, k], near[1, k], near[2, k], scale)
    k = first_best(score)
    return k, int(near[0, k])


@jit
def learn(state: Cab, game: Game, user: int, which: Ints, k: int, payoff: float) -> int:
    """Update the user alone, or with all certain neighbours if the user is certain; return how many learned."""
    models, rule, own = state
    row, learners, items, at = game.people.row[user], 0, game.items, which[k]
    _, learned, n = game.so_far
    scale, limit = scale_after(rule.alpha, learned), rule.gamma / 4
    name(models, items, at, game.named)
    if scale * own[1, k] < limit:
        learners = learn_together(models, n, row, items, at, payoff, own[0, k], own[1, k], scale, limit)
    elif row >= 0:
        learn_one(models, n, row, items, at, payoff)
        learners = 1
    if row < 0:
        learn_one(models, n, n, items, at, payoff)
        join(game.people, user, n)
        game.so_far[2] += 1
        learners += 1
    return learners


@at_once
def play_cab(state: Cab, game: Game, rng: Generator) -> None:
    """Play Algorithm 1."""
    play(state, game, rng)
