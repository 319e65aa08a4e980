"""One-hot CAB the direct way, compiled: for every candidate, a loop over all updated users.

As fast as possible without grouping equal histories: users in the order they became active, one item's
numbers contiguous, estimates and spreads stored so that the inner loop has no division and no root.
"""

import math
from typing import Any, NamedTuple, cast

import numpy as np
from numba import njit

from coterie import CAB
from coterie.arrays import Floats, Ints
from coterie.bench.rounds import ClickLog
from coterie.models.protocol import ROUNDING, TIE


class DirectLoop(NamedTuple):
    """Every user's (times, total) on every item."""

    place: Ints  # (users,): the order in which users became active; -1 before
    active: Ints  # (2,): the number of active users, and of learned payoffs
    times: Floats  # (items, users)
    total: Floats
    estimate: Floats
    spread: Floats

    @classmethod
    def of(cls, n_users: int, n_items: int) -> "DirectLoop":
        times, total, estimate = (np.zeros((n_items, n_users)) for _ in range(3))
        active = np.zeros(2, dtype=np.int64)
        return cls(np.full(n_users, -1), active, times, total, estimate, np.ones((n_items, n_users)))

    @classmethod
    def of_policy(cls, policy: CAB, n_users: int, n_items: int) -> "DirectLoop":
        """Return the state of a one-hot CAB whose users and items are numbers and whose payoffs are 0 or 1."""
        found = cls.of(n_users, n_items)
        items = list(range(n_items))
        for j, user in enumerate(cast(list[int], policy.users)):
            own = policy.models.view(user, items)
            found.place[user] = j
            found.estimate[:, j], found.spread[:, j] = own
            found.times[:, j] = np.rint(1 / own.spread**2 - 1)
            found.total[:, j] = np.rint(own.estimate * (1 + found.times[:, j]))
        found.active[:] = len(policy.users), policy.learned
        return found

    def copy(self) -> "DirectLoop":
        """Return a copy, to continue from the same state twice."""
        return DirectLoop._make(array.copy() for array in self)

    def replay(self, log: ClickLog, alpha: float, gamma: float) -> Ints:
        """Choose and learn, record by record, and return the choices."""
        choices = np.empty(len(log.users), dtype=np.int64)
        _replay(tuple(self), tuple(log), alpha, gamma, choices)
        return choices


def _compile(function: Any) -> Any:
    return njit(cache=True, error_model="numpy")(function)


@_compile
def _replay(arrays: Any, log: Any, alpha: float, gamma: float, choices: Any) -> None:
    place, active, times, total, estimate, spread = arrays
    users, candidates, served, payoffs = log
    c = candidates.shape[1]
    score = np.empty(c)
    for t in range(len(users)):
        n, learned = active
        user = place[users[t]]
        new = user < 0
        scale = alpha * math.sqrt(math.log1p(learned + 1))
        for k in range(c):
            e, s = estimate[candidates[t, k]], spread[candidates[t, k]]
            own, wide = (0.0, 1.0) if new else (e[user], s[user])
            members, near_e, near_s = (1, 0.0, 1.0) if new else (0, 0.0, 0.0)
            for j in range(n):
                if abs(own - e[j]) <= scale * (wide + s[j]) + ROUNDING:
                    members += 1
                    near_e += e[j]
                    near_s += s[j]
            score[k] = near_e / members + scale * near_s / members
        best, choice = score.max(), 0
        while best - score[choice] >= TIE:
            choice += 1
        choices[t] = choice
        if choice != served[t]:
            continue
        if new:
            user = place[users[t]] = n
            active[0] += 1
            n += 1
        active[1] += 1
        item = candidates[t, choice]
        own, wide = estimate[item, user], spread[item, user]
        first, last = (0, n) if scale * wide < gamma / 4 else (user, user + 1)
        for j in range(first, last):
            e, s = estimate[item, j], spread[item, j]
            if j == user or (abs(own - e) <= scale * (wide + s) + ROUNDING and scale * s < gamma / 4):
                times[item, j] += 1
                total[item, j] += payoffs[t]
                estimate[item, j] = total[item, j] / (1 + times[item, j])
                spread[item, j] = 1 / math.sqrt(1 + times[item, j])
