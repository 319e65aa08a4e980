"""Tests whether a policy is ahead of the others by more than chance explains.

Two policies are compared record by record, by the difference d_t of their doubly robust terms, in which
common choices cancel. One more record is added: the worst possible one for the leader, with the largest
possible weight. It decides if the log rarely shows the leader's choices. The mean of d over its standard
error is compared with Student's t, whose degrees of freedom are the number of records that carry the
difference, (Σ e²)²/Σ e⁴ with e = d − mean.
"""

import math

import numpy as np

from coterie.evaluation.evidence import Evidence

LEVEL = 0.01  # the largest share of logs with equal policies in which a winner is named
FEW = 30  # the fewest effective records for a statement about a policy


def chance(first: Evidence, second: Evidence) -> float:
    """Return the share of logs in which the first would be ahead by this much or more, if both earned the same."""
    worst = max(first.largest, second.largest) * first.span.size
    unseen = (first.lost + second.lost) * first.span.size
    apart = np.append(first.terms - second.terms - unseen, -worst)
    ahead = float(apart.mean())
    if not ahead > 0 or not math.isfinite(worst):
        return 1.0
    squares = (apart - ahead) ** 2
    total = float(squares.sum())
    from scipy.special import stdtr  # imported late: it is slow to import

    carriers = total * total / float(squares @ squares)
    return float(stdtr(carriers, -ahead * len(apart) / math.sqrt(total)))


def chance_of_best(first: Evidence, others: list[Evidence]) -> float:
    """Return an upper bound on the share of logs in which some policy leads by this much, if all earn the same.

    Any policy could have come first, so its chance is counted for each (Bonferroni's bound).
    """
    if not others:
        return 1.0
    return min(1.0, (1 + len(others)) * max(chance(first, other) for other in others))


def is_ahead(first: Evidence, others: list[Evidence]) -> bool:
    """Return whether the first is ahead of all others by more than chance explains."""
    enough = min(one.effective for one in (first, *others)) >= FEW
    return bool(others) and enough and chance_of_best(first, others) <= LEVEL
