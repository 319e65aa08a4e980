"""CAB's rule for two users, and the factor of all bounds."""

import math

from coterie.models._kernels.jit import bare
from coterie.models.protocol import ROUNDING


@bare
def is_near(estimate: float, spread: float, other: float, other_spread: float, scale: float) -> bool:
    """Return whether two users are neighbours: their bounds overlap."""
    return abs(estimate - other) <= scale * (spread + other_spread) + ROUNDING


@bare
def scale_after(alpha: float, learned: int) -> float:
    """Return α·√log(1+t) after `learned` payoffs, as `policies/base/exploration.py` does."""
    return alpha * math.sqrt(math.log1p(learned + 1))
