"""CAB over ridge regressions whose old payoffs count less. Every question reads all rows.

The first n rows are the updated users. Row -1 has learned nothing.
"""

from typing import Any, NamedTuple

import numpy as np

from coterie.arrays import Bools, Floats, Ints
from coterie.models._kernels.bounds import is_near
from coterie.models._kernels.given import given
from coterie.models._kernels.jit import jit
from coterie.models._kernels.probability import probability_of_best_together
from coterie.models._kernels.rows.dispatch import add_covariance, fade, fits, name, take, update, used, view
from coterie.models._kernels.rows.game import Game


@jit
def gather(
    rows: Any, n: int, items: Any, which: Ints, own_estimate: Floats, own_spread: Floats, scale: float
) -> Floats:
    """Sum over the neighbours among n rows: members, estimates, spreads (3, candidates)."""
    c = len(which)
    estimate, spread, total = np.empty(c), np.empty(c), np.zeros((3, c))
    for row in range(n):
        view(rows, row, items, which, estimate, spread)
        for k in range(c):
            if is_near(own_estimate[k], own_spread[k], estimate[k], spread[k], scale):
                total[0, k] += 1.0
                total[1, k] += estimate[k]
                total[2, k] += spread[k]
    return total


@jit
def chances(
    rows: Any,
    n: int,
    items: Any,
    which: Ints,
    own_estimate: Floats,
    own_spread: Floats,
    scale: float,
    alone: bool,
    seed: int,
) -> tuple[Floats, Floats]:
    """Return members, estimates and spreads of all neighbours (3, candidates), and how likely each is best.

    As in `dense.chances`; `alone` says that the user has learned nothing, and so has no row.
    """
    c = len(which)
    estimate, spread, near = np.empty(c), np.empty(c), np.zeros(c, dtype=np.bool_)
    total, covariance = np.zeros((3, c)), np.zeros((c, c))
    for row in range(-1 if alone else 0, n):
        view(rows, row, items, which, estimate, spread)
        for k in range(c):
            near[k] = is_near(own_estimate[k], own_spread[k], estimate[k], spread[k], scale)
            if near[k]:
                total[0, k] += 1.0
                total[1, k] += estimate[k]
                total[2, k] += spread[k]
        add_covariance(rows, row, items, which, near, covariance)
    for k in range(c):
        for other in range(k + 1):
            covariance[k, other] *= scale * scale / (total[0, k] * total[0, other])
    return total, probability_of_best_together(total[1] / total[0], covariance, seed)


@jit
def near_rows(
    rows: Any, n: int, items: Any, which: Ints, own_estimate: Floats, own_spread: Floats, scale: float
) -> tuple[Bools, Floats]:
    """Return which of n rows are neighbours on the one candidate of `which`, and the spread of each."""
    estimate, spread = np.empty(1), np.empty(1)
    near, spreads = np.zeros(n, dtype=np.bool_), np.empty(n)
    for row in range(n):
        view(rows, row, items, which, estimate, spread)
        near[row] = is_near(own_estimate[0], own_spread[0], estimate[0], spread[0], scale)
        spreads[row] = spread[0]
    return near, spreads


@jit
def learn(rows: Any, row: int, items: Any, position: int, payoff: float, keep: float) -> None:
    """Reduce the weight of what a row has learned, then update the row."""
    fade(rows, row, keep)
    update(rows, row, items, position, payoff)


@jit
def share(
    rows: Any,
    n: int,
    own_row: int,
    items: Any,
    which: Ints,
    payoff: float,
    own_estimate: Floats,
    own_spread: Floats,
    scale: float,
    limit: float,
    keep: float,
) -> int:
    """Update the rows that are neighbours with a bound below `limit`, and always `own_row`; return how many."""
    near, spreads = near_rows(rows, n, items, which, own_estimate, own_spread, scale)
    learners = 0
    for row in range(n):
        if row == own_row or (near[row] and scale * spreads[row] < limit):
            learn(rows, row, items, which[0], payoff, keep)
            learners += 1
    return learners


@given
class FadingModels(NamedTuple):
    """Models as the compiled loop of CAB takes them; it calls what follows."""

    rows: Any  # `ridges.Rows` or `means.Table`
    keep: float


@jit
def has_room(models: FadingModels, game: Game) -> bool:
    """Return whether everybody and a newcomer may learn a new item."""
    n = game.so_far[2] + 1
    return fits(models.rows, n, used(models.rows) + n)  # type: ignore[no-any-return]


@jit
def see(models: FadingModels, row: int, game: Game, which: Ints, estimate: Floats, spread: Floats) -> None:
    """Write the user's view."""
    view(models.rows, row, game.items, which, estimate, spread)


@jit
def sums(
    models: FadingModels, game: Game, which: Ints, estimate: Floats, spread: Floats, scale: float
) -> Floats:
    """Sum over the neighbours."""
    return gather(models.rows, game.so_far[2], game.items, which, estimate, spread, scale)


@jit
def draws(
    models: FadingModels, game: Game, which: Ints, estimate: Floats, spread: Floats, scale: float, alone: bool
) -> tuple[Floats, Floats]:
    """Sum over the neighbours, and return how likely each candidate is best."""
    _, learned, n = game.so_far
    return chances(models.rows, n, game.items, which, estimate, spread, scale, alone, learned)


@jit
def learn_one(models: FadingModels, row: int, game: Game, which: Ints, k: int, payoff: float) -> None:
    """Update a user, or a newcomer in the next row."""
    rows = models.rows
    name(rows, game.items, which[k], game.named)
    if row == game.so_far[2]:
        take(rows)
    learn(rows, row, game.items, which[k], payoff, models.keep)


@jit
def learn_together(
    models: FadingModels, row: int, game: Game, which: Ints, k: int, payoff: float,
    estimate: Floats, spread: Floats, scale: float, limit: float,
) -> int:  # fmt: skip
    """Update all neighbours with a bound below `limit`, and the user."""
    name(models.rows, game.items, which[k], game.named)
    own = slice(k, k + 1)
    return share(
        models.rows, game.so_far[2], row, game.items, which[own], payoff, estimate[own], spread[own], scale, limit,
        models.keep,
    )  # fmt: skip
