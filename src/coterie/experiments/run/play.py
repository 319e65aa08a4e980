"""The loop of every experiment: takes rounds, yields one row of the trace per round.

Rounds are played a few hundred at a time, because a policy plays a batch in one compiled loop. Results do not
depend on the batches: `Policy.run` returns the same as `choose` and `learn` round by round.
"""

from collections.abc import Hashable, Iterable, Iterator
from contextlib import suppress
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from coterie.data.rounds import Round
from coterie.errors import UserError
from coterie.models.actions import Action, Actions
from coterie.models.candidates import Candidates
from coterie.policies import Policy
from coterie.policies.base.batch import Batch

BATCH = 250  # rounds


class Row(NamedTuple):
    """What happened in one round."""

    round: int  # counted from 0
    user: str
    item: str | None  # the id of the shown item; None if items are feature vectors
    choice: int  # its place in the list of candidates
    payoff: float  # the payoff; NaN if the log does not contain it, and then nothing was learned
    expected: float  # the expected payoff of this choice
    best: float  # the expected payoff of the best candidate
    neighbours: int  # how many users' models the decision used, including the user's own
    updated: int  # how many users' models learned from the payoff


def play(policy: Policy, rounds: Iterable[Round], start: int = 0) -> Iterator[Row]:
    """Let `policy` decide and learn in each round; the first round is counted as `start`.

    When a row is yielded, the policy may already have played later rounds of the same batch.
    """
    for visits in _batches(rounds):
        for user in visits[0].left:
            with suppress(UserError):  # users who were never served are unknown to the policy
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


def _name(context: Actions) -> str | None:
    """Return an item's id as text; None if it has features only."""
    if isinstance(context, np.ndarray):
        return None
    return str(context.id if isinstance(context, Action) else context)


def _batches(rounds: Iterable[Round]) -> Iterator[list[Round]]:
    """Split rounds where users join or leave, where the length of lists changes, and after BATCH rounds."""
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
    """Return rounds as arrays. A log's rounds have one known payoff each, the others are NaN."""
    users = [visit.user for visit in visits]
    payoffs = np.array([visit.payoffs for visit in visits])  # (rounds, candidates)
    items: Actions
    if isinstance(visits[0].contexts, Candidates):
        items, candidates = _gathered([visit.contexts for visit in visits])
    elif isinstance(visits[0].contexts, np.ndarray) and visits[0].contexts.ndim == 2:
        items = np.concatenate([visit.contexts for visit in visits])
        candidates = np.arange(len(items)).reshape(payoffs.shape)
    elif isinstance(visits[0].contexts[0], Action):
        items = [action for visit in visits for action in visit.contexts]
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

    An item whose features change between lists counts as two items with one id.
    """
    place: dict[tuple[Hashable, bytes], int] = {}
    items: list[Action] = []
    for shown in lists:
        for item in shown:
            key = (item.id, item.features.tobytes())
            if place.setdefault(key, len(items)) == len(items):
                items.append(item)
    rows = [[place[item.id, item.features.tobytes()] for item in shown] for shown in lists]
    features = np.array([item.features for item in items])
    return Candidates.trusted([item.id for item in items], features), np.array(rows)
