"""Whether a loop still explores: the entropy of its choices, and how often its best guess changes.

The entropy of a decision is that of its probabilities, in bits: 0 if the choice was certain, 1 for two actions with
probability 1/2. A loop whose choices are nearly certain does not learn what other actions would have earned, and it
cannot be estimated from the log. This may be intended (`exploration = 0`); more often it is a mistake.

Whether the best guess changes is found by deciding again: of decisions spread over the last hour, how many have
another best guess now. If it changes often, the loop is still learning, or its users change.
"""

from collections.abc import Sequence

from coterie.data.logs.records import Rank
from coterie.data.logs.rules import Config
from coterie.errors import CoterieError
from coterie.service.core.bandit import Bandit
from coterie.service.core.question import Action, Question
from coterie.service.core.statistics import MINUTE, Statistics
from coterie.service.core.workload import LONG, long_to_decide

SPAN = 60  # minutes that are looked at
ENOUGH = 200  # decisions with a choice; with fewer there is no warning
LEAST = 0.01  # bits: two actions with probabilities 0.999 and 0.001 have 0.011
ASKED = 100  # decisions that are made again
SEARCHED = 20_000  # latest events from which these are taken
EVERY = 60.0  # seconds


def recent(statistics: Statistics, at: int) -> tuple[int, float]:
    """Return how many decisions of the last hour had a choice, and the sum of their entropies."""
    varied, bits = 0, 0.0
    for row in reversed(statistics.minutes):
        if row.start <= at - SPAN * MINUTE:
            break
        varied += row.varied
        bits += row.entropy
    return varied, bits


def warning(statistics: Statistics, config: Config, at: int) -> str | None:
    """Return the warning if the loop stopped exploring, else None; also None in modes that show the baseline."""
    varied, bits = recent(statistics, at)
    if config.mode != "online" or varied < ENOUGH or bits >= LEAST * varied:
        return None
    return (
        f"the loop stopped exploring: the choices of the last hour had an entropy of {bits / varied:.4f} bits, over "
        f"{varied:,} decisions; exploration is {config.exploration:g}, raise it to learn what other actions earn"
    )


def removal(bandit: Bandit) -> str | None:
    """Return the warning if events were removed before their wait had ended, for a day; else None."""
    remembered = bandit.remembered
    if not remembered.removed or remembered.removed_at < bandit.now - 24 * SPAN * MINUTE:
        return None
    return (
        f"{remembered.removed:,} events were removed before their wait had ended, and learned nothing: together the "
        f"waits need more than {bandit.config.max_event_bytes:,} bytes; raise max-event-bytes, or shorten the wait"
    )


def warnings(bandit: Bandit) -> list[str | None]:
    """Return what the page warns of."""
    stopped = bandit.guards.broken_texts()
    return [*stopped, warning(bandit.statistics, bandit.config, bandit.now), removal(bandit)]


def to_ask(bandit: Bandit) -> list[int]:
    """Return the positions of decisions to make again, spread over the remembered ones of the last hour."""
    young: list[int] = []
    for event in reversed(bandit.events.values()):
        if event.at <= bandit.now - SPAN * MINUTE or len(young) == SEARCHED:
            break
        young.append(event.position)
    return young[:: max(1, len(young) // ASKED)][:ASKED]


def asked_again(record: Rank, bandit: Bandit) -> bool | None:
    """Return whether a decision's best guess is another one now; None if it cannot be made again."""
    name = bandit.ids.get(record.user)
    if name is None or record.arm == "challenger" or record.event.startswith("\0"):
        return None
    context, features = record.sent
    actions = [Action(*pair) for pair in zip(record.actions, features, strict=True)]
    excluded = frozenset(record.actions[k] for k in record.excluded)
    work = sum(map(len, context)) * sum(len(part) for own in features for part in own or ())
    if long_to_decide(bandit, work, len(actions)) or work > LONG:
        return None
    try:
        again, _ = bandit.what_if(Question(record.event, name, actions, context, excluded), caps=False)
    except CoterieError:
        return None
    return again.best != record.best


def share(changed: Sequence[bool | None]) -> float | None:
    """Return the share of best guesses that changed, of those that are known."""
    known = [one for one in changed if one is not None]
    return sum(known) / len(known) if known else None
