"""The loops of sparse user models. Every sum follows the order of the history, so that a Gram matrix that was
updated round by round equals, to the last bit, one that is computed again from the same history."""

import numpy as np

from coterie.arrays import Floats, Ints
from coterie.models._kernels.jit import jit


@jit
def views(
    contexts: Floats, lengths: Floats, supports: Ints, sizes: Ints, weights: Floats, inverses: Floats
) -> tuple[Floats, Floats]:
    """Return each user's w·x and √(x_Sᵀ M_S⁻¹ x_S), or ‖x‖ where S is empty: (users, candidates) each."""
    n_users, most = supports.shape
    n_candidates = contexts.shape[0]
    estimates = np.zeros((n_users, n_candidates))
    spreads = np.empty((n_users, n_candidates))
    x = np.empty(most)
    for j in range(n_users):
        size = sizes[j]
        for k in range(n_candidates):
            if size == 0:
                spreads[j, k] = lengths[k]
                continue
            estimate, square = 0.0, 0.0
            for a in range(size):
                x[a] = contexts[k, supports[j, a]]
                estimate += weights[j, a] * x[a]
                across = 0.5 * inverses[j, a, a] * x[a]
                for b in range(a):
                    across += inverses[j, a, b] * x[b]
                square += 2.0 * across * x[a]
            estimates[j, k] = estimate
            spreads[j, k] = np.sqrt(max(square, 0.0))
    return estimates, spreads


@jit
def add_context(
    x: Floats,
    payoff: float,
    pull: Floats,
    wide: Ints,
    columns: Floats,
    hot: Ints,
    block: Floats,
) -> None:
    """Add x·y to Xᵀy, and x xᵀ to the parts of XᵀX that are kept: `columns` of `wide`, `block` of `hot`."""
    for a in range(x.shape[0]):
        pull[a] += x[a] * payoff
    for c in range(wide.shape[0]):
        factor = x[wide[c]]
        for a in range(x.shape[0]):
            columns[c, a] += x[a] * factor
    for i in range(hot.shape[0]):
        factor = x[hot[i]]
        for j in range(hot.shape[0]):
            block[i, j] += x[hot[j]] * factor


@jit
def add_products(contexts: Floats, rows: Ints, features: Ints, others: Ints, sums: Floats) -> None:
    """Add Σ x[f]·x[o] over `rows` of `contexts` to `sums`: (features, others)."""
    for t in range(rows.shape[0]):
        row = rows[t]
        for i in range(features.shape[0]):
            factor = contexts[row, features[i]]
            for j in range(others.shape[0]):
                sums[i, j] += contexts[row, others[j]] * factor


@jit
def add_column(contexts: Floats, rows: Ints, feature: int, column: Floats) -> None:
    """Add Σ x[feature]·x over `rows` of `contexts` to `column`: (n_features,)."""
    for t in range(rows.shape[0]):
        row = rows[t]
        factor = contexts[row, feature]
        for a in range(column.shape[0]):
            column[a] += contexts[row, a] * factor


@jit
def add_pull(contexts: Floats, payoffs: Floats, rows: Ints, pull: Floats) -> None:
    """Add Σ x·y over `rows` to `pull`: (n_features,)."""
    for t in range(rows.shape[0]):
        row = rows[t]
        for a in range(pull.shape[0]):
            pull[a] += contexts[row, a] * payoffs[row]
