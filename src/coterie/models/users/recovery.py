"""Sparse recovery: two-stage fully corrective hard thresholding (the paper's appendix, Algorithm 2).

paper        here
f            ‖Xw − y‖² + ‖w‖²: the ridge objective
s, ℓ         s, extra
S^t          fit.support
g^t          slope: half of ∇f, outside the support
Z^t          wider

Every step uses only Xᵀy and a few columns of XᵀX, so a caller who keeps these need not read the rows again: see
`Products`. CoSaMP (Needell, Tropp 2008) expands by ℓ = 2s, Subspace Pursuit (Dai, Milenkovic 2009)
by ℓ = s.
"""

import math
import operator
from collections.abc import Iterable
from typing import Any, Literal, NamedTuple, Protocol, final, get_args

import numpy as np

from coterie.arrays import Floats, Ints
from coterie.errors import ContextError, ParameterError
from coterie.models.checks import check_count

Method = Literal["cosamp", "subspace-pursuit"]

# Weights or slopes this close, relative to ‖y‖, are equal: rounding must not decide between two features, nor
# whether a feature counts at all. (No weight exceeds ‖y‖/2, whatever X is.)
TIE = 1e-12
# Linear convergence takes a few steps; a support that was seen before ends the search in any case.
MOST_STEPS = 100


class Products(Protocol):
    """What the recovery needs of X and y."""

    @property
    def total(self) -> float:
        """‖y‖²."""

    @property
    def pull(self) -> Floats:
        """Xᵀy: (n_features,)."""

    def columns(self, features: Ints) -> Floats:
        """Return these columns of XᵀX, as rows: (features, n_features)."""

    def block(self, features: Ints) -> Floats:
        """Return XᵀX between these features: (features, features)."""


class Fit(NamedTuple):
    """The minimum of f over the vectors with a given support."""

    support: Ints  # rising
    weights: Floats  # of the features in the support, none of them zero
    gain: float  # ‖y‖² − f(w)


def sparse_recovery(
    X: Any, y: Any, s: int, *, method: Method = "cosamp", start: Iterable[int] = ()
) -> Floats:
    """Return w with at most `s` nonzeros that makes ‖Xw − y‖² + ‖w‖² small: (n_features,).

    `X` is (rows, n_features) and `y` (rows,). `method` is "cosamp" or "subspace-pursuit". `start` is a support to
    begin with, of at most s features: for instance the last one, if rows were added since. The search ends when the
    support stops changing, or repeats; the best one seen is returned. Raises ContextError or ParameterError for
    invalid input.

    >>> X = np.array([[3.0, 0.0, 1.0], [0.0, 3.0, 1.0], [3.0, 3.0, 0.0]])
    >>> sparse_recovery(X, [3.0, 0.0, 3.0], s=1)
    array([0.94736842, 0.        , 0.        ])
    """
    rows, payoffs = _read(X, y)
    n_features = rows.shape[1]
    check_sparsity(s, n_features, "s")
    first = _read_support(start, s, n_features)
    found = recover(RowProducts(rows, payoffs), s, expansion(method, s), first)
    w = np.zeros(n_features)
    w[found.support] = found.weights
    return w


def check_sparsity(s: Any, n_features: int, name: str = "sparsity") -> int:
    """Return how many nonzeros a model may have."""
    if check_count(name, s) > n_features:
        raise ParameterError(f"{name} is {s!r}, expected at most the number of features, {n_features}")
    return int(s)


def expansion(method: Any, s: int) -> int:
    """Return ℓ: by how many features a method expands the support before it cuts it back to s."""
    if method not in get_args(Method):
        raise ParameterError(f"method is {method!r}, expected 'cosamp' or 'subspace-pursuit'")
    return 2 * s if method == "cosamp" else s


def recover(data: Products, s: int, extra: int, start: Ints) -> Fit:
    """Search for the best support of at most `s` features, from `start` on."""
    tie = TIE * math.sqrt(data.total)
    best = fit = solve(data, start)
    seen = {best.support.tobytes()}
    for _ in range(MOST_STEPS):
        slope: Floats = np.abs(fit.weights @ data.columns(fit.support) - data.pull)  # (n_features,)
        slope[fit.support] = 0.0
        wider = np.union1d(fit.support, largest(slope, extra, tie))
        corrected = solve(data, wider)
        fit = solve(data, corrected.support[largest(np.abs(corrected.weights), s, tie)])
        if fit.gain > best.gain + TIE * data.total:
            best = fit
        if fit.support.tobytes() in seen:
            break
        seen.add(fit.support.tobytes())
    return best


def solve(data: Products, support: Ints) -> Fit:
    """Minimise f over a support; features with weight zero are removed from it."""
    weights = np.linalg.solve(regularised(data, support), data.pull[support]).astype(np.float64, copy=False)
    used = np.abs(weights) > TIE * math.sqrt(data.total)
    support, weights = support[used], weights[used]
    return Fit(support, weights, float(weights @ data.pull[support]))


def regularised(data: Products, support: Ints) -> Floats:
    """Return M = I + XᵀX on a support."""
    matrix = data.block(support)
    matrix.flat[:: len(support) + 1] += 1.0
    return matrix


def largest(values: Floats, count: int, tie: float) -> Ints:
    """Return the positions, rising, of the `count` largest of those values that exceed `tie`.

    Where values within `tie` of the last that fits compete for the last places, the first listed get them.
    """
    positions = np.flatnonzero(values > tie)
    if len(positions) <= count:
        return positions
    found = values[positions]
    last = np.partition(found, len(found) - count)[len(found) - count]
    above, level = found > last + tie, np.abs(found - last) <= tie
    above[np.flatnonzero(level)[: count - np.count_nonzero(above)]] = True
    chosen: Ints = positions[above]
    return chosen


@final
class RowProducts:
    """Moments of rows that are all in memory."""

    def __init__(self, X: Floats, y: Floats) -> None:
        self._rows = X
        self.pull: Floats = X.T @ y
        self.total = float(y @ y)

    def columns(self, features: Ints) -> Floats:
        """Return columns of XᵀX, as rows."""
        product: Floats = self._rows[:, features].T @ self._rows
        return product

    def block(self, features: Ints) -> Floats:
        """Return XᵀX between some features."""
        some = self._rows[:, features]
        product: Floats = some.T @ some
        return product


def _read_support(start: Any, s: int, n_features: int) -> Ints:
    try:
        support: Ints = np.unique(np.array([operator.index(feature) for feature in start], dtype=np.int64))
    except (TypeError, OverflowError) as error:
        raise ParameterError(f"start is {start!r}, expected features as whole numbers") from error
    if len(support) > s or (len(support) and not 0 <= support[0] <= support[-1] < n_features):
        raise ParameterError(
            f"start is {support.tolist()}, expected at most {s} features between 0 and {n_features - 1}"
        )
    return support


def _read(X: Any, y: Any) -> tuple[Floats, Floats]:
    try:
        rows, payoffs = np.asarray(X, dtype=np.float64), np.asarray(y, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ContextError(f"X and y must be numbers ({error})") from error
    if rows.ndim != 2 or rows.shape[1] == 0 or payoffs.shape != rows.shape[:1]:
        raise ContextError(
            f"X has shape {rows.shape} and y {payoffs.shape}, expected (rows, features) and (rows,)"
        )
    if not (np.isfinite(rows).all() and np.isfinite(payoffs).all()):
        raise ContextError("X or y holds NaN or infinity; every number must be finite")
    return rows, payoffs
