"""The data for evaluating a policy: per record a weight, a reward and two predictions.

p is the logged probability of the shown action, π the policy's, q̂ the reward model's prediction before the
record:

    weight       w = π(shown) / p, at most `clip`
    direct       Σ_a π(a)·q̂(a)
    predicted    q̂(shown)

If weights are clipped, or the policy chooses actions that the log could not show, only the share Σ_a min(π,
clip·p) of the policy is observed. `lost` is the mean of the rest.
"""

import math
from dataclasses import dataclass, replace
from typing import NamedTuple, final

import numpy as np

from coterie.arrays import Floats
from coterie.evaluation.verdict import FEW, by_student, for_all_looks


class Span(NamedTuple):
    """The least and the largest possible reward."""

    low: float
    high: float

    @property
    def size(self) -> float:
        """Their difference."""
        return self.high - self.low

    def nearest(self, value: float) -> float:
        """Return the possible reward that is nearest to a value."""
        return min(self.high, max(self.low, value))


@final
@dataclass(frozen=True, eq=False)
class Evidence:
    """The data for one policy; all arrays are (records,), in time order."""

    weights: Floats  # clipped, if there is a clip
    rewards: Floats
    direct: Floats
    predicted: Floats
    largest: float  # the largest possible weight
    span: Span
    clipped: int = 0  # number of weights above the clip
    clip: float | None = None
    lost: float = 0.0  # the share of the policy that is not observed
    unsupported: float = 0.0  # the part of it on actions that could not be shown
    always: bool = False  # whether intervals and verdicts hold for all looks at a growing log together

    @property
    def n(self) -> int:
        """How many records there are."""
        return len(self.rewards)

    @property
    def residuals(self) -> Floats:
        """The rewards minus the predictions."""
        return self.rewards - self.predicted

    @property
    def terms(self) -> Floats:
        """The doubly robust estimate of each record."""
        return self.direct + self.weights * self.residuals

    @property
    def effective(self) -> float:
        """The effective sample size (Σw)²/Σw²: how many records of the policy itself would be equally informative."""
        squares = float(self.weights @ self.weights)
        return float(self.weights.sum()) ** 2 / squares if squares else 0.0

    @property
    def is_enough(self) -> bool:
        """Whether the log is worth enough records of the policy."""
        return self.effective >= FEW

    def chance_over(self, other: "Evidence") -> float:
        """Return the share of logs in which this one would be ahead by this much or more, if both earned the same."""
        worst = max(self.largest, other.largest) * self.span.size
        unseen = (self.lost + other.lost) * self.span.size
        apart = np.append(self.terms - other.terms - unseen, -worst)
        ahead = float(apart.mean())
        if not ahead > 0 or not math.isfinite(worst):
            return 1.0
        once = by_student(ahead * len(apart), apart - ahead)
        return for_all_looks(once, len(apart)) if self.always else once

    def part(self, first: int, last: int) -> "Evidence":
        """Return some of the records."""
        arrays = ("weights", "rewards", "direct", "predicted")
        return replace(
            self, clipped=0, always=False, **{name: getattr(self, name)[first:last] for name in arrays}
        )


class Weighed(NamedTuple):
    """The data of one record."""

    weight: float
    direct: float
    largest: float  # possible weight
    over: bool  # whether the weight was clipped
    lost: float
    unsupported: float


def weigh(
    policy: Floats | None,
    chances: Floats | None,
    chosen: int,
    probability: float,
    guess: Floats,
    clip: float | None,
) -> Weighed:
    """Return the data of a record for a policy with these probabilities of the actions.

    None is the log's own policy, if the log does not contain its other probabilities.
    """
    if policy is None:
        return Weighed(1.0, float(guess[chosen]), 1.0, False, 0.0, 0.0)
    raw = float(policy[chosen]) / probability
    top = math.inf if clip is None else clip
    weight = min(raw, top)
    direct = float(policy @ guess)
    if chances is None:
        largest = min(float(policy.max()) / probability, top)
        return Weighed(weight, direct, largest, raw > top, raw - weight, 0.0)
    known = chances > 0
    ratio = policy[known] / chances[known]
    unsupported = float(policy[~known].sum())
    cut = float(np.maximum(policy[known] - top * chances[known], 0).sum()) if clip is not None else 0.0
    return Weighed(weight, direct, min(float(ratio.max()), top), raw > top, unsupported + cut, unsupported)
