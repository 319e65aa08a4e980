"""The loop of every experiment: rounds in, one row of the trace a round out.

Rounds are played a few hundred at a time, because a policy plays a batch in one compiled loop. Nothing depends on
where batches end: `Policy.run` gives what `choose` and `learn` give one by one.
"""

from collections.abc import Hashable, Iterable, Iterator
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from coterie.data.rounds import Round
from coterie.errors import UserError
from coterie.models.candidates import Candidate, Candidates
from coterie.policies import Policy
from coterie.policies.base.batch import Batch

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
                item=_name(context),
                choice=choice,
                payoff=float(visit.payoffs[choice]),
                expected=float(visit.expected[choice]),
                best=float(visit.expected.max()),
                neighbours=members,
                updated=updated,
            )
            start += 1


def _name(context: Any) -> str | None:
    """Return an item's id as text; None where it has features alone."""
    if isinstance(context, np.ndarray):
        return None
    return str(context.id if isinstance(context, Candidate) else context)


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
    items: Any
    if isinstance(visits[0].contexts, Candidates):
        items, candidates = _gathered([visit.contexts for visit in visits])
    elif isinstance(visits[0].contexts, np.ndarray) and visits[0].contexts.ndim == 2:
        items = np.concatenate([visit.contexts for visit in visits])
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


def _gathered(lists: list[Candidates]) -> tuple[Candidates, NDArray[np.int64]]:
    """Return the different items of several lists, and each list as positions in them.

    An item whose features changed from one list to the next is two items with one id.
    """
    place: dict[tuple[Hashable, bytes], int] = {}
    items: list[Candidate] = []
    for shown in lists:
        for item in shown:
            key = (item.id, item.features.tobytes())
            if place.setdefault(key, len(items)) == len(items):
                items.append(item)
    rows = [[place[item.id, item.features.tobytes()] for item in shown] for shown in lists]
    features = np.array([item.features for item in items])
    return Candidates.trusted([item.id for item in items], features), np.array(rows)
