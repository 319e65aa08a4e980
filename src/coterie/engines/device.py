"""Dense CAB's arithmetic on a GPU, compiled by JAX: the ridge regressions of users as columns of arrays.

inverses   (…, pairs, users)              M⁻¹, its upper triangle row by row
weights    (…, features, users)           w = M⁻¹b
lost       (…, pairs, users), float32     what rounding took from each entry, to be added back (Kahan)
missed     (…, features, users), float32  the same for w

Neighbouring threads read neighbouring numbers. A column without updates is NaN. Its user has M = I and w = 0, and is
nobody's neighbour: no comparison with NaN is true. An axis before the others is for several runs. √(xᵀM⁻¹x) for all
users and candidates is one matrix product, as in the compiled loops for processors.
"""

from collections.abc import Callable
from functools import cache, partial
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np

from coterie.errors import MissingExtraError, ParameterError
from coterie.models.files import Tensors, take
from coterie.models.protocol import ROUNDING

if find_spec("jax") is None:
    raise MissingExtraError(
        "this needs jax: pip install 'coterie[gpu]', and 'jax[cuda13]' on a machine with a GPU"
    )

import jax
import jax.numpy as jnp
from jax import lax

Array = Any  # of JAX, or of NumPy on the way in


class UserColumns(NamedTuple):
    """The models of some users."""

    inverses: Array
    weights: Array
    lost: Array
    missed: Array

    def map(self, change: Callable[[Array], Array]) -> "UserColumns":
        """Return the columns with each array changed."""
        return UserColumns(*map(change, self))


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


@partial(jax.jit, static_argnums=(0, 1, 2))
def free_columns(before: tuple[int, ...], n_features: int, users: int) -> UserColumns:
    """Return columns without updates."""
    wide, narrow = (*before, n_features * (n_features + 1) // 2, users), (*before, n_features, users)
    nothing = jnp.float32
    return UserColumns(
        jnp.full(wide, jnp.nan),
        jnp.full(narrow, jnp.nan),
        jnp.zeros(wide, nothing),
        jnp.zeros(narrow, nothing),
    )


def products(x: Array) -> Array:
    """Return the products whose weighted sums are squared spreads: xₐ·x_b, twice if a ≠ b."""
    at = places(x.shape[-1])
    return x[..., at.row] * x[..., at.column] * at.factor


def view(inverse: Array, w: Array, x: Array) -> tuple[Array, Array]:
    """Return a user's own estimates and spreads, (…, candidates): inverse (…, pairs), w (…, features)."""
    new = jnp.isnan(w[..., :1])
    square = (products(x) * inverse[..., None, :]).sum(-1)
    spread = jnp.sqrt(jnp.where(new, (x * x).sum(-1), jnp.maximum(square, 0.0)))
    return jnp.where(new, 0.0, (x * w[..., None, :]).sum(-1)), spread


def look(users: UserColumns, x: Array, estimate: Array, spread: Array, scale: Array) -> tuple[Array, Array]:
    """Return sums over the neighbours, and the bound of each: |estimate − wⱼ·x| ≤ scale·spread + scale·spreadⱼ.

    The first is (3, …, candidates): how many, their estimates, their spreads. The second is (…, candidates, users),
    infinite for users who are no neighbours. `estimate`, `spread` and `scale` are the asking user's.
    """
    spreads = jnp.sqrt(jnp.maximum(products(x) @ users.inverses, 0.0))  # (…, candidates, users)
    estimates = x @ users.weights
    bound = scale[..., None] * spreads
    near = jnp.abs(estimate[..., None] - estimates) <= (scale * spread + ROUNDING)[..., None] + bound
    parts = jnp.where(near, 1.0, 0.0), jnp.where(near, estimates, 0.0), jnp.where(near, spreads, 0.0)
    zeros = (jnp.zeros((), x.dtype),) * 3
    found = lax.reduce(parts, zeros, lambda a, b: tuple(map(jnp.add, a, b)), (near.ndim - 1,))  # in one pass
    return jnp.stack(found), jnp.where(near, bound, jnp.inf)


def pull(inverses: Array, x: Array) -> Array:
    """Return M⁻¹x of all users for one x, (features, users), by one matrix product."""
    at, side = places(len(x)), np.arange(len(x), dtype=np.int32)[:, None]
    beside = (at.column == side) & (at.row != at.column)
    matrix = jnp.where(at.row == side, x[at.column], 0.0) + jnp.where(beside, x[at.row], 0.0)
    found = matrix @ inverses
    return jnp.where(jnp.isnan(found), x[:, None], found)


def updated(old: UserColumns, x: Array, payoff: Array, v: Array | None = None) -> UserColumns:
    """Return columns after a payoff each: v = M⁻¹x, s = 1 + x·v, M⁻¹ −= v vᵀ/s, w += v (y − w·x)/s.

    x is (features, users), or (features, 1) if it is the same for all; v is computed if it is not given.
    """
    at = places(len(x))
    inverses = jnp.where(jnp.isnan(old.inverses), (at.row == at.column)[:, None] * 1.0, old.inverses)
    weights = jnp.where(jnp.isnan(old.weights), 0.0, old.weights)
    v = (inverses[at.entry] * x).sum(1) if v is None else v
    gain = v / (1.0 + (x * v).sum(0))
    inverses, lost = _added(inverses, old.lost, -(v[at.row] * gain[at.column]))
    weights, missed = _added(weights, old.missed, gain * (payoff - (x * weights).sum(0)))
    return UserColumns(inverses, weights, lost, missed)


def _added(old: Array, lost: Array, step: Array) -> tuple[Array, Array]:
    """Add a step, and keep what rounding took from it."""
    step = step + lost
    new = old + step
    return new, (step - (new - old)).astype(jnp.float32)


def find_device(name: str | None) -> Any:
    """Return a device of JAX: the first GPU, or the one named as platform or platform:number."""
    platform, _, number = (name or "gpu").partition(":")
    try:
        return jax.devices(platform)[int(number or 0)]
    except (RuntimeError, ValueError, IndexError) as error:
        known = ", ".join(sorted({f"{d.platform}:{d.id}" for d in jax.devices()}))
        raise ParameterError(
            f"device is {name!r}, but JAX finds {known} here; for a GPU install jax[cuda13], or take device='cpu'"
        ) from error


def as_tensors(columns: UserColumns) -> Tensors:
    """Return columns in the format of files, which is that of `Dense`: a row for each user."""
    return {name: np.asarray(part).T.copy() for name, part in columns._asdict().items()}


def from_tensors(tensors: Tensors, count: int, n_features: int) -> UserColumns:
    """Return the columns that `as_tensors` was given."""
    pairs = n_features * (n_features + 1) // 2
    shapes = UserColumns(pairs, n_features, pairs, n_features)._asdict()
    return UserColumns(*(take(tensors, name, "f", (count, width)).T for name, width in shapes.items()))
