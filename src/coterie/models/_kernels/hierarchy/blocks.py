"""Actions' weights over the context: a block with a full covariance per action id.

A diagonal posterior treats the effects of context features as independent. Here an action has weights over a
constant and the context features in common, with S = Σ x xᵀ/n and b = Σ x r/n over its payoffs. r is the payoff minus
all other effects, and n the noise with their variance. With the prior precision P the posterior is C = (P + S)⁻¹ and
m = C b.

Worth exploring is the whole variance of what an action adds at the mean context, but of what the context changes of
it only the part `side` that contexts have in common: a payoff in one teaches so much about another.
"""

from typing import NamedTuple

import numpy as np

from coterie.arrays import Bools, Floats, Ints
from coterie.models._kernels.given import given
from coterie.models._kernels.jit import jit, step


@given
class Blocks(NamedTuple):
    """One row per block; row 0 is the prior, for actions without payoffs."""

    gram: Floats  # (room, D, D) S
    pull: Floats  # (room, D) b
    spread: Floats  # (room, D, D) C
    mean: Floats  # (room, D) m
    middle: Floats  # (room,) the variance at the mean context


@given
class Blocked(NamedTuple):
    """What blocks, and the crosses that all users share, cover of the candidates of one choice."""

    places: Ints  # (context features,) the place of each in x, -1 for none
    which: Ints  # (candidates,) the block of each, -1 for none
    crossed_context: Bools  # (context features,) whether its crosses with features are covered
    crossed: Bools  # (features,) whether the feature is, and its crosses with the context


@jit
def list_x(places: Ints, values: Floats, at: Ints, x: Floats) -> int:
    """Write the nonzero entries of x, a constant 1 first, and return how many."""
    at[0], x[0], n = 0, 1.0, 1
    for c in range(len(places)):
        if places[c] >= 0 and values[c] != 0.0:
            at[n], x[n] = places[c], values[c]
            n += 1
    return n


@step
def view_blocks(blocks: Blocks, blocked: Blocked, values: Floats, side: float, out: Floats) -> None:
    """Write a row per candidate: the part of the constant, that of the context, the variance of their sum, and as
    much of it as is worth exploring.
    """
    at, x = np.empty(1 + len(values), np.int64), np.empty(1 + len(values))
    n = list_x(blocked.places, values, at, x)
    for k in range(len(blocked.which)):
        b = blocked.which[k]
        out[k, :] = 0.0
        if b < 0:
            continue
        out[k, 0] = blocks.mean[b, 0]
        for i in range(1, n):
            out[k, 1] += blocks.mean[b, at[i]] * x[i]
        for i in range(n):
            row = blocks.spread[b, at[i]]
            for j in range(n):
                out[k, 2] += x[i] * x[j] * row[at[j]]
        out[k, 2] = max(out[k, 2], 0.0)
        middle = min(blocks.middle[b], out[k, 2])
        out[k, 3] = middle + side * (out[k, 2] - middle)


@step
def learn_block(
    blocks: Blocks, b: int, places: Ints, values: Floats, centre: Floats, residual: float, noise: float
) -> None:
    """Learn a payoff minus all other effects, with this noise. `centre` is x at the mean context."""
    at, x = np.empty(1 + len(values), np.int64), np.empty(1 + len(values))
    n, d = list_x(places, values, at, x), blocks.mean.shape[1]
    turned, estimate, variance, shared = np.zeros(d), 0.0, 0.0, 0.0
    for i in range(n):
        estimate += blocks.mean[b, at[i]] * x[i]
        for j in range(d):
            turned[j] += blocks.spread[b, at[i], j] * x[i]
    for i in range(n):
        variance += turned[at[i]] * x[i]
    gain = 1.0 / (max(variance, 0.0) + noise)  # rounding can make a small variance negative
    for i in range(d):
        shared += turned[i] * centre[i]
        blocks.mean[b, i] += turned[i] * (residual - estimate) * gain
        for j in range(d):
            blocks.spread[b, i, j] -= gain * turned[i] * turned[j]
    blocks.middle[b] = max(blocks.middle[b] - gain * shared * shared, 0.0)
    for i in range(n):
        blocks.pull[b, at[i]] += x[i] * residual / noise
        for j in range(n):
            blocks.gram[b, at[i], at[j]] += x[i] * x[j] / noise
