"""The loop of every experiment: rounds in, one row of the trace a round out.

Rounds are played a few hundred at a time, because a policy plays a batch in one compiled loop. Nothing depends on
where batches end: `Policy.run` gives what `choose` and `learn` give one by one.
"""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np

from coterie.data.rounds import Round
from coterie.errors import UserError
from coterie.policies import Policy
from coterie.policies.batch import Batch

BATCH = 250  # rounds


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
    """Let `policy` decide and learn in each round; the first round is counted as `start`.

    When a row comes out, the policy may already have played the rounds after it; when the rounds end, none is left.
    """
    for visits in _batches(rounds):
        for user in visits[0].left:
            with suppress(UserError):  # whoever was never served is not known, and need not be forgotten
                policy.drop(user)
        for user in visits[0].joined:
            policy.add(user)

        outcome = policy.run(_as_batch(visits))

        for visit, choice, members, updated in zip(
            visits, outcome.choice.tolist(), outcome.members.tolist(), outcome.updated.tolist(), strict=True
        ):
            context = visit.contexts[choice]
            yield Row(
                round=start,
                user=str(visit.user),
                item=None if isinstance(context, np.ndarray) else str(context),
                choice=choice,
                payoff=float(visit.payoffs[choice]),
                expected=float(visit.expected[choice]),
                best=float(visit.expected.max()),
                neighbours=members,
                updated=updated,
            )
            start += 1


def _batches(rounds: Iterable[Round]) -> Iterator[list[Round]]:
    """Cut rounds where users come or go, where lists change their length, and after BATCH rounds."""
    batch: list[Round] = []
    for visit in rounds:
        cut = visit.left or visit.joined or len(batch) == BATCH
        if batch and (cut or len(visit.payoffs) != len(batch[0].payoffs)):
            yield batch
            batch = []
        batch.append(visit)
    if batch:
        yield batch


def _as_batch(visits: list[Round]) -> Batch:
    """Lay rounds out as arrays. A log's rounds have one known payoff each, the others are NaN."""
    users = [visit.user for visit in visits]
    payoffs = np.array([visit.payoffs for visit in visits])  # (rounds, candidates)
    if isinstance(visits[0].contexts, np.ndarray) and visits[0].contexts.ndim == 2:
        items: Any = np.concatenate([visit.contexts for visit in visits])
        candidates = np.arange(len(items)).reshape(payoffs.shape)
    else:
        place = {item: i for i, item in enumerate(dict.fromkeys(item for v in visits for item in v.contexts))}
        items = list(place)
        candidates = np.array([[place[item] for item in visit.contexts] for visit in visits])
    known = ~np.isnan(payoffs)
    if known.all():
        return Batch(users, candidates, items, payoffs)
    served = np.argmax(known, axis=1)
    return Batch(users, candidates, items, payoffs[np.arange(len(visits)), served], served)
