"""The functions of `kernels` that read a whole block of users, each in one pass, for a GPU.

XLA would write the products to memory and read them again. These loops, compiled by Triton, keep them in registers.
A program takes `USERS` users; XLA adds the sums of all programs.
"""

from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu
from jax.sharding import SingleDeviceSharding

from coterie.engines.device import kernels
from coterie.engines.device.kernels import EXACT, Array, Block, Found, places, products, whole

CHUNK = 16  # rows of the models that are multiplied at once
USERS = 64  # of one program
LEARNERS = 32  # of one program that lets them learn
STAGES = 4  # loads begun ahead
WIDEST = 64  # candidates that are multiplied here
_STATIC = ("interpret", "tile", "users", "warps", "stages")
INTERPRET = False  # tests run the same loops without a GPU


def gather(inverses: Array, weights: Array, table: Array, first: Array, views: Array | None = None) -> Array:
    """Return the views of the asking users, and sum over a block's neighbours. See `kernels.gather`."""
    return _gathering(inverses.device)(inverses, weights, table, first, views, interpret=INTERPRET)


@cache
def _gathering(device: Any) -> Any:
    """Return `_gather` compiled so that the answer is written to the host's memory: NumPy reads it without a copy."""
    memory = "pinned_host" if device.platform == "gpu" else None
    return jax.jit(
        _gather, static_argnames=_STATIC, out_shardings=SingleDeviceSharding(device, memory_kind=memory)
    )


def _gather(
    inverses: Array, weights: Array, table: Array, first: Array, views: Array | None, *, interpret: bool = False,
    tile: int = 32, users: int = USERS, warps: int = 4, stages: int = STAGES,
) -> Array:  # fmt: skip
    views = kernels.see(inverses, weights, table, first) if views is None else views
    candidates, room = len(table), inverses.shape[1]
    rows, users = min(tile, candidates), min(users, room)
    wide = candidates > WIDEST  # then BLAS multiplies faster, though its product goes through memory
    pairs = products(table[:, : len(weights)])
    left = jnp.dot(pairs, inverses, precision=EXACT) if wide else _widened(pairs)
    every = pl.BlockSpec(memory_space=pl.ANY)
    parts = pl.pallas_call(
        partial(_gather_loop, inverses.shape[0], len(weights), rows, users, wide),
        grid=(candidates // rows, room // users),
        in_specs=[every] * 6,
        out_specs=every,
        out_shape=shaped((room // users, 3, candidates), jnp.float64),
        compiler_params=plgpu.CompilerParams(num_warps=warps, num_stages=stages),
        interpret=interpret,
        name="gather",
    )(first.reshape(1), left, table, views, inverses, weights)
    return jnp.concatenate([views, parts.sum(0)])


def _gather_loop(
    n_pairs: int, n_features: int, rows: int, users: int, wide: bool,
    first: Any, left: Any, table: Any, views: Any, inverses: Any, weights: Any, out: Any,
) -> None:  # fmt: skip
    mine = pl.ds(pl.program_id(0) * rows, rows)
    tile = pl.program_id(1)
    here = pl.ds(tile * users, users)
    fields = whole(n_features)
    used = table[jnp.int32(0), jnp.int32(fields + 5)].astype(jnp.int32) - first[jnp.int32(0)]

    @pl.when(tile * users < used)
    def _() -> None:
        estimates = _product(table, mine, weights, here, n_features, rows, users)
        squares = left[mine, here] if wide else _product(left, mine, inverses, here, n_pairs, rows, users)
        width = jnp.sqrt(jnp.maximum(squares, 0.0))
        estimate, spread = (views[jnp.int32(k), mine][:, None] for k in range(2))
        scale, rounding = (table[mine, jnp.int32(fields + k)][:, None] for k in (2, 3))
        reach = scale * spread + rounding
        near = jnp.abs(estimate - estimates) <= reach + scale * width
        out[tile, jnp.int32(0), mine] = jnp.where(near, 1.0, 0.0).sum(1)
        out[tile, jnp.int32(1), mine] = jnp.where(near, estimates, 0.0).sum(1)
        out[tile, jnp.int32(2), mine] = jnp.where(near, width, 0.0).sum(1)

    @pl.when(tile * users >= used)
    def _() -> None:
        for k in range(3):
            out[tile, jnp.int32(k), mine] = jnp.zeros(rows)


def _product(left: Any, mine: Any, right: Any, here: Any, length: int, rows: int, users: int) -> Array:
    """Return left (rows, length) times right (length, users); left is widened to whole chunks."""

    def step(k: Array, total: Array) -> Array:
        part = pl.ds(k * CHUNK, CHUNK)
        return total + _dot(left[mine, part], right[part, here])

    full, rest = divmod(length, CHUNK)
    total = _loop(full, step, jnp.zeros((rows, users)))
    if rest:
        part = pl.ds(_dynamic(here, full * CHUNK), CHUNK)
        inside = lax.broadcasted_iota(jnp.int32, (CHUNK, users), 0) < rest
        last = plgpu.load(right.at[part, here], mask=inside, other=0.0)
        total = total + _dot(left[mine, part], last)
    return total


def _dot(a: Array, b: Array) -> Array:
    return lax.dot_general(a, b, (((1,), (0,)), ((), ())), preferred_element_type=jnp.float64)


def find(inverses: Array, weights: Array, asked: Array) -> Found:
    """Find the users that a shared payoff updates. See `kernels.find`."""
    found: Found = _find(inverses, weights, asked, interpret=INTERPRET)
    return found


@partial(jax.jit, static_argnames=("interpret", "users", "warps", "stages"))
def _find(
    inverses: Array, weights: Array, asked: Array, *, interpret: bool = False,
    users: int = USERS, warps: int = 4, stages: int = STAGES,
) -> Found:  # fmt: skip
    d, room = weights.shape
    at = places(d)
    rows = max(16, 1 << (d - 1).bit_length())
    users = min(users, room)
    sides = jnp.arange(rows, dtype=jnp.int32)[:, None]
    beside = (at.column == sides) & (at.row != at.column)
    x = asked[:d]
    matrix = jnp.where(at.row == sides, x[at.column], 0.0) + jnp.where(beside, x[at.row], 0.0)
    every = pl.BlockSpec(memory_space=pl.ANY)
    learns, v, size, error = pl.pallas_call(
        partial(_find_loop, inverses.shape[0], d, rows, users),
        grid=(room // users,),
        in_specs=[every] * 4,
        out_specs=[every] * 4,
        out_shape=[
            shaped((room,), jnp.int32),
            shaped((d, room), jnp.float64),
            shaped((room,), jnp.float64),
            shaped((room,), jnp.float64),
        ],
        compiler_params=plgpu.CompilerParams(num_warps=warps, num_stages=stages),
        interpret=interpret,
        name="find",
    )(_widened(matrix), asked, inverses, weights)
    return Found(learns, learns.sum(), v, size, error)


def _find_loop(
    n_pairs: int, d: int, rows: int, users: int,
    matrix: Any, asked: Any, inverses: Any, weights: Any, learns: Any, v: Any, size: Any, error: Any,
) -> None:  # fmt: skip
    tile = pl.program_id(0)
    here = pl.ds(tile * users, users)
    all_rows = pl.ds(_dynamic(here, 0), rows)
    vectors = _product(matrix, all_rows, inverses, here, n_pairs, rows, users)
    inside = lax.broadcasted_iota(jnp.int32, (rows, users), 0) < d
    w = plgpu.load(weights.at[all_rows, here], mask=inside, other=0.0)
    number = lax.broadcasted_iota(jnp.int32, (rows,), 0)
    column = plgpu.load(asked.at[number], mask=number < d, other=0.0)[:, None]
    estimates = (w * column).sum(0)
    squares = (vectors * column).sum(0)
    width = jnp.sqrt(jnp.maximum(squares, 0.0))
    asker, reach, scale, limit, own, payoff = (asked[jnp.int32(d + k)] for k in range(6))
    number = lax.broadcasted_iota(jnp.int32, (users,), 0) + tile * users
    near = (jnp.abs(asker - estimates) <= reach + scale * width) & (scale * width < limit)
    near = near | (number == own.astype(jnp.int32))
    learns[here] = jnp.where(near, 1, 0).astype(jnp.int32)
    plgpu.store(v.at[all_rows, here], vectors, mask=inside)
    size[here] = 1.0 + squares
    error[here] = payoff - estimates


def learn(block: Block, found: Found) -> Block:
    """Update the users that were found, in place. See `kernels.learn`."""
    made: Block = _learn(block, found, interpret=INTERPRET)
    return made


@partial(jax.jit, static_argnames=("interpret", "users", "warps"), donate_argnums=0)
def _learn(
    block: Block, found: Found, *, interpret: bool = False, users: int = LEARNERS, warps: int = 8
) -> Block:
    d, room = block.weights.shape
    at = places(d)
    users = min(users, room)
    every = pl.BlockSpec(memory_space=pl.ANY)
    padding = (0, -len(at.row) % CHUNK)
    rows, columns = (jnp.asarray(np.pad(side, padding)) for side in (at.row, at.column))
    return Block(
        *pl.pallas_call(
            partial(_learn_loop, d, users),
            grid=(room // users,),
            in_specs=[every] * 10,
            out_specs=[every] * 4,
            out_shape=[shaped(part.shape, part.dtype) for part in block],
            input_output_aliases={6: 0, 7: 1, 8: 2, 9: 3},
            compiler_params=plgpu.CompilerParams(num_warps=warps, num_stages=1),
            interpret=interpret,
            name="learn",
        )(rows, columns, found.learns, found.v, found.size, found.error, *block)
    )


def _learn_loop(
    d: int, users: int,
    rows: Any, columns: Any, learns: Any, v: Any, size: Any, error: Any,
    inverses: Any, weights: Any, lost: Any, missed: Any,
    new_inverses: Any, new_weights: Any, new_lost: Any, new_missed: Any,
) -> None:  # fmt: skip
    here = pl.ds(pl.program_id(0) * users, users)
    flags = learns[here] > 0
    pairs = d * (d + 1) // 2

    def inside(first: Any, length: int) -> Array:
        return (lax.broadcasted_iota(jnp.int32, (CHUNK, users), 0) + first < length) & flags[None, :]

    def load(known: Any, rest: Any, place: Any, mask: Array) -> tuple[Array, Array]:
        old = plgpu.load(known.at[place, here], mask=mask, other=0.0)
        return old, plgpu.load(rest.at[place, here], mask=mask, other=0.0)

    def store(
        known: Any, rest: Any, place: Any, mask: Array, old: Array, residue: Array, step: Array
    ) -> None:
        step = step + residue.astype(jnp.float64)
        new = old + step
        plgpu.store(known.at[place, here], new, mask=mask)
        plgpu.store(rest.at[place, here], (step - (new - old)).astype(jnp.float32), mask=mask)

    @pl.when(jnp.max(flags.astype(jnp.int32)) > 0)
    def _() -> None:
        share = (1.0 / size[here])[None, :]

        def step(k: Array, _: Any) -> None:
            place, mask = pl.ds(k * np.int32(CHUNK), CHUNK), inside(k * np.int32(CHUNK), pairs)
            outer = v[rows[place], here] * share * v[columns[place], here]
            store(new_inverses, new_lost, place, mask, *load(inverses, lost, place, mask), -outer)

        _loop(-(-pairs // CHUNK), step)
        scaled = error[here][None, :] * share
        for k in range(0, d, CHUNK):
            place, mask = pl.ds(_dynamic(here, k), CHUNK), inside(k, d)
            change = plgpu.load(v.at[place, here], mask=mask, other=0.0) * scaled
            store(new_weights, new_missed, place, mask, *load(weights, missed, place, mask), change)


def shaped(shape: tuple[int, ...], dtype: Any) -> Any:
    """Return the description of an array that a loop writes."""
    return jax.ShapeDtypeStruct(shape, dtype)  # type: ignore[no-untyped-call]


def _loop(count: Any, step: Any, start: Any = None) -> Any:
    """Count from 0. A static count stays static, so that loads begin ahead of their use."""
    last = np.int32(count) if isinstance(count, int) else count
    return lax.fori_loop(np.int32(0), last, step, start)


def _dynamic(here: Any, start: int) -> Array:
    """Return a start whose slice may reach beyond an array, where a mask says what is not read."""
    return here.start * 0 + start


def _widened(array: Array) -> Array:
    """Add columns of zeros up to a whole number of chunks."""
    return jnp.pad(array, ((0, 0), (0, -array.shape[1] % CHUNK)))
