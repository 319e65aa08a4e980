"""The effects of a candidate and their keys.

An effect is what one feature, or one cross of features, adds to the payoff. Its key is a 64-bit hash of its kind and
of the hashes of its features.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from coterie.arrays import Bools, Floats, Ints
from coterie.models._kernels.given import given
from coterie.models._kernels.hierarchy.blocks import Blocked
from coterie.models._kernels.jit import jit
from coterie.models.ranges import TINY

Hashes = NDArray[np.uint64]
Hash = Any  # numpy.uint64: NumPy has no types for its arithmetic

# Kinds of effects. 0 is a free place of the table.
POPULATION, USER, ID, FEATURE = 1, 2, 3, 4
CONTEXT_ID, CONTEXT_FEATURE = 5, 6
USER_ID, USER_FEATURE, USER_CONTEXT_ID = 7, 8, 9
KINDS = 10

CROSSED = 16  # with more context features than this there are no effects of user, context and id together
GOLDEN = np.uint64(0x9E3779B97F4A7C15)
SALT = np.uint64(0xD1B54A32D192ED03)


@given
class HashedItems(NamedTuple):
    """Candidates as hashes and values of their features. Candidate k has the features starts[k] to starts[k + 1]."""

    context: Hashes  # hashes of the context's features
    context_values: Floats
    starts: Ints  # (candidates + 1,)
    features: Hashes  # hashes of the actions' features, the id first
    values: Floats
    has_id: Bools  # (candidates,) whether the first feature is an id


class Listed(NamedTuple):
    """The effects of one candidate, as `list_effects` writes them."""

    keys: Hashes
    values: Floats
    kinds: NDArray[np.uint8]
    places: Ints  # (room, 2) positions of the action's and of the context's feature, -1 for none


@jit
def mix(z: Hash) -> Hash:
    """Return the finaliser of SplitMix64 for z."""
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@jit
def user_key(user: int) -> Hash:
    """Return the key of a user's own effect. All other keys of the user are derived from it."""
    return mix(np.uint64(np.int64(user)) * GOLDEN + np.uint64(USER))


@jit
def feature_key(kind: int, feature: Hash) -> Hash:
    """Return the key of a feature's own effect."""
    return mix(feature * GOLDEN + np.uint64(kind))


@jit
def cross_key(kind: int, one: Hash, other: Hash) -> Hash:
    """Return the key of the effect of a cross."""
    return mix(mix(one * GOLDEN + np.uint64(kind)) * SALT + other)


@jit
def make_list(candidates: HashedItems) -> Listed:
    """Return room for the effects of the largest candidate. Each call has its own, so threads can read at once."""
    most = 0
    for k in range(candidates.has_id.shape[0]):
        most = max(most, candidates.starts[k + 1] - candidates.starts[k])
    n_context = candidates.context.shape[0]
    room = 2 + n_context + most * (2 + n_context)
    return Listed(
        np.empty(room, np.uint64), np.empty(room), np.empty(room, np.uint8), np.empty((room, 2), np.int64)
    )


@jit
def product(x: float, y: float) -> float:
    """Return x·y, and 0 if it is too small for its square to be a float."""
    z = x * y
    return z if abs(z) >= TINY else 0.0


@jit
def list_effects(candidates: HashedItems, k: int, user: int, listed: Listed, blocked: Blocked) -> int:
    """Write all effects of candidate k for a user, but for those in blocks and crosses, and count them."""
    keys, values, kinds, places = listed
    context, context_values, starts, features, feature_values, has_id = candidates
    own = user_key(user)
    n_context, block = context.shape[0], blocked.which[k] >= 0
    keys[0], values[0], kinds[0] = feature_key(POPULATION, np.uint64(0)), 1.0, POPULATION
    keys[1], values[1], kinds[1] = own, 1.0, USER
    places[0, 0] = places[0, 1] = places[1, 0] = places[1, 1] = -1
    m = 2
    for a in range(starts[k], starts[k + 1]):
        is_id = has_id[k] and a == starts[k]
        feature, x = features[a], feature_values[a]
        kind = ID if is_id else FEATURE
        if not (is_id and block) and not blocked.crossed[a]:
            keys[m], values[m], kinds[m] = feature_key(kind, feature), x, kind
            places[m, 0], places[m, 1] = a, -1
            m += 1
        kind = USER_ID if is_id else USER_FEATURE
        keys[m], values[m], kinds[m] = cross_key(kind, own, feature), x, kind
        places[m, 0], places[m, 1] = a, -1
        m += 1
        kind = CONTEXT_ID if is_id else CONTEXT_FEATURE
        for c in range(n_context):
            if (is_id and block and blocked.places[c] >= 0) or (
                blocked.crossed[a] and blocked.crossed_context[c]
            ):
                continue
            keys[m], kinds[m] = cross_key(kind, context[c], feature), kind
            values[m] = product(x, context_values[c])
            places[m, 0], places[m, 1] = a, c
            m += 1
        if is_id and n_context <= CROSSED:
            own_id = cross_key(USER_CONTEXT_ID, own, feature)
            for c in range(n_context):
                keys[m] = cross_key(USER_CONTEXT_ID, own_id, context[c])
                values[m], kinds[m] = product(x, context_values[c]), USER_CONTEXT_ID
                places[m, 0], places[m, 1] = a, c
                m += 1
    return m
