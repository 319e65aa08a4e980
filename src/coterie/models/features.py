"""Features as vectors: a stable signed hashing that any client can reproduce.

1. Flatten. A path is the keys of a nested object joined by ".". A string s at path p is the feature "p=s" with
   value 1; true is "p" with value 1; false and null add nothing; a number v is "p" with value
   sign(v)·log(1 + |v|); the elements of a list have the path of the list. The action's id is the feature
   "id=<id>" of the action. Equal features of the action, or of the context, are added; a value below 1e-20 is 0.
2. Hash. h(feature) is BLAKE2b of its UTF-8 bytes with 8 bytes of output, read as a little-endian number.
3. Cross. Context feature c and action feature a give the hash mix(h(c)·0x9E3779B97F4A7C15 + h(a)) with value
   c·a; each action feature alone has the hash mix(h(a)). mix is SplitMix64's finaliser; all is modulo 2⁶⁴.
4. Place. A hash z adds ±value at position (z mod 2⁶³) mod dimensions, minus if z ≥ 2⁶³.
5. Scale. The vector is divided by its Euclidean norm; all zeros stay zeros.

>>> context, action = flatten([{"device": {"mobile": True}}]), flatten([{"id": "a"}, {"type": "news"}])
>>> cross(*hash_names(context), *hash_names(action), 8).round(3).tolist()
[0.408, 0.408, 0.0, 0.0, 0.0, -0.816, 0.0, 0.0]
"""

import math
import sys
from collections.abc import Mapping, Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie.arrays import Floats, JsonObject
from coterie.errors import ContextError
from coterie.models.ranges import LARGEST, TINY

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
DEPTH = 16  # how deep feature objects may nest
NESTS = (dict, list, tuple)  # what holds other values

Hashes = NDArray[np.uint64]
FeatureObjects = Sequence[Mapping[str, Any]]  # as JSON has them: they may nest, and hold words


def flatten(features: FeatureObjects) -> dict[str, float]:
    """Return feature objects as named numbers."""
    found: dict[str, float] = {}
    for part in features:
        _walk(part, "", found, 0)
    for path, value in found.items():
        if not TINY <= abs(value) <= LARGEST:
            if abs(value) > LARGEST:
                raise ContextError(
                    f"feature {path[:80]!r} adds up to {value:g}, expected at most {LARGEST:g}; send it less often"
                )
            found[path] = 0.0
    return found


def _walk(value: Any, path: str, found: dict[str, float], depth: int) -> None:
    if depth > DEPTH:
        raise ContextError(f"features nest deeper than {DEPTH} levels at {path[:80]!r}")
    if isinstance(value, Mapping):
        for key, inner in value.items():
            _walk(inner, f"{path}.{key}" if path else str(key), found, depth + 1)
    elif isinstance(value, list | tuple):
        for inner in value:
            _walk(inner, path, found, depth + 1)
    elif isinstance(value, str):
        found[f"{path}={value}"] = found.get(f"{path}={value}", 0.0) + 1.0
    elif value is True:
        found[path] = found.get(path, 0.0) + 1.0
    elif isinstance(value, int | float) and value is not False:
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if not math.isfinite(number):
            raise ContextError(f"feature {path[:80]!r} is {str(value)[:40]}, expected a finite number")
        found[path] = found.get(path, 0.0) + math.copysign(math.log1p(abs(number)), number)


def id_at(features: Mapping[str, Any], keys: Sequence[str]) -> str | int | float | None:
    """Return the value at nested keys, if it can be an id: text that is not empty, or a number."""
    value: Any = features
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    fits = isinstance(value, str | int | float) and not isinstance(value, bool) and value != ""
    return value if fits else None


def without(features: Mapping[str, Any], keys: Sequence[str]) -> JsonObject:
    """Return a copy without the value at nested keys, which must exist."""
    copy = dict(features)
    if len(keys) == 1:
        del copy[keys[0]]
    else:
        copy[keys[0]] = without(copy[keys[0]], keys[1:])
    return copy


def _inside(level: Sequence[Any]) -> list[Any]:
    """Return the values directly in some objects and lists."""
    return [value for around in level for value in (around.values() if isinstance(around, dict) else around)]


def check_readable(groups: Sequence[FeatureObjects]) -> None:
    """Raise if features nest too deep, including features that only another policy would read."""
    level: list[Any] = [part for features in groups for part in features]
    for _ in range(DEPTH):
        level = [value for value in _inside(level) if isinstance(value, NESTS)]
        if not level:
            return
    for features in groups:
        flatten(features)  # raises, and says where


def count(features: Any, most: int = sys.maxsize // DEPTH - 1) -> int:
    """Return how many values nested feature objects have, at most `most` + 1.

    Counting stops soon after `most` values, or after as many objects and lists as so many values can need.
    """
    level, found, seen, enough = [features], 0, 0, DEPTH * (most + 1)
    while level:
        seen += sum(map(len, level))
        if found > most or seen > enough:
            return most + 1
        inside = _inside(level)
        level = [value for value in inside if isinstance(value, NESTS)]
        found += len(inside) - len(level)
    return min(found, most + 1)


@lru_cache(maxsize=1 << 17)
def hash_name(name: str) -> int:
    """Return the 64-bit hash of a feature's name."""
    encoded = name.encode("utf-8", "surrogatepass")
    return int.from_bytes(blake2b(encoded, digest_size=8).digest(), "little")


def hash_names(features: Mapping[str, float]) -> tuple[Hashes, Floats]:
    """Return the hashes and values of flat features."""
    hashes = np.array([hash_name(name) for name in features], dtype=np.uint64)
    return hashes, np.array(list(features.values()), dtype=np.float64)


def _mix(z: Hashes) -> Hashes:
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def cross(around: Hashes, weights: Floats, own: Hashes, values: Floats, dimensions: int) -> Floats:
    """Return the vector of an action from the hashes and values of its context and of its own features."""
    row = np.zeros(dimensions)
    crossed = (around[:, None] * GOLDEN + own[None, :]).ravel()
    z = _mix(np.concatenate([own, crossed]))
    value = np.concatenate([values, np.outer(weights, values).ravel()])
    place = ((z & np.uint64(2**63 - 1)) % np.uint64(dimensions)).astype(np.intp)
    np.add.at(row, place, np.where(z >> np.uint64(63), -value, value))
    norm = math.sqrt(float(row @ row))
    return row / norm if norm > 0 else row
