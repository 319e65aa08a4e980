"""Many runs of dense CAB side by side: in a joint round every run decides and learns once, with its own choices.

Each user of a run has a row from the start:

known   (runs, users, width)            M⁻¹, its upper triangle row by row, then w = M⁻¹b, then zeros
lost    (runs, users, width), float32   what rounding took from each entry, to be added back (Kahan)

w is NaN until the user is updated, so that the user is not a neighbour. A decision and its payoff see the same
models: the neighbours found for the decision are those of the update, and each row is read once per round.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from coterie.arrays import Floats
from coterie.engines.device import fused_sweep
from coterie.engines.device.kernels import EXACT, Array, compensated, places, products, sums

LEARNERS = 2048  # rows that learn in one step; more of them take more steps
WHOLE = 16  # widths are multiples of it
TILE = 128  # the number of users is a multiple of it
ROUNDING, TIE = 1e-12, 1e-9  # as in the models' protocol, which needs the compiler


class JointModels(NamedTuple):
    """The models of all runs."""

    known: Array
    lost: Array


class Rules(NamedTuple):
    """The settings of each run."""

    alpha: Array  # (runs,)
    limit: Array  # (runs,): γ/4
    rounding: Array  # what the neighbourhood test allows
    tie: Array  # scores that differ by less are equal
    growth: Array  # (payoffs + 1,): √log(1+t) by payoffs learned before


class JointRounds(NamedTuple):
    """The rounds to play: the same number in every run."""

    users: Array  # (rounds, runs), int32
    candidates: Array  # (rounds, runs, candidates), int32: rows of the table
    payoffs: Array  # (rounds, runs, candidates)
    served: Array  # (rounds, runs), int32: the candidate whose payoff a log knows, or -1 where all are known


class JointOutcome(NamedTuple):
    """The outcome of each round, (rounds, runs) each."""

    choice: Array
    kept: Array
    members: Array
    updated: Array


def start(runs: int, users: int, n_features: int) -> JointModels:
    """Return the models of runs without any payoff."""
    at = places(n_features)
    pairs = len(at.row)
    width = (
        -(-(pairs + n_features + 1) // WHOLE) * WHOLE
    )  # with a zero at the end, for what is beside a matrix
    user = np.zeros(width)
    user[:pairs] = at.row == at.column
    user[pairs : pairs + n_features] = np.nan
    users = -(-users // TILE) * TILE
    return JointModels(jnp.tile(user, (runs, users, 1)), jnp.zeros((runs, users, width), jnp.float32))


@partial(jax.jit, donate_argnums=0, static_argnames=("code", "learners"))
def play(
    models: JointModels, learned: Array, rounds: JointRounds, table: Array, rules: Rules, code: Any = None,
    learners: int = LEARNERS,
) -> tuple[JointModels, Array, JointOutcome]:  # fmt: skip
    """Play rounds in every run; return the models, the number of payoffs each run has learned, and the outcome.

    `code` is None, or `fused_sweep` on a GPU.
    """
    look = _look if code is None else code.look
    learn = partial(_learn, learners=learners) if code is None else code.learn

    def one(
        state: tuple[JointModels, Array], now: JointRounds
    ) -> tuple[tuple[JointModels, Array], JointOutcome]:
        return _round(*state, now, table, rules, look, learn)

    (models, learned), played = lax.scan(one, (models, learned), rounds)
    return models, learned, played


def code_for(device: Any) -> Any:
    """Return the argument `code` of `play` for a device."""
    return fused_sweep if device.platform == "gpu" else None


def _round(
    models: JointModels, learned: Array, now: JointRounds, table: Array, rules: Rules, look: Any, learn: Any
) -> tuple[tuple[JointModels, Array], JointOutcome]:
    """Play one round in every run."""
    d = table.shape[1]
    pairs = d * (d + 1) // 2
    runs = jnp.arange(len(now.users), dtype=jnp.int32)
    x = table[now.candidates]  # (runs, candidates, features)
    squared = products(x)
    scale = (rules.alpha * rules.growth[learned])[:, None]  # (runs, 1)

    # The user's own estimate and spread.
    own = models.known[runs, now.users]  # (runs, width)
    w = own[:, pairs : pairs + d]
    new = jnp.isnan(w[:, :1])  # (runs, 1): never updated, M = I
    bare = jnp.sqrt((x * x).sum(-1))
    estimate = jnp.where(new, 0.0, (x * w[:, None]).sum(-1))  # (runs, candidates)
    square = (squared * own[:, None, :pairs]).sum(-1)
    spread = jnp.where(new, bare, jnp.sqrt(jnp.maximum(square, 0.0)))

    # Sums over neighbours.
    reach = scale * spread + rules.rounding
    members, total, widths, sure = look(models.known, squared, x, estimate, reach, scale, rules.limit)
    members, widths = members + new, widths + jnp.where(new, bare, 0.0)
    score = total / members + scale * widths / members
    choice = jnp.argmax(score.max(-1, keepdims=True) - score < rules.tie, axis=-1).astype(
        jnp.int32
    )  # the first

    kept = (now.served < 0) | (now.served == choice)
    chosen = partial(_chosen, choice=choice)
    bound = scale[:, 0] * chosen(spread)
    together = (bound < rules.limit)[:, None] & (chosen(sure) > 0)
    asker = lax.broadcasted_iota(jnp.int32, together.shape, 1) == now.users[:, None]
    learns = (together | asker) & kept[:, None]

    models = learn(models, learns, chosen(x), chosen(now.payoffs))
    updated = learns.sum(1, dtype=jnp.int32)
    return (models, learned + kept), JointOutcome(choice, kept, chosen(members).astype(jnp.int32), updated)


def _chosen(array: Array, choice: Array) -> Array:
    """Return the entries of an array (runs, candidates, …) for the chosen candidate of each run."""
    places = choice.reshape(-1, *[1] * (array.ndim - 1))
    return jnp.take_along_axis(array, places, axis=1)[:, 0]


def _look(
    known: Array, squared: Array, x: Array, estimate: Array, reach: Array, scale: Array, limit: Array
) -> tuple[Array, Array, Array, Array]:
    """Return members, estimates and spreads of neighbours (runs, candidates), and which neighbours are certain.

    The last is (runs, candidates, users): a neighbour whose bound is below the limit.
    """
    pairs, d = squared.shape[-1], x.shape[-1]
    squares = jnp.einsum("rcp,rup->rcu", squared, known[..., :pairs], precision=EXACT)
    estimates = jnp.einsum("rcf,ruf->rcu", x, known[..., pairs : pairs + d], precision=EXACT)
    width = jnp.sqrt(jnp.maximum(squares, 0.0))
    near = jnp.abs(estimate[..., None] - estimates) <= reach[..., None] + scale[..., None] * width
    sure = near & (scale[..., None] * width < limit[:, None, None])
    members, total, widths = sums(near, estimates, width)
    return members, total, widths, sure


def _learn(models: JointModels, learns: Array, context: Array, payoff: Array, learners: int) -> JointModels:
    """Update users, `learners` at a time; the rows of other users are neither read nor written."""
    runs, users = learns.shape
    flags = learns.ravel()
    place = jnp.cumsum(flags, dtype=jnp.int32)
    count = place[-1]
    room = -(-runs * users // learners) * learners
    rows = jnp.full(room, runs * users, jnp.int32)  # one beyond the last row: no user
    rows = rows.at[jnp.where(flags, place - 1, room)].set(lax.iota(jnp.int32, runs * users), mode="drop")

    def some(first: Array, models: JointModels) -> JointModels:
        chosen = lax.dynamic_slice_in_dim(rows, first, learners)
        run, user = chosen // users, chosen % users
        return _learn_rows(models, run, user, context[run], payoff[run])

    _, models = lax.while_loop(
        lambda state: state[0] < count,
        lambda state: (state[0] + learners, some(*state)),
        (jnp.int32(0), models),
    )
    return models


def _learn_rows(models: JointModels, run: Array, user: Array, x: Array, payoff: Array) -> JointModels:
    """Update some rows, each with its own payoff; a run beyond the last is skipped."""
    d = x.shape[1]
    at = places(d)
    pairs = len(at.row)
    old, residue = (part.at[run, user].get(mode="fill", fill_value=0) for part in models)
    old = jnp.where(jnp.isnan(old), 0.0, old)
    v = (old[:, at.entry] * x[:, None, :]).sum(-1)  # (rows, features)
    gain = v / (1.0 + (x * v).sum(-1, keepdims=True))
    error = payoff[:, None] - (x * old[:, pairs : pairs + d]).sum(-1, keepdims=True)
    step = jnp.concatenate([-(v[:, at.row] * gain[:, at.column]), gain * error], axis=1)
    step = jnp.pad(step, ((0, 0), (0, old.shape[1] - step.shape[1])))
    made = JointModels(*compensated(old, residue, step))
    return JointModels(
        *(
            part.at[run, user].set(new, mode="drop", unique_indices=True)
            for part, new in zip(models, made, strict=True)
        )
    )


def rules(alpha: Floats, gamma: Floats, payoffs: int) -> Rules:
    """Return the settings of runs of at most so many payoffs."""
    growth = np.sqrt(np.log1p(np.arange(1, payoffs + 2, dtype=np.float64)))
    return Rules(alpha, gamma / 4, np.float64(ROUNDING), np.float64(TIE), growth)
