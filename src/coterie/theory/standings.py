"""Which policy does a log speak for? The one that predicted best on records kept aside.

Four are compared on the questions of `coterie.theory.sharing`: Hierarchical with its defaults, one LinUCB per user,
one for all, and CAB with the α that did best. Hierarchical is recommended unless a rival is ahead of it by 1 in 100
and beyond doubt (three rivals are tried, so by 2.4 standard errors), and nothing is if no policy is ahead of a coin.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple, final

import numpy as np

from coterie.policies import Hierarchical
from coterie.policies.base.batch import Batch
from coterie.theory.records import Floats, Ints, Records

PRIOR, APART, ONE, NEAR, NOTHING = "hierarchical", "linucb-multiple", "linucb-single", "cab", "random"
POLICIES = (PRIOR, APART, ONE, NEAR)
SURE = 2.4  # standard errors: a lead that one of three equals shows by chance in 1 of 40 logs
COIN = 0.5
# A gain in the score below this is not worth the work.
WORTH = 0.01


class Standing(NamedTuple):
    """How well a policy predicted: the share of pairs that it put in the right order."""

    policy: str
    scores: Floats  # (sizes,) by how many records of each user were learned from
    score: float  # averaged over sizes and users
    error: float  # its standard error, over users
    lead: float  # over Hierarchical
    lead_error: float

    @property
    def is_ahead(self) -> bool:
        """Whether it is better than Hierarchical beyond doubt, and by enough to matter."""
        return self.lead > max(WORTH, SURE * self.lead_error)

    @property
    def learns(self) -> bool:
        """Whether it is better than a coin beyond doubt."""
        return self.score - COIN > SURE * self.error


def rank_policies(scores: Floats, users: Ints) -> list[Standing]:
    """Return the standings, the best first.

    `scores` is (asked, policies, sizes), in the order of `POLICIES`; `users` (asked,) says who was asked about. A
    user who was asked about several times counts as one.
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
    """Return the policy to start with: Hierarchical, a rival that is ahead beyond doubt, or "random"."""
    if not any(one.learns for one in standings):
        return NOTHING
    ahead = [one for one in standings if one.is_ahead]
    return max(ahead, key=lambda one: one.lead).policy if ahead else PRIOR


@final
class Learner:
    """Hierarchical, made for a log: it learns some of the records and predicts others."""

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
