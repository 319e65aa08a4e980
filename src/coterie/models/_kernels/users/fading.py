"""CAB over ridge regressions whose old payoffs count less. Every question reads all rows.

The first n rows are the updated users. A candidate is items[which[k]]. Row -1 has learned nothing.
"""

from typing import Any, NamedTuple

import numpy as np

from coterie.arrays import Bools, Floats, Ints
from coterie.models._kernels.bounds import is_near
from coterie.models._kernels.given import given
from coterie.models._kernels.jit import jit
from coterie.models._kernels.probability import probability_of_best_average
from coterie.models._kernels.rows.dispatch import add_covariance, fade, fits, take, update, used
from coterie.models._kernels.rows.dispatch import name as name_item
from coterie.models._kernels.rows.dispatch import view as view_row


@given
class FadingRows(NamedTuple):
    """The models of users with a row."""

    rows: Any  # `ridges.Rows` or `means.Table`
    keep: float  # each payoff multiplies the weight of older ones by it


@jit
def has_room(models: FadingRows, n: int) -> bool:
    """Return whether n users and a newcomer may learn a new item."""
    return fits(models.rows, n + 1, used(models.rows) + n + 1)  # type: ignore[no-any-return]


@jit
def name(models: FadingRows, items: Any, position: int, named: Ints) -> None:
    """Give an item its number before it is learned."""
    name_item(models.rows, items, position, named)


@jit
def view(models: FadingRows, row: int, items: Any, which: Ints, estimate: Floats, spread: Floats) -> None:
    """Write a user's estimates and spreads."""
    view_row(models.rows, row, items, which, estimate, spread)


@jit
def gather(
    models: FadingRows,
    n: int,
    items: Any,
    which: Ints,
    own_estimate: Floats,
    own_spread: Floats,
    scale: float,
) -> Floats:
    """Sum over the neighbours among n rows: members, estimates, spreads (3, candidates)."""
    c = len(which)
    estimate, spread, total = np.empty(c), np.empty(c), np.zeros((3, c))
    for row in range(n):
        view(models, row, items, which, estimate, spread)
        for k in range(c):
            if is_near(own_estimate[k], own_spread[k], estimate[k], spread[k], scale):
                total[0, k] += 1.0
                total[1, k] += estimate[k]
                total[2, k] += spread[k]
    return total


@jit
def chances(
    models: FadingRows, n: int, items: Any, which: Ints, own_estimate: Floats, own_spread: Floats, scale: float,
    alone: bool, seed: int,
) -> tuple[Floats, Floats]:  # fmt: skip
    """Return members, estimates and spreads of all neighbours (3, candidates), and how likely each is best.

    As in `dense.chances`; `alone` says that the user has learned nothing, and so has no row.
    """
    c = len(which)
    estimate, spread, near = np.empty(c), np.empty(c), np.zeros(c, dtype=np.bool_)
    total, covariance = np.zeros((3, c)), np.zeros((c, c))
    for row in range(-1 if alone else 0, n):
        view(models, row, items, which, estimate, spread)
        for k in range(c):
            near[k] = is_near(own_estimate[k], own_spread[k], estimate[k], spread[k], scale)
            if near[k]:
                total[0, k] += 1.0
                total[1, k] += estimate[k]
                total[2, k] += spread[k]
        add_covariance(models.rows, row, items, which, near, covariance)
    return total, probability_of_best_average(total, covariance, scale, seed)


@jit
def near_rows(
    models: FadingRows,
    n: int,
    items: Any,
    position: int,
    own_estimate: float,
    own_spread: float,
    scale: float,
) -> Bools:
    """Return which of n rows are neighbours on one candidate."""
    estimate, spread, which = np.empty(1), np.empty(1), np.array([position])
    near = np.zeros(n, dtype=np.bool_)
    for row in range(n):
        view(models, row, items, which, estimate, spread)
        near[row] = is_near(own_estimate, own_spread, estimate[0], spread[0], scale)
    return near


@jit
def learn_one(models: FadingRows, n: int, row: int, items: Any, position: int, payoff: float) -> None:
    """Reduce the weight of what a user has learned, then update; a newcomer is in the next row."""
    if row == n:
        take(models.rows)
    fade(models.rows, row, models.keep)
    update(models.rows, row, items, position, payoff)


@jit
def learn_together(
    models: FadingRows, n: int, own_row: int, items: Any, position: int, payoff: float,
    own_estimate: float, own_spread: float, scale: float, limit: float,
) -> int:  # fmt: skip
    """Update the rows that are neighbours with a bound below `limit`, and always `own_row`; return how many."""
    estimate, spread, which, learners = np.empty(1), np.empty(1), np.array([position]), 0
    for row in range(n):
        view(models, row, items, which, estimate, spread)
        near = is_near(own_estimate, own_spread, estimate[0], spread[0], scale)
        if row == own_row or (near and scale * spread[0] < limit):
            learn_one(models, n, row, items, position, payoff)
            learners += 1
    return learners
