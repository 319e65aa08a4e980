"""When the reward of a decision in a log is final, and what it is: as the service learns it."""

import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import final

from coterie.data.logs.records import Activate, Configure, Rank, Record, Reward, Tick
from coterie.data.logs.rules import Config


@final
class Settled:
    """A decision, and what it earned so far; final once it is yielded."""

    __slots__ = (
        "_total", "count", "decision", "end", "is_over", "names", "parts", "position", "rules", "was_shown",
    )  # fmt: skip

    def __init__(self, position: int, decision: Rank, rules: Config) -> None:
        self.position = position
        self.decision = decision
        self.rules = rules
        self.end = decision.at + math.ceil(rules.wait * 1000)
        self.is_over = False  # whether its wait has ended
        self.was_shown = not decision.deferred
        self.count = 0  # of rewards; with none it is the default reward
        self.names: set[str | None] = set()  # of these
        self.parts: list[Mapping[str, float]] = []
        self._total = 0.0

    def add(self, reward: Reward, rules: Config) -> None:
        """Add a reward, unless it is not counted: services that took two at once recorded both as applied."""
        again = reward.name is not None and reward.name in self.names
        if again or not self.was_shown or (self.count and rules.aggregation == "earliest"):
            return
        self.names.add(reward.name)
        self._total += reward.value
        self.count += 1
        if reward.parts:
            self.parts.append(reward.parts)

    @property
    def reward(self) -> float:
        """What it earned."""
        if not self.count:
            return self.rules.default_reward
        average = self.rules.aggregation == "average"
        return min(1.0, max(-1.0, self._total / self.count if average else self._total))


def settled(records: Iterable[tuple[int, Record]]) -> Iterator[Settled]:
    """Yield the decisions in order, each when its reward is final; at the end those that still wait."""
    rules = Config()
    waiting: deque[Settled] = deque()
    by_event: dict[str, Settled] = {}

    def take(is_over: bool) -> Settled:
        one = waiting.popleft()
        if by_event.get(one.decision.event) is one:
            del by_event[one.decision.event]
        one.rules, one.is_over = rules, is_over
        return one

    for position, record in records:
        if isinstance(record, Configure):
            rules = record.config
        elif isinstance(record, Rank):
            waiting.append(one := Settled(position, record, rules))
            by_event[record.event] = one
        elif isinstance(record, Reward) and record.outcome == "applied" and record.event in by_event:
            by_event[record.event].add(record, rules)
        elif isinstance(record, Activate) and record.event in by_event:
            by_event[record.event].was_shown = True
        elif isinstance(record, Tick):
            if record.jump:
                for one in waiting:
                    one.end += record.jump
            while waiting and waiting[0].end <= record.at:
                yield take(is_over=True)
    while waiting:
        yield take(is_over=False)
