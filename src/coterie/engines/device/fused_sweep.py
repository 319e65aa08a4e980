"""A joint round of many runs on a GPU: each row is read once, and updated in place.

Loops compiled by Triton, as in `fused`. See `sweep` for how models are kept.
"""

from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu

from coterie.engines.device import fused
from coterie.engines.device.fused import shaped
from coterie.engines.device.kernels import Array, places

USERS = 64  # per program of `look`
LEARNERS = 64  # users per program of `learn`, which updates some of them
CHUNK = 16
WARPS, STAGES = 4, 4


def look(
    known: Array, squared: Array, x: Array, estimate: Array, reach: Array, scale: Array, limit: Array
) -> tuple[Array, Array, Array, Array]:
    """Sum over neighbours, and find the certain ones. See `sweep._look`."""
    runs, users, width = known.shape
    candidates, pairs, d = x.shape[1], squared.shape[-1], x.shape[-1]
    rows = max(16, 1 << (candidates - 1).bit_length())

    def widened(array: Array, before: int) -> Array:
        after = width - before - array.shape[-1]
        return jnp.pad(array, ((0, 0), (0, rows - candidates), (before, after)))

    scales = jnp.broadcast_to(scale, estimate.shape)
    limits = jnp.broadcast_to(limit[:, None], estimate.shape)
    rule = jnp.pad(jnp.stack([estimate, reach, scales, limits], 1), ((0, 0), (0, 0), (0, rows - candidates)))
    whole = pl.BlockSpec(memory_space=pl.ANY)
    parts, sure = pl.pallas_call(
        partial(_look_loop, pairs, d, rows, USERS),
        grid=(users // USERS, runs),
        in_specs=[whole] * 4,
        out_specs=[whole] * 2,
        out_shape=[
            shaped((runs, users // USERS, 3, rows), jnp.float64),
            shaped((runs, rows, users), jnp.int8),
        ],
        compiler_params=plgpu.CompilerParams(num_warps=WARPS, num_stages=STAGES),
        interpret=fused.INTERPRET,
        name="look",
    )(widened(squared, 0), widened(x, pairs), rule, known)
    members, total, widths = (parts.sum(1)[:, k, :candidates] for k in range(3))
    return members, total, widths, sure


def _look_loop(
    pairs: int,
    d: int,
    rows: int,
    users: int,
    squared: Any,
    x: Any,
    rule: Any,
    known: Any,
    out: Any,
    sure: Any,
) -> None:
    tile, run = pl.program_id(0), pl.program_id(1)
    here = pl.ds(tile * users, users)
    every = pl.ds(run * 0, rows)

    def product(left: Any, first: int, last: int) -> Array:
        def step(k: Array, total: Array) -> Array:
            part = pl.ds((k + np.int32(first)) * np.int32(CHUNK), CHUNK)
            a, b = left[run, every, part], known[run, here, part]
            return total + lax.dot_general(a, b, (((1,), (1,)), ((), ())), preferred_element_type=jnp.float64)

        zero = jnp.zeros((rows, users))
        return lax.fori_loop(np.int32(0), np.int32(last - first), step, zero)

    squares = product(squared, 0, -(-pairs // CHUNK))
    estimates = product(x, pairs // CHUNK, -(-(pairs + d) // CHUNK))
    width = jnp.sqrt(jnp.maximum(squares, 0.0))
    estimate, reach, scale, limit = (rule[run, jnp.int32(k), every][:, None] for k in range(4))
    near = jnp.abs(estimate - estimates) <= reach + scale * width
    out[run, tile, jnp.int32(0), every] = jnp.where(near, 1.0, 0.0).sum(1)
    out[run, tile, jnp.int32(1), every] = jnp.where(near, estimates, 0.0).sum(1)
    out[run, tile, jnp.int32(2), every] = jnp.where(near, width, 0.0).sum(1)
    sure[run, every, here] = (near & (scale * width < limit)).astype(jnp.int8)


def learn(models: Any, learns: Array, context: Array, payoff: Array) -> Any:
    """Update users in place. See `sweep._learn`."""
    runs, users, width = models.known.shape
    d = context.shape[1]
    side = 1 << (d - 1).bit_length()
    entry = np.full((side, side), width - 1, np.int32)
    entry[:d, :d] = places(d).entry
    whole = pl.BlockSpec(memory_space=pl.ANY)
    return type(models)(
        *pl.pallas_call(
            partial(_learn_loop, d, side, width),
            grid=(users // LEARNERS, runs),
            in_specs=[whole] * 6,
            out_specs=[whole] * 2,
            out_shape=[shaped(part.shape, part.dtype) for part in models],
            input_output_aliases={4: 0, 5: 1},
            compiler_params=plgpu.CompilerParams(num_warps=4, num_stages=1),
            interpret=fused.INTERPRET,
            name="learn",
        )(
            learns.astype(jnp.int8),
            jnp.asarray(entry),
            jnp.pad(context, ((0, 0), (0, side - d))),
            payoff,
            *models,
        )
    )


def _learn_loop(
    d: int, side: int, width: int, learns: Any, entry: Any, context: Any, payoff: Any, known: Any, lost: Any,
    new_known: Any, new_lost: Any,
) -> None:  # fmt: skip
    tile, run = pl.program_id(0), pl.program_id(1)
    flags = learns[run, pl.ds(tile * LEARNERS, LEARNERS)].astype(jnp.int32)
    number = lax.broadcasted_iota(jnp.int32, (LEARNERS,), 0)
    every = pl.ds(run * 0, side)
    count = jnp.sum(flags, dtype=jnp.int32)

    @pl.when(count > 0)
    def _() -> None:
        place = entry[...]
        x = context[run, every]
        y = payoff[run]
        across = lax.broadcasted_iota(jnp.int32, (side, side), 1)
        upper = (lax.broadcasted_iota(jnp.int32, (side, side), 0) <= across) & (across < d)
        inside = lax.broadcasted_iota(jnp.int32, (side,), 0) < d
        beside = jnp.where(inside, lax.broadcasted_iota(jnp.int32, (side,), 0) + d * (d + 1) // 2, width - 1)

        def one(_: Array, left: Array) -> Array:
            found = jnp.min(jnp.where(left > 0, number, LEARNERS))
            user = tile * LEARNERS + found

            def add(where: Array, mask: Array, old: Array, step: Array) -> None:
                step = step + plgpu.load(lost.at[run, user, where], mask=mask, other=0.0).astype(jnp.float64)
                new = old + step
                plgpu.store(new_known.at[run, user, where], new, mask=mask)
                rest = (step - (new - old)).astype(jnp.float32)
                plgpu.store(new_lost.at[run, user, where], rest, mask=mask)

            matrix = known[run, user, place]  # (side, side), symmetric
            w = plgpu.load(known.at[run, user, beside], mask=inside, other=0.0)
            w = jnp.where(jnp.isnan(w), 0.0, w)
            v, also = (matrix * x[None, :]).sum(1), (matrix * x[:, None]).sum(0)
            scale = 1.0 + (x * v).sum()
            error = y - (x * w).sum()
            add(jnp.where(upper, place, width - 1), upper, matrix, -(v[:, None] * (also / scale)[None, :]))
            add(beside, inside, w, v / scale * error)
            return jnp.where(number == found, 0, left)

        lax.fori_loop(np.int32(0), count, one, flags)
