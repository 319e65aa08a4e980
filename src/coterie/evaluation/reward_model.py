"""The reward model of the direct method: predicts the reward of each action from earlier records.

A prediction for a record is made before the record is learned, so it is independent of that record's reward.

If rewards are rare, most of what a model says of an action is noise, and a policy that shows the action with the
largest prediction picks the noise. So predictions are calibrated: with p the model's predictions for the actions
shown so far, and y their rewards,

    prediction = mean(y) + slope·(p − mean(p))       y − mean(y) = slope·(p − mean(p)) + noise

where the slope is estimated by least squares with the prior N(1, PRIOR_SD²). A model that says nothing about the
rewards gets a slope near 0, and then every action has the mean reward. Records have the weight 1/(π·actions), where
π is the logged probability, so the line is one for all actions and not for those that the log prefers.
"""

from typing import final

import numpy as np

from coterie.arrays import Floats
from coterie.data.logs.interactions import Interaction
from coterie.evaluation.evidence import Span
from coterie.models.encoded import Encoded
from coterie.policies import Hierarchical

PER_RECORD = 64  # new effects per record; in a full table they replace old ones
MOST_SLOTS = 1 << 22
PRIOR_SD = 0.5  # of the slope around 1
MOST_WEIGHT = 20.0


@final
class RewardModel:
    """Predicts the rewards of a record, then learns it."""

    def __init__(self, span: Span, records: int) -> None:
        self.span = span
        slots = min(PER_RECORD * max(records, 64), MOST_SLOTS)
        self.policy = Hierarchical(slots=slots, explore=0.0, floor=0.0)
        self.calibration = Calibration()
        self._predicted = np.zeros(0)  # for the last record

    def predict(self, one: Interaction, encoded: Encoded) -> Floats:
        """Return the expected reward of each action: (actions,), within the possible rewards."""
        self._predicted = self.policy.decide(one.user, encoded).estimate
        return np.clip(self.calibration.of(self._predicted), self.span.low, self.span.high)

    def learn(self, one: Interaction, encoded: Encoded) -> None:
        """Learn the shown action's reward, after `predict` was asked about the same record."""
        weight = min(1 / (one.probability * len(one.actions)), MOST_WEIGHT)
        self.calibration.add(float(self._predicted[one.chosen]), one.reward, weight)
        self.policy.learn(one.user, encoded[one.chosen], one.reward)


@final
class Calibration:
    """A line from what a model predicts to what is earned, from running sums.

    >>> line = Calibration()
    >>> for predicted, earned in [(0.0, 0.5), (1.0, 0.5)] * 500:
    ...     line.add(predicted, earned)
    >>> line.of(np.array([0.0, 1.0])).round(2).tolist()
    [0.5, 0.5]
    """

    def __init__(self) -> None:
        self.weight = 0.0  # of all records
        self.predicted = self.earned = 0.0  # means
        self.spread = self.noise = self.both = 0.0  # sums of squares and of products of deviations

    def add(self, predicted: float, earned: float, weight: float = 1.0) -> None:
        """Add a record (Welford's sums)."""
        self.weight += weight
        before, above = predicted - self.predicted, earned - self.earned
        self.predicted += before * weight / self.weight
        self.earned += above * weight / self.weight
        self.spread += weight * before * (predicted - self.predicted)
        self.noise += weight * above * (earned - self.earned)
        self.both += weight * before * (earned - self.earned)

    @property
    def slope(self) -> float:
        """The posterior mean of the slope."""
        # The prior's precision, times the variance of the noise.
        certain = PRIOR_SD**-2 * self.noise / max(self.weight, 1)
        weight = self.spread + certain
        return (self.both + certain) / weight if weight > 0 else 1.0

    def of(self, predicted: Floats) -> Floats:
        """Return the expected rewards; what the model predicts, before the first record."""
        return self.earned + self.slope * (predicted - self.predicted) if self.weight else predicted
