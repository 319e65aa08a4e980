"""One form for everything that can be chosen: `Action(id, features, context)`. Its shorthands are read here.

id
    Any hashable id, or None.
features
    A vector of numbers, or a mapping of names to numbers and words. A word becomes part of the name: {"genre":
    "jazz"} is {"genre=jazz": 1}. True is 1. False, and None for a value that is not known, are left out. NaN is
    refused: in a mapping, give None or leave the name out. Above a million, a number of a mapping grows by its
    logarithm only: v counts as 1e6·(1 + log(v/1e6)).
context
    A vector or a mapping, like the features: what is known of the moment, the same for all actions of one choice.

An id alone is short for `Action(id)`, and a vector or a mapping alone for `Action(features=…)`. `Candidates(ids,
features)` is many actions with ids and vectors, in columns. A policy over ids reads the ids of actions, one over
vectors of length d their vectors, one over both needs both, and one over names (`takes_names`) reads everything. What
is missing is named with the action's place in the list.
"""

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias, final

import numpy as np

from coterie.arrays import Array
from coterie.errors import ContextError
from coterie.models.ranges import LARGEST

if TYPE_CHECKING:
    from coterie.models.candidates import Candidates
    from coterie.models.encoded import Encoded


@final
@dataclass(frozen=True)
class Action:
    """An action: its id, its features, and the context of the choice.

    >>> Action("blue train", {"genre": "jazz", "year": 1957}, {"hour": 21}).id
    'blue train'
    >>> named_features("the action", {"genre": "jazz", "year": 1957, "live": False, "label": None})
    {'genre=jazz': 1.0, 'year': 1957.0}
    """

    id: Hashable = None
    features: Any = field(default_factory=dict)
    context: Any = field(default_factory=dict)


ActionLike: TypeAlias = "Hashable | list[Any] | Array | dict[str, Any]"
"""What is read as an action: an `Action` or an id, a vector, or named features."""

ActionsLike: TypeAlias = "Sequence[ActionLike] | Array | Candidates | Encoded"
"""What is read as the actions of one choice."""

Actions: TypeAlias = Any
"""What a policy's `read` returned, or one of it: vectors, ids, `Candidates` or `Encoded`, as its model needs them."""


def ids_of(contexts: ActionsLike) -> Any:
    """Return the ids of actions, in a list or in columns; what is neither stays as it is."""
    if isinstance(contexts, list | tuple) and any(isinstance(one, Action | Mapping) for one in contexts):
        found = [one.id if isinstance(one, Action) else one for one in contexts]
        for k, name in enumerate(found):
            if name is None or isinstance(name, Mapping):
                raise ContextError(
                    f"action {k} has no id, and this policy knows actions by their ids; give Action(id, …)"
                )
        return found
    return getattr(contexts, "ids", contexts)


def vectors_of(contexts: ActionsLike) -> Any:
    """Return the vectors of actions, in a list or in columns; what is neither stays as it is."""
    if isinstance(contexts, list | tuple) and any(isinstance(one, Action | Mapping) for one in contexts):
        found = [one.features if isinstance(one, Action) else one for one in contexts]
        for k, features in enumerate(found):
            if isinstance(features, Mapping):
                raise ContextError(
                    f"action {k} has {'named features' if features else 'no features'}, and this policy takes "
                    "vectors; give Action(features=[…]), or use a policy that takes names"
                )
        return found
    return getattr(contexts, "features", contexts)


def read_features(what: str, features: Any) -> dict[str, float]:
    """Return named features; those of a vector have the names f0, f1, …, and None has none."""
    if features is None:
        return {}
    if isinstance(features, np.ndarray | list | tuple):
        for value in features:
            if isinstance(value, str | bytes):
                raise ContextError(
                    f"the vector of {what} has {value!r}, expected numbers; give words by name"
                )
        features = {f"f{i}": value for i, value in enumerate(features) if _is_not_zero(value)}
    return named_features(what, features)


def _is_not_zero(value: Any) -> bool:
    return not isinstance(value, float | int | np.generic) or bool(value)


def named_features(what: str, features: Any) -> dict[str, float]:
    """Return features as names with finite numbers, words as parts of names; raise if they cannot be read."""
    if not isinstance(features, Mapping):
        raise ContextError(
            f'{what} is {features!r}, expected a mapping of names to numbers or words, such as {{"age": 3}}'
        )
    found: dict[str, float] = {}
    for name, value in features.items():
        if not isinstance(name, str):
            raise ContextError(f"{what} has the name {name!r}, expected text")
        if type(value) is float and -LARGEST <= value <= LARGEST:
            found[name] = value
        elif isinstance(value, str):
            found[f"{name}={value}"] = 1.0
        elif value is not None and value is not False:
            found[name] = _number(what, name, value)
    return found


def _number(what: str, name: str, value: Any) -> float:
    try:
        number = math.nan if isinstance(value, bytes) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise ContextError(
            f"feature {name!r} of {what} is {value!r}, expected a word or a finite number; leave out what is not "
            "known, or give None"
        )
    size = abs(number)
    return number if size <= LARGEST else math.copysign(LARGEST * (1.0 + math.log(size / LARGEST)), number)
