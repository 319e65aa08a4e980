"""Payoffs to learn from, for a warm start: what a log's decisions earned. Logs are untrusted."""

import re
from collections.abc import Iterator
from typing import NamedTuple

from coterie.data.logs.interactions import InteractionLog
from coterie.data.logs.records import ShownAction
from coterie.errors import FileError
from coterie.models.encoded import encode, name_of
from coterie.service.ids import NAME

LONGEST_ID = 1024


class Payoff(NamedTuple):
    """A payoff to learn."""

    user: str
    action: ShownAction
    value: float


def payoffs_of(log: InteractionLog) -> Iterator[Payoff]:
    """Yield what the shown action of each decision earned."""
    for number, one in enumerate(log.interactions, 1):
        user, name = str(one.user), one.actions[one.chosen]
        for what in (user, name):
            if len(what) > LONGEST_ID or not re.search(NAME, what):
                raise FileError(
                    f"decision {number} of {log.name} has the id {what[:80]!r}, expected 1 to {LONGEST_ID} "
                    "characters, no control characters"
                )
        features = {} if one.features is None else one.features[one.chosen]
        encoded = encode(one.context, [(name_of(name), features)])
        yield Payoff(user, ShownAction.of(name, encoded, featured=one.features is not None), one.reward)
