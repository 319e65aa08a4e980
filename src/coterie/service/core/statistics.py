"""What was decided and earned, per minute: a fixed number of small rows, part of the state."""

import math
from collections import deque
from typing import Any

from msgspec import Struct

from coterie.data.logs.records import Rank
from coterie.service.core.events import Event

MINUTE = 60_000
KEPT = 7 * 24 * 60  # minutes


class Minute(Struct, gc=False, array_like=True):
    """The sums of one minute. A reward counts in the minute when it is learned.

    In a trial, the sums are those of the champion; the other arms have their own.
    """

    start: int  # milliseconds
    decisions: int = 0
    explored: int = 0
    learned: int = 0  # payoffs, default rewards included
    earned: float = 0.0  # their sum
    matched: int = 0  # decisions that equal the baseline
    baseline_weight: float = 0.0  # inverse propensities, for what the baseline would have earned,
    baseline_earned: float = 0.0
    uniform_weight: float = 0.0  # and a uniform choice
    uniform_earned: float = 0.0
    updates: int = 0  # users' models updated: more than `learned` means sharing
    baseline_squares: float = 0.0  # of the weights: how many decisions the estimates are worth
    uniform_squares: float = 0.0
    # For intervals.
    summed: int = 0  # payoffs in these sums: fewer than `learned` in files of earlier versions
    losses: int = 0  # payoffs below 0
    earned_squares: float = 0.0
    baseline_products: float = 0.0  # Σ w² y
    baseline_payoffs: float = 0.0  # Σ w² y²
    uniform_products: float = 0.0
    uniform_payoffs: float = 0.0
    # Payoffs of certain choices: they say nothing about actions with probability 0.
    baseline_blind: int = 0
    uniform_blind: int = 0
    # How often the best guess is the baseline; not in files of earlier versions.
    judged: int = 0  # decisions
    agreed: int = 0  # of these, those whose best guess is the baseline
    shadowed: int = 0  # payoffs of decisions that show the baseline, whatever the best guess
    shadowed_agreed: int = 0  # of these, those whose best guess was the baseline
    shadowed_earned: float = 0.0  # what these earned
    shadowed_squares: float = 0.0
    # How much was left to chance.
    varied: int = 0  # decisions with a choice
    entropy: float = 0.0  # of their probabilities, bits
    # The other arms of a trial.
    holdback_decisions: int = 0
    holdback_learned: int = 0
    holdback_earned: float = 0.0
    holdback_squares: float = 0.0
    holdback_losses: int = 0
    challenger_decisions: int = 0
    challenger_learned: int = 0
    challenger_earned: float = 0.0
    challenger_squares: float = 0.0
    challenger_losses: int = 0

    def in_all_arms(self, name: str) -> Any:
        """Return the sum of all arms' "decisions", "learned" or "earned"."""
        return sum(getattr(self, arm + name) for arm in ("", "holdback_", "challenger_"))


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
            if record.arm == "holdback":
                row.holdback_decisions += 1
            elif record.arm == "challenger":
                row.challenger_decisions += 1
            else:
                row.decisions += 1
                row.explored += record.shown == "explored"
                row.matched += record.choice == record.baseline
                row.judged += 1
                row.agreed += record.best == record.baseline

    def learned(self, at: int, event: Event, value: float, updates: int) -> None:
        """Count a learned payoff, and its weights for the baseline and a uniform choice."""
        if event.arm in ("holdback", "challenger"):
            self._learned_in_trial(at, event.arm, value, updates)
            return
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
            if event.probability >= 1 and event.baseline:
                row.shadowed += 1
                row.shadowed_agreed += event.agrees
                row.shadowed_earned += event.agrees * value
                row.shadowed_squares += event.agrees * value * value

    def _learned_in_trial(self, at: int, arm: str, value: float, updates: int) -> None:
        """Count a payoff of the holdback or the challenger."""
        for row in self._rows(at):
            row.updates += updates
            for name, more in (
                ("learned", 1), ("earned", value), ("squares", value * value), ("losses", value < 0),
            ):  # fmt: skip
                setattr(row, f"{arm}_{name}", getattr(row, f"{arm}_{name}") + more)


def entropy(record: Rank) -> tuple[bool, float]:
    """Return whether a decision had a choice, and the entropy of its probabilities in bits."""
    if len(record.likely) < 2 or record.shown == "baseline":
        return False, 0.0
    return True, -math.fsum(p * math.log2(p) for p in record.likely.tolist() if p > 0)
