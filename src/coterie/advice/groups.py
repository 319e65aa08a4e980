"""The number of groups of users per item, and their distance, estimated by splitting the data.

On one random half of each user's records, users are put into k groups by their expected payoffs for the item; on the
other half, each user's value is predicted by the mean of the other members of the group. Too few groups mix users
who differ, too many fit noise. The result is the smallest k within one standard error of the best.
"""

from typing import NamedTuple

import numpy as np

from coterie.advice.fitted import Fitted
from coterie.advice.records import Records, shuffled
from coterie.arrays import Floats, Ints
from coterie.errors import ParameterError

MOST_GROUPS = 8
MOST_ITEMS = 40
MOST_USERS = 600
BINS = 120
FEWEST = 6  # users with records in both halves


class Groups(NamedTuple):
    """Groups of users per item: means over items, and the range over splits."""

    number: float  # the mean number of groups
    low: float  # the smallest and the largest mean over splits
    high: float
    gap: float  # distance between adjacent groups, on records not used to form them; 0 for one group
    gap_low: float
    gap_high: float
    counts: Ints  # (MOST_GROUPS,) how many items, over all splits, have 1, 2, … groups
    items: int  # items examined


def count_groups(records: Records, *, splits: int = 5, seed: int = 0) -> Groups:
    """Estimate how many groups of users there are per item, and how much they differ."""
    numbers, gaps, all_counts = [], [], np.zeros(MOST_GROUPS, dtype=np.int64)
    looked = 0
    for split in range(splits):
        rng = np.random.default_rng([seed, 9, split])
        some = records.of_some_users(MOST_USERS, rng)
        first, second = halves(some, rng, by_item=some.one_hot)
        found = [_one_item(first, second, item) for item in _items(some, rng)]
        kept = [answer for answer in found if answer is not None]
        if not kept:
            continue
        k = np.array([number for number, _ in kept])
        numbers.append(float(k.mean()))
        apart = [gap for number, gap in kept if number > 1]
        gaps.append(float(np.mean(apart)) if apart else 0.0)
        all_counts += np.bincount(k - 1, minlength=MOST_GROUPS)
        looked = max(looked, len(kept))
    if not numbers:
        raise ParameterError(
            f"no item was shown to {FEWEST} users twice or more; without features groups cannot be estimated"
        )
    number, gap = float(np.mean(numbers)), float(np.mean(gaps))
    ends = min(numbers), max(numbers), gap, min(gaps), max(gaps)
    return Groups(number, *ends, all_counts, looked)


def halves(records: Records, rng: np.random.Generator, *, by_item: bool = False) -> tuple[Fitted, Fitted]:
    """Return models from two random halves of each user's records, or of each user's records of each item."""
    key = records.users * records.n_items + records.items if by_item else records.users
    order, rank = shuffled(key, rng)
    # With an odd number of records, the odd one goes to a random half.
    coin = rng.integers(2, size=int(key.max()) + 1)[key[order]] if key.max() < 10**7 else 0
    odd = (rank + coin) % 2 == 1
    first, second = Fitted(records).add(order[odd]), Fitted(records).add(order[~odd])
    first.solve()
    second.solve()
    return first, second


def _items(records: Records, rng: np.random.Generator) -> Ints:
    """Draw items; without features, take the most shown ones, as only they have users who saw them twice."""
    counts = np.bincount(records.items, minlength=records.n_items)
    seen = np.flatnonzero(counts)
    if records.vectors is None:
        return seen[np.argsort(-counts[seen], kind="stable")][:MOST_ITEMS]
    return rng.choice(seen, min(MOST_ITEMS, len(seen)), replace=False)


def _values(fitted: Fitted, item: int) -> tuple[Floats, Floats]:
    """Return each user's value on the item and its weight (the inverse of its variance): (n_users,) each."""
    if fitted.records.vectors is None:
        counts = fitted.counts[:, item]
        return fitted.sums[:, item] / np.maximum(counts, 1), counts
    x = fitted.records.vectors[item]
    # Shrink to the model of all users instead of 0, so that users with few records do not form a group.
    pooled, (a, b) = fitted.everyone(), fitted.upper
    square = fitted.spread(np.array([item]), np.arange(fitted.records.n_users))[0] ** 2
    # A prior mean of `pooled` adds xᵀM⁻¹·pooled. Packed inverses hold off-diagonal entries doubled, so each
    # pair takes the mean of its two products.
    value = fitted.weights @ x + fitted.inverses @ ((x[a] * pooled[b] + x[b] * pooled[a]) / 2)
    weight = np.where(fitted.n_records > 0, 1 / np.maximum(square, 1e-12), 0)
    return value, weight


def _one_item(first: Fitted, second: Fitted, item: int) -> tuple[int, float] | None:
    """Return the number of groups and how far apart they are; None if too few users saw the item."""
    value, weight = _values(first, item)
    other, sure = _values(second, item)
    both = (weight > 0) & (sure > 0)
    if both.sum() < FEWEST:
        return None
    value, weight, other, sure = value[both], weight[both], other[both], sure[both]
    losses, groupings = [], []
    for k in range(1, MOST_GROUPS + 1):
        group = split_line(value, weight, k)
        if len(np.unique(group)) < k:
            break
        losses.append(_losses(group, other, sure))
        groupings.append(group)
    total = np.array([loss.sum() for loss in losses])
    best = int(total.argmin())
    chosen = best
    for k in range(best):
        excess = losses[k] - losses[best]
        if excess.sum() <= np.sqrt(len(excess)) * excess.std(ddof=1):
            chosen = k
            break
    group = groupings[chosen]
    means = np.bincount(group, other * sure) / np.maximum(np.bincount(group, sure), 1e-300)
    return chosen + 1, float(np.abs(np.diff(means)).mean()) if chosen else 0.0


def _losses(group: Ints, value: Floats, weight: Floats) -> Floats:
    """Return each user's squared error when predicted by the rest of the group, or by all users if alone."""
    mass, moment = np.bincount(group, weight)[group], np.bincount(group, value * weight)[group]
    rest = mass - weight
    whole = (weight @ value - weight * value) / np.maximum(weight.sum() - weight, 1e-300)
    mean = np.where(rest > 1e-9 * mass, (moment - weight * value) / np.maximum(rest, 1e-300), whole)
    return np.asarray(weight * (value - mean) ** 2, dtype=np.float64)


def split_line(value: Floats, weight: Floats, k: int) -> Ints:
    """Return the k groups of numbers with the least weighted squares within groups, from low to high.

    Exact for up to 120 different numbers; more are first put into 120 bins of equal size.

    >>> split_line(np.array([0.0, 5.0, 0.1, 5.2]), np.ones(4), 2).tolist()
    [0, 1, 0, 1]
    """
    numbers, place = np.unique(value, return_inverse=True)
    if len(numbers) > BINS:
        edges = np.quantile(value, np.linspace(0, 1, BINS + 1)[1:-1])
        _, place = np.unique(np.searchsorted(edges, value, side="right"), return_inverse=True)
    mass, moment = np.bincount(place, weight), np.bincount(place, weight * value)
    square = np.bincount(place, weight * value * value)
    m, s, q = (np.concatenate([[0.0], np.cumsum(column)]) for column in (mass, moment, square))
    n = len(mass)
    i, j = np.arange(n + 1)[:, None], np.arange(n + 1)[None, :]
    inside = q[j] - q[i] - (s[j] - s[i]) ** 2 / np.maximum(m[j] - m[i], 1e-300)
    cost = np.where(j > i, inside, np.inf)  # of one group from i up to j, not included
    least, cuts = cost[0], []
    for _ in range(k - 1):
        step = least[:, None] + cost
        cuts.append(step.argmin(axis=0))
        least = step.min(axis=0)
    group = np.zeros(n, dtype=np.int64)
    end = n
    for number in range(k - 1, 0, -1):
        start = int(cuts[number - 1][end])
        group[start:end] = number
        end = start
    return group[place]
