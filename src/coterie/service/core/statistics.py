"""What was decided and earned, by the minute: a fixed number of small rows, part of the state."""

from collections import deque

from msgspec import Struct

from coterie.service.core.events import Event

MINUTE = 60_000
KEPT = 7 * 24 * 60  # minutes


class Minute(Struct, gc=False, array_like=True):
    """The sums of one minute. Rewards count in the minute of their decision's reward."""

    start: int  # milliseconds
    decisions: int = 0
    explored: int = 0
    learned: int = 0  # payoffs, default rewards included
    earned: float = 0.0  # their sum
    matched: int = 0  # decisions that equal the baseline
    baseline_weight: float = 0.0  # inverse propensity: what the baseline would have earned …
    baseline_earned: float = 0.0
    uniform_weight: float = 0.0  # … and a uniform choice
    uniform_earned: float = 0.0
    updates: int = 0  # users' models updated: more than `learned` means sharing
    baseline_squares: float = 0.0  # of the weights: how many decisions the estimates are worth
    uniform_squares: float = 0.0
    # What intervals need, besides.
    summed: int = 0  # payoffs that are in these sums: fewer than `learned` in files of earlier versions
    losses: int = 0  # payoffs below 0
    earned_squares: float = 0.0
    baseline_products: float = 0.0  # Σ w² y
    baseline_payoffs: float = 0.0  # Σ w² y²
    uniform_products: float = 0.0
    uniform_payoffs: float = 0.0
    # Payoffs of choices that were certain, and so say nothing of an action that had no chance.
    baseline_blind: int = 0
    uniform_blind: int = 0


class Statistics:
    """A ring of minutes and the totals."""

    def __init__(self) -> None:
        self.minutes: deque[Minute] = deque(maxlen=KEPT)
        self.total = Minute(0)

    def _rows(self, at: int) -> tuple[Minute, Minute]:
        start = at - at % MINUTE
        if not self.minutes or self.minutes[-1].start != start:  # earlier, if the time of day jumped back
            self.minutes.append(Minute(start))
        return self.minutes[-1], self.total

    def decided(self, at: int, explored: bool, matched: bool) -> None:
        """Count a decision."""
        for row in self._rows(at):
            row.decisions += 1
            row.explored += explored
            row.matched += matched

    def learned(self, at: int, event: Event, value: float, updates: int) -> None:
        """Count a learned payoff, and what it says about the baseline and a uniform choice."""
        weight = event.baseline / event.probability
        uniform = 1 / (event.choices * event.probability)
        certain = event.probability >= 1 and event.choices > 1
        for row in self._rows(at):
            row.learned += 1
            row.earned += value
            row.baseline_weight += weight
            row.baseline_earned += weight * value
            row.uniform_weight += uniform
            row.uniform_earned += uniform * value
            row.updates += updates
            row.baseline_squares += weight * weight
            row.uniform_squares += uniform * uniform
            row.summed += 1
            row.losses += value < 0
            row.earned_squares += value * value
            row.baseline_products += weight * weight * value
            row.baseline_payoffs += weight * weight * value * value
            row.uniform_products += uniform * uniform * value
            row.uniform_payoffs += uniform * uniform * value * value
            row.baseline_blind += certain and not event.baseline
            row.uniform_blind += certain
