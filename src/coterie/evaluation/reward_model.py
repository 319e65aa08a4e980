"""The reward model of the direct method: predicts the reward of each action from earlier records.

A prediction for a record is made before the record is learned, so it is independent of that record's reward.
"""

import math
from typing import final

import numpy as np

from coterie.arrays import Floats
from coterie.data.logs.interactions import Interaction
from coterie.evaluation.evidence import Span
from coterie.models.encoded import Encoded
from coterie.policies import SparseHierarchical

PER_RECORD = 64  # new effects per record; in a full table they replace old ones
MOST_SLOTS = 1 << 22


@final
class RewardModel:
    """Predicts the rewards of a record, then learns it."""

    def __init__(self, span: Span, records: int) -> None:
        self.span = span
        slots = min(PER_RECORD * max(records, 64), MOST_SLOTS)
        self.policy = SparseHierarchical(slots=slots, explore=0.0, gap=math.inf, floor=0.0)

    def predict(self, one: Interaction, encoded: Encoded) -> Floats:
        """Return the expected reward of each action: (actions,), within the possible rewards."""
        decision = self.policy.score(one.user, encoded, encoded)
        return np.clip(decision.estimate, self.span.low, self.span.high)

    def learn(self, one: Interaction, encoded: Encoded) -> None:
        """Learn the shown action's reward."""
        self.policy.learn(one.user, encoded[one.chosen], one.reward)
