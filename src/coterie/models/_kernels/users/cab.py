"""The compiled loop of CAB over users with models of their own: Algorithm 1, whatever the models are.

`models` is `DenseModels` or `FadingModels`. Users have numbered rows, in the order of their first payoffs.
"""

from typing import Any, NamedTuple

from numpy.random import Generator

from coterie.arrays import Floats, Ints
from coterie.models._kernels.bounds import scale_after
from coterie.models._kernels.given import given
from coterie.models._kernels.jit import at_once, jit
from coterie.models._kernels.probability import draw_from, first_best
from coterie.models._kernels.rounds import Rule
from coterie.models._kernels.rows.dispatch import by_type
from coterie.models._kernels.rows.game import Game, join, play

have_room = by_type("has_room")
see = by_type("see")
sums = by_type("sums")
draws = by_type("draws")
learn_one = by_type("learn_one")
learn_together = by_type("learn_together")


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
    return have_room(state.models, game)  # type: ignore[no-any-return]


@jit
def pick(state: Cab, game: Game, row: int, which: Ints, rng: Generator) -> tuple[int, int]:
    """Choose by the neighbourhoods. A user without a row is only in the user's own neighbourhood."""
    models, rule, own = state
    estimate, spread, score = own[0], own[1], own[2]
    scale = scale_after(rule.alpha, game.so_far[1])
    see(models, row, game, which, estimate, spread)
    if rule.thompson:
        near, likely = draws(models, game, which, estimate, spread, scale, row < 0)
        k = draw_from(likely, rng)
        return k, int(near[0, k])
    near = sums(models, game, which, estimate, spread, scale)
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
    row, learners = game.people.row[user], 0
    scale, limit = scale_after(rule.alpha, game.so_far[1]), rule.gamma / 4
    if scale * own[1, k] < limit:
        learners = learn_together(models, row, game, which, k, payoff, own[0], own[1], scale, limit)
    elif row >= 0:
        learn_one(models, row, game, which, k, payoff)
        learners = 1
    if row < 0:
        row = game.so_far[2]
        learn_one(models, row, game, which, k, payoff)
        join(game.people, user, row)
        game.so_far[2] += 1
        learners += 1
    return learners


@at_once
def play_cab(state: Cab, game: Game, rng: Generator) -> None:
    """Play Algorithm 1."""
    play(state, game, rng)
