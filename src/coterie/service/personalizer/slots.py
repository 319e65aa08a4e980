"""Slots: several decisions of one rank request, each with an event of its own."""

from collections.abc import Callable
from itertools import count, takewhile

from coterie.data.logs.records import SLOT
from coterie.service.coordination.coordinator import Coordinator
from coterie.service.core.events import Event
from coterie.service.core.question import Question, hash_sent
from coterie.service.http.bodies import check_groups
from coterie.service.http.compatible import Refusal
from coterie.service.http.limits import check_actions
from coterie.service.personalizer.bodies import SlotIn, SlotsIn
from coterie.service.settings import Settings


def slot_event(event: str, k: int) -> str:
    """Return the event id of a slot. Clients cannot send it, as it has a control character."""
    return f"{event}{SLOT}{k}"


def slots_in_memory(coordinator: Coordinator, event: str) -> list[Event]:
    """Return the events of an event's slots that are in memory, by slot number."""
    return _found(coordinator.bandit.events.get, event)


async def slots_of(coordinator: Coordinator, event: str) -> list[Event]:
    """Return the events of an event's slots, by slot number."""
    known = slots_in_memory(coordinator, event)  # if the first is, the others are: they are younger
    return known or await coordinator.look(lambda: _found(coordinator.bandit.find, event))


def _found(find: Callable[[str], Event | None], event: str) -> list[Event]:
    events = (find(slot_event(event, k)) for k in count())
    return [one for one in takewhile(bool, events) if one is not None]


def slot_question(question: Question, k: int, slot: SlotIn, work: int) -> Question:
    """Return the question to decide for one slot, whose features are part of the context."""
    around = [{"slot": part} for part in slot.every_feature()]
    check_groups([around])
    return Question(
        event=slot_event(question.event, k),
        user=question.user,
        actions=question.actions,
        context=[*question.context, *around],
        excluded=frozenset(slot.excluded_actions or ()),
        deferred=question.deferred,
        baseline=slot.baseline_action,
        slot=slot.id,
        work=work,
        fresh=question.fresh,
        sent=hash_sent(question.sent + b"%d" % k),
    )


def check_slots(data: SlotsIn, settings: Settings) -> None:
    """Refuse slots that contradict each other or the actions."""
    names = {action.id for action in data.actions}
    if len(data.slots) > len(names):
        message = f"{len(data.slots)} slots and {len(names)} actions; expected at least as many actions"
        raise Refusal(400, "InvalidRankRequest", message, "slots")
    if len({slot.id for slot in data.slots}) != len(data.slots):
        raise Refusal(400, "InvalidRankRequest", "two slots have the same id", "slots")
    for slot in data.slots:
        check_actions(settings, (), slot.excluded_actions or ())
        if slot.baseline_action not in names or slot.baseline_action in (slot.excluded_actions or ()):
            message = f"the baselineAction of slot {slot.id!r} is not an action that may be shown there"
            raise Refusal(400, "InvalidRankRequest", message, "slots")
