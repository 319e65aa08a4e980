"""The answer to a rank, made from the record of the decision."""

import secrets

import numpy as np
from msgspec import Struct

from coterie.service.core.deciding import probability
from coterie.service.core.records import Rank


class Candidate(Struct, frozen=True, rename="camel"):
    """An action as ranked."""

    id: str
    probability: float


class Ranking(Struct, frozen=True, rename="camel", omit_defaults=True):
    """The answer to a rank."""

    event_id: str
    chosen: str
    ranking: list[Candidate]
    capped: list[str] = []  # left out because they reached a frequency cap
    all_capped: bool = False  # every action did, so the baseline was shown
    unaffordable: list[str] = []  # left out because they cost more than is left of the budget


def new_event_id() -> str:
    """Return an id that cannot be guessed."""
    return secrets.token_hex(16)


def ranking_of(record: Rank) -> Ranking:
    """Return the answer of a decision: every action with the probability it had."""
    actions, choices = record.actions, len(record.actions) - len(record.excluded)
    shown = record.order[:choices]
    if record.chances is not None:
        chances = np.frombuffer(record.chances).tolist()
        if record.excluded:
            open_to = [k for k in range(len(actions)) if k not in record.excluded]
            chances = dict(zip(open_to, chances, strict=True))
        ranking = [Candidate(actions[k], chances[k]) for k in shown]
    elif record.shown == "baseline":
        ranking = [Candidate(actions[k], float(k == record.choice)) for k in shown]
    else:
        best, high = record.best, probability(True, record.exploration, choices)
        low = probability(False, record.exploration, choices)
        ranking = [Candidate(actions[k], high if k == best else low) for k in shown]
    ranking += [Candidate(actions[k], 0.0) for k in record.order[choices:]]
    return Ranking(
        record.parent or record.event,
        actions[record.choice],
        ranking,
        [actions[k] for k in record.capped],
        record.choice in record.capped,
        [actions[k] for k in record.unaffordable],
    )
