"""The arrays of a graph over rows: its rows, and its edges as two half-edges e and e ^ 1 in a chain per row."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from coterie.arrays import Bools, Ints
from coterie.models._kernels.given import given
from coterie.models._kernels.jit import jit

ROWS, HALVES, STAMP, LIVE = 0, 1, 2, 3  # positions in `size`


@given
class Graph(NamedTuple):
    """The arrays: first per half-edge, then per row, then per pool."""

    to: NDArray[np.int32]  # (half-edges,) the other end, -1 once cut
    next: NDArray[np.int32]  # (half-edges,) the row's next half-edge, -1 at the end
    prev: NDArray[np.int32]  # (half-edges,)
    tree: Bools  # (half-edges,) whether it is in the component's spanning tree
    head: NDArray[np.int32]  # (rows,) the row's first half-edge, -1 if none
    home: Ints  # (rows,) the component's pool
    mark: Ints  # (rows,) scratch: which search reached the row
    left: Ints  # (rows,) scratch: a queue
    right: Ints  # (rows,) scratch: another
    members: Ints  # (pools,) rows in the component
    size: Ints  # rows, half-edges created, searches, live half-edges


def make(halves: int = 64, rows: int = 16) -> Graph:
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
        np.zeros(4, dtype=np.int64),
    )


def grown(graph: Graph, rows: int, edges: int) -> Graph:
    """Return the same graph with room for `rows` rows and `edges` more edges."""
    if 2 * graph.size[LIVE] < graph.size[HALVES]:
        compact(graph)
    halves, room = len(graph.to), len(graph.head)
    while halves < graph.size[HALVES] + 2 * edges:
        halves *= 2
    fresh = make(halves, max(room, rows))
    for name in graph._fields[:-1]:
        old = getattr(graph, name)
        getattr(fresh, name)[: len(old)] = old
    return fresh._replace(size=graph.size)


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
def compact(graph: Graph) -> None:
    """Remove cut edges from the arrays; the others keep their order, here and in every row's chain."""
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
    """Add an edge between two rows."""
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
    """Delete an edge."""
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
