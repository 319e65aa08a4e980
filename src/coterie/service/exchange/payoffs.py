"""Payoffs to learn from, for a warm start: those that an exported log learned."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from coterie.service.core.bandit import Bandit
from coterie.service.core.events import Paid
from coterie.service.core.records import Record
from coterie.service.settings import Config


class Payoff(NamedTuple):
    """A payoff to learn."""

    user: str
    paid: Paid
    value: float


def payoffs_of(records: Iterable[Record], config: Config | None = None) -> Iterator[Payoff]:
    """Yield the payoffs that an exported log learned, with default rewards, as the policy of `config` learns them."""
    bandit = Bandit()
    bandit.fixed = config
    learned: list[Payoff] = []

    def heard(user: int, paid: Paid, value: float) -> None:
        learned.append(Payoff(f"imported-{user}", paid, value))

    bandit.policies.on_learn = heard
    for record in records:
        bandit.apply(record)
        bandit.drain()
        yield from learned
        learned.clear()
