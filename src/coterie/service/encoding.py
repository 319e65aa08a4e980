"""Questions as the model of all reads them: features flattened, named and hashed.

Features are flattened as `features.py` says: a name is a path, and a number is sign(v)·log(1 + |v|). A name's hash
is BLAKE2b of its UTF-8 bytes with 8 bytes of output, read as a little-endian number; the action's id is "id=<id>".
What actions send repeats from request to request, so the hashes of whole feature objects are remembered.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from coterie.models.encoded import Encoded, encode, hash_name, put_together
from coterie.service.features import flatten

REMEMBERED = 1 << 16  # feature objects

Hashed = tuple[NDArray[np.uint64], NDArray[np.float64]]

_plain = msgspec.json.Encoder()
_known: dict[bytes, Hashed] = {}
_NOTHING: Hashed = (np.empty(0, dtype=np.uint64), np.empty(0))


def hash_features(features: Sequence[Mapping[str, Any]]) -> Hashed:
    """Return the hashes and values of feature objects, in the order of `flatten`."""
    if not features:
        return _NOTHING
    sent = _plain.encode(features)
    if b"null" in sent:  # JSON writes so what is not finite, too: `flatten` refuses that
        return _hash_flat(flatten(features))
    found = _known.get(sent)
    if found is None:
        found = _hash_flat(flatten(features))
        if len(_known) >= REMEMBERED:
            _known.clear()
        if len(sent) <= 4096:
            _known[sent] = found
    return found


def _hash_flat(flat: Mapping[str, float]) -> Hashed:
    hashes = np.array([hash_name(name) for name in flat], dtype=np.uint64)
    return hashes, np.array([*flat.values()], dtype=np.float64)


def encode_question(
    ids: Sequence[str],
    features: Sequence[Sequence[Mapping[str, Any]] | None],
    context: Sequence[Mapping[str, Any]],
) -> Encoded:
    """Return actions with their ids and features, in a context."""
    around = hash_features(context)
    names = [hash_name(f"id={name}") for name in ids]
    if not any(features):
        return put_together(around, [1] * len(ids), np.array(names, dtype=np.uint64), np.ones(len(ids)), True)
    own = [hash_features(sent) if sent else _NOTHING for sent in features]
    counts = [1 + len(found) for found, _ in own]
    hashes = np.empty(sum(counts), dtype=np.uint64)
    sizes = np.ones(len(hashes))
    start = 0
    for name, count, (found, values) in zip(names, counts, own, strict=True):
        hashes[start] = name
        hashes[start + 1 : start + count] = found
        sizes[start + 1 : start + count] = values
        start += count
    return put_together(around, counts, hashes, sizes, True)


def encode_id(item: str) -> bytes:
    """Return an action that only has its id, as a log keeps it."""
    return encode({}, [(f"id={item}", {})]).to_bytes()


def encode_action(
    item: str, features: Sequence[Mapping[str, Any]] | None, context: Sequence[Mapping[str, Any]]
) -> bytes:
    """Return one action in its context, as a log keeps it."""
    return encode_question([item], [features], context).to_bytes()
