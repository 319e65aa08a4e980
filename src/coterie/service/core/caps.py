"""Frequency caps: a user is shown an action at most so many times in a period.

A decision counts as a look from the moment it is made, because the application may show it at any time: also if it is
deferred, and also if a client made it. An action that reached a cap is left out before the policy is asked, so the
probabilities are those of the actions that are left. Looks are kept with the user and come from records alone.
Requests without a user have no caps. A decision under caps is made where its record is appended, so it knows all
looks before it, also those of other services: if one of these was faster, it is made again.
"""

from collections.abc import Sequence

import msgspec

from coterie.data.logs.rules import Cap
from coterie.service.core.question import Question

Looks = dict[str, list[int]]  # by action: when a user was shown it last, milliseconds, oldest first


def with_caps(question: Question, looks: Looks, at: int, caps: Sequence[Cap]) -> Question:
    """Return the question without the actions that reached a cap; if none would be left, with the baseline alone."""
    if not looks:
        return question
    left = [action.id for action in question.actions if action.id not in question.excluded]
    capped = {name for name in left if _is_capped(looks.get(name, ()), name, at, caps)}
    if not capped:
        return question
    out = capped
    if len(capped) == len(left):
        out = capped - {question.baseline if question.baseline in capped else left[0]}
    return msgspec.structs.replace(question, excluded=question.excluded | out, capped=frozenset(capped))


def add_look(looks: Looks, name: str, at: int, caps: Sequence[Cap]) -> Looks:
    """Return the looks with one more, and without those that no cap counts any longer."""
    longest = 1000 * max(cap.period for cap in caps)
    kept = {other: times for other, times in looks.items() if times[-1] > at - longest}
    most = max((cap.looks for cap in caps if cap.action in (None, name)), default=0)
    if most:
        kept[name] = [*kept.get(name, ()), at][-most:]
    return kept


def _is_capped(times: Sequence[int], name: str, at: int, caps: Sequence[Cap]) -> bool:
    return any(
        len(times) >= cap.looks and times[-cap.looks] > at - 1000 * cap.period
        for cap in caps
        if cap.action in (None, name)
    )
