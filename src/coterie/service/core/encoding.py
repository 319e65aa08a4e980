"""Questions as the one model of ids, features, contexts and users reads them: features flattened and hashed.

Features are flattened as `features.py` says: a name is a path, and a number is sign(v)·log(1 + |v|). A name's hash
is BLAKE2b of its UTF-8 bytes with 8 bytes of output, read as a little-endian number; the action's id is "id=<id>".
The same features come with many requests, so the hashes of whole feature objects are remembered.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from coterie.data.logs.records import Features, ShownAction
from coterie.models.encoded import Encoded, HashedItems, encode_hashed, in_context
from coterie.models.features import count, flatten, hash_name, hash_names

REMEMBERED = 1 << 16  # feature objects

Hashed = tuple[NDArray[np.uint64], NDArray[np.float64]]

_plain = msgspec.json.Encoder()
_known: dict[bytes, Hashed] = {}
_actions: dict[tuple[str, bytes], tuple[bytes, bytes]] = {}
_NOTHING: Hashed = (np.empty(0, dtype=np.uint64), np.empty(0))


class KnownFeatures(list[Mapping[str, Any]]):
    """Features that are sent again and again, with what every decision makes of them."""

    __slots__ = ("alone", "hashed", "plain", "size")

    def __init__(self, features: Features) -> None:
        super().__init__(features)
        self.plain = msgspec.Raw(_plain.encode(features))
        self.size = count(features)  # values
        self.alone: Hashed | None = None  # see hash_features
        self.hashed: tuple[bytes, bytes] | None = None  # with the action's id; see _hash_action


class KnownActions(list[Any]):
    """A list of actions that is sent again and again, checked, with what every decision makes of it."""

    __slots__ = ("featured", "hashed", "ids", "plain", "size")

    def __init__(self, actions: Sequence[Any]) -> None:
        super().__init__(actions)
        features = [action.features for action in actions]
        self.ids = [action.id for action in actions]
        self.featured = any(features)
        self.size = sum(count(own) for own in features if own)  # values
        self.plain = msgspec.Raw(_plain.encode([plain_features(own) for own in features]))
        self.hashed: HashedItems | None = None  # without a context; see encode_question


def plain_features(features: Features | None) -> Features | msgspec.Raw | None:
    """Return what encodes to the JSON of features, faster if they are known."""
    return features.plain if isinstance(features, KnownFeatures) else features


def hash_features(features: Features) -> Hashed:
    """Return the hashes and values of feature objects, in the order of `flatten`."""
    if not features:
        return _NOTHING
    if isinstance(features, KnownFeatures):
        if features.alone is None:
            features.alone = hash_names(flatten(features))
        return features.alone
    sent = _plain.encode(features)
    if b"null" in sent:  # JSON also writes what is not finite so, which `flatten` refuses
        return hash_names(flatten(features))
    found = _known.get(sent)
    if found is None:
        found = hash_names(flatten(features))
        _remember(_known, sent, found, len(sent))
    return found


def encode_known(actions: KnownActions, context: Features) -> Encoded:
    """Return what `encode_question` does, for a list that is known."""
    if actions.hashed is None:
        actions.hashed = encode_question(actions.ids, [one.features for one in actions], ()).hashed
    return in_context(actions.hashed, *hash_features(context))


def encode_question(
    ids: Sequence[str],
    features: Sequence[Features | None],
    context: Features,
) -> Encoded:
    """Return actions with their ids and features, in a context."""
    around = hash_features(context)
    if not any(features):
        names = np.array([hash_name(f"id={name}") for name in ids], dtype=np.uint64)
        return encode_hashed(around, [1] * len(ids), names, np.ones(len(ids)), True)
    found = [_hash_action(name, sent) for name, sent in zip(ids, features, strict=True)]
    return encode_hashed(
        around,
        [len(hashes) // 8 for hashes, _ in found],
        np.frombuffer(b"".join([hashes for hashes, _ in found]), dtype=np.uint64),
        np.frombuffer(b"".join([sizes for _, sizes in found])),
        True,
    )


def _hash_action(name: str, features: Features | None) -> tuple[bytes, bytes]:
    """Return the hashes and values of an action as bytes, the id first."""
    if isinstance(features, KnownFeatures):
        if features.hashed is None:
            features.hashed = _hash_sent(name, features)
        return features.hashed
    return _hash_sent(name, features)


def _hash_sent(name: str, features: Features | None) -> tuple[bytes, bytes]:
    sent = _plain.encode(features)
    key = (name, sent)
    known = _actions.get(key)
    if known is None:
        hashes, values = hash_features(features or ())
        own = np.array([hash_name(f"id={name}")], dtype=np.uint64)
        known = own.tobytes() + hashes.tobytes(), np.ones(1).tobytes() + values.tobytes()
        if b"null" not in sent or not features:
            _remember(_actions, key, known, len(sent))
    return known


def _remember(where: dict[Any, Any], key: Any, value: Any, size: int) -> None:
    if len(where) >= REMEMBERED:
        where.clear()
    if size <= 4096:
        where[key] = value


def shown(item: str, features: Features | None, context: Features) -> ShownAction:
    """Return an action that was shown in a context."""
    return ShownAction.of(item, encode_question([item], [features], context), featured=bool(features))
