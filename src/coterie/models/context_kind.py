"""The contexts of policies that take features, item ids, or both."""

from collections.abc import Hashable
from typing import Any, NamedTuple

import numpy as np

from coterie.arrays import Floats
from coterie.errors import ParameterError
from coterie.models.actions import ActionLike, Actions, ActionsLike
from coterie.models.candidates import Candidates, read_both, read_one, read_table
from coterie.models.checks import check_count, check_flag, read_items


class ContextKind(NamedTuple):
    """What contexts are: vectors of `n_features`, item ids if `one_hot`, or `Candidates` with both."""

    n_features: int | None
    one_hot: bool

    def read(self, contexts: ActionsLike) -> Actions:
        """Check candidates, and return them in the format of decisions."""
        if self.n_features is None:
            return read_items(contexts)
        return (read_both if self.one_hot else read_table)(contexts, self.n_features)

    def read_one(self, context: ActionLike) -> Actions:
        """Check one context, and return it as a list of one candidate."""
        if self.n_features is not None and self.one_hot:
            return read_one(context, self.n_features)
        return self.read([context])

    def ids(self, contexts: Actions) -> list[Hashable]:
        """Return the item ids of checked candidates; none if they have no ids."""
        if not self.one_hot:
            return []
        return contexts.ids if isinstance(contexts, Candidates) else contexts

    def table(self, contexts: Actions) -> Floats:
        """Return the features of checked candidates: (candidates, n_features)."""
        if self.n_features is None:
            return np.empty((len(contexts), 0))
        return contexts.features if isinstance(contexts, Candidates) else contexts


def check_one_kind(n_features: Any, one_hot: Any) -> ContextKind:
    """Return the kind of contexts of a policy that takes features or ids; raise unless it is exactly one."""
    if check_flag("one_hot", one_hot) == (n_features is not None):
        raise ParameterError(
            f"n_features is {n_features!r} and one_hot is {one_hot!r}, expected exactly one kind of context: "
            "n_features=25 for feature vectors, or one_hot=True for item ids"
        )
    return check_kind(n_features, one_hot)


def check_kind(n_features: Any, one_hot: Any) -> ContextKind:
    """Return the kind of contexts, or raise if a parameter is not valid or there is no kind."""
    kind = ContextKind(
        None if n_features is None else check_count("n_features", n_features), check_flag("one_hot", one_hot)
    )
    if n_features is None and not one_hot:
        raise ParameterError(
            "n_features is None and one_hot is False, expected at least one kind of context: n_features=25 "
            "for feature vectors, one_hot=True for item ids, both for Candidates(ids, features)"
        )
    return kind
