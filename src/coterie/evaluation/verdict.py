"""Whether a policy is ahead of the others, or whether chance is enough to explain it.

Two policies are compared record by record, by the difference d_t of their doubly robust terms: what both would
have done cancels. One more record is added that speaks against the leader as strongly as any could, with the
largest possible weight: where the log hardly ever shows what the leader asks for, that record decides. The mean
of d over its standard error is compared with Student's t, whose degrees of freedom are the number of records
that carry the difference, (Σ e²)²/Σ e⁴ with e = d − mean.
"""

import math

import numpy as np

from coterie.evaluation.evidence import Evidence

LEVEL = 0.01  # in no more than this share of logs where all earn the same is a winner named
FEW = 30  # effective records, below which a log says nothing about a policy


def chance(first: Evidence, second: Evidence) -> float:
    """Return in which share of logs the first would be this far ahead, or farther, if both earned the same."""
    worst = max(first.largest, second.largest) * first.span.size
    unseen = (first.lost + second.lost) * first.span.size
    apart = np.append(first.terms - second.terms - unseen, -worst)
    ahead = float(apart.mean())
    if not ahead > 0 or not math.isfinite(worst):
        return 1.0
    squares = (apart - ahead) ** 2
    total = float(squares.sum())
    from scipy.special import stdtr  # late: it takes a while to import

    carriers = total * total / float(squares @ squares)
    return float(stdtr(carriers, -ahead * len(apart) / math.sqrt(total)))


def chance_of_best(first: Evidence, others: list[Evidence]) -> float:
    """Return in which share of logs, at most, some policy would be this far ahead of all, if all earned the same.

    Any of them could have come first, so the chance that one does is counted for each (Bonferroni's bound).
    """
    if not others:
        return 1.0
    return min(1.0, (1 + len(others)) * max(chance(first, other) for other in others))


def is_ahead(first: Evidence, others: list[Evidence]) -> bool:
    """Tell whether the first is ahead of all others by more than chance explains."""
    enough = min(one.effective for one in (first, *others)) >= FEW
    return bool(others) and enough and chance_of_best(first, others) <= LEVEL
