"""A simulated crowd: a few kinds of people who agree on some items and not on others, so the page is alive."""

import asyncio
import random
from collections.abc import Sequence

import msgspec

from coterie.service.coordination.answers import new_event_id
from coterie.service.coordination.coordinator import Coordinator
from coterie.service.core.question import Action, Question
from coterie.service.problems import Problem

ITEMS = ("jazz", "football", "chess", "cooking", "films", "hiking", "opera", "racing", "gardening", "news")
KINDS = 4
USERS = 200
DOORS = 8
HELD_BACK = 0.2  # of the visitors


class Crowd:
    """People of a few kinds, each with a taste for every item: P(click)."""

    def __init__(self, seed: int = 0) -> None:
        self._rng = random.Random(seed)
        self.tastes = [[self._rng.choice((0.05, 0.1, 0.3, 0.6)) for _ in ITEMS] for _ in range(KINDS)]

    def visitor(self) -> tuple[str, Sequence[Action]]:
        """Return somebody, and six items to choose from."""
        number = self._rng.randrange(USERS)
        items = self._rng.sample(ITEMS, 6)
        return f"visitor-{number:03d}", [Action(item) for item in items]

    def clicks(self, user: str, item: str) -> bool:
        """Say whether the visitor clicked."""
        kind = int(user.rsplit("-", 1)[1]) % KINDS
        return self._rng.random() < self.tastes[kind][ITEMS.index(item)]


async def live(coordinator: Coordinator, rate: float = 40.0, seed: int = 0) -> None:
    """Let the crowd come through a few doors, at most `rate` visitors a second, until cancelled.

    In a new store a part of them is held back, unless the settings say otherwise: so the page has a lift to tell.
    """
    if coordinator.bandit.next_user == 0 and not coordinator.settings.names("config.holdback"):
        await coordinator.configure(msgspec.structs.replace(coordinator.bandit.config, holdback=HELD_BACK))
    crowd = Crowd(seed)
    await asyncio.gather(*(_door(coordinator, crowd, rate / DOORS) for _ in range(DOORS)))


async def _door(coordinator: Coordinator, crowd: Crowd, rate: float) -> None:
    while True:
        await asyncio.sleep(1 / rate)
        user, actions = crowd.visitor()
        try:
            decision = await coordinator.rank(Question(new_event_id(), user, actions))
            clicked = crowd.clicks(user, decision.actions[decision.choice])
            await coordinator.reward(decision.event, float(clicked))
        except Problem:
            await asyncio.sleep(1)
