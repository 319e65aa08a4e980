"""Many runs of dense CAB side by side: one joint round is one batch of products, and the choices are each run's own.

All users of a run have a row from the start, one after the other:

inverses   (runs, users, pairs)      M⁻¹, its upper triangle row by row
weights    (runs, users, features)   w = M⁻¹b; NaN until the user is updated: nobody's neighbour
lost       like inverses, float32    what rounding took (Kahan)
missed     like weights, float32     the same for w

A decision and the payoff it earns see the same models, so what the products say of the chosen candidate is also who
learns with the user: there is one product a round.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from coterie.engines.device.kernels import EXACT, Array, Block, compensated, places, stranger, sums

LEARNERS = 2048  # rows that learn in one step; more of them take more steps


class Rules(NamedTuple):
    """What decides a run beside its rounds."""

    alpha: Array  # (runs,)
    limit: Array  # (runs,): γ/4
    rounding: Array  # what the neighbourhood test allows
    tie: Array  # scores that differ by less are equal
    growth: Array  # (payoffs + 1,): √log(1+t) by payoffs learned before


class Rounds(NamedTuple):
    """What is played: the same number of rounds in every run."""

    users: Array  # (rounds, runs), int32
    candidates: Array  # (rounds, runs, candidates), int32: rows of the table
    payoffs: Array  # (rounds, runs, candidates)
    served: Array  # (rounds, runs), int32: the candidate whose payoff a log knows, or -1 where all are known


class Played(NamedTuple):
    """What happened, (rounds, runs) each."""

    choice: Array
    kept: Array
    members: Array
    updated: Array


def start(runs: int, users: int, n_features: int) -> Block:
    """Return runs in which nobody has learned."""
    user = stranger(n_features)
    user = user._replace(weights=np.full(n_features, np.nan))
    return Block(*(jnp.tile(part, (runs, users, 1)) for part in user))


@partial(jax.jit, donate_argnums=0, static_argnames="learners")
def play(
    models: Block, learned: Array, rounds: Rounds, table: Array, rules: Rules, learners: int = LEARNERS
) -> tuple[Block, Array, Played]:
    """Play rounds in every run; return the models, how many payoffs each run has learned, and what happened."""

    def one(state: tuple[Block, Array], now: Rounds) -> tuple[tuple[Block, Array], Played]:
        return _round(*state, now, table, rules, learners)

    (models, learned), played = lax.scan(one, (models, learned), rounds)
    return models, learned, played


def _round(
    models: Block, learned: Array, now: Rounds, table: Array, rules: Rules, learners: int
) -> tuple[tuple[Block, Array], Played]:
    """Play one round in every run."""
    runs = jnp.arange(len(now.users), dtype=jnp.int32)
    at = places(table.shape[1])
    x = table[now.candidates]  # (runs, candidates, features)
    pairs = x[..., at.row] * x[..., at.column] * at.factor
    scale = (rules.alpha * rules.growth[learned])[:, None]  # (runs, 1)

    # The user's own opinion.
    inverse, w = models.inverses[runs, now.users], models.weights[runs, now.users]  # (runs, …)
    new = jnp.isnan(w[:, :1])  # (runs, 1): never updated, M = I
    bare = jnp.sqrt((x * x).sum(-1))
    estimate = jnp.where(new, 0.0, (x * w[:, None]).sum(-1))  # (runs, candidates)
    square = (pairs * inverse[:, None]).sum(-1)
    spread = jnp.where(new, bare, jnp.sqrt(jnp.maximum(square, 0.0)))

    # Everybody's, and the sums over neighbours.
    squares = jnp.einsum("rcp,rup->rcu", pairs, models.inverses, precision=EXACT)
    estimates = jnp.einsum("rcf,ruf->rcu", x, models.weights, precision=EXACT)
    reach = scale * spread + rules.rounding
    width = jnp.sqrt(jnp.maximum(squares, 0.0))
    near = jnp.abs(estimate[..., None] - estimates) <= reach[..., None] + scale[..., None] * width
    members, total, widths = sums(near, estimates, width)  # (runs, candidates)
    members, widths = members + new, widths + jnp.where(new, bare, 0.0)
    score = total / members + scale * widths / members
    choice = jnp.argmax(score.max(-1, keepdims=True) - score < rules.tie, axis=-1).astype(
        jnp.int32
    )  # the first

    kept = (now.served < 0) | (now.served == choice)
    chosen = partial(_chosen, choice=choice)
    context, payoff = chosen(x), chosen(now.payoffs)
    bound = scale[:, 0] * chosen(spread)
    width = jnp.sqrt(jnp.maximum(chosen(squares), 0.0))  # (runs, users)
    close = jnp.abs(chosen(estimate)[:, None] - chosen(estimates)) <= chosen(reach)[:, None] + scale * width
    sure = (bound < rules.limit)[:, None] & close & (scale * width < rules.limit[:, None])
    own = lax.broadcasted_iota(jnp.int32, sure.shape, 1) == now.users[:, None]
    learns = (sure | own) & kept[:, None]

    models = _learn(models, learns, context, payoff, learners)
    updated = learns.sum(1, dtype=jnp.int32)
    return (models, learned + kept), Played(choice, kept, chosen(members).astype(jnp.int32), updated)


def _chosen(array: Array, choice: Array) -> Array:
    """Return what an array (runs, candidates, …) says of the chosen candidate of each run."""
    places = choice.reshape(-1, *[1] * (array.ndim - 1))
    return jnp.take_along_axis(array, places, axis=1)[:, 0]


def _learn(models: Block, learns: Array, context: Array, payoff: Array, learners: int) -> Block:
    """Let users learn, `learners` of them at a time; the others are neither read nor written."""
    runs, users = learns.shape
    flags = learns.ravel()
    place = jnp.cumsum(flags, dtype=jnp.int32)
    count = place[-1]
    room = -(-runs * users // learners) * learners
    rows = jnp.full(room, runs * users, jnp.int32)  # beyond the last: nobody
    rows = rows.at[jnp.where(flags, place - 1, room)].set(lax.iota(jnp.int32, runs * users), mode="drop")

    def some(first: Array, models: Block) -> Block:
        chosen = lax.dynamic_slice_in_dim(rows, first, learners)
        run, user = chosen // users, chosen % users
        return _learn_rows(models, run, user, context[run], payoff[run])

    models = some(0, models)
    _, models = lax.while_loop(
        lambda state: state[0] < count,
        lambda state: (state[0] + learners, some(*state)),
        (jnp.int32(learners), models),
    )
    return models


def _learn_rows(models: Block, run: Array, user: Array, x: Array, payoff: Array) -> Block:
    """Let some rows learn, each its own payoff; a run beyond the last is nobody."""
    at = places(x.shape[1])
    old = Block(*(part.at[run, user].get(mode="fill", fill_value=0) for part in models))
    fresh = jnp.isnan(old.weights[:, :1])
    weights = jnp.where(fresh, 0.0, old.weights)
    v = (old.inverses[:, at.entry] * x[:, None, :]).sum(-1)  # (rows, features)
    gain = v / (1.0 + (x * v).sum(-1, keepdims=True))
    inverses, lost = compensated(old.inverses, old.lost, -(v[:, at.row] * gain[:, at.column]))
    error = payoff[:, None] - (x * weights).sum(-1, keepdims=True)
    weights, missed = compensated(weights, old.missed, gain * error)
    # All is read before any is written; else everything would be copied.
    made, models = lax.optimization_barrier((Block(inverses, weights, lost, missed), models))
    return Block(
        *(
            part.at[run, user].set(new, mode="drop", unique_indices=True)
            for part, new in zip(models, made, strict=True)
        )
    )


def growth(payoffs: int) -> Any:
    """Return √log(1+t) for t − 1 = 0 … payoffs payoffs learned before."""
    return np.sqrt(np.log1p(np.arange(1, payoffs + 2, dtype=np.float64)))
