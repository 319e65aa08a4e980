"""Users' models, in several representations with one protocol."""

from coterie.models.context_kind import check_one_kind
from coterie.models.protocol import Models, Near, UserModels, View
from coterie.models.rows.means import Means
from coterie.models.rows.ridge_rows import RidgeRows
from coterie.models.rows.ridges import Ridges
from coterie.models.users.dense import Dense
from coterie.models.users.fading import Fading
from coterie.models.users.one_hot import OneHot
from coterie.models.users.recovery import Method
from coterie.models.users.sparse import Sparse

__all__ = [
    "Dense", "Fading", "Means", "Models", "Near", "OneHot", "RidgeRows", "Ridges",
    "UserModels", "View", "make_fading", "make_models", "make_rows", "make_sparse",
]  # fmt: skip


def make_models(n_features: int | None, one_hot: bool) -> UserModels:
    """Return models for vectors of `n_features`, or for item ids."""
    kind = check_one_kind(n_features, one_hot)
    return OneHot() if kind.n_features is None else Dense(kind.n_features)


def make_fading(n_features: int | None, one_hot: bool, keep: float) -> UserModels:
    """Return models in which each payoff multiplies the weight of the user's older payoffs by `keep`."""
    return Fading(make_rows(n_features, one_hot), keep)


def make_sparse(n_features: int, sparsity: int, method: Method) -> UserModels:
    """Return models with at most `sparsity` nonzeros."""
    return Sparse(n_features, sparsity, method)


def make_rows(n_features: int | None, one_hot: bool) -> RidgeRows:
    """Return numbered models for vectors of `n_features`, or for item ids."""
    kind = check_one_kind(n_features, one_hot)
    return Means() if kind.n_features is None else Ridges(kind.n_features)
