"""A simulated crowd: a few kinds of people who agree on some items and not on others, so the page is alive."""

import asyncio
import random
from collections.abc import Sequence

from coterie.service.core.coordinator import Desk, new_event_id
from coterie.service.core.engine import Action, Question
from coterie.service.problems import Problem

ITEMS = ("jazz", "football", "chess", "cooking", "films", "hiking", "opera", "racing", "gardening", "news")
KINDS = 4
USERS = 200
DOORS = 8


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


async def live(desk: Desk, rate: float = 40.0, seed: int = 0) -> None:
    """Let the crowd come through a few doors, at most `rate` visitors a second, until cancelled."""
    crowd = Crowd(seed)
    await asyncio.gather(*(_door(desk, crowd, rate / DOORS) for _ in range(DOORS)))


async def _door(desk: Desk, crowd: Crowd, rate: float) -> None:
    while True:
        await asyncio.sleep(1 / rate)
        user, actions = crowd.visitor()
        try:
            decision = await desk.rank(Question(new_event_id(), user, actions))
            clicked = crowd.clicks(user, decision.actions[decision.choice])
            await desk.reward(decision.event, float(clicked))
        except Problem:
            await asyncio.sleep(1)
