"""Items that are known both by an id and by features: the usual case outside of papers."""

from collections.abc import Hashable, Iterator, Sequence
from typing import Any, NamedTuple, final, overload

import numpy as np
from numpy.typing import NDArray

from coterie.arrays import Floats
from coterie.errors import ContextError
from coterie.models.checks import check_order, check_whole, is_nan, read_numbers

VIEWS = ("features", "ids", "both")  # what of an item a policy may be shown


class Candidate(NamedTuple):
    """One item, its `id` and its `features`: what `learn` takes where `contexts` is a `Candidates`.

    >>> Candidates(["jazz", "news"], [[1.0, 0.0], [0.0, 2.0]])[1].id
    'news'
    """

    id: Hashable
    features: Floats  # (n_features,)


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
        names = read_ids(ids)
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

    def __iter__(self) -> Iterator[Candidate]:
        return map(Candidate, self.ids, self.features)

    @overload
    def __getitem__(self, k: int | np.integer[Any]) -> Candidate: ...
    @overload
    def __getitem__(self, k: slice | Sequence[int] | NDArray[Any]) -> "Candidates": ...
    def __getitem__(self, k: Any) -> Any:
        """Return one `Candidate` for a position, `Candidates` for a slice or several positions."""
        if isinstance(k, int | np.integer):
            return Candidate(self.ids[k], self.features[k])
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


def read_ids(ids: Any) -> list[Hashable]:
    """Return ids as a list, each hashable."""
    if isinstance(ids, str | bytes):
        raise ContextError(f"ids is the single string {ids!r}; give a list of ids, such as [{ids!r}]")
    check_order(ids)
    check_whole("ids", ids, ContextError)
    try:
        names: list[Hashable] = ids.tolist() if isinstance(ids, np.ndarray) else list(ids)
    except TypeError as error:
        raise ContextError(f"ids is {ids!r}, expected a sequence of item ids") from error
    if not names:
        raise ContextError("the candidate list is empty; give at least one candidate")
    for name in names:
        try:
            hash(name)
        except TypeError as error:
            raise ContextError(
                f"item id {name!r} is unhashable; use strings, integers or tuples as ids"
            ) from error
        if is_nan(name):
            raise ContextError(
                f"item id {name!r} is not equal to itself, so it would be a new item each time"
            )
    return names


def read_table(features: Any, n_features: int | None = None) -> Floats:
    """Return features as float64 (items, n_features), all finite, of any norm."""
    what = "features" if n_features is None else "contexts"
    check_order(features)
    table = read_numbers(what, features, "one row a candidate")
    if table.ndim in (1, 2) and table.shape[0] == 0:
        raise ContextError("the candidate list is empty; give at least one candidate")
    if table.ndim != 2 or table.shape[1] == 0:
        raise ContextError(
            f"{what} have shape {table.shape}, expected (candidates, {n_features or 'n_features'}): one row a "
            "candidate"
        )
    if n_features not in (None, table.shape[1]):
        raise ContextError(
            f"context has {table.shape[1]} features, this policy was made with n_features={n_features}"
        )
    if not np.isfinite(table).all():
        k = int(np.argmin(np.isfinite(table).all(axis=1)))
        raise ContextError(f"context {k} holds NaN or infinity; every feature must be a finite number")
    return table


def read_both(contexts: Any, n_features: int) -> Candidates:
    """Return candidates of a policy that was made with n_features and one_hot."""
    if not isinstance(contexts, Candidates):
        raise ContextError(
            f"contexts is a {type(contexts).__name__}, expected Candidates(ids, features): this policy was made "
            f"with n_features={n_features} and one_hot=True"
        )
    if contexts.n_features != n_features:
        raise ContextError(
            f"context has {contexts.n_features} features, this policy was made with n_features={n_features}"
        )
    return contexts


def read_one(context: Any, n_features: int) -> Candidates:
    """Return what `learn` got, of a policy that was made with n_features and one_hot, as a list of one."""
    if not isinstance(context, Candidate):
        raise ContextError(
            f"context is a {type(context).__name__}, expected a Candidate such as candidates[k]: this policy was "
            f"made with n_features={n_features} and one_hot=True"
        )
    return read_both(Candidates([context.id], [context.features]), n_features)


def pick(items: Any, rows: NDArray[np.int64]) -> Any:
    """Return the items at some positions, as a policy's `contexts`: of features, ids or `Candidates`."""
    return items[rows] if isinstance(items, np.ndarray | Candidates) else [items[row] for row in rows]


def project(items: Any, view: str) -> Any:
    """Return of `Candidates` what is to be shown: "features", "ids" or "both". Anything else stays as it is."""
    if isinstance(items, Candidates):
        return items.features if view == "features" else items.ids if view == "ids" else items
    return items
