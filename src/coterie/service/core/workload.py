"""How long work may take: what could be long is not done in the event loop.

Costs are counted in crosses of features, of which the compiled loop takes about ten per microsecond.
"""

from collections.abc import Sequence

from coterie.data.logs.records import Befriend, Configure, Forget, Import, Rank, Record, Reward, Tick
from coterie.service.core.bandit import Bandit
from coterie.service.core.events import Event
from coterie.service.core.policy_config import takes_names
from coterie.service.core.waits import REWARDED

LONG = 20_000  # more than this is not done in the event loop
DECIDING = 2_000  # the fixed cost of a decision
LEARNING = 3  # the cost of learning a cross
SETTLING = 300  # the fixed cost of ending a wait
LONG_KINDS = (Configure, Import, Forget, Befriend)


def long_to_decide(bandit: Bandit, work: int, choices: int) -> bool:
    """Return whether a decision may take longer than the event loop can wait."""
    scans = any(not takes_names(model.config) for model in bandit.models)
    return work > LONG or (scans and len(bandit.users) * choices > LONG)


def long_to_learn(bandit: Bandit, event: str) -> bool:
    """Return whether learning an event's reward may take longer than the event loop can wait."""
    found = bandit.events.get(event)
    return found is None or _work(bandit, found) > LONG  # if it is not in memory, the log is read


def long_to_end(bandit: Bandit, at: int) -> bool:
    """Return whether ending the waits that are over may take longer than the event loop can wait."""
    remembered, work = bandit.remembered, 0
    if remembered.waits.next > at:
        return False
    for wait in remembered.waits.look(at):
        event = remembered.at(wait.position)
        if event is None and wait.state != REWARDED:
            return True  # the log is read
        work += SETTLING if event is None else _work(bandit, event)
        if work > LONG:
            return True
    return False


def long_to_apply(bandit: Bandit, records: Sequence[Record]) -> bool:
    """Return whether applying records may take longer than the event loop can wait."""
    for record in records:
        if isinstance(record, Rank):
            continue
        if isinstance(record, Reward):
            if record.outcome == "applied" and long_to_learn(bandit, record.event):
                return True
        elif isinstance(record, LONG_KINDS) or (isinstance(record, Tick) and long_to_end(bandit, record.at)):
            return True
    return False


def _work(bandit: Bandit, event: Event) -> int:
    """Return about what learning an event costs."""
    hashed = event.action.hashed or b""
    n, around = len(hashed) // 16, int.from_bytes(hashed[:4], "little")
    crosses = (2 + around) * (n - around)
    work = 0
    for model in bandit.models:
        work += SETTLING + LEARNING * (crosses if takes_names(model.config) else len(bandit.users))
    return work
