"""Users' models, in several representations with one protocol."""

from typing import Any, get_args

from coterie.errors import ParameterError
from coterie.models.context_kind import check_one_kind
from coterie.models.protocol import Eligible, Models, Movable, Near, Shardable, UserModels, View
from coterie.models.rows.means import Means
from coterie.models.rows.ridge_rows import RidgeRows
from coterie.models.rows.ridges import Ridges
from coterie.models.users.dense import Dense
from coterie.models.users.fading import Fading
from coterie.models.users.one_hot import OneHot
from coterie.models.users.recovery import Method
from coterie.models.users.sparse import Sparse

__all__ = [
    "Dense", "Eligible", "Fading", "Means", "Models", "Movable", "Near", "OneHot", "RidgeRows", "Ridges", "Shardable",
    "UserModels", "View", "make_fading", "make_models", "make_rows", "make_sparse",
]  # fmt: skip


def make_models(
    n_features: int | None,
    one_hot: bool,
    eligible: Any = "updated",
    compensate: bool = True,
    sample: int | None = None,
) -> Shardable:
    """Return models for vectors of `n_features`, where `sample` users may be neighbours, or for item ids."""
    _check_eligible(eligible)
    kind = check_one_kind(n_features, one_hot)
    if kind.n_features is None:
        return OneHot(eligible)
    return Dense(kind.n_features, eligible, compensate, sample)


def make_fading(n_features: int | None, one_hot: bool, eligible: Any, keep: float) -> UserModels:
    """Return models in which each payoff multiplies the weight of the user's older payoffs by `keep`."""
    _check_eligible(eligible)
    return Fading(make_rows(n_features, one_hot), eligible, keep)


def make_sparse(n_features: int, sparsity: int, method: Method, eligible: Any) -> UserModels:
    """Return models with at most `sparsity` nonzeros."""
    _check_eligible(eligible)
    return Sparse(n_features, sparsity, method, eligible)


def make_rows(n_features: int | None, one_hot: bool) -> RidgeRows:
    """Return numbered models for vectors of `n_features`, or for item ids."""
    kind = check_one_kind(n_features, one_hot)
    return Means() if kind.n_features is None else Ridges(kind.n_features)


def _check_eligible(eligible: Any) -> None:
    if eligible not in get_args(Eligible):
        raise ParameterError(f"eligible is {eligible!r}, expected 'updated' or 'all'")
