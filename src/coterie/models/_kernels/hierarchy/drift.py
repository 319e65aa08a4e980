"""Whether old payoffs mislead: the evidence for forgetting, and how fast.

If nothing changes, the error of an estimate says nothing about the next one. If tastes change, errors go on in the
direction of the last ones; if too much is forgotten, they turn against them. So two averages of x·error are kept, one
of recent payoffs and one of more. For a new payoff of features x,

    p = error · x·(recent average − average of more)

is 0 in expectation as long as the half-life is right; what is always wrong in the same way is in both averages.
Once Σ p is SHORTEN of its standard deviations above 0, the half-life becomes STEP of what it was; once it is LENGTHEN
below 0, it is doubled. A sum that comes back to 0 starts anew: what was right for long must not delay what is found
today.

There are averages over all users, and of each user's own payoffs. They are kept in SLOTS places, to which features
are hashed with a sign (a count sketch), so their size does not grow with users and features.
"""

import math
from typing import NamedTuple

import numpy as np

from coterie.arrays import Floats
from coterie.models._kernels.given import given
from coterie.models._kernels.hierarchy.effect_keys import GOLDEN, Hash, HashedItems, Hashes, mix
from coterie.models._kernels.jit import jit, step

SLOTS = 1024
SHORTEN, LENGTHEN = 5.0, 3.0  # standard deviations
RECENT = 0.25  # of the half-life, after which a payoff counts half in the recent average
SHARE = 0.02  # the same while nothing is forgotten: of all payoffs
MORE = 10.0  # times as long in the average of more payoffs
LEAST, LEAST_OWN = 20.0, 4.0  # but at least after so many payoffs, or so many of each user
LEAST_HALF_LIFE, LEAST_MEMORY = 2.0, 20.0  # payoffs of a user, payoffs of all users
FAR = 3.0  # standard deviations; larger errors count as this
STEP = 0.25
FAINT = 1e-100
EVERYBODY, OWN = 0, 1  # the two kinds of averages
MOST = 512  # crosses with the context; of more, none counts
UP, DOWN = 0, 1  # the two tests of each kind
SUM, SQUARES = 0, 1


@given
class Drift(NamedTuple):
    """The averages and the tests."""

    sums: Floats  # (2, 2, SLOTS) Σ x·error of EVERYBODY and OWN, recent and more; no places without tests
    scale: Floats  # (2, 2) what a 1 in `sums` stands for
    weight: Floats  # (2, 2) the payoffs in `sums`, less what faded
    tests: Floats  # (2, 2, 2) Σ p and Σ p² of each kind, for UP and DOWN
    half_life: Floats  # (1,) in payoffs of a user; 0 if nothing is forgotten


@jit
def hash_place(owner: int, key: Hash) -> Hash:
    """Return a random number that depends on both: the place in its lower bits, the sign in its highest."""
    return mix((np.uint64(owner + 1) * GOLDEN) ^ key)


@jit
def watch(
    drift: Drift, kind: int, owner: int, keys: Hashes, values: Floats, error: float, learned: float,
    users: float,
) -> None:  # fmt: skip
    """Test with a payoff of `owner`, -1 for everybody, and add it to the averages of this kind.

    Its error is in standard deviations; far ones count as FAR, since one must not decide.
    """
    error = min(max(error, -FAR), FAR)
    half_life = drift.half_life[0]
    recent = max(LEAST_OWN * users if kind == OWN else LEAST, SHARE * learned)
    if half_life > 0.0:
        recent = max(RECENT * half_life * users, users if kind == OWN else 1.0)
    sums, scale, weight = drift.sums[kind], drift.scale[kind], drift.weight[kind]
    fade, fade_more = 2.0 ** (-1.0 / recent), 2.0 ** (-1.0 / (MORE * recent))
    here, before = 0.0, 0.0
    for j in range(len(keys)):
        h = hash_place(owner, keys[j])
        at = np.int64(h & np.uint64(SLOTS - 1))
        signed = values[j] if h >> np.uint64(63) else -values[j]
        here += signed * sums[0, at]
        before += signed * sums[1, at]
    p = error * (here * scale[0] / max(weight[0], 1.0) - before * scale[1] / max(weight[1], 1.0))
    for way in range(2):
        test = drift.tests[kind, way]
        test[SUM] += p
        test[SQUARES] += p * p
        if (test[SUM] < 0.0) == (way == UP):
            test[:] = 0.0
    scale[0] *= fade
    scale[1] *= fade_more
    weight[0] = weight[0] * fade + 1.0
    weight[1] = weight[1] * fade_more + 1.0
    for i in range(2):
        if scale[i] < FAINT:
            sums[i] *= scale[i]
            scale[i] = 1.0
    for j in range(len(keys)):
        h = hash_place(owner, keys[j])
        at = np.int64(h & np.uint64(SLOTS - 1))
        signed = (values[j] if h >> np.uint64(63) else -values[j]) * error
        sums[0, at] += signed / scale[0]
        sums[1, at] += signed / scale[1]


@jit
def decide_half_life(drift: Drift, learned: float, users: float) -> bool:
    """Change the half-life if the tests say so; return whether."""
    old = drift.half_life[0]
    new = old
    for kind in range(2):
        if old > 0.0 and new == old and says(drift.tests[kind, DOWN], -LENGTHEN):
            new = 2.0 * old if 2.0 * old * users <= learned else 0.0
    for kind in range(2):
        if says(drift.tests[kind, UP], SHORTEN):
            new = max(STEP * (old if old > 0.0 else learned / users), LEAST_HALF_LIFE, LEAST_MEMORY / users)
    if new == old:
        return False
    drift.half_life[0] = new
    drift.tests[:] = 0.0
    return True


@jit
def says(test: Floats, limit: float) -> bool:
    """Return whether a sum is beyond `limit` standard deviations."""
    z = test[SUM] / math.sqrt(test[SQUARES]) if test[SQUARES] > 0.0 else 0.0
    return z > limit if limit > 0.0 else z < limit


@step
def watch_action(
    drift: Drift, candidates: HashedItems, user: int, error: float, learned: float, users: float
) -> None:
    """Test with the payoff of the first candidate for a user, -1 for one who is new, and change the half-life."""
    n, around = candidates.starts[1], len(candidates.context)
    if n * around > MOST:
        around = 0
    keys, values = np.empty(n * (1 + around), dtype=np.uint64), np.empty(n * (1 + around))
    for j in range(n):
        keys[j], values[j] = candidates.features[j], candidates.values[j]
        for c in range(around):
            at = n + j * around + c
            keys[at] = mix(candidates.features[j]) ^ candidates.context[c]
            values[at] = candidates.values[j] * candidates.context_values[c]
    watch(drift, EVERYBODY, -1, keys, values, error, learned, users)
    if user >= 0:
        watch(drift, OWN, user, keys[:n], values[:n], error, learned, users)
    decide_half_life(drift, learned, users)
