"""The compiled loop of CLUB."""

from typing import Any, NamedTuple

from numpy.random import Generator

from coterie.arrays import Ints
from coterie.models._kernels.given import given
from coterie.models._kernels.jit import at_once, jit
from coterie.models._kernels.rows.dispatch import fits, name, take, update, used
from coterie.models._kernels.rows.game import Game, choose, join, play
from coterie.models._kernels.rows.user_graph import Graph, arrive, cut_edges, graph_has_room


@given
class Club(NamedTuple):
    """The state of CLUB."""

    rows: Any  # of users
    pools: Any  # a row per component
    everybody: Any  # one row
    graph: Graph
    p: float
    alpha: float
    alpha2: float
    thompson: bool
    seed: int


@jit
def has_room(state: Club, game: Game) -> bool:
    """Return whether there is room for another user and item."""
    everybody = state.everybody
    return graph_has_room(state.graph, state.rows, state.pools) and fits(everybody, 1, used(everybody) + 1)


@jit
def pick(state: Club, game: Game, row: int, which: Ints, rng: Generator) -> tuple[int, int]:
    """Choose by the user's component. An unknown user decides with all users, or alone if there are no edges."""
    graph, alpha, thompson = state.graph, state.alpha, state.thompson
    if row >= 0:
        c = graph.home[row]
        return choose(state.pools, c, game, which, alpha, thompson, rng), graph.members[c]
    everybody, members = (0, graph.size[0] + 1) if state.p != 0 else (-1, 1)
    return choose(state.everybody, everybody, game, which, alpha, thompson, rng), members


@jit
def learn(state: Club, game: Game, user: int, which: Ints, k: int, payoff: float) -> int:
    """Update the user, the component and everybody, and cut the user's edges."""
    rows, pools, graph = state.rows, state.pools, state.graph
    row = game.people.row[user]
    if row < 0:
        row = take(rows)
        join(game.people, user, row)
        arrive(graph, pools, state.p, state.seed)
    name(rows, game.items, which[k], game.named)
    update(rows, row, game.items, which[k], payoff)
    update(pools, graph.home[row], game.items, which[k], payoff)
    update(state.everybody, 0, game.items, which[k], payoff)
    cut_edges(graph, rows, pools, row, state.alpha2)
    return 1


@at_once
def play_club(state: Club, game: Game, rng: Generator) -> None:
    """Play CLUB."""
    play(state, game, rng)
