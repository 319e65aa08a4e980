"""Decisions that clients made with their own model: kept with their probabilities, and learned like the service's."""

from collections.abc import Sequence

import msgspec
import numpy as np
from msgspec import Struct

from coterie.data.logs.records import Rank
from coterie.service.core.bandit import Bandit
from coterie.service.core.question import Question
from coterie.service.problems import Problem


class Decided(Struct, frozen=True):
    """A question, and what the client decided."""

    question: Question
    order: Sequence[int]  # positions of the actions that were not excluded, the shown one first
    chances: Sequence[float]  # how likely each was, in the same order


def keep_all(bandit: Bandit, decided: Sequence[Decided], at: int) -> int:
    """Take decisions into the log, all or none, and return how many were new."""
    new: dict[str, tuple[Question, Rank]] = {}
    for one in decided:
        event = one.question.event
        known = bandit.find(event)
        if known is not None:
            before = bandit.decision(known.position)
            if before is not None:
                one.question.check_retry(before)
        elif event not in new:
            new[event] = (one.question, _record(bandit, one, at))
        elif new[event][1].digest != one.question.digest():
            raise Problem(409, "event_exists", f"event {event!r} is twice in the body, with other contents")
    bandit.keep_all(list(new.values()), at)
    return len(new)


def _record(bandit: Bandit, one: Decided, at: int) -> Rank:
    """Return the record of a decision between one action, the shown one, with the client's order and chances."""
    question, order = one.question, list(one.order)
    ids = [action.id for action in question.actions]
    alone = frozenset(name for k, name in enumerate(ids) if k != order[0])
    made = bandit.decide(msgspec.structs.replace(question, excluded=alone), at)
    likely = dict(zip(order, one.chances, strict=True))
    left = tuple(k for k in range(len(ids)) if k not in likely)
    best = max(order, key=lambda k: likely[k])
    return msgspec.structs.replace(
        made,
        order=(*order, *left),
        best=best,
        baseline=min(order),
        digest=question.digest(),
        excluded=left,
        capped=(),
        reasons=None,
        shown="" if best == order[0] else "explored",
        chances=np.array([likely[k] for k in sorted(order)]).tobytes(),
    )
