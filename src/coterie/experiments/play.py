"""The loop of every experiment: rounds in, one row of the trace a round out."""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from math import isnan
from typing import NamedTuple

import numpy as np

from coterie.data.rounds import Round
from coterie.errors import UserError
from coterie.policies import Policy


class Row(NamedTuple):
    """What happened in one round."""

    round: int  # counted from 0
    user: str
    item: str | None  # the id of the shown item; None where items are feature vectors
    choice: int  # its place in the list of candidates
    payoff: float  # what the user paid; NaN where a log does not say, and then nothing was learned
    expected: float  # what this choice pays on average
    best: float  # what the best candidate pays on average
    neighbours: int  # how many users the decision rested on, the user among them
    updated: int  # how many users' models learned from the payoff


def play(policy: Policy, rounds: Iterable[Round], start: int = 0) -> Iterator[Row]:
    """Let `policy` decide and learn in each round; the first round is counted as `start`."""
    for number, visit in enumerate(rounds, start):
        for user in visit.left:
            with suppress(UserError):  # whoever was never served is not known, and need not be forgotten
                policy.drop(user)
        for user in visit.joined:
            policy.add(user)

        decision = policy.decide(visit.user, visit.contexts)
        choice = decision.choice
        context = visit.contexts[choice]
        payoff = float(visit.payoffs[choice])
        updated = 0 if isnan(payoff) else policy.learn(visit.user, context, payoff)

        yield Row(
            round=number,
            user=str(visit.user),
            item=None if isinstance(context, np.ndarray) else str(context),
            choice=choice,
            payoff=payoff,
            expected=float(visit.expected[choice]),
            best=float(visit.expected.max()),
            neighbours=int(decision.members[choice]),
            updated=updated,
        )
