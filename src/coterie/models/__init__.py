"""The users' models, in several representations behind one protocol."""

from typing import Any, get_args

from coterie.errors import ParameterError
from coterie.models.bank import Bank
from coterie.models.checks import check_count
from coterie.models.dense import Dense
from coterie.models.means import Means
from coterie.models.one_hot import OneHot
from coterie.models.protocol import Eligible, Models, Near, View
from coterie.models.ridges import Ridges

__all__ = [
    "Bank", "Dense", "Eligible", "Means", "Models", "Near", "OneHot", "Ridges", "View", "make_bank",
    "make_models",
]  # fmt: skip


def make_models(n_features: int | None, one_hot: bool, eligible: Any = "updated") -> Models:
    """Return models for vectors of `n_features`, or for item ids."""
    if eligible not in get_args(Eligible):
        raise ParameterError(f"eligible is {eligible!r}, expected 'updated' or 'all'")
    _check_kind(n_features, one_hot)
    return OneHot(eligible) if one_hot else Dense(check_count("n_features", n_features), eligible)


def make_bank(n_features: int | None, one_hot: bool) -> Bank:
    """Return numbered models for vectors of `n_features`, or for item ids."""
    _check_kind(n_features, one_hot)
    return Means() if one_hot else Ridges(check_count("n_features", n_features))


def _check_kind(n_features: int | None, one_hot: bool) -> None:
    if one_hot is not True and one_hot is not False:
        raise ParameterError(f"one_hot is {one_hot!r}, expected True or False")
    if one_hot == (n_features is not None):
        raise ParameterError(
            f"n_features is {n_features!r} and one_hot is {one_hot!r}, expected exactly one kind of context: "
            "n_features=25 for feature vectors, or one_hot=True for item ids"
        )
