"""Simulated visitors for the demo: a few kinds of people who agree on some items and not on others."""

import asyncio
import random
from collections.abc import Sequence

import msgspec

from coterie.service.coordination.coordinator import Coordinator
from coterie.service.core.answers import new_event_id
from coterie.service.core.question import Action, Question
from coterie.service.problems import Problem

ITEMS = ("jazz", "football", "chess", "cooking", "films", "hiking", "opera", "racing", "gardening", "news")
KINDS = 4
USERS = 400
STREAMS = 8  # of visitors, at the same time
HELD_BACK = 0.4  # of the visitors; then 15 of 16 draws of them show a clear lift in the first minute


class Crowd:
    """Visitors of a few kinds; each kind has a probability of a click per item."""

    def __init__(self, seed: int = 0) -> None:
        self._rng = random.Random(seed)
        self.tastes = [[self._rng.choice((0.05, 0.1, 0.3, 0.6)) for _ in ITEMS] for _ in range(KINDS)]

    def visitor(self) -> tuple[str, Sequence[Action]]:
        """Return a visitor, and six items to choose from."""
        number = self._rng.randrange(USERS)
        items = self._rng.sample(ITEMS, 6)
        return f"visitor-{number:03d}", [Action(item) for item in items]

    def chance(self, user: str, item: str) -> float:
        """Return the probability of a click."""
        return self.tastes[int(user.rsplit("-", 1)[1]) % KINDS][ITEMS.index(item)]

    def clicks(self, user: str, item: str) -> bool:
        """Return whether the visitor clicks."""
        return self._rng.random() < self.chance(user, item)


async def live(coordinator: Coordinator, rate: float = 40.0, seed: int = 0) -> None:
    """Simulate at most `rate` visitors per second; in a new store some are held back, so that there is a lift."""
    if coordinator.bandit.next_user == 0 and not coordinator.settings.names("config.holdback"):
        await coordinator.configure(msgspec.structs.replace(coordinator.bandit.config, holdback=HELD_BACK))
    crowd = Crowd(seed)
    await asyncio.gather(*(_stream(coordinator, crowd, rate / STREAMS) for _ in range(STREAMS)))


async def _stream(coordinator: Coordinator, crowd: Crowd, rate: float) -> None:
    while True:
        await asyncio.sleep(1 / rate)
        user, actions = crowd.visitor()
        try:
            decision = await coordinator.rank(Question(new_event_id(), user, actions))
            clicked = crowd.clicks(user, decision.actions[decision.choice])
            await coordinator.reward(decision.event, float(clicked))
        except Problem:
            await asyncio.sleep(1)
