"""Questions as the one model of ids, features, contexts and users reads them: features flattened and hashed.

Features are flattened as `features.py` says: a name is a path, and a number is sign(v)·log(1 + |v|). A name's hash
is BLAKE2b of its UTF-8 bytes with 8 bytes of output, read as a little-endian number; the action's id is "id=<id>".
The same features come with many requests, so what is made of them is kept with them.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from coterie.arrays import Floats
from coterie.data.logs.records import Features, ShownAction
from coterie.models.encoded import Encoded, encode_hashed, in_context
from coterie.models.features import count, flatten, hash_name, hash_names

ONE = np.ones(1).tobytes()
Hashed = tuple[bytes, bytes]  # hashes and values

_plain = msgspec.json.Encoder()


class KnownFeatures(list[Any]):
    """Features that are sent again and again, with what every decision makes of them."""

    def __init__(self, features: Features) -> None:
        super().__init__(features)
        self.plain = msgspec.Raw(_plain.encode(features))
        self.size = count(features)  # values

    @cached_property
    def hashed(self) -> Hashed:
        """Their hashes and values."""
        return _hash(self)


class KnownActions(list[Any]):
    """A list of actions that is sent again and again, checked, with what every decision makes of it."""

    def __init__(self, actions: Sequence[Any]) -> None:
        super().__init__(actions)
        features = [action.features for action in actions]
        self.ids = [action.id for action in actions]
        self.featured = any(features)
        self.size = sum(count(own) for own in features if own)  # values
        self.plain = msgspec.Raw(_plain.encode([plain_features(own) for own in features]))

    @cached_property
    def encoded(self) -> Encoded:
        """All of them, without a context."""
        return encode_question(self.ids, [one.features for one in self], ())


def plain_features(features: Features | None) -> Features | msgspec.Raw | None:
    """Return what encodes to the JSON of features, faster if they are known."""
    return features.plain if isinstance(features, KnownFeatures) else features


def hash_features(features: Features) -> Hashed:
    """Return the hashes and values of feature objects, in the order of `flatten`."""
    return features.hashed if isinstance(features, KnownFeatures) else _hash(features)


def _hash(features: Features) -> Hashed:
    if not features:
        return b"", b""
    hashes, values = hash_names(flatten(features))
    return hashes.tobytes(), values.tobytes()


def encode_known(actions: KnownActions, context: Features) -> Encoded:
    """Return what `encode_question` does, for a list that is known."""
    if not context:
        return actions.encoded
    return in_context(actions.encoded.hashed, *_arrays(hash_features(context)))


def encode_question(
    ids: Sequence[str],
    features: Sequence[Features | None],
    context: Features,
) -> Encoded:
    """Return actions with their ids and features, in a context."""
    found = [hash_features(own or ()) for own in features]
    hashes = b"".join([part for name, (own, _) in zip(ids, found, strict=True) for part in (_id(name), own)])
    values = b"".join([part for _, own in found for part in (ONE, own)])
    counts = [1 + len(own) // 8 for own, _ in found]
    return encode_hashed(_arrays(hash_features(context)), counts, *_arrays((hashes, values)), has_id=True)


def _id(name: str) -> bytes:
    return hash_name(f"id={name}").to_bytes(8, "little")


def _arrays(hashed: Hashed) -> tuple[NDArray[np.uint64], Floats]:
    return np.frombuffer(hashed[0], dtype=np.uint64), np.frombuffer(hashed[1])


def shown(item: str, features: Features | None, context: Features) -> ShownAction:
    """Return an action that was shown in a context."""
    return ShownAction.of(item, encode_question([item], [features], context), featured=bool(features))
