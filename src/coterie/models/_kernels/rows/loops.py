"""Compiled loops of policies over many rounds: choose, compare with the log, learn.

A loop stops before a round for which there may not be enough room; the caller makes room and calls it again.
"""

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from coterie.models._kernels.jit import jit
from coterie.models._kernels.rounds import Rounds
from coterie.models._kernels.rows.dispatch import draw, fade, fits, gap, name, pool, take, update, used, view
from coterie.models._kernels.rows.user_graph import Graph, arrive, roomy, serve
from coterie.models.protocol import ROUNDING, TIE


class People(NamedTuple):
    """The users of these rounds."""

    row: NDArray[np.int64]  # (users,) the user's row, -1 if there is none yet
    joined: NDArray[np.int64]  # (1 + users,) how many got a row, then these users, in order


@jit
def best(score: NDArray[np.float64]) -> int:
    """Return the first candidate whose score is within rounding of the best."""
    top = score.max()
    k = 0
    while not top - score[k] < TIE:
        k += 1
    return k


@jit
def bound(alpha: float, learned: int) -> float:
    """Return the factor of spreads after `learned` payoffs."""
    return alpha * math.sqrt(math.log1p(learned + 1))


@jit
def pick(
    rows: Any,
    row: int,
    items: Any,
    which: NDArray[np.int64],
    scale: float,
    thompson: bool,
    rng: Generator,
) -> int:
    """Return the choice by a row's bound, or by a draw."""
    score = np.empty(len(which))
    if thompson:
        draw(rows, row, items, which, scale, rng, score)
    else:
        spread = np.empty(len(which))
        view(rows, row, items, which, score, spread)
        for k in range(len(which)):
            score[k] = score[k] + scale * spread[k]
    return best(score)


@jit
def join(people: People, user: int, row: int) -> None:
    """Record that a user got a row."""
    people.row[user] = row
    people.joined[0] += 1
    people.joined[people.joined[0]] = user


@jit
def play_linucb(
    rows: Any,
    items: Any,
    named: NDArray[np.int64],
    rounds: Rounds,
    people: People,
    so_far: NDArray[np.int64],
    shared: bool,
    keep: float,
    alpha: float,
    thompson: bool,
    rng: Generator,
) -> None:
    """Play LinUCB. `so_far`: the next round, payoffs learned, users known. Each payoff fades old ones by `keep`.

    If the model is shared, row 0 is that of all users, and `people` only records which users are known.
    """
    for t in range(so_far[0], len(rounds.who)):
        if not fits(rows, rows.size[0] + 1, used(rows) + 1):
            return
        so_far[0] = t + 1
        user = rounds.who[t]
        row = people.row[user]
        rounds.members[t] = so_far[2] + (1 if row < 0 else 0) if shared else 1
        which = rounds.candidates[t]
        k = pick(rows, 0 if shared else row, items, which, bound(alpha, so_far[1]), thompson, rng)
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


@jit
def play_club(
    rows: Any,
    pools: Any,
    everybody: Any,
    graph: Graph,
    items: Any,
    named: NDArray[np.int64],
    rounds: Rounds,
    people: People,
    so_far: NDArray[np.int64],
    p: float,
    alpha: float,
    alpha2: float,
    cut_late: bool,
    thompson: bool,
    rng: Generator,
) -> None:
    """Play CLUB; `so_far` as above. An unknown user decides with all users, or alone if there are no edges."""
    for t in range(so_far[0], len(rounds.who)):
        if not (roomy(graph, rows, pools) and fits(everybody, 1, used(everybody) + 1)):
            return
        so_far[0] = t + 1
        row = people.row[rounds.who[t]]
        which = rounds.candidates[t]
        scale = bound(alpha, so_far[1])
        if row >= 0:
            c = graph.home[row]
            k = pick(pools, c, items, which, scale, thompson, rng)
            rounds.members[t] = graph.members[c]
        else:
            k = pick(everybody, 0 if p != 0 else -1, items, which, scale, thompson, rng)
            rounds.members[t] = graph.size[0] + 1 if p != 0 else 1
        rounds.choice[t] = k
        if rounds.served[t] >= 0 and rounds.served[t] != k:
            continue
        if row < 0:
            row = take(rows)
            join(people, rounds.who[t], row)
            arrive(graph, pools, p, rng)
        payoff = rounds.payoffs[t, 0 if rounds.served[t] >= 0 else k]
        name(items, which[k], named)
        if cut_late:
            serve(graph, rows, pools, row, alpha2)
        update(rows, row, items, which[k], payoff)
        update(pools, graph.home[row], items, which[k], payoff)
        update(everybody, 0, items, which[k], payoff)
        if not cut_late:
            serve(graph, rows, pools, row, alpha2)
        rounds.kept[t] = True
        rounds.updated[t] = 1
        so_far[1] += 1


@jit
def nearest(rows: Any, row: int, pools: Any, n_pools: int, home: int) -> int:
    """Return the pool with the nearest profile: `home` unless another is nearer, else the first."""
    gaps = np.empty(n_pools)
    for c in range(n_pools):
        gaps[c] = gap(rows, row, pools, c)
    limit = gaps.min() + ROUNDING
    if gaps[home] <= limit:
        return home
    c = 0
    while gaps[c] > limit:
        c += 1
    return c


@jit
def play_dynucb(
    rows: Any,
    pools: Any,
    home: NDArray[np.int64],
    sizes: NDArray[np.int64],
    items: Any,
    named: NDArray[np.int64],
    rounds: Rounds,
    people: People,
    so_far: NDArray[np.int64],
    alpha: float,
    seek_first: bool,
    thompson: bool,
    rng: Generator,
) -> None:
    """Play DynUCB. `home` is each row's cluster, `sizes` its number of rows; so_far[2] is a newcomer's
    cluster."""
    k_clusters = len(sizes)
    for t in range(so_far[0], len(rounds.who)):
        n, entries = rows.size[0] + 1, used(rows)
        if not (fits(rows, n, entries + 1) and fits(pools, 0, 2 * entries + 4) and n <= len(home)):
            return
        so_far[0] = t + 1
        row = people.row[rounds.who[t]]
        cluster = home[row] if row >= 0 else so_far[2]
        which = rounds.candidates[t]
        k = pick(pools, cluster, items, which, bound(alpha, so_far[1]), thompson, rng)
        rounds.choice[t] = k
        rounds.members[t] = sizes[cluster] + (1 if row < 0 else 0)
        if rounds.served[t] >= 0 and rounds.served[t] != k:
            continue
        if row < 0:
            row = take(rows)
            join(people, rounds.who[t], row)
            home[row] = cluster
            sizes[cluster] += 1
            so_far[2] = int(rng.random() * k_clusters)
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


@jit
def partner(
    pools: Any,
    c: int,
    whole: NDArray[np.bool_],
    age: NDArray[np.int64],
    rate: NDArray[np.float64],
    near: NDArray[np.float64],
    alike: float,
) -> int:
    """Return the oldest fully checked pool that is similar to pool c, or -1.

    Two pools are similar if their payoffs per member differ by less than `alike`, and their profiles by less
    than the sum of their `near`.
    """
    found = -1
    for d in range(len(whole)):
        if d == c or not whole[d] or (found >= 0 and age[d] > age[found]):
            continue
        limit = near[c] + near[d]
        if abs(rate[c] - rate[d]) < alike and gap(pools, c, pools, d) < limit * limit:
            found = d
    return found
