"""The arithmetic over one block of users on a GPU: the functions of `kernels` that read all of it, each in one pass.

XLA alone writes the products to memory and reads them again. These loops, compiled by Triton, keep them in registers.
A program takes `USERS` users; the sums over all programs' users are XLA's.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu

from coterie.engines.device.kernels import Array, Block, Found, places, questions

CHUNK = 16  # rows of the models that are multiplied at once
USERS = 128  # of one program
INTERPRET = False  # tests run the same loops without a GPU


def gather(inverses: Array, weights: Array, table: Array, first: Array) -> Array:
    """Sum over a block's neighbours (3, candidates): members, estimates, spreads. See `kernels.gather`."""
    return _gather(inverses, weights, table, first, interpret=INTERPRET)


@partial(jax.jit, static_argnames=("interpret", "tile", "users", "chunk", "warps", "stages"))
def _gather(
    inverses: Array, weights: Array, table: Array, first: Array, *, interpret: bool = False,
    tile: int | None = None, users: int = USERS, chunk: int = CHUNK, warps: int = 4, stages: int = 3,
) -> Array:  # fmt: skip
    asked = questions(table, len(weights))
    candidates, room = len(table), inverses.shape[1]
    rows = min(tile or 64, candidates)
    if rows < 16:
        raise ValueError(rows)
    users = min(users, room)
    limit = jnp.broadcast_to(asked.used - first, (1,)).astype(jnp.int32)
    pairs, x = _widened(asked.pairs, chunk), _widened(asked.features, chunk)
    rule = jnp.stack([asked.estimate, asked.reach, asked.scale])  # (3, candidates)
    whole = pl.BlockSpec(memory_space=pl.ANY)
    parts = pl.pallas_call(
        partial(_gather_loop, inverses.shape[0], len(weights), rows, users, chunk),
        grid=(candidates // rows, room // users),
        in_specs=[whole] * 6,
        out_specs=whole,
        out_shape=jax.ShapeDtypeStruct((room // users, 3, candidates), jnp.float64),
        compiler_params=plgpu.CompilerParams(num_warps=warps, num_stages=stages),
        interpret=interpret,
        name="gather",
    )(limit, pairs, x, rule, inverses, weights)
    return parts.sum(0)


def _gather_loop(
    n_pairs: int, n_features: int, rows: int, users: int, chunk: int,
    limit: Any, pairs: Any, x: Any, rule: Any, inverses: Any, weights: Any, out: Any,
) -> None:  # fmt: skip
    mine = pl.ds(pl.program_id(0) * rows, rows)
    tile = pl.program_id(1)
    here = pl.ds(tile * users, users)

    @pl.when(tile * users < limit[0])
    def _() -> None:
        estimates = _product(x, mine, weights, here, n_features, rows, users, chunk)
        squares = _product(pairs, mine, inverses, here, n_pairs, rows, users, chunk)
        width = jnp.sqrt(jnp.maximum(squares, 0.0))
        estimate, reach, scale = (rule[jnp.int32(k), mine][:, None] for k in range(3))
        near = jnp.abs(estimate - estimates) <= reach + scale * width
        out[tile, jnp.int32(0), mine] = jnp.where(near, 1.0, 0.0).sum(1)
        out[tile, jnp.int32(1), mine] = jnp.where(near, estimates, 0.0).sum(1)
        out[tile, jnp.int32(2), mine] = jnp.where(near, width, 0.0).sum(1)

    @pl.when(tile * users >= limit[0])
    def _() -> None:
        for k in range(3):
            out[tile, jnp.int32(k), mine] = jnp.zeros(rows)


def _product(
    left: Any, mine: Any, right: Any, here: Any, length: int, rows: int, users: int, chunk: int
) -> Array:
    """Return left (rows, length) times right (length, users); left is widened to whole chunks."""

    def step(k: Array, total: Array) -> Array:
        part = pl.ds(k * chunk, chunk)
        return total + _dot(left[mine, part], right[part, here])

    full, rest = divmod(length, chunk)
    total = _loop(full, step, jnp.zeros((rows, users)))
    if rest:
        part = pl.ds(_dynamic(here, full * chunk), chunk)
        inside = lax.broadcasted_iota(jnp.int32, (chunk, users), 0) < rest
        last = plgpu.load(right.at[part, here], mask=inside, other=0.0)
        total = total + _dot(left[mine, part], last)
    return total


def _dot(a: Array, b: Array) -> Array:
    return lax.dot_general(a, b, (((1,), (0,)), ((), ())), preferred_element_type=jnp.float64)


def find(inverses: Array, weights: Array, asked: Array) -> Found:
    """Find who learns a shared payoff. See `kernels.find`."""
    return _find(inverses, weights, asked, interpret=INTERPRET)


@partial(jax.jit, static_argnames=("interpret", "users", "chunk", "warps", "stages"))
def _find(
    inverses: Array, weights: Array, asked: Array, *, interpret: bool = False,
    users: int = USERS, chunk: int = CHUNK, warps: int = 4, stages: int = 3,
) -> Found:  # fmt: skip
    x, rule = asked[:-5], asked[-5:]
    d, room = weights.shape
    at = places(d)
    rows = max(16, 1 << (d - 1).bit_length())
    users = min(users, room)
    sides = jnp.arange(rows, dtype=jnp.int32)[:, None]
    beside = (at.column == sides) & (at.row != at.column)
    matrix = jnp.where(at.row == sides, x[at.column], 0.0) + jnp.where(beside, x[at.row], 0.0)
    whole = pl.BlockSpec(memory_space=pl.ANY)
    learns, v, gain, estimate = pl.pallas_call(
        partial(_find_loop, inverses.shape[0], d, rows, users, chunk),
        grid=(room // users,),
        in_specs=[whole] * 5,
        out_specs=[whole] * 4,
        out_shape=[
            jax.ShapeDtypeStruct((room,), jnp.int32),
            jax.ShapeDtypeStruct((rows, room), jnp.float64),
            jax.ShapeDtypeStruct((rows, room), jnp.float64),
            jax.ShapeDtypeStruct((room,), jnp.float64),
        ],
        compiler_params=plgpu.CompilerParams(num_warps=warps, num_stages=stages),
        interpret=interpret,
        name="find",
    )(_widened(matrix, chunk), jnp.pad(x, (0, rows - d)), rule, inverses, weights)
    flags = learns > 0
    return Found(flags, flags.sum(), v, gain, estimate)


def _find_loop(
    n_pairs: int, d: int, rows: int, users: int, chunk: int,
    matrix: Any, x: Any, rule: Any, inverses: Any, weights: Any, learns: Any, v: Any, gain: Any, estimate: Any,
) -> None:  # fmt: skip
    tile = pl.program_id(0)
    here = pl.ds(tile * users, users)
    all_rows = pl.ds(_dynamic(here, 0), rows)
    vectors = _product(matrix, all_rows, inverses, here, n_pairs, rows, users, chunk)
    inside = lax.broadcasted_iota(jnp.int32, (rows, users), 0) < d
    w = plgpu.load(weights.at[all_rows, here], mask=inside, other=0.0)
    column = x[...][:, None]
    estimates = (w * column).sum(0)
    squares = (vectors * column).sum(0)
    width = jnp.sqrt(jnp.maximum(squares, 0.0))
    asker, reach, scale, limit, own = (rule[k] for k in range(5))
    number = lax.broadcasted_iota(jnp.int32, (users,), 0) + tile * users
    near = (jnp.abs(asker - estimates) <= reach + scale * width) & (scale * width < limit)
    near = near | (number == own.astype(jnp.int32))
    learns[here] = jnp.where(near, 1, 0).astype(jnp.int32)
    v[all_rows, here] = vectors
    gain[all_rows, here] = vectors / (1.0 + squares)[None, :]
    estimate[here] = estimates


def learn(block: Block, found: Found, payoff: Array) -> Block:
    """Let the users learn who were found, in place. See `kernels.learn`."""
    return _learn(block, found, payoff, interpret=INTERPRET)


@partial(jax.jit, static_argnames=("interpret", "users", "chunk", "warps"), donate_argnums=0)
def _learn(
    block: Block, found: Found, payoff: Array, *, interpret: bool = False,
    users: int = USERS, chunk: int = CHUNK, warps: int = 4,
) -> Block:  # fmt: skip
    d, room = block.weights.shape
    users = min(users, room)
    whole = pl.BlockSpec(memory_space=pl.ANY)
    factor = payoff - found.estimate
    given = (found.learns.astype(jnp.int32), found.v, found.gain, factor)
    return Block(
        *pl.pallas_call(
            partial(_learn_loop, d, users, chunk),
            grid=(room // users,),
            in_specs=[whole] * 8,
            out_specs=[whole] * 4,
            out_shape=[jax.ShapeDtypeStruct(part.shape, part.dtype) for part in block],
            input_output_aliases={4: 0, 5: 1, 6: 2, 7: 3},
            compiler_params=plgpu.CompilerParams(num_warps=warps, num_stages=1),
            interpret=interpret,
            name="learn",
        )(*given, *block)
    )


def _learn_loop(
    d: int, users: int, chunk: int, learns: Any, v: Any, gain: Any, factor: Any,
    inverses: Any, weights: Any, lost: Any, missed: Any,
    new_inverses: Any, new_weights: Any, new_lost: Any, new_missed: Any,
) -> None:  # fmt: skip
    here = pl.ds(pl.program_id(0) * users, users)
    flags = learns[here] > 0

    def add(known: Any, rest: Any, to: Any, left: Any, place: Any, step: Any, count: Any) -> None:
        inside = lax.broadcasted_iota(jnp.int32, (chunk, users), 0) < count
        mask = inside & flags[None, :]
        old = plgpu.load(known.at[place, here], mask=mask, other=0.0)
        step = step(inside) + plgpu.load(rest.at[place, here], mask=mask, other=0.0).astype(jnp.float64)
        new = old + step
        plgpu.store(to.at[place, here], new, mask=mask)
        plgpu.store(left.at[place, here], (step - (new - old)).astype(jnp.float32), mask=mask)

    @pl.when(jnp.max(flags.astype(jnp.int32)) > 0)
    def _() -> None:
        def row(a: Array, _: Any) -> None:
            start = a * d - a * (a - 1) // 2
            side = v[a, here]

            def piece(k: Array, _: Any) -> None:
                def step(inside: Any) -> Array:
                    other = plgpu.load(gain.at[pl.ds(a + k * chunk, chunk), here], mask=inside, other=0.0)
                    return -(side[None, :] * other)

                place = pl.ds(start + k * chunk, chunk)
                add(inverses, lost, new_inverses, new_lost, place, step, d - a - k * chunk)

            _loop((d - a + chunk - 1) // chunk, piece)

        _loop(d, row)
        error = factor[here]
        for k in range(0, d, chunk):
            def step(inside: Any, k: int = k) -> Array:
                side = plgpu.load(gain.at[pl.ds(_dynamic(here, k), chunk), here], mask=inside, other=0.0)
                return side * error[None, :]

            add(weights, missed, new_weights, new_missed, pl.ds(_dynamic(here, k), chunk), step, d - k)


def _loop(count: Any, step: Any, start: Any = None) -> Any:
    """Count from 0; a static count stays one, so that loads are begun ahead of their use."""
    last = np.int32(count) if isinstance(count, int) else count
    return lax.fori_loop(np.int32(0), last, step, start)


def _dynamic(here: Any, start: int) -> Array:
    """Return a start whose slice may reach beyond an array, where a mask says what is not read."""
    return here.start * 0 + start


def _widened(array: Array, chunk: int) -> Array:
    """Add columns of zeros up to a whole number of chunks."""
    return jnp.pad(array, ((0, 0), (0, -array.shape[1] % chunk)))
