"""The compiled loop of LinUCB."""

from typing import Any, NamedTuple

from numpy.random import Generator

from coterie.arrays import Ints
from coterie.models._kernels.given import given
from coterie.models._kernels.jit import at_once, jit
from coterie.models._kernels.rows.dispatch import fade, fits, name, take, update, used
from coterie.models._kernels.rows.game import Game, choose, join, play


@given
class Linear(NamedTuple):
    """The state of LinUCB. The third of the game's `so_far` counts the known users.

    If the model is shared, row 0 is that of all users, and `people` only records which users are known.
    """

    rows: Any
    shared: bool
    keep: float  # the weight of old payoffs after a new one
    alpha: float
    thompson: bool


@jit
def has_room(state: Linear, game: Game) -> bool:
    """Return whether there is room for another user and item."""
    return fits(state.rows, state.rows.size[0] + 1, used(state.rows) + 1)  # type: ignore[no-any-return]


@jit
def pick(state: Linear, game: Game, row: int, which: Ints, rng: Generator) -> tuple[int, int]:
    """Choose by the user's model, or by the shared one."""
    rows, shared, _, alpha, thompson = state
    members = game.so_far[2] + (1 if row < 0 else 0) if shared else 1
    return choose(rows, 0 if shared else row, game, which, alpha, thompson, rng), members


@jit
def learn(state: Linear, game: Game, user: int, which: Ints, k: int, payoff: float) -> int:
    """Update the user's model, or the shared one."""
    rows, shared, keep, _, _ = state
    row = game.people.row[user]
    if row < 0:
        row = 0 if shared else take(rows)
        join(game.people, user, row)
        game.so_far[2] += 1
    name(rows, game.items, which[k], game.named)
    if keep < 1.0:
        fade(rows, row, keep)
    update(rows, row, game.items, which[k], payoff)
    return 1


@at_once
def play_linucb(state: Linear, game: Game, rng: Generator) -> None:
    """Play LinUCB."""
    play(state, game, rng)
