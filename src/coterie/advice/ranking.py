"""Chooses the policy to start with: the one with the best predictions on held-out records.

The policies are compared on the pairs of `coterie.advice.sharing`; `docs/theory.md` has the rules.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple, final

import numpy as np

from coterie.advice.records import Records
from coterie.arrays import Floats, Ints
from coterie.policies import Hierarchical
from coterie.policies.base.batch import Batch

PRIOR, APART, ONE, NEAR, NOTHING = "hierarchical", "linucb-multiple", "linucb-single", "cab", "none"
POLICIES = (PRIOR, APART, ONE, NEAR)
SURE = 2.4  # standard errors: among three equal policies, one leads by this much in 1 of 40 logs by chance
COIN = 0.5
# A gain in the score below this is not worth the work.
WORTH = 0.01


class Standing(NamedTuple):
    """How well a policy predicted: the share of pairs that it put in the right order."""

    policy: str
    scores: Floats  # (sizes,) by records learned per user
    score: float  # averaged over sizes and users
    error: float  # its standard error, over users
    lead: float  # over Hierarchical
    lead_error: float

    @property
    def is_ahead(self) -> bool:
        """Whether it is better than Hierarchical, significantly and by enough to matter."""
        return self.lead > max(WORTH, SURE * self.lead_error)

    @property
    def learns(self) -> bool:
        """Whether it is significantly better than chance."""
        return self.score - COIN > SURE * self.error


def rank_policies(scores: Floats, users: Ints) -> list[Standing]:
    """Return the standings, the best first.

    `scores` is (asked, policies, sizes), in the order of `POLICIES`; `users` (asked,) are the users tested. A
    user tested several times counts once.
    """
    _, place = np.unique(users, return_inverse=True)
    times = np.bincount(place)
    each = scores.mean(axis=2)  # (asked, policies)
    by_user = np.array([np.bincount(place, column) / times for column in each.T])  # (policies, users)
    lead = by_user - by_user[0]
    root = math.sqrt(len(times))
    found = [
        Standing(
            name,
            scores[:, k].mean(axis=0),
            float(by_user[k].mean()),
            float(by_user[k].std(ddof=1)) / root,
            float(lead[k].mean()),
            float(lead[k].std(ddof=1)) / root,
        )
        for k, name in enumerate(POLICIES)
    ]
    return sorted(found, key=lambda one: -one.score)


def recommend(standings: Sequence[Standing]) -> str:
    """Return the policy that predicts best: Hierarchical, a significantly better one, or "none"."""
    if not any(one.learns for one in standings):
        return NOTHING
    ahead = [one for one in standings if one.is_ahead]
    return max(ahead, key=lambda one: one.lead).policy if ahead else PRIOR


@final
class HeldOutLearner:
    """Hierarchical on a log: it learns some of the records and predicts others."""

    def __init__(self, records: Records) -> None:
        self.records = records
        vectors = records.vectors
        self.policy = (
            Hierarchical(one_hot=True) if vectors is None else Hierarchical(n_features=vectors.shape[1])
        )
        self.items = list(range(records.n_items)) if vectors is None else vectors

    def add(self, rows: Ints) -> None:
        """Learn the records at `rows`, in this order."""
        if len(rows):
            records = self.records
            one = records.items[rows][:, None]  # the only candidate
            users = records.users[rows].tolist()
            self.policy.run(Batch(users, one, self.items, records.payoffs[rows][:, None]))

    def predict(self, user: int, items: Ints) -> Floats:
        """Return the expected payoff of each item."""
        contexts = items.tolist() if self.records.vectors is None else self.records.vectors[items]
        return self.policy.decide(user, contexts).estimate
