"""The compiled loop of LinUCB."""

from typing import Any

from numpy.random import Generator

from coterie.models._kernels.jit import at_once
from coterie.models._kernels.rows.dispatch import fade, fits, name, take, update, used
from coterie.models._kernels.rows.game import Game, choose, join


@at_once
def play_linucb(
    game: Game, rows: Any, shared: bool, keep: float, alpha: float, thompson: bool, rng: Generator
) -> None:
    """Play LinUCB. The third of `so_far` counts the known users. Each payoff fades old ones by `keep`.

    If the model is shared, row 0 is that of all users, and `people` only records which users are known.
    """
    rounds, people, items, named, so_far = game
    for t in range(so_far[0], len(rounds.who)):
        if not fits(rows, rows.size[0] + 1, used(rows) + 1):
            return
        so_far[0] = t + 1
        user = rounds.who[t]
        row = people.row[user]
        rounds.members[t] = so_far[2] + (1 if row < 0 else 0) if shared else 1
        which = rounds.candidates[t]
        k = choose(rows, 0 if shared else row, items, which, alpha, so_far[1], thompson, rng)
        rounds.choice[t] = k
        if rounds.served[t] >= 0 and rounds.served[t] != k:
            continue
        if row < 0:
            row = 0 if shared else take(rows)
            join(people, user, row)
            so_far[2] += 1
        payoff = rounds.payoffs[t, 0 if rounds.served[t] >= 0 else k]
        name(items, which[k], named)
        if keep < 1.0:
            fade(rows, row, keep)
        update(rows, row, items, which[k], payoff)
        rounds.kept[t] = True
        rounds.updated[t] = 1
        so_far[1] += 1
