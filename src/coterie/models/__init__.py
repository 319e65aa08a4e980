"""The users' models, in several representations behind one protocol."""

from typing import Any, get_args

from coterie.errors import ParameterError
from coterie.models.checks import check_count
from coterie.models.dense import Dense
from coterie.models.one_hot import OneHot
from coterie.models.protocol import Eligible, Models, Near, View

__all__ = ["Dense", "Eligible", "Models", "Near", "OneHot", "View", "make_models"]


def make_models(n_features: int | None, one_hot: bool, eligible: Any = "updated") -> Models:
    """Return models for vectors of `n_features`, or for item ids."""
    if eligible not in get_args(Eligible):
        raise ParameterError(f"eligible is {eligible!r}, expected 'updated' or 'all'")
    if one_hot is not True and one_hot is not False:
        raise ParameterError(f"one_hot is {one_hot!r}, expected True or False")
    if one_hot == (n_features is not None):
        raise ParameterError(
            f"n_features is {n_features!r} and one_hot is {one_hot!r}, expected exactly one kind of context: "
            "n_features=25 for feature vectors, or one_hot=True for item ids"
        )
    return OneHot(eligible) if one_hot else Dense(check_count("n_features", n_features), eligible)
