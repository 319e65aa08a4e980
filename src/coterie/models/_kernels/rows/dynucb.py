"""The compiled loop of DynUCB."""

from typing import Any, NamedTuple

import numpy as np
from numpy.random import Generator

from coterie.arrays import Ints
from coterie.models._kernels.jit import at_once, jit
from coterie.models._kernels.probability import uniform_at
from coterie.models._kernels.rows.dispatch import fits, name, pool, squared_distance, take, update, used
from coterie.models._kernels.rows.game import Game, choose, join
from coterie.models.protocol import ROUNDING


class Clusters(NamedTuple):
    """The state of DynUCB."""

    rows: Any  # of users
    pools: Any  # a row per cluster
    home: Ints  # (rows or more,) each user's cluster
    sizes: Ints  # (clusters,) how many users each cluster has


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


@at_once
def play_dynucb(
    game: Game, clusters: Clusters, alpha: float, seek_first: bool, thompson: bool, rng: Generator, seed: int
) -> None:
    """Play DynUCB."""
    rounds, people, items, named, so_far = game
    rows, pools, home, sizes = clusters
    k_clusters = len(sizes)
    for t in range(so_far[0], len(rounds.who)):
        n, entries = rows.size[0] + 1, used(rows)
        if not (fits(rows, n, entries + 1) and fits(pools, 0, 2 * entries + 4) and n <= len(home)):
            return
        so_far[0] = t + 1
        row = people.row[rounds.who[t]]
        cluster = home[row] if row >= 0 else newcomers_cluster(seed, rows.size[0], k_clusters)
        which = rounds.candidates[t]
        k = choose(pools, cluster, items, which, alpha, so_far[1], thompson, rng)
        rounds.choice[t] = k
        rounds.members[t] = sizes[cluster] + (1 if row < 0 else 0)
        if rounds.served[t] >= 0 and rounds.served[t] != k:
            continue
        if row < 0:
            row = take(rows)
            join(people, rounds.who[t], row)
            home[row] = cluster
            sizes[cluster] += 1
        payoff = rounds.payoffs[t, 0 if rounds.served[t] >= 0 else k]
        name(items, which[k], named)
        update(rows, row, items, which[k], payoff)
        better = nearest(rows, row, pools, k_clusters, cluster) if seek_first else cluster
        update(pools, cluster, items, which[k], payoff)
        if not seek_first:
            better = nearest(rows, row, pools, k_clusters, cluster)
        if better != cluster:
            pool(pools, cluster, rows, row, -1)
            pool(pools, better, rows, row, 1)
            home[row] = better
            sizes[cluster] -= 1
            sizes[better] += 1
        rounds.kept[t] = True
        rounds.updated[t] = 1
        so_far[1] += 1
