"""Candidate lists around served items, drawn so that the log looks like that of a uniform random policy.

Replay is unbiased if, given the list, each candidate is the served one with the same probability: then every choice
of a policy is checked equally often. The ways to draw:

balanced   Item j, served in a share p_j of the records, belongs to a list with probability c·p_j, where c is
           the length of lists, and is served in 1/c of the lists it belongs to, as in the paper (section 5).
uniform    Each further item is any other item with equal probability. The same if all items are served
           equally often; otherwise frequent items are the served one in too many of their lists.
all        Every list holds all items: for logs whose policy was uniform over all of them.

"balanced" is systematic sampling. The items are placed around a circle of length c in random order, item j on
an arc of length c·p_j. A random point on the served item's arc is drawn; the list holds the items at that
point and at every whole step from it. No arc is longer than a step, so no item is met twice; this needs p_j ≤
1/c, which `thinned` ensures.
"""

import numpy as np

from coterie.arrays import Bools, Floats, Ints
from coterie.data.files import check_choice
from coterie.data.rounds import draw_distinct
from coterie.errors import ParameterError

DRAWS = ("balanced", "uniform", "all")


def thinned(items: Ints, n_items: int, n_candidates: int, seed: int = 0) -> Bools:
    """Return which records to keep so that no item has more than 1/n_candidates of those kept: (records,).

    Records of an item that is served too often are left out at random, independent of their payoffs.
    """
    counts = np.bincount(items, minlength=n_items)
    if (counts > 0).sum() < n_candidates:
        raise ParameterError(
            f"n_candidates is {n_candidates}, but only {(counts > 0).sum()} items are ever served"
        )
    most = int(counts.max())
    while True:  # keeping fewer records lowers the limit per item: repeat until it fits
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

    `items` are the served items, `shares` the share of records of each item. Lists are in random order.
    """
    check_choice("draw", draw, DRAWS)
    n_records, n_items = len(items), len(shares)
    if draw == "balanced":
        from coterie.data.logs.balanced import walk  # compiled, so imported only when it is needed

        # Reorder the circle from time to time: more often with few items, whose lists would be alike.
        return walk(rng, items, shares, n_candidates, int(np.clip(n_items // 4, 16, 1024)))
    if draw == "uniform":
        others = draw_distinct(rng, np.full(n_records, n_items - 1), n_candidates - 1)
        others += others >= items[:, None]
        lists = np.concatenate([items[:, None], others], axis=1)
    else:
        lists = np.broadcast_to(np.arange(n_items), (n_records, n_items))
    lists = rng.permuted(lists, axis=1)
    return lists, np.argmax(lists == items[:, None], axis=1)
