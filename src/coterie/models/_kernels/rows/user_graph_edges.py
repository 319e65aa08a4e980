"""The arrays of a graph over rows: its rows, its edges and, of the complete graph, the pairs that were cut.

Sparse graphs store their edges, as two half-edges e and e ^ 1 in a chain per row. The complete graph stores the
cut pairs, in a hash set, so it starts with nothing stored.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from coterie.arrays import Bools, Ints
from coterie.models._kernels.jit import jit

ROWS, HALVES, STAMP, COMPLETE, GONE, LIVE = 0, 1, 2, 3, 4, 5  # positions in `size`


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
    gone: Ints  # (a power of two,) the complete graph's cut pairs, hashed; 0 is empty
    size: Ints  # rows, half-edges created, searches, whether complete, cut pairs, live half-edges


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
    """Return the same graph with room for `rows` rows and `pairs` more stored pairs."""
    if not graph.size[COMPLETE] and 2 * graph.size[LIVE] < graph.size[HALVES]:
        compact(graph)
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


@jit
def _found(graph: Graph, a: int, b: int) -> int:
    """Return the slot of a cut pair in the hash set, or the empty slot for it."""
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
def is_cut(graph: Graph, a: int, b: int) -> bool:
    """Return whether an edge of the complete graph was cut."""
    return graph.gone[_found(graph, a, b)] != 0  # type: ignore[no-any-return]


@jit
def cut_pair(graph: Graph, a: int, b: int) -> None:
    """Cut an edge of the complete graph."""
    at = _found(graph, a, b)
    if graph.gone[at] == 0:
        graph.gone[at] = _key(a, b)
        graph.size[GONE] += 1


@jit
def rehash(keys: Ints, graph: Graph, without: int, renamed: int) -> None:
    """Hash cut pairs into an empty set, except those of the row `without`; row `renamed` takes its number."""
    graph.size[GONE] = 0
    for key in keys:
        a, b = (key - 1) >> 31, (key - 1) & ((1 << 31) - 1)
        if key != 0 and a != without and b != without:
            cut_pair(graph, without if a == renamed else a, without if b == renamed else b)
