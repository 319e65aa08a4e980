"""How long work may take: what could be long is not done in the event loop.

Costs are counted in crosses of features, of which the compiled loop takes about ten per microsecond.
"""

from coterie.service.core.bandit import Bandit
from coterie.service.core.events import Event
from coterie.service.core.policy_config import takes_names

LONG = 20_000  # more than this is not done in the event loop
DECIDING = 2_000  # the fixed cost of a decision
LEARNING = 3  # the cost of learning a cross
SETTLING = 300  # the fixed cost of ending a wait


def long_to_decide(bandit: Bandit, work: int, choices: int) -> bool:
    """Return whether a decision may take longer than the event loop can wait."""
    if bandit.challenger is not None and long_to_decide(bandit.challenger, work, choices):
        return True
    if work > LONG or (not takes_names(bandit.config) and len(bandit.users) * choices > LONG):
        return True
    if len(bandit.events) < bandit.config.max_events:
        return False
    return _work(bandit, next(iter(bandit.events.values()))) > LONG  # the oldest event goes, and is learned


def long_to_learn(bandit: Bandit, event: str) -> bool:
    """Return whether learning an event's reward may take longer than the event loop can wait."""
    found = bandit.events.get(event)
    return found is not None and _work(bandit, found) > LONG


def long_to_end(bandit: Bandit, at: int) -> bool:
    """Return whether ending the waits that are over may take longer than the event loop can wait."""
    waits, work, places = bandit.remembered.deadlines, 0, [0]
    while places and work <= LONG:  # down the heap, through all waits that are over
        k = places.pop()
        if k < len(waits) and waits[k][0] <= at:
            event = bandit.events.get(waits[k][2])
            work += SETTLING if event is None else _work(bandit, event)
            places += (2 * k + 1, 2 * k + 2)
    return work > LONG


def _work(bandit: Bandit, event: Event) -> int:
    """Return about what learning an event costs."""
    twin = None if bandit.challenger is None else bandit.challenger.events.get(event.id)
    also = 0 if bandit.challenger is None or twin is None else _work(bandit.challenger, twin)
    if not takes_names(bandit.config):
        return also + SETTLING + LEARNING * len(bandit.users)
    n = len(event.hashed or b"") // 16
    around = int.from_bytes((event.hashed or b"")[:4], "little")
    return also + SETTLING + LEARNING * (2 + around) * (n - around)
