"""The formulas that policies share. `_kernels/bounds.py` compiles the same functions for loops."""

import math
from typing import Any

from coterie.models.protocol import ROUNDING


def scale_after(alpha: float, learned: int) -> float:
    """Return α·√log(1+t), the factor of spreads after `learned` payoffs; the first round has t = 1."""
    return alpha * math.sqrt(math.log1p(learned + 1))


def is_near(estimate: Any, spread: Any, other: Any, other_spread: Any, scale: float) -> Any:
    """Return whether two users are neighbours, |wᵢ·x − wⱼ·x| ≤ CBᵢ + CBⱼ: for numbers, or arrays of them."""
    return abs(estimate - other) <= scale * (spread + other_spread) + ROUNDING


def certainty(times: int) -> float:
    """Return √((1 + log(1+T)) / (1+T)): how far an estimate from T payoffs may be from the truth."""
    return math.sqrt((1 + math.log(1.0 + times)) / (1.0 + times))
