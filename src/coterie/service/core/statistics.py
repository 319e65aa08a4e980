"""What was decided and earned, per minute: a fixed number of small rows, part of the state."""

import math
from collections import deque

import msgspec
from msgspec import Struct

from coterie.data.logs.records import ArmName, Rank
from coterie.service.core.events import Event

MINUTE = 60_000
KEPT = 7 * 24 * 60  # minutes


class ArmSums(Struct, gc=False, array_like=True):
    """What an arm decided and earned."""

    decisions: int = 0
    learned: int = 0  # payoffs, default rewards included
    earned: float = 0.0  # their sum
    squares: float = 0.0
    losses: int = 0  # payoffs below 0

    def add(self, value: float) -> None:
        """Count a payoff."""
        self.learned += 1
        self.earned += value
        self.squares += value * value
        self.losses += value < 0


class OtherSums(Struct, gc=False, array_like=True):
    """Sums over payoffs y, weighted by w for what another choice would have earned."""

    weight: float = 0.0  # Σ w
    squares: float = 0.0  # Σ w²
    earned: float = 0.0  # Σ w y
    products: float = 0.0  # Σ w² y
    payoffs: float = 0.0  # Σ w² y²
    blind: int = 0  # payoffs of certain choices: they say nothing about actions with probability 0

    def add(self, weight: float, value: float, is_blind: bool) -> None:
        """Count a payoff."""
        self.weight += weight
        self.squares += weight * weight
        self.earned += weight * value
        self.products += weight * weight * value
        self.payoffs += weight * weight * value * value
        self.blind += is_blind


class Minute(Struct, gc=False, array_like=True):
    """The sums of one minute. A reward counts in the minute when it is learned.

    In a trial, all but those of an arm, `updates` and those of chance are the champion's.
    """

    start: int  # milliseconds
    champion: ArmSums = msgspec.field(default_factory=ArmSums)
    holdback: ArmSums = msgspec.field(default_factory=ArmSums)
    challenger: ArmSums = msgspec.field(default_factory=ArmSums)
    baseline: OtherSums = msgspec.field(default_factory=OtherSums)
    uniform: OtherSums = msgspec.field(default_factory=OtherSums)
    explored: int = 0
    matched: int = 0  # decisions that equal the baseline
    agreed: int = 0  # decisions whose best guess is the baseline
    # Decisions that show the baseline, whatever the best guess; learned from are those whose best guess it was.
    shadowed: ArmSums = msgspec.field(default_factory=ArmSums)
    updates: int = 0  # users' models updated: more than `learned` means sharing
    varied: int = 0  # decisions with a choice
    entropy: float = 0.0  # of their probabilities, bits

    def arm(self, name: ArmName) -> ArmSums:
        """Return the sums of an arm; outside of a trial they are the champion's."""
        found: ArmSums = getattr(self, name or "champion")
        return found

    @property
    def decisions(self) -> int:
        """How many decisions all arms made."""
        return self.champion.decisions + self.holdback.decisions + self.challenger.decisions

    @property
    def learned(self) -> int:
        """How many payoffs all arms had."""
        return self.champion.learned + self.holdback.learned + self.challenger.learned

    @property
    def earned(self) -> float:
        """What all arms earned."""
        return self.champion.earned + self.holdback.earned + self.challenger.earned


def add_to(sums: Struct, more: Struct) -> None:
    """Add numbers to those of the same names; `start` stays."""
    for name in sums.__struct_fields__:
        one, other = getattr(sums, name), getattr(more, name)
        if isinstance(one, Struct):
            add_to(one, other)
        elif name != "start":
            setattr(sums, name, one + other)


class Statistics:
    """The latest minutes, and the totals."""

    def __init__(self) -> None:
        self.minutes: deque[Minute] = deque(maxlen=KEPT)
        self.total = Minute(0)

    def _rows(self, at: int) -> tuple[Minute, Minute]:
        start = at - at % MINUTE
        if not self.minutes or self.minutes[-1].start != start:  # smaller, if the time of day jumped back
            self.minutes.append(Minute(start))
        return self.minutes[-1], self.total

    def decided(self, record: Rank) -> None:
        """Count a decision."""
        varied, bits = entropy(record)
        for row in self._rows(record.at):
            row.varied += varied
            row.entropy += bits
            row.arm(record.arm).decisions += 1
            if record.arm in ("", "champion"):
                row.explored += record.shown == "explored"
                row.matched += record.choice == record.baseline
                row.agreed += record.best == record.baseline

    def learned(self, at: int, event: Event, value: float, updates: int) -> None:
        """Count a learned payoff, and its weights for the baseline and a uniform choice."""
        certain = event.probability >= 1 and event.choices > 1
        for row in self._rows(at):
            row.updates += updates
            row.arm(event.arm).add(value)
            if event.arm in ("", "champion"):
                row.baseline.add(event.baseline / event.probability, value, certain and not event.baseline)
                row.uniform.add(1 / (event.choices * event.probability), value, certain)
                if event.probability >= 1 and event.baseline:
                    row.shadowed.decisions += 1
                    if event.agrees:
                        row.shadowed.add(value)


def entropy(record: Rank) -> tuple[bool, float]:
    """Return whether a decision had a choice, and the entropy of its probabilities in bits."""
    likely = record.likely.tolist()
    if len(likely) < 2 or record.shown == "baseline":
        return False, 0.0
    return True, -math.fsum([p * math.log2(p) for p in likely if p > 0])
