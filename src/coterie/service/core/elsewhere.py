"""Decisions that were made elsewhere, by a client with a model of its own: kept with the client's probabilities.

They wait for their rewards and are learned like the service's own, and an evaluation can weigh them.
"""

from collections.abc import Sequence

import msgspec
import numpy as np
from msgspec import Struct

from coterie.service.core.engine import Engine, Question
from coterie.service.core.records import Rank
from coterie.service.problems import Problem


class Decided(Struct, frozen=True):
    """A question, and what was decided elsewhere."""

    question: Question
    order: Sequence[int]  # positions of the actions that were not excluded, the shown one first
    chances: Sequence[float]  # how likely each was, in the same order


def keep_all(engine: Engine, decided: Sequence[Decided], at: int) -> int:
    """Take decisions into the log, all or none, and return how many were new."""
    new: dict[str, tuple[Question, Rank]] = {}
    for one in decided:
        event = one.question.event
        known = engine.events.get(event)
        if known is not None:
            engine.check_retry(known, one.question.digest())
        elif event not in new:
            new[event] = (one.question, _record(engine, one, at))
        elif new[event][1].digest != one.question.digest():
            raise Problem(
                409, "event_exists", f"event {event!r} stands twice in the body, with other contents"
            )
    for question, record in new.values():
        # Its user may have got a number since: from a decision before it in the same call.
        number = engine.names.get(question.user, engine.next_user)
        engine.keep(question, msgspec.structs.replace(record, user=number))
    return len(new)


def _record(engine: Engine, one: Decided, at: int) -> Rank:
    """Return the record: that of a decision which only the shown action was open to, with the client's numbers."""
    question, order = one.question, list(one.order)
    ids = [action.id for action in question.actions]
    alone = frozenset(name for k, name in enumerate(ids) if k != order[0])
    made = engine.decide(msgspec.structs.replace(question, excluded=alone), at)
    likely = dict(zip(order, one.chances, strict=True))
    left = tuple(k for k in range(len(ids)) if k not in likely)
    best = max(order, key=lambda k: likely[k])
    return msgspec.structs.replace(
        made,
        order=(*order, *left),
        best=best,
        baseline=min(order),
        probability=likely[order[0]],
        exploration=0.0,
        digest=question.digest(),
        excluded=left,
        reasons=None,
        shown="" if best == order[0] else "explored",
        chances=np.array([likely[k] for k in sorted(order)]).tobytes(),
    )
