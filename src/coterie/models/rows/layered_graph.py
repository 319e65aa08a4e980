"""A growing graph over numbered nodes, with one or many layers on which edges are only deleted.

A new node gets an edge to each earlier one with probability 3·log(n)/n, where n includes it, and at least one
edge; or edges to all. A layer has a boolean per edge: whether it is alive. Edges beyond its end are alive.
"""

import math
from typing import final

import numpy as np

from coterie.arrays import Bools, Ints
from coterie.errors import FileError
from coterie.models._kernels.rows import layered_graph as kernels
from coterie.models.files import Tensors, take

Alive = Bools  # a layer: whether each edge is alive
NO_LABELS: Ints = np.empty(0, dtype=np.int64)
ALL_ALIVE: Alive = np.ones(0, dtype=np.bool_)  # a layer without deleted edges


@final
class LayeredGraph:
    """Nodes 0 … n_nodes-1 and their edges, in the order of the later nodes."""

    def __init__(self) -> None:
        self.n_nodes = 0
        self.ends: Ints = np.empty((0, 2), dtype=np.int64)  # (edges, 2)

    def arrive(self, seed: int | None, among: Ints | None = None) -> int:
        """Add a node with random edges to earlier nodes, or to those in `among`; without `seed`, edges to all.

        The edges follow from `seed` and the number of nodes.
        """
        others = np.arange(self.n_nodes) if among is None else among
        if seed is not None and len(others):
            n, rng = len(others) + 1, np.random.default_rng([seed, self.n_nodes])
            drawn = rng.random(len(others)) < 3 * math.log(n) / n
            others = others[drawn] if drawn.any() else others[[int(rng.integers(len(others)))]]
        new = np.column_stack([others, np.full(len(others), self.n_nodes)])
        self.ends = np.concatenate([self.ends, new.astype(np.int64)])
        self.n_nodes += 1
        return self.n_nodes - 1

    def leave(self, node: int) -> Alive:
        """Remove a node and its edges, and return which edges stay; later nodes move up by one."""
        stays: Alive = (self.ends != node).all(axis=1)
        self.ends = self.ends[stays]
        self.ends -= self.ends > node
        self.n_nodes -= 1
        return stays

    def alive(self, layer: Alive) -> Alive:
        """Return for each edge whether it is alive on a layer, as a new array."""
        full = np.ones(len(self.ends), dtype=np.bool_)
        full[: len(layer)] = layer
        return full

    def touching(self, node: int, layer: Alive) -> tuple[Ints, Ints]:
        """Return a node's edges that are alive on a layer, and the nodes at their other ends."""
        edges = kernels.touching(self.ends, layer, node)
        return edges, self.ends[edges].sum(axis=1) - node

    def without(self, layer: Alive, edges: Ints) -> Alive:
        """Return a layer on which these edges are deleted."""
        full = self.alive(layer)
        full[edges] = False
        return full

    def labels(self, layer: Alive, known: Ints = NO_LABELS) -> Ints:
        """Return each node's connected component on a layer, numbered by first appearance.

        `known` are the labels of the first nodes, if no edge between them was deleted since; this saves time.
        """
        if len(known):
            found = kernels.extend(self.ends, layer, known, self.n_nodes)
            if len(found):
                return found
        return kernels.components(self.ends, layer, self.n_nodes)

    def tensors(self, name: str) -> Tensors:
        """Return the edges as an array."""
        return {f"{name}_edges": self.ends}

    def restore(self, name: str, tensors: Tensors, n_nodes: int) -> None:
        """Restore saved edges."""
        ends = take(tensors, f"{name}_edges", "i", (None, 2)).astype(np.int64)
        sound = ((ends >= 0) & (ends < n_nodes)).all() and (ends[:, 0] < ends[:, 1]).all()
        if not (sound and (np.diff(ends[:, 1]) >= 0).all()):
            raise FileError(f"the edges of {name} in the model file contradict each other")
        self.ends, self.n_nodes = ends, n_nodes
