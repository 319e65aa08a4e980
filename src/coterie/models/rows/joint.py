"""Coupled ridge regressions: one user's payoff changes the others' models through a kernel over users.

The users' weights w₁ … w_m have the prior covariance K ⊗ I and each payoff is w_i·x plus noise, so after the
payoffs they have mean w and covariance C = ((K ⊗ I)⁻¹ + Σ φφᵀ)⁻¹ with φ = e_i ⊗ x. GOB.Lin and CoLin are both
this, with different K: A⁻¹ and WᵀW. C has the same blocks as K, so one block per group of coupled users is
stored, with (m·d)² numbers each, from the first payoff on. With item ids it splits further, into one m × m
matrix per item. A node of a block is one user, or several who share one model.

Not rows of `ridge_rows`: these also store Σ φφᵀ, which would double the memory of a block, and a compiled update
would change the last bits of results.
"""

from collections.abc import Hashable, Iterable, Sequence
from typing import final

import numpy as np

from coterie.arrays import Floats
from coterie.errors import ContextError, FileError, UserError
from coterie.models.actions import Actions, ActionsLike
from coterie.models.checks import read_items, read_vectors
from coterie.models.files import Tensors, pack_ids, take, unpack_ids
from coterie.models.protocol import View
from coterie.models.ranges import MOST_SET, are_covariances

STRIPE = 256  # rows of a covariance updated at once, so that the update needs no full copy
VECTORS: Hashable = None  # the one key of a block's beliefs when contexts are vectors; else keys are item ids


@final
class Belief:
    """The posterior of a block's weights: covariance and mean."""

    def __init__(self, covariance: Floats, weights: Floats) -> None:
        self.covariance = covariance  # (nodes * width, nodes * width)
        self.weights = weights  # (nodes * width,)

    def learn(self, rows: slice, context: Floats, payoff: float) -> None:
        """Condition on one payoff of the node with these rows."""
        # Rank one (Sherman–Morrison): inverting again would be O(rows³).
        v = self.covariance[:, rows] @ context
        s = 1 + float(context @ v[rows])
        self.weights += v * ((payoff - float(self.weights[rows] @ context)) / s)
        v /= np.sqrt(s)
        for start in range(0, len(v), STRIPE):
            self.covariance[start : start + STRIPE] -= np.outer(v[start : start + STRIPE], v)

    def without(self, rows: slice) -> "Belief":
        """Return the marginal posterior of the other nodes."""
        covariance = np.delete(np.delete(self.covariance, rows, axis=0), rows, axis=1)
        return Belief(np.ascontiguousarray(covariance), np.delete(self.weights, rows))


@final
class Block:
    """Users whose models are coupled, and their posterior, per item if contexts are items."""

    def __init__(self, kernel: Floats, nodes: Sequence[Sequence[Hashable]]) -> None:
        self.kernel = kernel  # (nodes, nodes)
        self.nodes = [dict.fromkeys(users) for users in nodes]  # the users of each node, in order
        self.beliefs: dict[Hashable, Belief] = {}

    @property
    def n_users(self) -> int:
        return sum(len(users) for users in self.nodes)


@final
class Joint:
    """All users' models, in blocks. A user outside the blocks gets a new block with K = `alone`."""

    def __init__(self, n_features: int | None, blocks: Iterable[Block] = (), alone: float = 1.0) -> None:
        self.alone = np.full((1, 1), alone)
        self.n_features = n_features  # None for item ids
        self.width = n_features or 1  # how many numbers a node has in one belief
        self.blocks: dict[int, Block] = dict(enumerate(blocks))
        self._place: dict[Hashable, tuple[int, int]] = {
            user: (b, node)
            for b, block in self.blocks.items()
            for node, users in enumerate(block.nodes)
            for user in users
        }
        self._next = len(self.blocks)

    def read(self, contexts: ActionsLike) -> Actions:
        """Check candidates and return them as vectors or as a list of ids."""
        return read_items(contexts) if self.n_features is None else read_vectors(contexts, self.n_features)

    def view(self, user: Hashable, contexts: Actions) -> View:
        """Return the user's estimates and spreads, from the payoffs of all coupled users."""
        b, node = self._place.get(user, (None, 0))
        block = Block(self.alone, [()]) if b is None else self.blocks[b]
        rows = slice(node * self.width, (node + 1) * self.width)
        prior = block.kernel[node, node]
        if self.n_features is not None:
            belief = block.beliefs.get(VECTORS)
            if belief is None:
                return View(
                    np.zeros(len(contexts)), np.sqrt(prior * np.einsum("kf,kf->k", contexts, contexts))
                )
            squares = np.einsum("kf,kf->k", contexts @ belief.covariance[rows, rows], contexts)
            return View(contexts @ belief.weights[rows], np.sqrt(np.maximum(squares, 0)))
        estimate, squares = np.zeros(len(contexts)), np.full(len(contexts), prior)
        for k, item in enumerate(contexts):
            belief = block.beliefs.get(item)
            if belief is not None:
                estimate[k], squares[k] = belief.weights[node], belief.covariance[node, node]
        return View(estimate, np.sqrt(np.maximum(squares, 0)))

    def members(self, user: Hashable) -> int:
        """Return how many users are coupled with `user`, including `user`."""
        place = self._place.get(user)
        return 1 if place is None else self.blocks[place[0]].n_users

    def coupled_with(self, user: Hashable) -> list[Hashable]:
        """Return the users coupled with `user`, including `user`."""
        place = self._place.get(user)
        return [user] if place is None else [name for node in self.blocks[place[0]].nodes for name in node]

    def update(self, user: Hashable, context: Actions, payoff: float) -> int:
        """Learn one payoff, and return how many users' models change."""
        self.add(user)
        b, node = self._place[user]
        block = self.blocks[b]
        key, x = (VECTORS, context) if self.n_features is not None else (context, np.ones(1))
        if key not in block.beliefs:
            size = len(block.nodes) * self.width
            prior: Floats = np.kron(block.kernel, np.eye(self.width)).astype(np.float64, copy=False)
            block.beliefs[key] = Belief(prior, np.zeros(size))
        block.beliefs[key].learn(slice(node * self.width, (node + 1) * self.width), x, payoff)
        return block.n_users

    def add(self, user: Hashable) -> None:
        """Register a user; a user outside the blocks is not coupled with others."""
        if user not in self._place:
            self._place[user] = (self._next, 0)
            self.blocks[self._next] = Block(self.alone, [[user]])
            self._next += 1

    def drop_item(self, item: Hashable) -> None:
        """Forget an item."""
        holders = [block for block in self.blocks.values() if item in block.beliefs]
        if not holders:
            raise ContextError(f"item {item!r} is not known, so cannot be dropped")
        for block in holders:
            del block.beliefs[item]

    def drop(self, user: Hashable) -> None:
        """Forget a user. The others keep what they learned."""
        if user not in self._place:
            raise UserError(f"user {user!r} is not known, so cannot be dropped")
        b, node = self._place.pop(user)
        block = self.blocks[b]
        del block.nodes[node][user]
        if block.nodes[node]:
            return
        if len(block.nodes) == 1:
            del self.blocks[b]
            return
        rows = slice(node * self.width, (node + 1) * self.width)
        block.kernel = np.delete(np.delete(block.kernel, node, axis=0), node, axis=1)
        block.beliefs = {key: belief.without(rows) for key, belief in block.beliefs.items()}
        del block.nodes[node]
        for later, users in enumerate(block.nodes[node:], start=node):
            for name in users:
                self._place[name] = (b, later)

    @property
    def users(self) -> Sequence[Hashable]:
        """The known users."""
        return list(self._place)

    def tensors(self) -> Tensors:
        """Return everything as arrays; a belief is identified by its block and, if contexts are items, its item."""
        order = {b: position for position, b in enumerate(self.blocks)}
        blocks = list(self.blocks.values())
        keys = dict.fromkeys(key for block in blocks for key in block.beliefs)
        items = list(keys) if self.n_features is None else []
        columns = {key: column for column, key in enumerate(items)}
        beliefs = [
            (position, columns.get(key, -1), belief)
            for position, block in enumerate(blocks)
            for key, belief in block.beliefs.items()
        ]
        return {
            "users": pack_ids(self._place),
            "user_block": np.array([order[b] for b, _ in self._place.values()], dtype=np.int64),
            "user_node": np.array([node for _, node in self._place.values()], dtype=np.int64),
            "block_nodes": np.array([len(block.nodes) for block in blocks], dtype=np.int64),
            "kernels": _flat(block.kernel for block in blocks),
            "items": pack_ids(items),
            "belief_block": np.array([b for b, _, _ in beliefs], dtype=np.int64),
            "belief_item": np.array([item for _, item, _ in beliefs], dtype=np.int64),
            "covariances": _flat(belief.covariance for _, _, belief in beliefs),
            "weights": _flat(belief.weights for _, _, belief in beliefs),
        }

    def restore(self, tensors: Tensors) -> None:
        """Restore saved arrays."""
        names, items = unpack_ids(tensors, "users"), unpack_ids(tensors, "items")
        of_block, of_node = (
            take(tensors, name, "i", (len(names),)).tolist() for name in ("user_block", "user_node")
        )
        sizes = take(tensors, "block_nodes", "i", (None,)).tolist()
        if min(sizes, default=1) < 1:
            raise FileError("a block in the model file has no users")
        kernels = _pieces(tensors, "kernels", [(m, m) for m in sizes])
        nodes: list[list[list[Hashable]]] = [[[] for _ in range(m)] for m in sizes]
        for name, b, node in zip(names, of_block, of_node, strict=True):
            if not (0 <= b < len(sizes) and 0 <= node < sizes[b]):
                raise FileError(f"user {name!r} is in a block that the model file does not have")
            nodes[b][node].append(name)
        if not all(users for block in nodes for users in block):
            raise FileError("a block in the model file has a node without users")
        place = {name: (b, node) for name, b, node in zip(names, of_block, of_node, strict=True)}
        at = take(tensors, "belief_block", "i", (None,)).tolist()
        of = take(tensors, "belief_item", "i", (len(at),)).tolist()
        least, most = (-1, 0) if self.n_features is not None else (0, len(items))
        if not all(0 <= b < len(sizes) and least <= i < most for b, i in zip(at, of, strict=True)):
            raise FileError("a belief in the model file is about a block or an item that is not there")
        rows = [sizes[b] * self.width for b in at]
        covariances = _pieces(tensors, "covariances", [(r, r) for r in rows])
        weights = _pieces(tensors, "weights", [(r,) for r in rows])
        if not all(are_covariances(one[None], MOST_SET) for one in (*kernels, *covariances)) or not all(
            (np.abs(w) <= MOST_SET).all() for w in weights
        ):
            raise FileError("a belief in the model file has a covariance that no payoffs can give")
        blocks = [Block(kernel, users) for kernel, users in zip(kernels, nodes, strict=True)]
        for b, i, covariance, w in zip(at, of, covariances, weights, strict=True):
            blocks[b].beliefs[VECTORS if self.n_features is not None else items[i]] = Belief(covariance, w)
        self.blocks, self._place, self._next = dict(enumerate(blocks)), place, len(blocks)


def _flat(arrays: Iterable[Floats]) -> Floats:
    """Return arrays of any shape concatenated as one flat array."""
    return np.concatenate([np.empty(0), *(array.ravel() for array in arrays)])


def _pieces(tensors: Tensors, name: str, shapes: Sequence[tuple[int, ...]]) -> list[Floats]:
    """Return the arrays that `_flat` concatenated."""
    ends = np.cumsum([int(np.prod(shape)) for shape in shapes], dtype=np.int64)
    flat = take(tensors, name, "f", (int(ends[-1]) if len(ends) else 0,))
    parts = np.split(flat, ends[:-1]) if len(ends) else []
    return [np.array(part, dtype=np.float64).reshape(s) for part, s in zip(parts, shapes, strict=True)]
