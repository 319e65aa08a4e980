"""The answer to a rank, made from the record of the decision."""

import secrets

from msgspec import Struct

from coterie.data.logs.records import Rank, request_of


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
    actions, choices = record.actions, len(record.open_to)
    likely = dict(zip(record.open_to, record.likely.tolist(), strict=True))
    ranking = [Candidate(actions[k], likely[k]) for k in record.order[:choices]]
    ranking += [Candidate(actions[k], 0.0) for k in record.order[choices:]]
    return Ranking(
        request_of(record.event),
        actions[record.choice],
        ranking,
        [actions[k] for k in record.capped],
        record.choice in record.capped,
        [actions[k] for k in record.unaffordable],
    )
