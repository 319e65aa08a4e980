"""Does sharing pay? Measures on held-out records whether users' feedback helps to predict each other.

From the first r records of every user, in random order, three predictors are fitted: one regression per user, one
for all users, and the average of the user's neighbours by CAB's rule at some α. They are tested on pairs of held-out
records of the same user with different payoffs: which paid more? `docs/theory.md` explains the verdict. The best way
of sharing is chosen on one half of the users and scored on the other, which avoids selection bias. `Hierarchical` is
tested on the same pairs, but is not part of the verdict; `standings` chooses the policy to start with.
"""

import math
from typing import Literal, NamedTuple

import numpy as np

from coterie.advice.fitted import Fitted
from coterie.advice.ranking import WORTH, HeldOutLearner, Standing, rank_policies
from coterie.advice.records import Records, shuffled
from coterie.arrays import Bools, Floats, Ints
from coterie.errors import ParameterError

ALPHAS = (0.02, 0.05, 0.1, 0.2, 0.4)
EVERYONE = "everyone"
MOST_USERS, MOST_ASKED, MOST_HELD = 600, 250, 30
MOST_FIRST = 64


class Sharing(NamedTuple):
    """The scores and the verdict."""

    first: Ints  # (sizes,) r: how many records per user were learned
    own: Floats  # (sizes,) mean score of users' own models
    everyone: Floats  # (sizes,)
    neighbours: Floats  # (sizes,) the best α for this log
    shared: Floats  # (sizes,) the better way of sharing, chosen on other users
    gain: float  # of `shared` over `own`, averaged over sizes
    error: float  # its standard error, over users and splits
    alpha: float  # the α that was best
    best: str  # the way of sharing chosen most: "everyone" or "neighbours"
    asked: int  # users tested, over all splits
    standings: list[Standing]  # of policies, the best first

    @property
    def low(self) -> float:
        """The lower end of the gain's 95 % interval."""
        return self.gain - 1.96 * self.error

    @property
    def high(self) -> float:
        """The upper end of the gain's 95 % interval."""
        return self.gain + 1.96 * self.error

    @property
    def verdict(self) -> Literal["pays", "does not pay", "unclear"]:
        """Whether the gain is significantly above or below `WORTH`."""
        if self.low > WORTH:
            return "pays"
        return "does not pay" if self.high < WORTH else "unclear"


def measure_sharing(records: Records, *, splits: int = 3, seed: int = 0) -> Sharing:
    """Measure how much users' feedback helps to predict each other."""
    sizes = _sizes(records)
    found = [_one_split(records, sizes, np.random.default_rng([seed, 7, split])) for split in range(splits)]
    every = np.concatenate([score for score, _ in found])  # (asked, ways and Hierarchical, sizes)
    scores = every[:, :-1]
    group = np.concatenate([user for _, user in found])
    if len(scores) < 4:
        raise ParameterError(
            "the log has too few users with records that paid differently; sharing cannot be judged from it"
        )
    half = np.random.default_rng([seed, 8]).random(records.n_users)[group] < 0.5
    shared, picks = np.zeros((len(scores), len(sizes))), []
    for side in (half, ~half):
        other = scores[~side] if (~side).any() else scores
        pick = 1 + int(other[:, 1:].mean(axis=(0, 2)).argmax())
        shared[side] = scores[side, pick]
        picks.append(pick)
    each = (shared - scores[:, 0]).mean(axis=1)
    # A user tested in several splits counts once.
    users, place = np.unique(group, return_inverse=True)
    by_user = np.bincount(place, each) / np.bincount(place)
    mean = scores.mean(axis=0)  # (ways, sizes)
    alpha = 2 + int(mean[2:].mean(axis=1).argmax())
    return Sharing(
        first=sizes,
        own=mean[0],
        everyone=mean[1],
        neighbours=mean[alpha],
        shared=shared.mean(axis=0),
        gain=float(by_user.mean()),
        error=float(by_user.std(ddof=1) / math.sqrt(len(users))),
        alpha=ALPHAS[alpha - 2],
        best=EVERYONE if picks.count(1) == len(picks) else "neighbours",
        asked=len(scores),
        standings=rank_policies(every[:, [-1, 0, 1, alpha]], group),
    )


def _sizes(records: Records) -> Ints:
    """Return r = 1, 2, 4, … up to half of the median number of records."""
    middle = float(np.median(records.per_user[records.per_user > 0]))
    if middle < 2:
        raise ParameterError(
            f"half of the users have {middle:g} records or fewer; to judge sharing they need at least 2"
        )
    most = min(MOST_FIRST, middle / 2)
    return 2 ** np.arange(int(math.log2(max(most, 1))) + 1)


def _one_split(records: Records, sizes: Ints, rng: np.random.Generator) -> tuple[Floats, Ints]:
    """Return the scores of one random split, (asked, ways, sizes), and the users tested, (asked,).

    The last way is Hierarchical.
    """
    per_user = records.per_user
    chosen = rng.permutation(np.flatnonzero(per_user >= 2))[:MOST_USERS]
    order, rank = shuffled(records.users, rng)
    users = records.users[order]
    held_out = rank >= per_user[users] - per_user[users] // 2
    ours = np.isin(users, chosen)
    asked = _asked(records, order, users, held_out & ours, chosen)[:MOST_ASKED]
    fitted, learner = Fitted(records), HeldOutLearner(records)
    scores = np.zeros((len(asked), 3 + len(ALPHAS), len(sizes)))
    learned = 0
    for column, size in enumerate(sizes):
        new = np.flatnonzero(ours & ~held_out & (rank >= learned) & (rank < size))
        fitted.add(order[new])
        in_turn = np.lexsort((order[new], rank[new]))  # the first record of every user, then the second, …
        learner.add(order[new[in_turn]])
        fitted.solve()
        learned = int(size)
        known = chosen[fitted.n_records[chosen] > 0]
        scale = math.sqrt(math.log1p(int(fitted.n_records.sum()) + 1))
        pooled = fitted.everyone()
        for row, (user, rows) in enumerate(asked):
            items, paid = records.items[rows], records.payoffs[rows]
            ways = _predict(fitted, user, items, known, pooled, scale)
            scores[row, :, column] = concordance(np.vstack([ways, learner.predict(user, items)]), paid)
    return scores, np.array([user for user, _ in asked], dtype=np.int64)


def _asked(
    records: Records, order: Ints, users: Ints, held_out: Bools, chosen: Ints
) -> list[tuple[int, Ints]]:
    """Return the users with different payoffs in held-out records, and those records, in the order of `chosen`."""
    aside = np.flatnonzero(held_out)
    first = np.searchsorted(users[aside], chosen)
    last = np.searchsorted(users[aside], chosen, side="right")
    found = [
        (int(user), _most_informative(order[aside[a:b]], records.payoffs))
        for user, a, b in zip(chosen, first, last, strict=True)
    ]
    return [(user, rows) for user, rows in found if len(rows) > 1 and np.ptp(records.payoffs[rows]) > 0]


def _most_informative(rows: Ints, payoffs: Floats) -> Ints:
    """Return at most `MOST_HELD` of a user's rows, half of them with high payoffs: this gives the most pairs.

    Rows are already in random order. If few items pay, a uniform draw would contain almost none of them.
    """
    if len(rows) <= MOST_HELD:
        return rows
    well = payoffs[rows] > payoffs[rows].mean()
    n_well = min(int(well.sum()), max(MOST_HELD // 2, MOST_HELD - int((~well).sum())))
    return np.concatenate([rows[well][:n_well], rows[~well][: MOST_HELD - n_well]])


def _predict(fitted: Fitted, user: int, items: Ints, known: Ints, pooled: Floats, scale: float) -> Floats:
    """Return what each way predicts for the items: (ways, items)."""
    estimates = fitted.predict(items, fitted.weights[known])  # (items, known)
    spreads = fitted.spread(items, known)
    own = fitted.predict(items, fitted.weights[[user]])  # (items, 1)
    reach = spreads + fitted.spread(items, np.array([user]))
    away = (np.abs(estimates - own) - 1e-12) / (scale * reach)  # the α from which on a user is a neighbour
    ways = [own[:, 0], fitted.predict(items, pooled[None])[:, 0]]
    for alpha in ALPHAS:
        near = away <= alpha
        members = near.sum(axis=1)
        mean = np.einsum("ij,ij->i", estimates, near) / np.maximum(members, 1)
        ways.append(np.where(members > 0, mean, own[:, 0]))
    return np.array(ways)


def concordance(predicted: Floats, paid: Floats) -> Floats:
    """Return the share of pairs with different payoffs that are put in the right order; a tie counts half.

    `predicted` is (ways, records), `paid` (records,); the result (ways,).

    >>> concordance(np.array([[1.0, 2.0, 3.0], [0.0, 0.0, 0.0]]), np.array([0.0, 1.0, 0.0])).tolist()
    [0.5, 0.5]
    """
    a, b = np.nonzero(paid[:, None] > paid[None, :])
    ahead = predicted[:, a] - predicted[:, b]
    return np.asarray(((ahead > 1e-12) + 0.5 * (np.abs(ahead) <= 1e-12)).mean(axis=1), dtype=np.float64)
