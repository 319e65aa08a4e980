"""Items that are known both by an id and by features: the usual case outside of papers."""

from collections.abc import Hashable, Iterator, Sequence
from typing import Any, NamedTuple, final, overload

import numpy as np

from coterie.arrays import Array, Floats, Ints
from coterie.errors import ContextError
from coterie.models.actions import Action, ActionLike, Actions, ActionsLike, ids_of, vectors_of
from coterie.models.checks import check_sizes, read_items, read_rows, without_tiny

# What of an item a policy may be shown. "names": an `Action` with its id and the named features of the context.
VIEWS = ("features", "ids", "both", "names", "units")


@final
class Candidates:
    """Items with an id and features each: what policies made with `n_features` and `one_hot` are shown.

    `ids` is a sequence of hashable ids and `features` an array (items, n_features) of finite numbers, of any norm.
    Raises ContextError if they cannot be read.

    >>> shown = Candidates(["jazz", "news"], [[1.0, 0.0], [0.0, 2.0]])
    >>> len(shown), shown[1].id, shown[[1, 0]].ids
    (2, 'news', ['news', 'jazz'])
    """

    __slots__ = ("features", "ids")

    ids: list[Hashable]
    features: Floats  # (len(ids), n_features)

    def __init__(self, ids: Any, features: Any) -> None:
        names = read_items(ids, "ids", "use strings, integers or tuples as ids")
        table = read_table(features)
        if len(names) != len(table):
            raise ContextError(
                f"there are {len(names)} ids and {len(table)} rows of features; give one row of features an id"
            )
        self.ids, self.features = names, table

    @classmethod
    def trusted(cls, ids: list[Hashable], features: Floats) -> "Candidates":
        """Return candidates made from a list and an array that were checked before: nothing is copied."""
        made = cls.__new__(cls)
        made.ids, made.features = ids, features
        return made

    @property
    def n_features(self) -> int:
        """How many features an item has."""
        return int(self.features.shape[1])

    def __len__(self) -> int:
        return len(self.ids)

    def __iter__(self) -> Iterator[Action]:
        return map(Action, self.ids, self.features)

    @overload
    def __getitem__(self, k: int | np.integer[Any]) -> Action: ...
    @overload
    def __getitem__(self, k: slice | Sequence[int] | Array) -> "Candidates": ...
    def __getitem__(self, k: Any) -> Any:
        """Return one `Action` for a position, `Candidates` for a slice or several positions."""
        if isinstance(k, int | np.integer):
            return Action(self.ids[k], self.features[k])
        if isinstance(k, slice):
            return Candidates.trusted(self.ids[k], self.features[k])
        rows = np.asarray(k)
        if rows.ndim != 1 or rows.dtype.kind not in "iu":
            raise ContextError(
                f"candidates[…] got {k!r}, expected a position, a slice or a list of positions"
            )
        ids = self.ids
        return Candidates.trusted([ids[row] for row in rows.tolist()], self.features[rows])

    def __eq__(self, other: object) -> bool:
        """Return whether `other` lists the same ids with the same features, in the same order."""
        if not isinstance(other, Candidates):
            return NotImplemented
        return self.ids == other.ids and np.array_equal(self.features, other.features)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        shown = ", ".join(map(repr, self.ids[:3])) + (", …" if len(self) > 3 else "")
        return f"Candidates([{shown}], {len(self)} × {self.n_features} features)"


@final
class InContext(NamedTuple):
    """Actions in the context of their rounds: item j is the action `ids[actions[j]]` in `contexts[j]`.

    >>> shown = InContext(["yes", "no"], np.array([1, 0]), np.array([[0.5, 1.0], [0.5, 1.0]]))
    >>> shown.names, shown.crossed.tolist()
    (['no', 'yes'], [[0.0, 0.0, 0.5, 1.0], [0.5, 1.0, 0.0, 0.0]])
    """

    ids: list[Hashable]  # of all actions
    actions: Ints  # (items,) positions in `ids`
    contexts: Floats  # (items, n_context)

    @property
    def names(self) -> list[Hashable]:
        """The id of each item's action."""
        return [self.ids[action] for action in self.actions.tolist()]

    @property
    def crossed(self) -> Floats:
        """Each item's features, (items, len(ids)·n_context): the context in the action's block, 0 in the others."""
        n = len(self.actions)
        table = np.zeros((n, len(self.ids), self.contexts.shape[1]))
        table[np.arange(n), self.actions] = self.contexts
        return table.reshape(n, -1)

    def at(self, rows: Ints) -> "InContext":
        """Return the items at some positions."""
        return InContext(self.ids, self.actions[rows], self.contexts[rows])


def read_table(features: Any, n_features: int | None = None) -> Floats:
    """Return features as float64 (items, n_features), of any norm; see `bounds.py` for the range of numbers."""
    table = read_rows(features, n_features, "features" if n_features is None else "contexts")
    check_sizes(table)
    return without_tiny(table)


def read_both(contexts: ActionsLike, n_features: int) -> Candidates:
    """Return candidates of a policy that was made with n_features and one_hot."""
    if isinstance(contexts, list | tuple) and any(isinstance(one, Action) for one in contexts):
        contexts = Candidates(ids_of(contexts), vectors_of(contexts))
    if not isinstance(contexts, Candidates):
        raise _other_type("contexts", contexts, "Candidates(ids, features)", n_features)
    if contexts.n_features != n_features:
        raise ContextError(
            f"context has {contexts.n_features} features, this policy was made with n_features={n_features}"
        )
    return contexts


def read_one(context: ActionLike, n_features: int) -> Candidates:
    """Return the context of `learn`, of a policy that was made with n_features and one_hot, as a list of one."""
    if not isinstance(context, Action):
        raise _other_type("context", context, "an Action such as candidates[k]", n_features)
    return read_both([context], n_features)


def _other_type(name: str, value: object, expected: str, n_features: int) -> ContextError:
    return ContextError(
        f"{name} is a {type(value).__name__}, expected {expected}: this policy was made with "
        f"n_features={n_features} and one_hot=True"
    )


def pick(items: Actions, rows: Ints) -> Actions:
    """Return the items at some positions, in the same form: features, ids, `Candidates` or `InContext`."""
    if isinstance(items, InContext):
        return items.at(rows)
    return items[rows] if isinstance(items, np.ndarray | Candidates) else [items[row] for row in rows]


def project(items: Actions, view: str) -> Actions:
    """Return of `Candidates` or `InContext` what is to be shown: "features", "ids" or "both".

    Anything else stays as it is.
    """
    if isinstance(items, InContext):
        items = Candidates.trusted(items.names, items.crossed)
    if isinstance(items, Candidates):
        return items.features if view == "features" else items.ids if view == "ids" else items
    return items
