"""How likely each candidate is the best, and a choice by these probabilities.

`probability_of_best(mean, sd)` is for independent normal scores: one integral per candidate, exact to 1e-7; smaller
probabilities are 0.
`probability_of_best_together(mean, covariance, seed)` is for correlated ones: the shares of 256 draws that depend on
`seed` alone, each with a standard error of at most 0.032; exact if no two scores are correlated. Both are compiled,
can be called from compiled loops with the same results, and return an array that sums to 1.

>>> import numpy as np
>>> probability_of_best(np.array([0.0, 0.0, 5.0]), np.array([1.0, 1.0, 0.5])).round(3).tolist()
[0.0, 0.0, 1.0]
>>> probability_of_best(np.array([0.1, 0.0]), np.array([0.1, 0.1])).round(4).tolist()
[0.7602, 0.2398]
"""

from coterie.models._kernels.probability import (
    draw_from,
    first_best,
    pick,
    probability_of_best,
    probability_of_best_together,
    uniform_at,
)

__all__ = [
    "draw_from", "first_best", "pick", "probability_of_best", "probability_of_best_together", "uniform_at",
]  # fmt: skip
