"""Records to learn from directly: users, items and payoffs, independent of the policy's own choices."""

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np

from coterie.errors import ContextError, ParameterError
from coterie.models.actions import Action, Actions, ActionsLike
from coterie.models.candidates import Candidates, project, read_both, read_table
from coterie.models.checks import check_users, read_items, read_vectors
from coterie.policies.base.batch import Batch


def as_batch(policy: Any, users: Sequence[Hashable], contexts: Any, payoffs: Any) -> Batch:
    """Return records as rounds with a single candidate, which was served."""
    check_users(users)
    counts = []
    for name, values in (("users", users), ("contexts", contexts), ("payoffs", payoffs)):
        try:
            counts.append(len(values))
        except TypeError as error:
            raise ContextError(
                f"{name} is {values!r}, expected a sequence with one for each record"
            ) from error
    if len(set(counts)) > 1:
        raise ContextError(
            f"there are {counts[0]} users, {counts[1]} contexts and {counts[2]} payoffs; give one of each for every "
            "record"
        )
    if not counts[0]:
        return of_places(users, [], np.zeros(0, dtype=np.int64), payoffs)
    if _by_name(policy):
        items = list(contexts)
        for item in items:
            policy.read([item])  # raises; each has a context of its own
        return of_places(users, items, np.arange(len(items)), payoffs)
    if isinstance(contexts, Candidates) or policy.n_features is not None:
        items = read_for(policy, contexts)
        return of_places(users, items, np.arange(len(items)), payoffs)
    place: dict[Hashable, int] = {}
    places = [place.setdefault(item, len(place)) for item in read_items(contexts)]
    return of_places(users, list(place), np.array(places, dtype=np.int64), payoffs)


def _by_name(policy: Any) -> bool:
    """Return whether a policy reads ids, named features and contexts."""
    return bool(policy.takes_names and policy.n_features is None and not policy.one_hot)


def read_for(policy: Any, items: ActionsLike) -> Actions:
    """Return items in a policy's format: features, ids, or both."""
    if policy.n_features is None:
        return read_items(project(items, "ids"))
    if policy.one_hot:
        return read_both(items, policy.n_features)
    read = read_table if policy.takes_both else read_vectors
    return read(project(items, "features"), policy.n_features)


def of_places(users: Sequence[Hashable], items: Actions, places: Any, payoffs: Any) -> Batch:
    """Return records as rounds, not yet checked, where `places` are positions in `items`."""
    return Batch(users, np.asarray(places)[:, None], items, payoffs, np.zeros(len(places), dtype=np.int64))


def read_log(policy: Any, log: Any) -> Batch:
    """Return all records of what `open_log` returned, or of a table with user, item (or features) and payoff."""
    if hasattr(log, "every_record"):
        users, places, payoffs = log.every_record()
        by = "ids" if policy.n_features is None else "features"
        has = "ids" if isinstance(log.items, list) else "features"
        if not isinstance(log.items, Candidates) and by != has:
            raise ContextError(f"this policy knows items by {by}, those of the log have {has}")
        return of_places(users, read_for(policy, log.items), places, payoffs)
    what = "item" if policy.n_features is None else "features"
    table = not isinstance(log, str | bytes) and (isinstance(log, Mapping) or hasattr(log, "columns"))
    if table and _by_name(policy):
        there = log if isinstance(log, Mapping) else getattr(log, "column_names", log.columns)
        columns = [_as_list(log[name]) if name in there else None for name in ("item", "features", "context")]
        users, payoffs = (_as_list(log[name]) for name in ("user", "payoff"))
        n = len(users)
        empty: list[list[Any]] = [[None] * n, [{}] * n, [{}] * n]
        given = [none if column is None else column for column, none in zip(columns, empty, strict=True)]
        return as_batch(policy, users, list(map(Action, *given)), payoffs)
    found = {}
    for name in ("user", what, "payoff"):
        try:
            if not table:
                raise KeyError
            found[name] = _as_list(log[name])
        except (KeyError, LookupError) as error:
            raise ParameterError(
                f"fit takes a log: what open_log(…) returns, or a table with the columns user, {what} and payoff; "
                f"got {type(log).__name__} without {name!r}"
            ) from error
    return as_batch(policy, found["user"], found[what], found["payoff"])


def _as_list(column: Any) -> Any:
    """Return a column of any kind of table as a list."""
    for method in ("to_pylist", "to_list", "tolist"):
        if hasattr(column, method):
            return getattr(column, method)()
    return column
