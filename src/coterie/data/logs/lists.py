"""Candidate lists around served items, such that the log looks as if it had been made by a random policy.

The paper (section 5, Tuenti): further items are "drawn uniformly at random in such a way that, for any item,
if it occurs in some set C_t, this item will be the one served by the system only 1/15 of the times", and the
draw is "independent of the available payoff". That is what makes replay an honest estimate: given the list,
each candidate is the served one with the same probability, so what a policy picks is checked as often as
anything else. Two ways to draw:

balanced   exactly that. Item j, served in a share p_j of the records, belongs to a list with probability
           c·p_j, where c is the length of lists, and is served in 1/c of the lists it belongs to.
uniform    each further item is any other item with equal probability. The same where all items are served
           equally often; elsewhere an item that is served often is found served in too many of its lists.
all        every list holds all items: for logs whose policy really was uniform over all of them.

"balanced" is systematic sampling. Lay the items around a circle of length c in random order, item j taking up
c·p_j of it. Pick a point in the served item's part at random; the list is what lies there and at every whole
step from there. No item is longer than a step, so none is met twice; that takes p_j ≤ 1/c, which `thinned`
brings about.
"""

import numpy as np
from numpy.typing import NDArray

from coterie.data.blocks import draw_distinct
from coterie.data.published.tags import Floats, Ints, check_choice
from coterie.errors import ParameterError

DRAWS = ("balanced", "uniform", "all")


def thinned(items: Ints, n_items: int, n_candidates: int, seed: int = 0) -> NDArray[np.bool_]:
    """Say which records to keep so that no item has more than 1/n_candidates of those kept: (records,).

    Records of an item that is served too often are left out at random, whatever they paid.
    """
    counts = np.bincount(items, minlength=n_items)
    if (counts > 0).sum() < n_candidates:
        raise ParameterError(
            f"n_candidates is {n_candidates}, but only {(counts > 0).sum()} items are ever served"
        )
    most = int(counts.max())
    while True:  # the fewer are kept the fewer an item may have: lower the limit until it fits
        kept = np.minimum(counts, most)
        limit = int(kept.sum()) // n_candidates
        if kept.max() <= limit:
            break
        most = limit
    rng = np.random.default_rng([seed, 8])
    keep = np.ones(len(items), dtype=np.bool_)
    for item in np.flatnonzero(counts > most):
        records = np.flatnonzero(items == item)
        keep[rng.permutation(records)[most:]] = False
    return keep


def draw_lists(
    rng: np.random.Generator, items: Ints, shares: Floats, n_candidates: int, draw: str
) -> tuple[Ints, Ints]:
    """Return a list for each record, (records, n_candidates), and the served item's place in it, (records,).

    `items` are the served items, `shares` is how often each item is served. Lists are in random order.
    """
    check_choice("draw", draw, DRAWS)
    n_records, n_items = len(items), len(shares)
    if draw == "balanced":
        from coterie.data.logs.balanced import walk  # compiled, so imported only when it is needed

        # A new order of the circle every so often: more often where few items could make lists alike.
        return walk(rng, items, shares, n_candidates, int(np.clip(n_items // 4, 16, 1024)))
    if draw == "uniform":
        others = draw_distinct(rng, np.full(n_records, n_items - 1), n_candidates - 1)
        others += others >= items[:, None]
        lists = np.concatenate([items[:, None], others], axis=1)
    else:
        lists = np.broadcast_to(np.arange(n_items), (n_records, n_items))
    lists = rng.permuted(lists, axis=1)
    return lists, np.argmax(lists == items[:, None], axis=1)
