"""The compiled loop of CLUB."""

from typing import Any, NamedTuple

from numpy.random import Generator

from coterie.models._kernels.jit import at_once
from coterie.models._kernels.rows.dispatch import fits, name, take, update, used
from coterie.models._kernels.rows.game import Game, choose, join
from coterie.models._kernels.rows.user_graph import Graph, arrive, cut_edges, has_room


class Club(NamedTuple):
    """The state of CLUB."""

    rows: Any  # of users
    pools: Any  # a row per component
    everybody: Any  # one row
    graph: Graph


@at_once
def play_club(
    game: Game,
    club: Club,
    p: float,
    alpha: float,
    alpha2: float,
    cut_late: bool,
    thompson: bool,
    rng: Generator,
    seed: int,
) -> None:
    """Play CLUB. An unknown user decides with all users, or alone if there are no edges."""
    rounds, people, items, named, so_far = game
    rows, pools, everybody, graph = club
    for t in range(so_far[0], len(rounds.who)):
        if not (has_room(graph, rows, pools) and fits(everybody, 1, used(everybody) + 1)):
            return
        so_far[0] = t + 1
        row = people.row[rounds.who[t]]
        which = rounds.candidates[t]
        if row >= 0:
            c = graph.home[row]
            k = choose(pools, c, items, which, alpha, so_far[1], thompson, rng)
            rounds.members[t] = graph.members[c]
        else:
            k = choose(everybody, 0 if p != 0 else -1, items, which, alpha, so_far[1], thompson, rng)
            rounds.members[t] = graph.size[0] + 1 if p != 0 else 1
        rounds.choice[t] = k
        if rounds.served[t] >= 0 and rounds.served[t] != k:
            continue
        if row < 0:
            row = take(rows)
            join(people, rounds.who[t], row)
            arrive(graph, pools, p, seed)
        payoff = rounds.payoffs[t, 0 if rounds.served[t] >= 0 else k]
        name(items, which[k], named)
        if cut_late:
            cut_edges(graph, rows, pools, row, alpha2)
        update(rows, row, items, which[k], payoff)
        update(pools, graph.home[row], items, which[k], payoff)
        update(everybody, 0, items, which[k], payoff)
        if not cut_late:
            cut_edges(graph, rows, pools, row, alpha2)
        rounds.kept[t] = True
        rounds.updated[t] = 1
        so_far[1] += 1
