"""How far a payoff can be from those before it, from a list of these."""

import math
from collections.abc import Sequence

import numpy as np


def within_reach(payoffs: Sequence[float], payoff: float) -> float:
    """Return what a payoff counts as after these: at most one that doubles their variance."""
    n = len(payoffs)
    if n < 32 or len(set(payoffs)) == 1:
        return payoff
    mean, sd = float(np.mean(payoffs)), float(np.std(payoffs))
    farthest = max(abs(y - mean) for y in payoffs)
    reach = max(8.0, math.sqrt(n)) * sd
    if n * sd * sd < 3 * farthest**2:
        reach = max(reach, 4 * farthest)
    return float(np.clip(payoff, mean - reach, mean + reach))
