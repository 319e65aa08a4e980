"""A graph over rows that only ever loses edges between them, its components, and their pooled statistics.

Sparse graphs keep their edges, as two half-edges e and e ^ 1 chained by row, and some of the edges are marked
as a tree that spans the component: only a cut in the tree can split it. Then the tree is walked from both ends
at once, and the half that runs out of rows first looks for another edge to the other half. If there is none,
it is a component of its own. The complete graph keeps the pairs that were cut, in a hash set, so it starts
with nothing stored. Each component has a row of its own in `pools`; what secedes is summed and subtracted.
Nothing here makes room: `roomy` tells whether there is enough for one arrival and one round.
"""

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from coterie.models._kernels.jit import jit
from coterie.models._kernels.rows.bank import apart, clear, fits, give, move, refresh, take, used
from coterie.models.protocol import ROUNDING

ROWS, HALVES, STAMP, COMPLETE, GONE, LIVE = 0, 1, 2, 3, 4, 5  # what `size` holds


class Graph(NamedTuple):
    """First what has one element a half-edge, then a row, then a pool."""

    to: NDArray[np.int32]  # (half-edges,) the other end, -1 once cut
    next: NDArray[np.int32]  # (half-edges,) the row's next half-edge, -1 at the end
    prev: NDArray[np.int32]  # (half-edges,)
    tree: NDArray[np.bool_]  # (half-edges,) is it one of those that span the component?
    head: NDArray[np.int32]  # (rows,) the row's first half-edge, -1 if none
    home: NDArray[np.int64]  # (rows,) the component's pool
    mark: NDArray[np.int64]  # (rows,) scratch: who reached the row in the search with this stamp
    left: NDArray[np.int64]  # (rows,) scratch: a queue
    right: NDArray[np.int64]  # (rows,) scratch: another
    members: NDArray[np.int64]  # (pools,) rows in the component
    gone: NDArray[np.int64]  # (a power of two,) the complete graph's cut pairs, hashed; 0 is empty
    size: NDArray[np.int64]  # rows, half-edges made, searches, whether complete, pairs gone, half-edges left


def make(complete: bool, halves: int = 64, rows: int = 16, gone: int = 64) -> Graph:
    """Return a graph without rows."""
    return Graph(
        np.zeros(halves, dtype=np.int32),
        np.zeros(halves, dtype=np.int32),
        np.zeros(halves, dtype=np.int32),
        np.zeros(halves, dtype=np.bool_),
        np.zeros(rows, dtype=np.int32),
        np.zeros(rows, dtype=np.int64),
        np.zeros(rows, dtype=np.int64),
        np.zeros(rows, dtype=np.int64),
        np.zeros(rows, dtype=np.int64),
        np.zeros(rows + 8, dtype=np.int64),
        np.zeros(gone, dtype=np.int64),
        np.array([0, 0, 0, int(complete), 0, 0], dtype=np.int64),
    )


def grown(graph: Graph, rows: int, pairs: int) -> Graph:
    """Return the same graph with room for so many rows, and so many pairs of them beyond those stored."""
    if not graph.size[COMPLETE] and 2 * graph.size[LIVE] < graph.size[HALVES]:
        close_ranks(graph)
    halves, room, gone = len(graph.to), len(graph.head), len(graph.gone)
    while graph.size[COMPLETE] and gone < 2 * (graph.size[GONE] + pairs):
        gone *= 2
    while not graph.size[COMPLETE] and halves < graph.size[HALVES] + 2 * pairs:
        halves *= 2
    fresh = make(bool(graph.size[COMPLETE]), halves, max(room, rows), gone)
    for name in graph._fields[:10]:
        old = getattr(graph, name)
        getattr(fresh, name)[: len(old)] = old
    fresh = fresh._replace(size=graph.size)
    rehash(graph.gone, fresh, -1, -1)
    return fresh


@jit
def roomy(graph: Graph, rows: Any, pools: Any) -> bool:
    """Return whether a row may arrive and be served; a component has no more entries than its rows."""
    n = graph.size[ROWS] + 1
    if graph.size[COMPLETE]:
        stored = 2 * (graph.size[GONE] + n) <= len(graph.gone)
    else:
        stored = graph.size[HALVES] + 2 * n <= len(graph.to)
    return bool(
        stored
        and n <= len(graph.head)
        and n + 2 <= len(graph.members)
        and fits(rows, n, used(rows) + 1)
        and fits(pools, n + 2, 2 * used(rows) + 4)
    )


@jit
def add_row(graph: Graph) -> int:
    """Return a new row, without edges or a component."""
    row = graph.size[ROWS]
    graph.head[row] = -1
    graph.home[row] = -1
    graph.mark[row] = 0
    graph.size[ROWS] += 1
    return row  # type: ignore[no-any-return]


@jit
def close_ranks(graph: Graph) -> None:
    """Use the room of cut edges again; the others keep their order, here and in every row's chain."""
    moved = np.full(len(graph.to), -1, dtype=np.int32)
    end = 0
    for e in range(graph.size[HALVES]):
        if graph.to[e] >= 0:
            moved[e] = end
            end += 1
    for e in range(graph.size[HALVES]):
        if moved[e] >= 0:
            after, before = graph.next[e], graph.prev[e]
            graph.to[moved[e]], graph.tree[moved[e]] = graph.to[e], graph.tree[e]
            graph.next[moved[e]] = moved[after] if after >= 0 else -1
            graph.prev[moved[e]] = moved[before] if before >= 0 else -1
    for row in range(graph.size[ROWS]):
        if graph.head[row] >= 0:
            graph.head[row] = moved[graph.head[row]]
    graph.size[HALVES] = end


@jit
def link(graph: Graph, a: int, b: int) -> None:
    """Draw an edge between two rows."""
    for half in range(2):
        own, other = (a, b) if half == 0 else (b, a)
        e = graph.size[HALVES]
        graph.to[e], graph.next[e], graph.prev[e], graph.tree[e] = other, graph.head[own], -1, False
        if graph.head[own] >= 0:
            graph.prev[graph.head[own]] = e
        graph.head[own] = e
        graph.size[HALVES] += 1
    graph.size[LIVE] += 2


@jit
def unlink(graph: Graph, e: int) -> None:
    """Cut an edge, for good."""
    for i in range(2):
        half = e ^ i
        before, after = graph.prev[half], graph.next[half]
        if before >= 0:
            graph.next[before] = after
        else:
            graph.head[graph.to[half ^ 1]] = after
        if after >= 0:
            graph.prev[after] = before
    graph.to[e] = graph.to[e ^ 1] = -1
    graph.size[LIVE] -= 2


@jit
def _found(graph: Graph, a: int, b: int) -> int:
    """Return where a cut pair lies in the hash set, or the empty slot where it would."""
    key = _key(a, b)
    mixed = np.uint64(key) * np.uint64(0x9E3779B97F4A7C15)
    mask = len(graph.gone) - 1
    at = np.int64(mixed >> np.uint64(20)) & mask
    while graph.gone[at] != 0 and graph.gone[at] != key:
        at = (at + 1) & mask
    return at  # type: ignore[return-value]


@jit
def _key(a: int, b: int) -> int:
    return (min(a, b) << 31) + max(a, b) + 1


@jit
def is_gone(graph: Graph, a: int, b: int) -> bool:
    """Return whether the complete graph has lost an edge."""
    return graph.gone[_found(graph, a, b)] != 0  # type: ignore[no-any-return]


@jit
def lose(graph: Graph, a: int, b: int) -> None:
    """Cut an edge of the complete graph, for good."""
    at = _found(graph, a, b)
    if graph.gone[at] == 0:
        graph.gone[at] = _key(a, b)
        graph.size[GONE] += 1


@jit
def rehash(keys: NDArray[np.int64], graph: Graph, without: int, renamed: int) -> None:
    """Hash cut pairs into an empty set: none with the row `without`, whose name `renamed` takes over."""
    graph.size[GONE] = 0
    for key in keys:
        a, b = (key - 1) >> 31, (key - 1) & ((1 << 31) - 1)
        if key != 0 and a != without and b != without:
            lose(graph, without if a == renamed else a, without if b == renamed else b)


@jit
def secede(graph: Graph, rows: Any, pools: Any, who: NDArray[np.int64], start: int, stop: int) -> None:
    """Make who[start:stop] a component of their own."""
    old = graph.home[who[start]]
    c = take(pools)
    for i in range(start, stop):
        graph.home[who[i]] = c
        move(pools, c, rows, who[i], 1)
    refresh(pools, c)
    move(pools, old, pools, c, -1)
    refresh(pools, old)
    graph.members[c] = stop - start
    graph.members[old] -= stop - start


@jit
def part(graph: Graph, rows: Any, pools: Any, a: int, b: int) -> None:
    """Mend the tree after its edge between a and b was cut, or split the component where nothing mends it."""
    graph.size[STAMP] += 1
    ours, theirs = 2 * graph.size[STAMP], 2 * graph.size[STAMP] + 1
    queue, other = graph.left, graph.right
    queue[0], other[0] = a, b
    graph.mark[a], graph.mark[b] = ours, theirs
    at, end, other_at, other_end = 0, 1, 0, 1
    while at < end:
        e = graph.head[queue[at]]
        at += 1
        while e >= 0:
            v = graph.to[e]
            if graph.tree[e] and graph.mark[v] != ours:
                graph.mark[v] = ours
                queue[end] = v
                end += 1
            e = graph.next[e]
        # The other half's turn: the smaller one is known after at most twice its own work.
        queue, other, ours, theirs = other, queue, theirs, ours
        at, end, other_at, other_end = other_at, other_end, at, end
    for i in range(end):
        e = graph.head[queue[i]]
        while e >= 0:
            if graph.mark[graph.to[e]] != ours:
                graph.tree[e] = graph.tree[e ^ 1] = True
                return
            e = graph.next[e]
    secede(graph, rows, pools, queue, 0, end)


@jit
def _certainty(times: int) -> float:
    """Return √((1 + log(1+T)) / (1+T)): how far a profile of T payoffs may be from the truth."""
    return math.sqrt((1 + math.log(1.0 + times)) / (1.0 + times))


@jit
def unlike(rows: Any, i: int, j: int, alpha2: float) -> bool:
    """Return whether two users' profiles are too far apart to be one."""
    limit = alpha2 * (_certainty(rows.times[i]) + _certainty(rows.times[j]))
    return apart(rows, i, rows, j) > limit + ROUNDING  # type: ignore[no-any-return]


@jit
def _pieces(graph: Graph, rows: Any, pools: Any, c: int) -> None:
    """Split a component of the complete graph into what is still connected; the largest piece keeps the pool.

    Each row looks only at those that none has reached yet, so it passes over one only where an edge is gone.
    """
    waiting, queue = graph.left, graph.right
    n_waiting = 0
    for v in range(graph.size[ROWS]):
        if graph.home[v] == c:
            waiting[n_waiting] = v
            n_waiting += 1
    starts = graph.mark  # searches of sparse graphs are not mixed with these
    n_pieces, end = 0, 0
    while n_waiting > 0:
        starts[n_pieces] = end
        n_pieces += 1
        at = end
        n_waiting -= 1
        queue[end] = waiting[n_waiting]
        end += 1
        while at < end:
            v = queue[at]
            at += 1
            kept = 0
            for i in range(n_waiting):
                u = waiting[i]
                if is_gone(graph, v, u):
                    waiting[kept] = u
                    kept += 1
                else:
                    queue[end] = u
                    end += 1
            n_waiting = kept
    largest, most = 0, 0
    for piece in range(n_pieces):
        stop = starts[piece + 1] if piece + 1 < n_pieces else end
        if stop - starts[piece] > most:
            largest, most = piece, stop - starts[piece]
    for piece in range(n_pieces):
        stop = starts[piece + 1] if piece + 1 < n_pieces else end
        if piece != largest:
            secede(graph, rows, pools, queue, starts[piece], stop)


@jit
def _serve_complete(graph: Graph, rows: Any, pools: Any, row: int, alpha2: float) -> None:
    c = graph.home[row]
    lost, friend = graph.left, -1
    n_lost = 0
    for j in range(graph.size[ROWS]):
        if j == row or graph.home[j] != c or is_gone(graph, row, j):
            continue
        if unlike(rows, row, j, alpha2):
            lose(graph, row, j)
            lost[n_lost] = j
            n_lost += 1
        elif friend < 0:
            friend = j
    for i in range(n_lost):
        if friend < 0 or is_gone(graph, lost[i], friend):  # else both are still friends of one
            _pieces(graph, rows, pools, c)
            return


@jit
def serve(graph: Graph, rows: Any, pools: Any, row: int, alpha2: float) -> None:
    """Cut the row's edges to whoever is unlike it, and let components fall apart."""
    if graph.size[COMPLETE]:
        _serve_complete(graph, rows, pools, row, alpha2)
        return
    e = graph.head[row]
    while e >= 0:
        after, j = graph.next[e], graph.to[e]
        if unlike(rows, row, j, alpha2):
            unlink(graph, e)
            if graph.tree[e]:
                part(graph, rows, pools, row, j)
        e = after


@jit
def _befriend(graph: Graph, row: int, p: float, rng: Generator) -> None:
    """Draw an edge to each earlier row with probability p, in time that follows the edges drawn."""
    if p >= 1.0:
        for j in range(row):
            link(graph, row, j)
    elif p > 0.0:
        j = -1
        while True:
            skip = math.log(1.0 - rng.random()) / math.log1p(-p)  # geometric: how many get none
            if skip >= row - 1 - j:
                break
            j += 1 + int(skip)
            link(graph, row, j)


@jit
def _rename(graph: Graph, start: int, c: int, into: int) -> None:
    """Let the component around a row belong to another pool."""
    graph.members[into] += graph.members[c]
    graph.members[c] = 0
    if graph.size[COMPLETE]:
        for j in range(graph.size[ROWS]):
            if graph.home[j] == c:
                graph.home[j] = into
        return
    queue = graph.right
    queue[0] = start
    graph.home[start] = into
    at, end = 0, 1
    while at < end:
        e = graph.head[queue[at]]
        at += 1
        while e >= 0:
            v = graph.to[e]
            if graph.home[v] == c:
                graph.home[v] = into
                queue[end] = v
                end += 1
            e = graph.next[e]


@jit
def arrive(graph: Graph, pools: Any, p: float, rng: Generator) -> None:
    """Add a row that has learned nothing: edges are drawn, and the components they touch become one.

    A negative p stands for 3·log(n)/n, where n counts the newcomer.
    """
    row = add_row(graph)
    if graph.size[COMPLETE]:
        into = _join_all(graph, pools, row)
    else:
        n = float(row + 1)
        _befriend(graph, row, p if p >= 0 else min(1.0, 3.0 * math.log(n) / n), rng)
        into = _join_friends(graph, pools, row)
    if into < 0:
        into = take(pools)
        graph.members[into] = 0
    graph.home[row] = into
    graph.members[into] += 1


@jit
def _join_all(graph: Graph, pools: Any, row: int) -> int:
    """Let all components be one, and return it: the largest of them."""
    into, merged = -1, False
    for j in range(row):
        c = graph.home[j]
        if into < 0 or graph.members[c] > graph.members[into]:
            into = c
    for j in range(row):
        c = graph.home[j]
        if c != into:
            move(pools, into, pools, c, 1)
            give(pools, c)
            _rename(graph, j, c, into)
            merged = True
    if merged:
        refresh(pools, into)
    return into


@jit
def _join_friends(graph: Graph, pools: Any, row: int) -> int:
    """Let the components that a newcomer's edges touch be one, and return it; the tree gets an edge to each."""
    into, tie, merged = -1, -1, False
    e = graph.head[row]
    while e >= 0:
        c = graph.home[graph.to[e]]
        if into < 0 or graph.members[c] > graph.members[into]:
            into, tie = c, e
        e = graph.next[e]
    if into < 0:
        return into
    graph.tree[tie] = graph.tree[tie ^ 1] = True
    e = graph.head[row]
    while e >= 0:
        c = graph.home[graph.to[e]]
        if c != into:
            graph.tree[e] = graph.tree[e ^ 1] = True
            move(pools, into, pools, c, 1)
            give(pools, c)
            _rename(graph, graph.to[e], c, into)
            merged = True
        e = graph.next[e]
    if merged:
        refresh(pools, into)
    return into


@jit
def _resum(graph: Graph, rows: Any, pools: Any, c: int) -> None:
    """Sum a component's statistics anew from its rows."""
    clear(pools, c)
    for v in range(graph.size[ROWS]):
        if graph.home[v] == c:
            move(pools, c, rows, v, 1)
    refresh(pools, c)


@jit
def leave(graph: Graph, rows: Any, pools: Any, row: int) -> None:
    """Remove a row, and let the last one take its place; those whom only it connected part ways.

    The component that stays is summed anew, so that not even a rounding of the row's statistics remains.
    """
    c, last = graph.home[row], graph.size[ROWS] - 1
    if graph.size[COMPLETE]:
        graph.home[row] = -1
        graph.members[c] -= 1
        move(pools, c, rows, row, -1)
        _pieces(graph, rows, pools, c)
        keys = graph.gone.copy()
        for at in range(len(keys)):
            graph.gone[at] = 0
        rehash(keys, graph, row, last)
        if graph.members[c] == 0:
            give(pools, c)
    else:
        while graph.head[row] >= 0:
            e = graph.head[row]
            j = graph.to[e]
            unlink(graph, e)
            if graph.tree[e]:
                part(graph, rows, pools, row, j)
        alone = graph.home[row]
        graph.members[alone] = 0
        give(pools, alone)
        graph.home[row] = -1
        e = graph.head[last]
        while e >= 0:
            graph.to[e ^ 1] = row
            e = graph.next[e]
    if graph.members[c] > 0:
        _resum(graph, rows, pools, c)
    graph.head[row], graph.home[row] = graph.head[last], graph.home[last]
    graph.mark[row] = 0
    graph.size[ROWS] = last


@jit
def rebuild(
    graph: Graph, homes: NDArray[np.int64], pairs: NDArray[np.int64], tree: NDArray[np.uint8]
) -> None:
    """Give an empty graph rows, and pairs that are linked (where it is complete: lost) in this order."""
    for home in homes:
        graph.home[add_row(graph)] = home
        graph.members[home] += 1
    for i in range(len(pairs)):
        if graph.size[COMPLETE]:
            lose(graph, pairs[i, 0], pairs[i, 1])
        else:
            e = graph.size[HALVES]
            link(graph, pairs[i, 0], pairs[i, 1])
            graph.tree[e] = graph.tree[e + 1] = tree[i] != 0
