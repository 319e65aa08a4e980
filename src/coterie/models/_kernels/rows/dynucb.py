"""The compiled loop of DynUCB."""

from typing import Any, NamedTuple

import numpy as np
from numpy.random import Generator

from coterie.arrays import Ints
from coterie.models._kernels.given import given
from coterie.models._kernels.jit import at_once, jit
from coterie.models._kernels.probability import uniform_at
from coterie.models._kernels.rows.dispatch import fits, name, pool, squared_distance, take, update, used
from coterie.models._kernels.rows.game import Game, choose, join, play
from coterie.models.protocol import ROUNDING


@given
class Clusters(NamedTuple):
    """The state of DynUCB."""

    rows: Any  # of users
    pools: Any  # a row per cluster
    home: Ints  # (rows or more,) each user's cluster
    sizes: Ints  # (clusters,) how many users each cluster has
    alpha: float
    thompson: bool
    seed: int


@jit
def nearest(rows: Any, row: int, pools: Any, n_pools: int, home: int) -> int:
    """Return the pool with the nearest profile: `home` unless another is nearer, else the first."""
    gaps = np.empty(n_pools)
    for c in range(n_pools):
        gaps[c] = squared_distance(rows, row, pools, c)
    limit = gaps.min() + ROUNDING
    if gaps[home] <= limit:
        return home
    c = 0
    while gaps[c] > limit:
        c += 1
    return c


@jit
def newcomers_cluster(seed: int, n_users: int, k_clusters: int) -> int:
    """Return the cluster of a user who comes after `n_users` others."""
    return int(uniform_at(seed, n_users, 0) * k_clusters)


@jit
def has_room(state: Clusters, game: Game) -> bool:
    """Return whether there is room for another user and item."""
    n, entries = state.rows.size[0] + 1, used(state.rows)
    return bool(
        n <= len(state.home) and fits(state.rows, n, entries + 1) and fits(state.pools, 0, 2 * entries + 4)
    )


@jit
def cluster_of(state: Clusters, row: int) -> int:
    """Return a user's cluster; for an unknown user, the one that the first payoff would go to."""
    if row >= 0:
        return state.home[row]  # type: ignore[no-any-return]
    return newcomers_cluster(state.seed, state.rows.size[0], len(state.sizes))


@jit
def pick(state: Clusters, game: Game, row: int, which: Ints, rng: Generator) -> tuple[int, int]:
    """Choose by the user's cluster."""
    c = cluster_of(state, row)
    members = state.sizes[c] + (1 if row < 0 else 0)
    return choose(state.pools, c, game, which, state.alpha, state.thompson, rng), members


@jit
def learn(state: Clusters, game: Game, user: int, which: Ints, k: int, payoff: float) -> int:
    """Update the user and the cluster, and move the user to the nearest one."""
    rows, pools, home, sizes = state.rows, state.pools, state.home, state.sizes
    row = game.people.row[user]
    c = cluster_of(state, row)
    if row < 0:
        row = take(rows)
        join(game.people, user, row)
        home[row] = c
        sizes[c] += 1
    name(rows, game.items, which[k], game.named)
    update(rows, row, game.items, which[k], payoff)
    update(pools, c, game.items, which[k], payoff)
    better = nearest(rows, row, pools, len(sizes), c)
    if better != c:
        pool(pools, c, rows, row, -1)
        pool(pools, better, rows, row, 1)
        home[row] = better
        sizes[c] -= 1
        sizes[better] += 1
    return 1


@at_once
def play_dynucb(state: Clusters, game: Game, rng: Generator) -> None:
    """Play DynUCB."""
    play(state, game, rng)
