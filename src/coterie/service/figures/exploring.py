"""Whether a loop still explores: the entropy of its choices, and how often its best guess changes.

The entropy of a decision is that of its probabilities, in bits: 0 if the choice was certain, 1 for two actions with
probability 1/2. A loop whose choices are nearly certain does not learn what other actions would have earned, and it
cannot be estimated from the log. This may be intended (`exploration = 0`); more often it is a mistake.

Whether the best guess changes is found by deciding again: of decisions spread over the last hour, how many have
another best guess now. A loop that explores and whose best guess does not change has learned what it can; if it
changes often, the loop is still learning, or its users change.
"""

from collections.abc import Iterable, Sequence
from itertools import islice

from coterie.errors import CoterieError
from coterie.service.core.engine import LONG, Action, Engine, Question, sent_features
from coterie.service.core.records import Rank
from coterie.service.figures.statistics import MINUTE, Minute, Statistics
from coterie.service.settings import Config

SPAN = 60  # minutes that are looked at
ENOUGH = 200  # decisions with a choice; with fewer there is no warning
LEAST = 0.01  # bits: two actions with probabilities 0.999 and 0.001 have 0.011
ASKED = 100  # decisions that are made again
SEARCHED = 20_000  # latest events from which these are taken
EVERY = 60.0  # seconds


def recent(statistics: Statistics, at: int) -> tuple[int, float]:
    """Return how many decisions of the last hour had a choice, and the sum of their entropies."""
    varied, bits = 0, 0.0
    for row in _latest(statistics, at):
        varied += row.varied
        bits += row.entropy
    return varied, bits


def _latest(statistics: Statistics, at: int) -> Iterable[Minute]:
    for row in reversed(statistics.minutes):
        if row.start <= at - SPAN * MINUTE:
            return
        yield row


def stopped(statistics: Statistics, config: Config, at: int) -> bool:
    """Return whether the loop stopped exploring; False in modes that show the baseline."""
    varied, bits = recent(statistics, at)
    return config.mode == "online" and varied >= ENOUGH and bits < LEAST * varied


def warning(statistics: Statistics, config: Config, at: int) -> str | None:
    """Return the warning if the loop stopped exploring, else None."""
    if not stopped(statistics, config, at):
        return None
    varied, bits = recent(statistics, at)
    return (
        f"the loop stopped exploring: the choices of the last hour had an entropy of {bits / varied:.4f} bits, over "
        f"{varied:,} decisions; exploration is {config.exploration:g}, raise it to learn what other actions earn"
    )


def to_ask(engine: Engine) -> list[int]:
    """Return the positions of decisions to make again, spread over the remembered ones of the last hour."""
    young: list[int] = []
    for event in reversed(engine.events.values()):
        if event.at <= engine.now - SPAN * MINUTE or len(young) == SEARCHED:
            break
        young.append(event.position)
    return list(islice(young, 0, None, max(1, len(young) // ASKED)))[:ASKED]


def asked_again(record: Rank, engine: Engine) -> bool | None:
    """Return whether a decision's best guess is another one now; None if it cannot be made again."""
    name = engine.ids.get(record.user)
    if name is None or record.arm == "challenger" or record.event.startswith("\0"):
        return None
    context, features = sent_features(record)
    actions = [Action(*pair) for pair in zip(record.actions, features, strict=True)]
    excluded = frozenset(record.actions[k] for k in record.excluded)
    work = sum(map(len, context)) * sum(len(part) for own in features for part in own or ())
    if engine.long_to_decide(work, len(actions)) or work > LONG:
        return None
    try:
        again, _ = engine.what_if(Question(record.event, name, actions, context, excluded))
    except CoterieError:
        return None
    return again.best != record.best


def share(changed: Sequence[bool | None]) -> float | None:
    """Return the share of best guesses that changed, of those that are known."""
    known = [one for one in changed if one is not None]
    return sum(known) / len(known) if known else None
