"""A graph over rows that only loses edges between them: its components, and their pooled statistics.

Some edges are marked as a tree that spans the component: only a cut in the tree can split it.
After such a cut both halves of the tree are searched in turns, and the half whose search ends first looks for
another edge to the other half. If there is none, that half becomes a component of its own. Each component has a
row in `pools`; the part that splits off is summed and subtracted. Nothing here allocates: `graph_has_room` returns
whether there is room for one arrival and one round.
"""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie.arrays import Ints
from coterie.models._kernels.bounds import certainty
from coterie.models._kernels.jit import jit
from coterie.models._kernels.probability import uniform_at
from coterie.models._kernels.rows.dispatch import (
    add_facts,
    clear,
    distance,
    fits,
    refresh,
    release,
    take,
    used,
)
from coterie.models._kernels.rows.user_graph_edges import (
    HALVES,
    ROWS,
    STAMP,
    Graph,
    add_row,
    grown,
    link,
    make,
    unlink,
)
from coterie.models.protocol import ROUNDING

__all__ = ["Graph", "arrive", "cut_edges", "graph_has_room", "grown", "leave", "make", "rebuild"]


@jit
def graph_has_room(graph: Graph, rows: Any, pools: Any) -> bool:
    """Return whether there is room to add and serve a row; a component has no more entries than its rows."""
    n = graph.size[ROWS] + 1
    return bool(
        graph.size[HALVES] + 2 * n <= len(graph.to)
        and n <= len(graph.head)
        and n + 2 <= len(graph.members)
        and fits(rows, n, used(rows) + 1)
        and fits(pools, n + 2, 2 * used(rows) + 4)
    )


@jit
def split_off(graph: Graph, rows: Any, pools: Any, who: Ints, start: int, stop: int) -> None:
    """Make who[start:stop] a new component."""
    old = graph.home[who[start]]
    c = take(pools)
    for i in range(start, stop):
        graph.home[who[i]] = c
        add_facts(pools, c, rows, who[i], 1)
    refresh(pools, c)
    add_facts(pools, old, pools, c, -1)
    refresh(pools, old)
    graph.members[c] = stop - start
    graph.members[old] -= stop - start


@jit
def repair_tree(graph: Graph, rows: Any, pools: Any, a: int, b: int) -> None:
    """Repair the tree after its edge between a and b was cut, or split the component if that is impossible."""
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
        # Switch to the other half: the search ends after at most twice the smaller half's work.
        queue, other, ours, theirs = other, queue, theirs, ours
        at, end, other_at, other_end = other_at, other_end, at, end
    for i in range(end):
        e = graph.head[queue[i]]
        while e >= 0:
            if graph.mark[graph.to[e]] != ours:
                graph.tree[e] = graph.tree[e ^ 1] = True
                return
            e = graph.next[e]
    split_off(graph, rows, pools, queue, 0, end)


@jit
def unlike(rows: Any, i: int, j: int, alpha2: float) -> bool:
    """Return whether two users' profiles are too far apart for an edge."""
    limit = alpha2 * (certainty(rows.times[i]) + certainty(rows.times[j]))
    return distance(rows, i, rows, j) > limit + ROUNDING  # type: ignore[no-any-return]


@jit
def cut_edges(graph: Graph, rows: Any, pools: Any, row: int, alpha2: float) -> None:
    """Cut the row's edges to rows that differ too much, and split components."""
    e = graph.head[row]
    while e >= 0:
        after, j = graph.next[e], graph.to[e]
        if unlike(rows, row, j, alpha2):
            unlink(graph, e)
            if graph.tree[e]:
                repair_tree(graph, rows, pools, row, j)
        e = after


@jit
def _draw_edges(graph: Graph, row: int, p: float, seed: int) -> None:
    """Draw an edge to each earlier row with probability p, in time proportional to the edges drawn."""
    if p >= 1.0:
        for j in range(row):
            link(graph, row, j)
    elif p > 0.0:
        j, drawn = -1, 0
        while True:
            # Geometric: how many rows are skipped.
            skip = math.log1p(-uniform_at(seed, row, drawn)) / math.log1p(-p)
            drawn += 1
            if skip >= row - 1 - j:
                break
            j += 1 + int(skip)
            link(graph, row, j)


@jit
def _rename(graph: Graph, start: int, c: int, into: int) -> None:
    """Assign the component of a row to another pool."""
    graph.members[into] += graph.members[c]
    graph.members[c] = 0
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
def arrive(graph: Graph, pools: Any, p: float, seed: int) -> None:
    """Add an empty row: draw its edges, and join the components they touch.

    A negative p means 3·log(n)/n, where n includes the new row.
    """
    row = add_row(graph)
    n = float(row + 1)
    _draw_edges(graph, row, p if p >= 0 else min(1.0, 3.0 * math.log(n) / n), seed)
    into = _join_touched(graph, pools, row)
    if into < 0:
        into = take(pools)
        graph.members[into] = 0
    graph.home[row] = into
    graph.members[into] += 1


@jit
def _join_touched(graph: Graph, pools: Any, row: int) -> int:
    """Join the components that a new row's edges touch, and return the result; the tree gets an edge to each."""
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
            add_facts(pools, into, pools, c, 1)
            release(pools, c)
            _rename(graph, graph.to[e], c, into)
            merged = True
        e = graph.next[e]
    if merged:
        refresh(pools, into)
    return into


@jit
def _resum(graph: Graph, rows: Any, pools: Any, c: int) -> None:
    """Recompute a component's statistics from its rows."""
    clear(pools, c)
    for v in range(graph.size[ROWS]):
        if graph.home[v] == c:
            add_facts(pools, c, rows, v, 1)
    refresh(pools, c)


@jit
def leave(graph: Graph, rows: Any, pools: Any, row: int) -> None:
    """Remove a row, and move the last one into its place; components that only it connected are split.

    The remaining component is summed again, so that not even rounding of the row's statistics remains.
    """
    c, last = graph.home[row], graph.size[ROWS] - 1
    while graph.head[row] >= 0:
        e = graph.head[row]
        j = graph.to[e]
        unlink(graph, e)
        if graph.tree[e]:
            repair_tree(graph, rows, pools, row, j)
    alone = graph.home[row]
    graph.members[alone] = 0
    release(pools, alone)
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
def rebuild(graph: Graph, homes: Ints, edges: Ints, tree: NDArray[np.uint8]) -> None:
    """Fill an empty graph with rows and edges, in this order."""
    for home in homes:
        graph.home[add_row(graph)] = home
        graph.members[home] += 1
    for i in range(len(edges)):
        e = graph.size[HALVES]
        link(graph, edges[i, 0], edges[i, 1])
        graph.tree[e] = graph.tree[e + 1] = tree[i] != 0
