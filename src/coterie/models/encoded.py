"""Candidates as hashes and numbers: what the sparse model reads, and what a log can keep.

A feature's name is hashed by BLAKE2b to 64 bits, so that names need no table; an action's id is the feature
"id=<id>". Two names that share a hash would count as one feature: with a million names that happens with a
chance of 1 in 37 million.
"""

import json
import math
from collections.abc import Hashable, Mapping, Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from coterie.errors import ContextError, FileError
from coterie.models._kernels.hierarchy.effects import Shown
from coterie.models.files import to_json

LARGEST = 1e6  # of a feature's value
MOST_CROSSES = 200_000  # of one choice: what a decision may cost

_NOTHING: tuple[NDArray[np.uint64], NDArray[np.float64]] = (np.empty(0, np.uint64), np.empty(0))


@lru_cache(maxsize=1 << 17)
def hash_name(name: str) -> int:
    """Return the 64-bit hash of a feature's name."""
    encoded = name.encode("utf-8", "surrogatepass")
    return int.from_bytes(blake2b(encoded, digest_size=8).digest(), "little")


def name_of(item: Hashable) -> str:
    """Return the feature that an id is; ids of other types than text have names of their own."""
    return f"id={item}" if isinstance(item, str) else f"id:{json.dumps(to_json(item))}"


@final
class Encoded:
    """Candidates of one choice. Indexing gives one of them, ready to be learned."""

    __slots__ = ("shown",)

    def __init__(self, shown: Shown) -> None:
        self.shown = shown

    def __len__(self) -> int:
        return len(self.shown.named)

    def __getitem__(self, k: int) -> "Encoded":
        return Encoded(cut(self.shown, range(len(self))[k]))

    def to_bytes(self) -> bytes:
        """Return one candidate as bytes: the number of context features, whether there is an id, hashes, values."""
        shown = self.shown
        head = np.array([len(shown.around), int(shown.named[0])], dtype="<u4")
        arrays = (head, shown.around, shown.names, shown.weights, shown.sizes)
        return b"".join(array.tobytes() for array in arrays)

    @classmethod
    def from_bytes(cls, data: bytes) -> "Encoded":
        """Return the candidate that `to_bytes` wrote."""
        body = data[8:]
        if len(data) < 8 or len(body) % 16:
            raise FileError(f"{len(data)} bytes are not an action's hashed features")
        n_around, named = np.frombuffer(data[:8], dtype="<u4").tolist()
        n = len(body) // 16
        if n_around > n or named > 1 or (named and n_around == n):
            raise FileError(f"an action's hashed features contradict themselves: {n_around} of {n}")
        hashes, values = np.frombuffer(body[: 8 * n], dtype="<u8"), np.frombuffer(body[8 * n :], dtype="<f8")
        if not (np.abs(values) <= LARGEST**2).all():
            raise FileError("an action's hashed features hold numbers that are not finite, or too large")
        return cls(
            Shown(
                hashes[:n_around],
                values[:n_around],
                np.array([0, n - n_around]),
                hashes[n_around:],
                values[n_around:],
                np.array([named == 1]),
            )
        )


def put_together(
    context: tuple[NDArray[np.uint64], NDArray[np.float64]],
    counts: Sequence[int],
    hashes: NDArray[np.uint64],
    sizes: NDArray[np.float64],
    named: bool,
) -> Encoded:
    """Return candidates of which each has the next `counts` features; if `named`, the first of each is its id."""
    check_crosses(len(context[0]), len(hashes))
    starts = np.zeros(len(counts) + 1, dtype=np.int64)
    np.cumsum(counts, out=starts[1:])
    return Encoded(Shown(*context, starts, hashes, sizes, np.full(len(counts), named)))


def cut(shown: Shown, k: int) -> Shown:
    """Return one candidate of several."""
    first, last = int(shown.starts[k]), int(shown.starts[k + 1])
    return Shown(
        shown.around,
        shown.weights,
        np.array([0, last - first]),
        shown.names[first:last],
        shown.sizes[first:last],
        shown.named[k : k + 1],
    )


def encode(
    context: Mapping[str, float], actions: Sequence[tuple[str | None, Mapping[str, float]]]
) -> Encoded:
    """Return candidates, each the name of its id, if any, and its features. All was checked before."""
    hashes: list[int] = []
    sizes: list[float] = []
    starts = [0]
    named = []
    for name, features in actions:
        named.append(name is not None)
        if name is not None:
            hashes.append(hash_name(name))
            sizes.append(1.0)
        if features:
            hashes += map(hash_name, features)
            sizes += features.values()
        starts.append(len(hashes))
    check_crosses(len(context), len(hashes))
    around, weights = _NOTHING
    if context:
        around = np.array([*map(hash_name, context)], dtype=np.uint64)
        weights = np.array([*context.values()], dtype=np.float64)
    return Encoded(
        Shown(
            around,
            weights,
            np.array(starts, dtype=np.int64),
            np.array(hashes, dtype=np.uint64),
            np.array(sizes, dtype=np.float64),
            np.array(named, dtype=np.bool_),
        )
    )


def check_crosses(around: int, features: int) -> None:
    """Raise if a choice would cross too many features."""
    if (2 + around) * features > MOST_CROSSES:
        raise ContextError(
            f"{around} context features and {features} features of all actions make {around * features} crosses, "
            f"expected at most {MOST_CROSSES}; send fewer features, or fewer actions"
        )


def check_features(what: str, features: Any) -> Mapping[str, float]:
    """Return features as given, if they are names with finite numbers."""
    if not isinstance(features, Mapping):
        raise ContextError(
            f'{what} is {features!r}, expected a mapping of names to numbers, such as {{"age": 3}}'
        )
    for name, value in features.items():
        if not isinstance(name, str):
            raise ContextError(f"{what} has the name {name!r}, expected text")
        try:
            number = math.nan if isinstance(value, str | bytes) else float(value)
        except (TypeError, ValueError, OverflowError):
            number = math.nan
        if not abs(number) <= LARGEST:
            raise ContextError(
                f"feature {name!r} of {what} is {value!r}, expected a finite number of at most {LARGEST:g}; "
                "for words, put them into the name, such as {'genre=jazz': 1}"
            )
    return features


def items_shown(items: list[Hashable]) -> Encoded:
    """Return item ids as candidates without features."""
    return encode({}, [(name_of(item), {}) for item in items])


def vectors_shown(vectors: NDArray[np.float64]) -> Encoded:
    """Return vectors as candidates with the features f0, f1, …, those that are 0 left out."""
    rows, columns = np.nonzero(vectors)
    names = np.array([hash_name(f"f{i}") for i in range(vectors.shape[1])], dtype=np.uint64)
    starts = np.searchsorted(rows, np.arange(len(vectors) + 1))
    return Encoded(
        Shown(
            np.empty(0, dtype=np.uint64),
            np.empty(0),
            starts.astype(np.int64),
            names[columns],
            vectors[rows, columns],
            np.zeros(len(vectors), dtype=np.bool_),
        )
    )
