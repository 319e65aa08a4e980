"""The loops of layered graphs: connected components of the live edges of a layer."""

import numpy as np

from coterie.arrays import Bools, Ints
from coterie.models._kernels.jit import jit


@jit
def components(ends: Ints, alive: Bools, n_nodes: int) -> Ints:
    """Return each node's component, numbered by first appearance; edges beyond the end of `alive` are alive."""
    parent = np.arange(n_nodes)
    for e in range(len(ends)):
        if e >= len(alive) or alive[e]:
            a, b = ends[e, 0], ends[e, 1]
            while parent[a] != a:
                parent[a] = parent[parent[a]]
                a = parent[a]
            while parent[b] != b:
                parent[b] = parent[parent[b]]
                b = parent[b]
            if a < b:  # the first node of a component represents it
                parent[b] = a
            else:
                parent[a] = b
    found = 0
    for node in range(n_nodes):  # a node's parent comes before it, and already has its number
        if parent[node] == node:
            parent[node] = found
            found += 1
        else:
            parent[node] = parent[parent[node]]
    return parent


@jit
def extend(ends: Ints, alive: Bools, labels: Ints, n_nodes: int) -> Ints:
    """Return `components` from those of the first nodes, if the others join no two of them; else an empty array.

    Edges are in the order of their later ends.
    """
    known = len(labels)
    first, end = 0, len(ends)
    while first < end:  # the first edge of an unknown node
        middle = (first + end) // 2
        if ends[middle, 1] < known:
            first = middle + 1
        else:
            end = middle
    found = np.full(n_nodes, -1)
    found[:known] = labels
    next_label = labels.max() + 1 if known else 0
    e = first
    for node in range(known, n_nodes):
        while e < len(ends) and ends[e, 1] == node:
            if e >= len(alive) or alive[e]:
                label = found[ends[e, 0]]
                if found[node] >= 0 and found[node] != label:
                    return found[:0]
                found[node] = label
            e += 1
        if found[node] < 0:
            found[node] = next_label
            next_label += 1
    return found


@jit
def touching(ends: Ints, alive: Bools, node: int) -> Ints:
    """Return the live edges of a node."""
    found = np.empty(16, dtype=np.int64)
    n = 0
    for e in range(len(ends)):
        if (ends[e, 0] == node or ends[e, 1] == node) and (e >= len(alive) or alive[e]):
            if n == len(found):
                found = np.concatenate((found, np.empty(n, dtype=np.int64)))
            found[n] = e
            n += 1
    return found[:n]
