"""The arithmetic over one block of users, compiled by XLA.

A block holds a fixed number of users, one per column, so that neighbouring threads read neighbouring numbers:

inverses   (pairs, users)             M⁻¹, its upper triangle row by row
weights    (features, users)          w = M⁻¹b; NaN in a free column, so that no user is near it
lost       (pairs, users), float32    what rounding took from each entry, to be added back (Kahan)
missed     (features, users), float32 the same for w

√(xᵀM⁻¹x) for all users and candidates is one matrix product, as in the kernels for processors. Each call gets its
numbers from the host in one array: a transfer costs more than its content.
"""

from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

Array = Any  # of JAX, or of NumPy on the way in

EXACT = lax.Precision.HIGHEST


class Block(NamedTuple):
    """The models of some users."""

    inverses: Array
    weights: Array
    lost: Array
    missed: Array


class Questions(NamedTuple):
    """Candidates in the format of the products, with their neighbours: |estimate − wⱼ·x| ≤ reach + scale·spreadⱼ."""

    pairs: Array  # (candidates, pairs): the products xₐ·x_b, twice if a ≠ b
    features: Array  # (candidates, features)
    estimate: Array  # (candidates,): of the asking user
    reach: Array  # (candidates,): the asking user's part of the allowed distance
    scale: Array  # (candidates,): what others' spreads add to it


class Found(NamedTuple):
    """The part of a shared update that is known before anything is changed, for one block."""

    learns: Array  # (users,): not 0 for users to update
    count: Array  # how many users to update
    v: Array  # (features, users): M⁻¹x
    size: Array  # (users,): 1 + x·v
    error: Array  # (users,): payoff − w·x


class Places(NamedTuple):
    """Where the entries of a packed upper triangle belong."""

    row: Any  # (pairs,)
    column: Any  # (pairs,)
    factor: Any  # (pairs,): 1 on the diagonal, 2 beside it
    entry: Any  # (features, features): which pair holds (a, b)


@cache
def places(n_features: int) -> Places:
    """Return the places of the pairs of this many features."""
    row, column = np.triu_indices(n_features)
    entry = np.zeros((n_features, n_features), dtype=np.int32)
    entry[row, column] = entry[column, row] = np.arange(len(row))
    return Places(row.astype(np.int32), column.astype(np.int32), np.where(row == column, 1.0, 2.0), entry)


@partial(jax.jit, static_argnums=(0, 1))
def empty(n_features: int, users: int) -> Block:
    """Return a block whose columns are all free."""
    pairs = n_features * (n_features + 1) // 2
    wide, narrow = (pairs, users), (n_features, users)
    return Block(
        jnp.zeros(wide),
        jnp.full(narrow, jnp.nan),
        jnp.zeros(wide, jnp.float32),
        jnp.zeros(narrow, jnp.float32),
    )


def table_width(n_features: int) -> int:
    """Return how wide a table of questions is: x, zeros up to a multiple of 16, then FIELDS, then zeros."""
    return whole(n_features) + 16


def whole(count: int) -> int:
    """Return the next multiple of 16."""
    return -(-count // 16) * 16


def questions(table: Array, views: Array, n_features: int) -> Questions:
    """Read a table: a row (x…, 0…, estimate, spread, scale, rounding, row, used, 0…) for each candidate.

    views (2, candidates) are estimates and spreads of the asking users, with or without a row.
    """
    x, first = table[:, :n_features], whole(n_features)
    scale, rounding = table[:, first + 2], table[:, first + 3]
    return Questions(products(x), x, views[0], scale * views[1] + rounding, scale)


def products(x: Array) -> Array:
    """Return the products whose weighted sums are squared spreads: xₐ·x_b, twice if a ≠ b."""
    at = places(x.shape[-1])
    return x[..., at.row] * x[..., at.column] * at.factor


@jax.jit
def see(inverses: Array, weights: Array, table: Array, first: Array, views: Array | None = None) -> Array:
    """Return estimates and spreads (2, candidates) of the asking users in this block.

    The block's rows are those from `first` on. For other users, `views` or, without it, the table has them.
    """
    d, users = weights.shape
    fields = table[:, whole(d) :]
    x, row = table[:, :d], fields[:, 4].astype(jnp.int32) - first
    here = (row >= 0) & (row < users)
    column = jnp.where(here, row, 0)
    squares = (products(x) * inverses[:, column].T).sum(-1)
    own = jnp.stack([(x * weights[:, column].T).sum(-1), jnp.sqrt(jnp.maximum(squares, 0.0))])
    return jnp.where(here, own, fields[:, :2].T if views is None else views)


@jax.jit
def gather(inverses: Array, weights: Array, table: Array, first: Array, views: Array | None = None) -> Array:
    """Return the views of the asking users, and sum over a block's neighbours: (5, candidates).

    Own estimates and spreads, members, estimates, spreads. The block's rows are those from `first` on; free rows are
    not counted. Without `views`, every asking user is in this block, or has no row.
    """
    views = see(inverses, weights, table, first) if views is None else views
    asked = questions(table, views, len(weights))
    squares = jnp.dot(asked.pairs, inverses, precision=EXACT)  # (candidates, users)
    estimates = jnp.dot(asked.features, weights, precision=EXACT)
    width = jnp.sqrt(jnp.maximum(squares, 0.0))
    estimate, reach, scale = (part[:, None] for part in (asked.estimate, asked.reach, asked.scale))
    near = jnp.abs(estimate - estimates) <= reach + scale * width
    return jnp.concatenate([views, jnp.stack(sums(near, estimates, width))])


def sums(near: Array, estimates: Array, width: Array) -> list[Array]:
    """Sum over the last axis in one pass: how many are near, their estimates, their spreads."""
    parts = (
        jnp.where(near, 1.0, 0.0), jnp.where(near, estimates, 0.0), jnp.where(near, width, 0.0)
    )  # fmt: skip
    zeros = (jnp.zeros((), parts[0].dtype),) * 3
    found = lax.reduce(parts, zeros, lambda a, b: tuple(map(jnp.add, a, b)), (near.ndim - 1,))
    return list(found)


@jax.jit
def find(inverses: Array, weights: Array, asked: Array) -> Found:
    """Find the users that a shared payoff updates: neighbours with a bound below the limit, and always its user.

    asked is (x…, estimate, reach, scale, limit, column of that user or -1, payoff).
    """
    x, (estimate, reach, scale, limit, own, payoff) = asked[:-6], asked[-6:]
    at = places(len(x))
    sides = jnp.arange(len(x), dtype=jnp.int32)[:, None]
    beside = (at.column == sides) & (at.row != at.column)
    matrix = jnp.where(at.row == sides, x[at.column], 0.0) + jnp.where(beside, x[at.row], 0.0)
    v = jnp.dot(matrix, inverses, precision=EXACT)  # (features, users)
    estimates = jnp.dot(x, weights, precision=EXACT)
    squares = (x[:, None] * v).sum(0)
    width = jnp.sqrt(jnp.maximum(squares, 0.0))
    near = jnp.abs(estimate - estimates) <= reach + scale * width
    learns = near & (scale * width < limit)
    learns |= lax.iota(jnp.int32, len(learns)) == own.astype(jnp.int32)
    return Found(learns, learns.sum(), v, 1.0 + squares, payoff - estimates)


@jax.jit
def learn(block: Block, found: Found) -> Block:
    """Return a block in which the users that were found are updated; the others keep every bit.

    It is in new memory: in place, M⁻¹ and its rounding errors would each be read after the other is written.
    """
    at = places(len(block.weights))
    gain = found.v / found.size
    outer = gain[at.row] * found.v[at.column]
    inverses, lost = compensated(block.inverses, block.lost, -outer, found.learns)
    step = gain * found.error
    weights, missed = compensated(block.weights, block.missed, step, found.learns)
    return Block(inverses, weights, lost, missed)


@jax.jit
def learn_row(block: Block, asked: Array) -> Block:
    """Return one user's models after a payoff, as one row. asked is (x…, payoff, column, 1 if the user is new)."""
    x, (payoff, column, fresh) = asked[:-3], asked[-3:]
    column = column.astype(jnp.int32)
    old = (lax.dynamic_slice_in_dim(part, column, 1, axis=1)[:, 0] for part in block)
    known = Block(*(jnp.where(fresh > 0, new, was) for new, was in zip(stranger(len(x)), old, strict=True)))
    return Block(*(part[None] for part in step_row(known, x, payoff)))


def step_row(old: Block, x: Array, payoff: Array) -> Block:
    """Return one user's models after a payoff: v = M⁻¹x, s = 1 + x·v, M⁻¹ −= v vᵀ/s, w += v (y − w·x)/s."""
    at = places(len(x))
    v = (old.inverses[at.entry] * x).sum(1)
    gain = v / (1.0 + (x * v).sum())
    inverses, lost = compensated(old.inverses, old.lost, -(v[at.row] * gain[at.column]))
    weights, missed = compensated(old.weights, old.missed, gain * (payoff - (x * old.weights).sum()))
    return Block(inverses, weights, lost, missed)


def stranger(n_features: int) -> Block:
    """Return a user without updates: M = I, w = 0."""
    at = places(n_features)
    pairs, features = np.where(at.row == at.column, 1.0, 0.0), np.zeros(n_features)
    return Block(pairs, features, np.zeros(len(pairs), np.float32), np.zeros(n_features, np.float32))


@jax.jit
def read(block: Block, columns: Array) -> Block:
    """Return some columns as rows: (columns, pairs) and so on."""
    return Block(*(part[:, columns].T for part in block))


@partial(jax.jit, donate_argnums=0)
def write(block: Block, rows: Block, first: Array, skip: Array, stop: Array) -> Block:
    """Write the rows from `skip` up to `stop` into columns from `first` on; other columns stay."""
    place = lax.iota(jnp.int32, rows.weights.shape[0])
    here = (skip <= place) & (place < stop)
    made = []
    for part, new in zip(block, rows, strict=True):
        old = lax.dynamic_slice_in_dim(part, first, len(new), axis=1)
        made.append(lax.dynamic_update_slice_in_dim(part, jnp.where(here, new.T, old), first, axis=1))
    return Block(*made)


def compensated(old: Array, residue: Array, step: Array, learns: Array = True) -> tuple[Array, Array]:
    """Add a step, and keep what rounding took from it."""
    step = step + residue
    new = old + step
    rest = (step - (new - old)).astype(jnp.float32)
    return jnp.where(learns, new, old), jnp.where(learns, rest, residue)
