"""Several slots of one page: an action chosen for one is not open to the next, and each must get one."""

from collections.abc import Sequence

import msgspec

from coterie.data.logs.records import Rank
from coterie.service.core.question import Question
from coterie.service.problems import Problem


def next_slot(questions: Sequence[Question], decided: Sequence[Rank]) -> Question:
    """Return the first question without a decision, with the actions that are left for it."""
    taken = {record.actions[record.choice] for record in decided}
    k = len(decided)
    return narrow(questions[k], taken, questions[k + 1 :])


def narrow(question: Question, taken: set[str], later: Sequence[Question]) -> Question:
    """Exclude the actions that earlier slots took, and those without which a later slot would have none."""
    left = [action.id for action in question.actions if action.id not in taken]
    mine = [name for name in left if name not in question.excluded]
    # A slot with more choices than there are slots before it always gets one: the usual case.
    if any(len(left) - len(slot.excluded) <= k + 1 for k, slot in enumerate(later)):
        others = [{name for name in left if name not in slot.excluded} for slot in later]
        owner = _match(others)
        mine = [] if owner is None else _spare(mine, owner, others)
    if not mine:
        raise Problem(422, "too_few_actions", "there are not enough actions to show another one in each slot")
    return msgspec.structs.replace(question, excluded=question.excluded | taken | (set(left) - set(mine)))


def _match(slots: Sequence[set[str]]) -> dict[str, int] | None:
    """Return an action for each slot, as action → slot, or None if there is no such assignment."""
    owner: dict[str, int] = {}
    for k in range(len(slots)):
        if not _augment(k, slots, owner, set()):
            return None
    return owner


def _augment(k: int, slots: Sequence[set[str]], owner: dict[str, int], seen: set[str]) -> bool:
    for name in sorted(slots[k] - seen):
        if name in seen:
            continue
        seen.add(name)
        if name not in owner or _augment(owner[name], slots, owner, seen):
            owner[name] = k
            return True
    return False


def _spare(names: Sequence[str], owner: dict[str, int], slots: Sequence[set[str]]) -> list[str]:
    """Return those actions without which every slot still gets another one.

    A slot can give up its action if it can take a free one, or that of another slot that can give up its own. So the
    search starts from the free actions.
    """
    wanted: dict[str, list[int]] = {}
    for k, open_to in enumerate(slots):
        for name in open_to:
            wanted.setdefault(name, []).append(k)
    has = {k: name for name, k in owner.items()}
    waiting = [name for name in wanted if name not in owner]
    can: set[int] = set()
    while waiting:
        for k in wanted[waiting.pop()]:
            if k not in can:
                can.add(k)
                waiting.append(has[k])
    return [name for name in names if name not in owner or owner[name] in can]
