"""Candidates as hashes and numbers: the input of the model of named features, and the format of logs.

A feature's name is hashed by BLAKE2b to 64 bits, so that no table of names is needed; an action's id is the feature
"id=<id>". Two names with the same hash would count as one feature: with a million names the probability is 1 in 37
million.
"""

import json
from collections.abc import Hashable, Mapping, Sequence
from itertools import pairwise
from struct import Struct
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from coterie.arrays import Floats
from coterie.errors import ContextError, FileError
from coterie.models._kernels.hierarchy.effect_keys import HashedItems
from coterie.models.actions import Action, Actions, ActionsLike, read_features
from coterie.models.candidates import read_table
from coterie.models.checks import check_item, list_candidates, without_tiny
from coterie.models.features import cross, hash_name, hash_names
from coterie.models.files import to_json
from coterie.models.ranges import PRODUCT

__all__ = ["Encoded", "HashedItems", "encode", "encode_hashed", "in_context", "name_of", "read_actions"]

HEAD = Struct("<II")
MOST_CROSSES = 1_000_000  # of all actions in one choice, to limit the cost of a decision
LARGEST_ACTION = 200_000  # crosses of one action, to limit what learning it adds to the model


def name_of(item: Hashable) -> str:
    """Return the name of the feature that stands for an id; ids that are not text get names of their own."""
    return f"id={item}" if isinstance(item, str) else f"id:{json.dumps(to_json(item))}"


@final
class Encoded:
    """The candidates of one choice. Indexing returns one of them, for `learn`."""

    __slots__ = ("hashed",)

    def __init__(self, hashed: HashedItems) -> None:
        self.hashed = hashed

    def __len__(self) -> int:
        return len(self.hashed.has_id)

    def __getitem__(self, k: int) -> "Encoded":
        return Encoded(_one_of(self.hashed, range(len(self))[k]))

    def vectors(self, dimensions: int) -> Floats:
        """Return them as vectors, each of norm 1 or all zero: (candidates, dimensions); see `features.py`."""
        hashed, rows = self.hashed, np.zeros((len(self), dimensions))
        for row, (first, last) in zip(rows, pairwise(hashed.starts.tolist()), strict=True):
            own = hashed.features[first:last], hashed.values[first:last]
            row[:] = cross(hashed.context, hashed.context_values, *own, dimensions)
        return rows

    def to_bytes(self, k: int = 0) -> bytes:
        """Return a candidate as bytes: the number of context features, whether there is an id, hashes, values."""
        hashed = self.hashed
        head = HEAD.pack(len(hashed.context), bool(hashed.has_id[k]))
        own = slice(*hashed.starts[k : k + 2].tolist())
        arrays = (hashed.context, hashed.features[own], hashed.context_values, hashed.values[own])
        return head + b"".join([array.tobytes() for array in arrays])

    @classmethod
    def from_bytes(cls, data: bytes) -> "Encoded":
        """Return the candidate that `to_bytes` wrote."""
        body = data[8:]
        if len(data) < 8 or len(body) % 16:
            raise FileError(f"{len(data)} bytes are not an action's hashed features")
        n_context, has_id = np.frombuffer(data[:8], dtype="<u4").tolist()
        n = len(body) // 16
        if n_context > n or has_id > 1 or (has_id and n_context == n):
            raise FileError(f"an action's hashed features contradict themselves: {n_context} of {n}")
        hashes, values = np.frombuffer(body[: 8 * n], dtype="<u8"), np.frombuffer(body[8 * n :], dtype="<f8")
        if not (np.abs(values) <= PRODUCT).all():
            raise FileError("an action's hashed features hold numbers that are not finite, or too large")
        return cls(
            HashedItems(
                hashes[:n_context],
                values[:n_context],
                np.array([0, n - n_context]),
                hashes[n_context:],
                values[n_context:],
                np.array([has_id == 1]),
            )
        )


def encode_hashed(
    context: tuple[NDArray[np.uint64], Floats],
    counts: Sequence[int],
    hashes: NDArray[np.uint64],
    values: Floats,
    has_id: bool,
) -> Encoded:
    """Return candidates; each has the next `counts` features, and if `has_id`, its first feature is its id."""
    check_crosses(len(context[0]), len(hashes), max(counts, default=0))
    starts = np.zeros(len(counts) + 1, dtype=np.int64)
    np.cumsum(counts, out=starts[1:])
    return Encoded(HashedItems(*context, starts, hashes, values, np.full(len(counts), has_id)))


def in_context(hashed: HashedItems, context: NDArray[np.uint64], values: Floats) -> Encoded:
    """Return candidates that have no context in one."""
    largest = int((hashed.starts[1:] - hashed.starts[:-1]).max())
    check_crosses(len(context), len(hashed.features), largest)
    return Encoded(HashedItems(context, values, *hashed[2:]))


def _one_of(hashed: HashedItems, k: int) -> HashedItems:
    """Return one of several candidates."""
    first, last = int(hashed.starts[k]), int(hashed.starts[k + 1])
    return hashed._replace(
        starts=np.array([0, last - first]),
        features=hashed.features[first:last],
        values=hashed.values[first:last],
        has_id=hashed.has_id[k : k + 1],
    )


def encode(
    context: Mapping[str, float], actions: Sequence[tuple[str | None, Mapping[str, float]]]
) -> Encoded:
    """Return candidates, each given by the name of its id, if any, and its features; all must be checked."""
    hashes: list[int] = []
    values: list[float] = []
    starts = [0]
    for name, features in actions:
        if name is not None:
            hashes.append(hash_name(name))
            values.append(1.0)
        if features:
            hashes += map(hash_name, features)
            values += features.values()
        starts.append(len(hashes))
    check_crosses(len(context), len(hashes), max(map(int.__sub__, starts[1:], starts), default=0))
    around, sizes = hash_names(context)
    return Encoded(
        HashedItems(
            around,
            without_tiny(sizes),
            np.array(starts, dtype=np.int64),
            np.array(hashes, dtype=np.uint64),
            without_tiny(np.array(values, dtype=np.float64)),
            np.array([name is not None for name, _ in actions], dtype=np.bool_),
        )
    )


def check_crosses(context: int, features: int, largest: int) -> None:
    """Raise if a choice would cross too many features, of all actions or of the largest one."""
    for whose, own, most in (
        ("all actions", features, MOST_CROSSES),
        ("one action", largest, LARGEST_ACTION),
    ):
        if (2 + context) * own > most:
            raise ContextError(
                f"{context} context features and {own} features of {whose} make {context * own} crosses, "
                f"expected at most {most}; send fewer features, or fewer actions"
            )


def read_actions(contexts: ActionsLike) -> tuple[Actions, Encoded]:
    """Check the candidates of one choice, and return them, and as numbers.

    They are `Action`s, or ids, vectors and mappings, which are short for them.
    """
    if isinstance(contexts, Encoded):
        return contexts, contexts
    if isinstance(contexts, np.ndarray) and contexts.ndim == 2:
        return contexts, encode_vectors(read_table(contexts))
    if isinstance(contexts, Mapping | Action):
        raise ContextError(f"contexts is {contexts!r}, expected a list of actions, such as [{contexts!r}]")
    if type(contexts) is list and {*map(type, contexts)} == {str} and 2 * len(contexts) <= MOST_CROSSES:
        return [*contexts], _encode_ids(contexts)
    actions = list_candidates(contexts, of="actions")
    context = actions[0].context if isinstance(actions[0], Action) else {}
    around = read_features("the context", context)
    found: list[tuple[str | None, Mapping[str, float]]] = []
    for k, given in enumerate(actions):
        action = given if isinstance(given, Action) else _as_action(given)
        if action.context is not context and read_features("the context", action.context) != around:
            raise ContextError(f"action {k} has another context than the first; all must share one")
        found.append((_name(action.id), read_features(f"action {k}", action.features)))
    return actions, encode(around, found)


def _encode_ids(names: list[str]) -> Encoded:
    """Return candidates that have ids and nothing else."""
    n = len(names)
    hashes = np.fromiter(map(hash_name, map("id=".__add__, names)), np.uint64, n)
    return Encoded(
        HashedItems(
            np.empty(0, dtype=np.uint64),
            np.empty(0),
            np.arange(n + 1),
            hashes,
            np.ones(n),
            np.ones(n, np.bool_),
        )
    )


def _as_action(given: Any) -> Action:
    """Return the action that a mapping, a vector or an id is short for."""
    return Action(features=given) if isinstance(given, Mapping | np.ndarray | list) else Action(given)


def _name(item: Hashable) -> str | None:
    """Return the name of the feature that stands for an id, if there is one."""
    if item is None:
        return None
    check_item(item)
    return name_of(item)


def encode_vectors(vectors: Floats) -> Encoded:
    """Return vectors as candidates with the features f0, f1, …, without those that are 0."""
    rows, columns = np.nonzero(vectors)
    names = np.array([hash_name(f"f{i}") for i in range(vectors.shape[1])], dtype=np.uint64)
    starts = np.searchsorted(rows, np.arange(len(vectors) + 1))
    return Encoded(
        HashedItems(
            np.empty(0, dtype=np.uint64),
            np.empty(0),
            starts.astype(np.int64),
            names[columns],
            vectors[rows, columns],
            np.zeros(len(vectors), dtype=np.bool_),
        )
    )
